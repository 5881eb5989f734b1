"""Calls through the client that openapi-python-client made; prints what came back. Run in the judges' environment."""

# pyright: reportMissingImports=false

import json
import sys

from shop_client import AuthenticatedClient, Client
from shop_client.api.fail import fail_as_told
from shop_client.api.numbers import shop_add, shop_add_get
from shop_client.api.odd import odd_repos_get_get
from shop_client.api.plain import plain_maybe, plain_shape, plain_sum
from shop_client.api.shop import shop_find_get, shop_grow, shop_me, shop_nothing, shop_order, shop_photo, shop_rename
from shop_client.models import (
    Cat,
    Circle,
    Colour,
    Dog,
    ErrorCode,
    FailAsToldBody,
    Order,
    Problem,
    ShopAddBody,
    ShopFindGetKind,
    ShopGrowBody,
    ShopOrderBody,
    ShopPhotoBody,
    ShopRenameBody,
    Tree,
)

address, token = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token)
stranger = Client(base_url=address)

order = Order.from_dict(
    {
        "id": "5a3f1c52-7d0e-4f2b-9c7b-1f0a2c9c4b11",
        "pet": {"name": "tom", "kind": "cat"},
        "when": "2024-02-29",
        "photo": "AAH+/w==",
        "places": [[1, 2.5]],
        "labels": {"a": "b"},
    }
)
denied = shop_me.sync(client=stranger)
failed = fail_as_told.sync_detailed(client=client, body=FailAsToldBody(code=ErrorCode.RATE_LIMITED))
assert isinstance(denied, Problem)
assert isinstance(failed.parsed, Problem)
sys.stdout.write(
    json.dumps(
        {
            "query": shop_add_get.sync(client=stranger, a=40),
            "query by post": shop_add.sync(client=stranger, body=ShopAddBody(a=2**70, b=1)),
            "list": [
                each.to_dict()
                for each in shop_find_get.sync(
                    client=client, name="rex", colours=[Colour.RED, Colour.BLUE], kind=ShopFindGetKind.DOG
                )
            ],
            "mutation": shop_grow.sync(client=client, body=ShopGrowBody(Tree(1, [Tree(0, [])]))).to_dict(),
            "order": shop_order.sync(client=client, body=ShopOrderBody(order)).to_dict(),
            "union": [
                [type(pet).__name__, pet.to_dict()]
                for pet in (
                    shop_rename.sync(client=client, body=ShopRenameBody(pet=each, name="new"))
                    for each in (Cat(name="tom", lives=3), Dog(name="rex", tricks=["sit"]))
                )
            ],
            "shape": plain_shape.sync(client=client, body=Circle(round_=True, radius=1.5)).to_dict(),
            "whole": plain_sum.sync(client=client, body=[1, 2, 3]),
            "maybe": plain_maybe.sync(client=client, body=5),  # httpx cannot send null
            "nothing": shop_nothing.sync(client=client),
            "bytes": list(shop_photo.sync(client=client, body=ShopPhotoBody(size=4)).payload.read()),
            "odd": odd_repos_get_get.sync(client=client, self_=3, from_="a&b"),
            "error": [failed.status_code, failed.parsed.code.value, failed.parsed.retryable],
            "denied": [denied.status, denied.code.value],
        }
    )
)
