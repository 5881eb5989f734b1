"""Calls within this process; the contract itself is in `test_client`."""

import pytest

from opwire import AccessControl, CallError, Context, ErrorCode, Identity, OperationRegistry, OperationSpec
from opwire.client import Client
from tests.client.samples import ME


async def test_what_has_no_handler_cannot_be_called_and_is_not_shown() -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="known"))
    registry.register(OperationSpec(namespace="a", name="served"), lambda input, context: 1, inline=True)
    async with Client(registry) as client:
        assert [spec.id for spec in await client.operations()] == ["a.served"]
        with pytest.raises(CallError) as caught:
            await client.call("a.known")
    assert caught.value.code is ErrorCode.OPERATION_NOT_FOUND


async def test_handlers_see_their_caller_and_nested_calls_keep_it() -> None:
    registry = OperationRegistry()

    @registry.query("a.inner", access=AccessControl(public=True))
    async def inner(context: Context) -> str | None:
        return context.identity and context.identity.id

    @registry.query("a.outer", access=AccessControl(required_scopes=("shop",)))
    async def outer(context: Context) -> str | None:
        return (await context.env.a.inner()).data

    async with Client(registry, act_as=ME) as client:
        assert await client.call("a.outer") == "me"
    async with Client(registry, act_as=Identity(id="else")) as client:
        assert [spec.id for spec in await client.operations()] == ["a.inner"]
        for denied in (client.call("a.outer"), anext(client.subscribe("a.outer"))):
            with pytest.raises(CallError) as caught:
                await denied
            assert caught.value.code is ErrorCode.ACCESS_DENIED
