"""Handlers of a module with annotations as strings."""

from __future__ import annotations

from dataclasses import dataclass

from opwire import Context, OperationRegistry


@dataclass
class Item:
    price: float


def register(registry: OperationRegistry) -> None:
    """Register functions with annotations that name module-level and enclosing types."""

    @dataclass
    class Near:
        price: float
        request: str | None

    @registry.query("future.total")
    def total(items: list[Item]) -> float:
        return sum(item.price for item in items)

    @registry.query("future.nearby")
    def nearby(item: Item, context: Context) -> Near:
        return Near(item.price, context.request_id)
