"""A typed client of 2 operations, written by `opwire gen client`: the next run replaces it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, NotRequired, TypedDict

from msgspec import UNSET, UnsetType

from opwire.client import Client


def _given(input: dict[str, Any]) -> dict[str, Any]:
    """What was given, without what was left out."""
    return {name: value for name, value in input.items() if value is not UNSET}


class Line(TypedDict):
    article: str
    price: float
    quantity: NotRequired[int]


class Receipt(TypedDict):
    total: float
    currency: NotRequired[str]


class ShopOperations:
    """The operations of shop."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def order(self, lines: list[Line], *, timeout: float | None = None) -> Receipt:
        """Order some articles."""
        return await self._client.call("shop.order", {"lines": lines}, timeout=timeout)

    def visitors(
        self,
        *,
        count: int | UnsetType = UNSET,
        timeout: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Who comes in."""
        return self._client.subscribe("shop.visitors", _given({"count": count}), timeout=timeout)


class Shop:
    """2 operations, by namespace."""

    def __init__(self, client: Client) -> None:
        self.shop = ShopOperations(client)
