"""The ways from a caller to a registry, with a real server wherever one stands between them."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from opwire import Identity, OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth import Grant, allow_anonymous
from opwire.hub import Hub, Spoke
from opwire.mcp.client import from_mcp
from opwire.mcp.server import serve_mcp
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from opwire.protocol import PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport

ME = Identity(id="me", scopes=("*",))

Caller = PendingRequestMap | OperationRegistry
"""Who calls: over a transport, or by the operations that were read from a surface."""

Way = Callable[[OperationRegistry], AbstractAsyncContextManager[Caller]]


@asynccontextmanager
async def over_memory(registry: OperationRegistry) -> AsyncGenerator[Caller]:
    bus = MemoryBus(codec=True)
    async with Spoke(registry, MemoryTransport(bus)), Spoke(None, MemoryTransport(bus)) as caller:
        yield caller.calls


@asynccontextmanager
async def over_websocket(registry: OperationRegistry) -> AsyncGenerator[Caller]:
    """From spoke to spoke: the hub passes it on."""
    async with (
        Hub(None, "ws://127.0.0.1:0", authenticate=allow_anonymous(Grant(ME, announces=("*",)))) as hub,
        Spoke(registry, hub.url),
        Spoke(None, hub.url) as caller,
    ):
        yield caller.calls


def over_broker(url: str) -> Way:
    @asynccontextmanager
    async def over(registry: OperationRegistry) -> AsyncGenerator[Caller]:
        async with Spoke(registry, url, anonymous=ME), Spoke(None, url) as caller:
            yield caller.calls

    return over


@asynccontextmanager
async def over_mcp(registry: OperationRegistry) -> AsyncGenerator[Caller]:
    app = serve_mcp(registry, name="served").asgi(anonymous=ME)
    async with (
        listening(app, on_drain=app.drain, drain_timeout=1) as address,
        from_mcp(f"{address}/mcp", trust_annotations=True) as tools,
    ):
        yield _registry_of(tools)


@asynccontextmanager
async def over_http(registry: OperationRegistry) -> AsyncGenerator[Caller]:
    async with (
        serve_http(registry, anonymous=ME).listening(drain_timeout=1) as address,
        from_openapi(f"{address}/openapi.json", trust_annotations=True) as api,
    ):
        yield _registry_of(api)


def _registry_of(source: Any) -> OperationRegistry:
    registry = OperationRegistry()
    registry.follow(source)
    return registry


WAYS: dict[str, Way] = {"memory": over_memory, "websocket": over_websocket, "mcp": over_mcp, "http": over_http}
