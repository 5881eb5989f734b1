"""The version of an operation that a call asks for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from opwire import AccessControl, CallError, Context, ErrorCode, OperationRegistry, OperationSpec
from opwire.client import Client
from opwire.config.sync import SyncClient
from opwire.hub import Hub, Spoke
from opwire.model.operation import Handler
from tests.client.samples import WAYS, Way
from tests.hub.meeting import OPEN

PUBLIC = AccessControl(public=True)


def shop(version: str) -> OperationRegistry:
    """Operations in a version, which return it and what their context says."""
    registry = OperationRegistry()

    @registry.query("shop.order", version=version, access=PUBLIC)
    async def order(context: Context) -> str:
        return f"{version} {dict(context.metadata)}"

    @registry.subscription("shop.orders", version=version, access=PUBLIC)
    async def orders() -> AsyncIterator[str]:
        yield version
        yield version

    @registry.query("shop.pages", version=version, access=PUBLIC)
    async def pages(after: int = 0) -> dict[str, Any]:
        return {"items": [version], "next": after + 1 if after < 2 else None}

    return registry


async def test_every_method_asks_for_a_version_and_interceptors_do_not_lose_it() -> None:
    async with (
        Hub(None, "ws://127.0.0.1:0", authenticate=OPEN) as hub,
        Spoke(shop("1"), hub.url),
        Spoke(shop("2"), hub.url),
        Client(hub.url) as client,
    ):
        seen: list[str] = []

        def spy(spec: OperationSpec, handler: Handler) -> Handler:
            seen.append(spec.id)
            return handler

        for intercepted in (False, True):
            if intercepted:
                client.use(spy)
            for version in ("1", "2"):
                assert await client.call("shop.order", version=version) == f"{version} {{}}"
                assert (await client.call_envelope("shop.order", version=version)).data == f"{version} {{}}"
                async with aclosing(client.subscribe("shop.orders", version=version)) as items:
                    assert [item async for item in items] == [version, version]
                pages = client.paginate("shop.pages", cursor=("next", "after"), items="items", version=version)
                async with aclosing(pages) as items:
                    assert [item async for item in items] == [version] * 3
        assert seen == ["shop.order", "shop.orders", "shop.pages"]
        with pytest.raises(CallError, match=r"version '3' of shop\.order is not served at the moment") as raised:
            await client.call("shop.order", version="3", timeout=1)
        assert raised.value.code is ErrorCode.UNAVAILABLE

        def in_a_thread() -> Any:
            with SyncClient(hub.url) as sync:
                return sync.call("shop.order", version="2"), list(sync.subscribe("shop.orders", version="1"))

        assert await asyncio.to_thread(in_a_thread) == ("2 {}", ["1", "1"])


async def test_a_version_that_is_not_served_is_an_error_on_every_way(way: Way) -> None:
    async with way(shop("2"), retries=None) as client:
        is_http = way is WAYS["http"]
        for method in (client.call, lambda id, **options: anext(client.subscribe(f"{id}s", **options))):
            with pytest.raises(CallError) as raised:
                await method("shop.order", version="3")
            codes = {ErrorCode.OPERATION_NOT_FOUND, ErrorCode.UNAVAILABLE}
            assert raised.value.code in ({ErrorCode.VALIDATION_ERROR} if is_http else codes)
            if not is_http:
                assert str(await method("shop.order", version="2")).startswith("2")
        assert str(await client.call("shop.order")).startswith("2")
