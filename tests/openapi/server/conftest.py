"""One served registry for the tests of a module."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest_asyncio

from opwire import (
    AccessControl,
    CallError,
    Context,
    Item,
    OperationRegistry,
    OperationSpec,
    OperationType,
    Schema,
    http_envelope,
    mcp_envelope,
)
from tests.openapi.server.served import Client, served


@dataclass
class Line:
    """One line of an order."""

    article: str
    price: float = 1.0
    parts: "list[Line] | None" = None


PUBLIC = AccessControl(public=True)


def make_registry() -> OperationRegistry:
    """Operations of every kind."""
    registry = OperationRegistry()
    add_numbers(registry)
    add_shop(registry)
    add_odd_ones(registry)
    add_failures(registry)
    add_far_ones(registry)
    add_plain_ones(registry)
    add_streams(registry)
    return registry


def add_numbers(registry: OperationRegistry) -> None:
    @registry.query("math.add", title="Add", tags=["numbers"], access=PUBLIC)
    async def add(a: int, b: int = 2) -> int:
        """Add two integers."""
        return a + b

    @registry.query("math.find", access=PUBLIC)
    async def find(
        flags: list[bool] | None = None, size: float | None = None, kind: Literal["a", "b"] = "a", text: str = ""
    ) -> dict[str, Any]:
        return {"flags": flags, "size": size, "kind": kind, "text": text}


def add_shop(registry: OperationRegistry) -> None:
    @registry.mutation("shop.order", access=AccessControl(required_scopes=("shop:write",)))
    async def order(lines: list[Line]) -> Line:
        return lines[0]

    @registry.mutation("shop.close", access=AccessControl(required_scopes=("shop:admin",)))
    async def close() -> None: ...

    @registry.query("shop.me")
    async def me(context: Context) -> dict[str, Any]:
        identity = context.identity
        return {
            "id": identity and identity.id,
            "request": context.request_id,
            "left": context.remaining,
            "metadata": dict(context.metadata),
        }


def add_odd_ones(registry: OperationRegistry) -> None:
    @registry.query("odd.a/b ~é..")
    async def odd() -> bytes:
        return b"\x00\xff"

    @registry.query("deep.admin.list")
    async def admin() -> str:
        return "all"

    @registry.query("odd...")
    async def dots() -> None: ...

    @registry.query("odd.text")
    async def text() -> str:
        return "<script>alert(1)</script>"


def add_failures(registry: OperationRegistry) -> None:
    @registry.query("fail.on_purpose")
    async def on_purpose() -> None:
        raise CallError("RATE_LIMITED", "once a minute", {"limit": 1}, retry_after=59.5)

    @registry.query("fail.by_mistake")
    async def by_mistake() -> None:
        raise ValueError("the secret is 42")

    @registry.query("fail.slow")
    async def slow() -> None:
        await asyncio.Event().wait()


def add_far_ones(registry: OperationRegistry) -> None:
    @registry.query("far.page")
    async def page() -> Any:
        headers = {
            "Link": '<https://api.example/?page=2>; rel="next"',
            "X-RateLimit-Remaining": "7",
            "X-Request-Id": "far-1",
            "Set-Cookie": "session=secret",
            "Server": "far",
            "ETag": 'W/"1"\r\nx-evil: 1',
        }
        return http_envelope([1], status_code=206, headers=headers, content_type="application/json")

    @registry.query("far.tool")
    async def tool() -> Any:
        return mcp_envelope([], is_error=True, content=[{"type": "text", "text": "no such city"}])


def add_plain_ones(registry: OperationRegistry) -> None:
    whole = OperationSpec(
        namespace="plain", name="sum", input_schema=Schema({"type": "array", "items": {"type": "integer"}})
    )
    registry.register(whole, lambda input, context: sum(input), inline=True)
    registry.register(OperationSpec(namespace="plain", name="any"), lambda input, context: input, inline=True)
    registry.register(OperationSpec(namespace="plain", name="unserved", access=PUBLIC))


def add_streams(registry: OperationRegistry) -> None:
    @registry.subscription("clock.ticks")
    async def ticks(count: int = 3, resume_from: str | None = None) -> AsyncIterator[Item[int]]:
        for number in range(int(resume_from or 0), count):
            yield Item(number, cursor=str(number + 1))

    @registry.subscription("clock.plain")
    async def plain() -> AsyncIterator[int]:
        yield 1

    feed = OperationSpec(namespace="clock", name="feed", type=OperationType.SUBSCRIPTION, resumable=True)

    async def events(input: Any, context: Context) -> AsyncGenerator[Any]:
        for number in range(2):
            yield http_envelope(
                {"n": number},
                status_code=200,
                headers={},
                content_type="text/event-stream",
                event_type="up\ndate",
                last_event_id=f"far-{number}",
            )
        raise CallError("UNAVAILABLE", "the far end is gone")

    registry.register(feed, events)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[Client]:
    async with served(make_registry(), title="Shop", version="2.1") as found:
        yield found
