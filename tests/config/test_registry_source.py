"""A registry as a source of another."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from opwire import CallError, Context, Identity, OperationRegistry, OperationSpec, Progress, Schema
from opwire.config.sources import RegistrySource


@dataclass
class Line:
    price: float
    quantity: int = 1


def joined(inner: OperationRegistry) -> OperationRegistry:
    outer = OperationRegistry()
    outer.follow(RegistrySource([inner]))
    return outer


async def test_calls_arrive_as_if_the_operation_were_called_where_it_is() -> None:
    inner = OperationRegistry()

    @inner.mutation("shop.order", timeout=5)
    def order(lines: list[Line], context: Context) -> dict[str, object]:  # on a thread, with converted arguments
        context.report(1, 2)
        who = None if context.identity is None else context.identity.id
        return {"total": sum(line.price * line.quantity for line in lines), "who": who}

    outer = joined(inner)
    told: list[Progress] = []
    context = Context(identity=Identity(id="alice"), on_progress=told.append)
    envelope = await outer.execute("shop.order", {"lines": [{"price": 2.5, "quantity": 2}]}, context)
    assert envelope.data == {"total": 5.0, "who": "alice"}
    assert envelope.meta.source == "local"
    assert told == [Progress(1, 2)]
    spec, original = outer.get_spec("shop.order"), inner.get_spec("shop.order")
    assert spec is not None
    assert original is not None
    assert (spec.type, spec.timeout, spec.input_schema) == (original.type, 5, original.input_schema)


async def test_a_handler_calls_operations_of_every_source() -> None:
    inner, outer = OperationRegistry(), OperationRegistry()

    @inner.query("a.twice")
    async def twice(context: Context) -> int:
        return 2 * (await context.env.b.one()).data

    @outer.query("b.one")
    async def one() -> int:
        return 1

    outer.follow(RegistrySource([inner]))
    assert (await outer.execute("a.twice")).data == 2


async def test_a_subscription_is_closed_where_it_is_when_its_consumer_leaves() -> None:
    inner = OperationRegistry()
    ended: list[str] = []

    @inner.subscription("clock.ticks")
    async def ticks() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            ended.append("closed")

    async with aclosing(joined(inner).subscribe("clock.ticks")) as stream:
        async for envelope in stream:
            assert (envelope.data, envelope.meta.source) == (0, "local")
            break
    assert ended == ["closed"]


async def test_errors_pass_as_they_are() -> None:
    inner = OperationRegistry()

    @inner.query("a.fails")
    async def fails() -> int:
        raise CallError("RATE_LIMITED", "slow down", retry_after=3)

    inner.register(OperationSpec(namespace="a", name="known"))
    outer = joined(inner)
    with pytest.raises(CallError) as caught:
        await outer.execute("a.fails")
    assert (caught.value.message, caught.value.retry_after) == ("slow down", 3)
    with pytest.raises(CallError, match="No handler registered"):
        await outer.execute("a.known")


async def test_results_are_normalised_by_their_own_registry_and_once_more_where_that_is_asked_for() -> None:
    inner = OperationRegistry(normalize="off")
    schema = Schema({"type": "object", "properties": {"a": {"default": 1}}})
    inner.register(OperationSpec(namespace="x", name="y", output_schema=schema), lambda input, context: {})
    assert (await joined(inner).execute("x.y")).data == {}
    outer = OperationRegistry()
    outer.follow(RegistrySource([inner], normalize="fit", strip=True))
    assert (await outer.execute("x.y")).data == {"a": 1}


async def test_changes_are_followed_until_that_is_ended() -> None:
    inner, outer = OperationRegistry(), OperationRegistry()
    end = outer.follow(RegistrySource([inner]))

    @inner.query("a.one")
    async def one() -> int:
        return 1

    assert (await outer.execute("a.one")).data == 1
    inner.unregister("a.one")
    assert "a.one" not in outer
    end()
    inner.query("a.one")(one)
    assert "a.one" not in outer
