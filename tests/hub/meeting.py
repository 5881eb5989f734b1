"""What the tests of hubs and spokes are made with."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from opwire.auth import Authenticator, Grant, StaticTokens, allow_anonymous
from opwire.hub import BrokerNode, Hub, Spoke
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.protocol import Address
from opwire.registry import OperationRegistry
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from tests.transports.websocket.ends import Plain

BEAT = 0.2
"""Seconds between two beats where a test waits for them."""

OPEN = allow_anonymous(Grant(Identity(id="guest", scopes=("*",)), announces=("*",)))
"""Everybody may do everything."""

TOKENS = {name: f"{name}-token-of-a-test" for name in ("billing", "shop", "gateway", "alice", "mallory")}

AUTH: Authenticator = StaticTokens(
    {
        TOKENS["billing"]: Grant(Identity(id="billing", scopes=("internal",)), announces=("billing",)),
        TOKENS["shop"]: Grant(Identity(id="shop"), announces=("shop", "shared")),
        TOKENS["alice"]: Identity(id="alice", scopes=("pay",)),
        TOKENS["gateway"]: Grant(Identity(id="gateway"), announces=("gateway",), delegates=True),
        TOKENS["mallory"]: Grant(Identity(id="mallory"), announces=("mallory",)),
    }
)


def whoami(namespace: str = "billing") -> OperationRegistry:
    """An operation that returns its caller."""
    registry = OperationRegistry()

    @registry.query(f"{namespace}.whoami")
    async def whoami(context: Context) -> str | None:
        return None if context.identity is None else context.identity.id

    return registry


def adding(namespace: str = "math") -> OperationRegistry:
    """An operation that adds."""
    registry = OperationRegistry()

    @registry.query(f"{namespace}.add")
    async def add(a: int, b: int) -> int:
        return a + b

    return registry


class Waiting:
    """An operation that never ends by itself."""

    def __init__(self, id: str = "slow.wait") -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()
        self.go = asyncio.Event()
        self.registry = OperationRegistry()
        self.registry.query(id, timeout=60)(self.wait)

    async def wait(self) -> str:
        self.began.set()
        try:
            await self.go.wait()
        finally:
            self.stopped.set()
        return "done"


class Meeting:
    """Makes the hubs and spokes of one test, and closes them when it is over."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def hub(
        self, registry: OperationRegistry | None = None, url: str = "ws://127.0.0.1:0", **options: Any
    ) -> Hub:
        """A hub; open to anonymous callers without `authenticate`."""
        options.setdefault("authenticate", OPEN)
        return await self._stack.enter_async_context(Hub(registry, url, **options))

    async def node(self, url: str, registry: OperationRegistry | None = None, **options: Any) -> BrokerNode:
        """A node on a broker."""
        return await self._stack.enter_async_context(BrokerNode(registry, url, **options))

    async def spoke(self, url: str | list[str], registry: OperationRegistry | None = None, **options: Any) -> Spoke:
        """A spoke; `token` is the name of one in `TOKENS`."""
        if options.get("token") in TOKENS:
            options["token"] = TOKENS[options["token"]]
        return await self._stack.enter_async_context(Spoke(registry, url, **options))

    async def plain(self, url: str, token: str | None = None) -> Plain:
        """A peer made of the `websockets` library and JSON by hand, which has said hello."""
        options: dict[str, Any] = {"subprotocols": [Subprotocol("opwire.v1")], "compression": None}
        plain = Plain(await self._stack.enter_async_context(connect(url, **options)))
        await plain.say("session.hello", version=1, **({} if token is None else {"token": TOKENS.get(token, token)}))
        return plain

    async def welcome(self, url: str, token: str | None = None) -> Plain:
        """The same, when it is welcome."""
        plain = await self.plain(url, token)
        assert (await plain.hear())["type"] == "session.welcome"
        return plain


async def answer(plain: Plain, request_id: str) -> dict[str, Any]:
    """The next event of a call."""
    while True:
        event = await plain.hear()
        if event.get("requestId") == request_id:
            return event


def peers(hub: Hub) -> list[Address]:
    """The spokes that are connected to a hub."""
    assert isinstance(hub.transport, WebSocketServer)
    return hub.transport.peers


def connected(spoke: Spoke) -> bool:
    """Whether a spoke is at a hub at the moment."""
    assert isinstance(spoke.transport, WebSocketTransport)
    return spoke.transport.connected


def ids(registry: OperationRegistry) -> list[str]:
    """The operations of a registry."""
    return sorted(spec.id for spec in registry.list())
