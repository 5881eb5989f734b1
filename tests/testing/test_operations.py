"""What users need to test their operations."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire import CallError, Context, OperationRegistry
from opwire.testing import interface_digests, with_stand_ins


def program() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.offer")
    async def offer(currency: str, context: Context) -> float:
        return 10 * (await context.env.rates.get(currency=currency)).data

    @registry.mutation("rates.get")
    def get(currency: str) -> float:
        raise AssertionError("a test calls the real API")

    return registry


async def test_a_stand_in_is_called_instead_of_the_operation() -> None:
    registry = program()
    tested = with_stand_ins(registry, {"rates.get": lambda currency: 2.0})
    assert (await tested.execute("shop.offer", {"currency": "USD"})).data == 20.0
    spec = tested.get_spec("rates.get")
    assert spec is not None
    assert spec.type == "mutation"
    with pytest.raises(CallError, match="error id"):  # the program is unchanged
        await registry.execute("shop.offer", {"currency": "USD"})


async def test_an_operation_of_a_source_that_is_not_connected_can_be_stood_in_for() -> None:
    async def watch(article: str) -> AsyncIterator[str]:
        yield article

    def stock(article: str) -> int:
        return 3

    tested = with_stand_ins(OperationRegistry(), {"warehouse.stock": stock, "warehouse.watch": watch})
    assert (await tested.execute("warehouse.stock", {"article": "tea"})).data == 3
    assert [item.data async for item in tested.subscribe("warehouse.watch", {"article": "tea"})] == ["tea"]


def test_a_digest_changes_with_the_schemas_and_not_with_the_description() -> None:
    def digests(function: Any, description: str) -> dict[str, str]:
        registry = OperationRegistry()
        registry.query("shop.order", description=description)(function)
        return interface_digests(registry)

    def order(article: str) -> str:
        return article

    def order_pieces(article: str, pieces: int) -> str:
        return article * pieces

    assert digests(order, "Order.") == digests(order, "Order an article.")
    assert list(digests(order, "")) == ["shop.order"]
    assert digests(order, "") != digests(order_pieces, "")
