from opwire import SyncClient

client = SyncClient("opwire.toml")
print(client.call("shop.order", {"lines": [{"article": "tea", "price": 4.5}]}))
for visitor in client.subscribe("shop.visitors", {"count": 2}):
    print(visitor)
