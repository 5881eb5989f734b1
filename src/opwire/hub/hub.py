"""A hub: where spokes meet. It lets them in, shows what they serve, passes calls on, and serves a registry itself.

auth = StaticTokens({os.environ["BILLING"]: Grant(Identity(id="billing"), announces=("billing",))})

async with Hub(registry, "ws://0.0.0.0:8700", auth=auth) as hub:
    await hub.registry.execute("billing.charge", {"order": 17})  # served by a spoke

async with Spoke(billing, "ws://hub.example:8700", token=os.environ["BILLING"]):  # elsewhere
    ...
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from opwire.auth import Authenticator
from opwire.call import CallHandler, PendingRequestMap
from opwire.errors import CallError, ErrorCode
from opwire.hub.connect import connect
from opwire.hub.keeper import MAX_DESCRIBED, Keeper
from opwire.hub.lookout import Lookout
from opwire.hub.mirror import HUB, Mirror
from opwire.operation import Identity
from opwire.registry import OperationRegistry
from opwire.transports.link import check_numbers

if TYPE_CHECKING:  # its package may not be installed
    from opwire.transports.websocket import WebSocketServer

PORT = 8700
"""Where a hub listens if its URL does not say."""


class Hub:
    """Shows what spokes serve in its registry, as long as they do, and passes calls on between them.

        async with Hub(registry, "ws://127.0.0.1:8700", auth=auth) as hub:
            print(hub.url, [spec.id for spec in hub.registry.list()])

    `auth` says who a spoke is, and in which namespaces it may announce operations. Without it, connections are
    anonymous: they may call what is public, and announce nothing. `auth=anybody(Grant(…, announces=("*",)))` opens the
    hub. The hub writes the caller's identity on every request that it passes on; what a spoke says itself does not
    count. What the hub's program calls without a context is called as "hub", which may do everything; the spoke that
    serves such a call cannot call on with that identity.

    With the URL of a broker there is nobody to let in: the hub shows whatever others serve there, and looks again every
    `refresh` seconds. `linger` is how long, in seconds, spokes may need to come back: so long operations stay in the
    registry when their last server was lost, and so long after its start a hub answers UNAVAILABLE, and not
    OPERATION_NOT_FOUND, to spokes that call what nobody has announced yet. `identity` is whom callers count as that
    have none; `max_described` bounds the bytes that one spoke may describe; `options` are those of `WebSocketServer`
    (`ssl`, `balance`, `rate`, `max_calls`, …) or of the broker's transport.
    """

    def __init__(
        self,
        registry: OperationRegistry | None = None,
        url: str = f"ws://127.0.0.1:{PORT}",
        *,
        auth: Authenticator | None = None,
        name: str = "hub",
        version: str = "0.0.0",
        identity: Identity | None = None,
        linger: float = 30.0,
        refresh: float = 5.0,
        max_described: int = MAX_DESCRIBED,
        **options: Any,
    ) -> None:
        check_numbers(refresh=refresh, max_described=max_described)
        if linger:  # 0: operations of a lost spoke are gone with it
            check_numbers(linger=linger)
        self.registry = OperationRegistry() if registry is None else registry
        self._url = url
        self._server = _listening(url, options) if url.startswith(("ws://", "wss://")) else None
        if self._server is None and auth is not None:
            signed = "over a broker nobody shows a token: give signed=SignedRequests(…) instead of auth="
            raise CallError(ErrorCode.VALIDATION_ERROR, signed)
        self.transport = self._server or connect(url, **options)
        self.calls = PendingRequestMap(self.transport)
        self._mirror = Mirror(self.registry, self.calls, linger=linger)
        self.handler = CallHandler(
            self.registry,
            self.calls,
            identity=identity,
            name=name,
            version=version,
            announces=lambda spec: spec.id not in self._mirror,
        )
        if self._server is not None:
            self._server.gate = Keeper(auth, self.calls, self._mirror, max_described=max_described)
            self._server.own = HUB
        self._refresh = refresh
        self._looking: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where spokes connect to."""
        return self._url if self._server is None else self._server.url

    async def start(self) -> Self:
        """Listen, or look around.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._mirror.begin()
        await self.calls.start()
        try:
            await self.handler.start()
            if self._server is None:
                lookout = Lookout(self.calls, self._mirror, self.registry, self.handler.about().id)
                await lookout.look()
                self._looking = asyncio.create_task(lookout.keep_looking(self._refresh))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self, timeout: float = 30.0) -> bool:
        """Send the spokes away, let the calls in hand finish, and close. False if some did not end in time."""
        until = time.monotonic() + timeout
        if self._server is not None:
            self._server.go_away("the hub is about to leave")
        served = await self.handler.drain(timeout)
        passed_on = self._server is None or await self._server.idle(until - time.monotonic())
        await self.close()
        return served and passed_on

    async def close(self) -> None:
        """Leave. What is in hand is stopped: `drain` lets it finish."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self.handler.close()
        await self.calls.close()
        self._mirror.clear()


def _listening(url: str, options: dict[str, Any]) -> "WebSocketServer":
    try:
        from opwire.transports.websocket import WebSocketServer
    except ModuleNotFoundError as error:
        missing = f"a hub needs the package {error.name}: pip install 'opwire[websocket]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing, retryable=False) from error
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # not named: there may be a password in it
        raise CallError(ErrorCode.VALIDATION_ERROR, "a hub listens at ws://host:port or wss://host:port") from None
    if (parts.scheme == "wss") != (options.get("ssl") is not None):
        raise CallError(ErrorCode.VALIDATION_ERROR, "wss:// needs ssl=, and ssl= needs wss://")
    return WebSocketServer(parts.hostname or "127.0.0.1", PORT if port is None else port, **options)
