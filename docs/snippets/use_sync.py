from opwire import SyncClient

from shop import registry
from shop_sync import Shop

shop = Shop(SyncClient(registry)).shop
receipt = shop.order([{"article": "pot", "price": 39.0}])
print(receipt["total"], list(shop.visitors(count=2)))
