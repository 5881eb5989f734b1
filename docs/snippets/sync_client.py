from opwire import SyncClient

from shop import registry

with SyncClient(registry) as client:
    print(client.call("shop.order", {"lines": [{"article": "pot", "price": 39.0}]}))
    for visitor in client.subscribe("shop.visitors", {"count": 2}):
        print(visitor)
