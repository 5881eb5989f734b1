"""Operations to be called, and the ways in which a client reaches them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry, http_envelope, mcp_envelope
from opwire.auth import Grant, allow_anonymous
from opwire.client import Client
from opwire.hub import Hub, Spoke
from opwire.openapi.server import serve_http
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport

ME = Identity(id="me", scopes=("shop",))

Way = Callable[..., AbstractAsyncContextManager[Client]]
"""Takes a registry and the options of a client; gives the client."""


@dataclass
class Point:
    x: int
    y: int


class Samples:
    """A registry with operations of every kind, and what became of them."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()
        self.failures: dict[str, int] = {}  # how often an operation has still to fail
        self.calls: list[str] = []
        self.registry = OperationRegistry()
        self._add_plain_ones()
        self._add_waiting_ones()
        self._add_failing_ones()
        self._add_foreign_ones()

    def _add_plain_ones(self) -> None:
        registry = self.registry

        @registry.query("math.add", title="Add", tags=["numbers"])
        async def add(a: int, b: int = 2) -> int:
            """Add two integers."""
            return a + b

        @registry.query("odd.a/b ~2F é..")
        async def odd(value: Any = None) -> Any:
            return value

        @registry.query("odd.bytes")
        async def binary() -> bytes:
            return b"\x00\xff"

        @registry.query("odd.point")
        async def point() -> Point:
            return Point(1, 2)

        @registry.query("who.calls")
        async def who(context: Context) -> str | None:
            return context.identity and context.identity.id

        @registry.query("shop.secret", access=AccessControl(required_scopes=("admin",)))
        async def secret() -> int:
            return 42

    def _add_waiting_ones(self) -> None:
        registry = self.registry

        @registry.query("slow.wait")
        async def wait() -> None:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()

        @registry.query("slow.left")
        async def left(context: Context) -> float | None:
            return context.remaining

        @registry.subscription("clock.ticks")
        async def ticks(count: int = 3) -> AsyncIterator[int]:
            self.began.set()
            try:
                for number in range(count):
                    yield number
                    await asyncio.sleep(0)
            finally:
                self.stopped.set()

        @registry.subscription("clock.quiet")
        async def quiet() -> AsyncIterator[int]:
            try:
                yield 1
                await asyncio.Event().wait()
            finally:
                self.stopped.set()

        @registry.subscription("clock.fails")
        async def fails() -> AsyncIterator[int]:
            yield 1
            raise CallError("UNAVAILABLE", "no more", {"after": 1}, retry_after=2.5)

    def _add_failing_ones(self) -> None:
        registry = self.registry

        @registry.query("fail.always")
        async def always() -> None:
            raise CallError("RATE_LIMITED", "once a minute", {"limit": [1, "é"]}, retryable=False, retry_after=59.5)

        @registry.query("fail.by_mistake")
        async def by_mistake() -> None:
            raise ValueError("the secret is swordfish")

        @registry.query("fail.at_first")
        async def at_first() -> str:
            return self._after_failures("fail.at_first")

        @registry.mutation("fail.writing")
        async def writing() -> str:
            return self._after_failures("fail.writing")

    def _add_foreign_ones(self) -> None:
        registry = self.registry

        @registry.query("far.tool")
        async def tool(fails: bool = True) -> Any:
            content = [{"type": "text", "text": "no such"}, {"type": "text", "text": "city"}]
            return mcp_envelope(content, is_error=fails, content=content)

        @registry.query("far.page")
        async def page(page: int = 1) -> Any:
            link = f'<https://far.example/x?page={page + 1}>; rel="next"' if page < 3 else '<x>; rel="prev"'
            return http_envelope([page], status_code=200, headers={"Link": link}, content_type="application/json")

    def _after_failures(self, operation_id: str) -> str:
        self.calls.append(operation_id)
        if self.failures.get(operation_id, 0) > 0:
            self.failures[operation_id] -= 1
            raise CallError("UNAVAILABLE", "not yet")
        return "done"


@asynccontextmanager
async def over_registry(registry: OperationRegistry, **options: Any) -> AsyncGenerator[Client]:
    async with Client(registry, **(dict[str, Any](act_as=ME) | options)) as client:
        yield client


@asynccontextmanager
async def over_memory(registry: OperationRegistry, **options: Any) -> AsyncGenerator[Client]:
    bus, given = MemoryBus(codec=True), dict[str, Any](act_as=ME) | options
    async with (
        PendingRequestMap(MemoryTransport(bus)) as serving,
        CallHandler(registry, serving),
        Client(MemoryTransport(bus), **given) as client,
    ):
        yield client


@asynccontextmanager
async def over_hub(registry: OperationRegistry, **options: Any) -> AsyncGenerator[Client]:
    """The operations are those of a spoke: a call goes through the hub."""
    authenticate = allow_anonymous(Grant(ME, announces=("*",)))
    async with (
        Hub(None, "ws://127.0.0.1:0", authenticate=authenticate) as hub,
        Spoke(registry, hub.url),
        Client(hub.url, **options) as client,
    ):
        yield client


@asynccontextmanager
async def over_http(registry: OperationRegistry, **options: Any) -> AsyncGenerator[Client]:
    app = serve_http(registry, anonymous=ME)
    async with app.listening(drain_timeout=1) as address, Client(address, **options) as client:
        yield client


def over_broker(url: str) -> Way:
    @asynccontextmanager
    async def over(registry: OperationRegistry, **options: Any) -> AsyncGenerator[Client]:
        async with Spoke(registry, url, anonymous=ME), Client(url, **options) as client:
            yield client

    return over


WAYS: dict[str, Way] = {"registry": over_registry, "memory": over_memory, "hub": over_hub, "http": over_http}
