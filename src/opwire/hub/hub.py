"""`Hub`: a WebSocket server that connects spokes, lists what they serve in its registry, and relays their calls.

auth = StaticTokens({os.environ["BILLING"]: Grant(Identity(id="billing"), announces=("billing",))})

async with Hub(registry, "ws://0.0.0.0:8700", authenticate=auth) as hub:
    await hub.registry.execute("billing.charge", {"order": 17})  # served by a spoke

async with Spoke(billing, "ws://hub.example:8700", token=os.environ["BILLING"]):  # elsewhere
    ...
"""

import asyncio
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Self, Unpack
from urllib.parse import urlsplit

from msgspec import json
from msgspec.structs import replace

from opwire.auth.tokens import Authenticator
from opwire.errors import (
    CallError,
    UsageError,
    check_counts,
    check_instance,
    check_known,
    check_not_below_zero,
    needs_extra,
)
from opwire.hub.admission_policy import MAX_DESCRIBED, HubAdmission
from opwire.hub.remote_operations import HUB, RemoteOperations
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.names import counted
from opwire.observe.logs import OK
from opwire.observe.monitor import STATISTICS, CallRecord, ServerStatistics
from opwire.protocol.handler import CallHandler
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address
from opwire.registry import OperationRegistry
from opwire.runtime.tasks import AsyncResource
from opwire.transports.connect import option_names
from opwire.version import VERSION

if TYPE_CHECKING:
    from opwire.transports.broker import BrokerTransport
    from opwire.transports.websocket.routes import RoutedCall
    from opwire.transports.websocket.server import ServerOptions

PORT = 8700
"""The default port of a hub."""

_SECONDS_TO_MOVE = 5.0  # for clients to connect to another hub
_STATISTICS_TIMEOUT = 2.0  # seconds
_MAX_OBSERVED_SPOKES = 1_000


class Hub(AsyncResource):
    """Connects spokes: lists in its registry what they serve, while they do, and relays calls between them.

        async with Hub(registry, "ws://127.0.0.1:8700", authenticate=auth) as hub:
            print(hub.url, [spec.id for spec in hub.registry.list()])

    `authenticate` returns the identity of a spoke, and the namespaces in which it may announce operations. Without it,
    connections are anonymous: they may call public operations, and announce nothing.
    `authenticate=allow_anonymous(Grant(…, announces=("*",)))` opens the hub. The hub sets the caller's identity on
    every request that it relays; an identity that a spoke states itself is ignored. Calls of the hub's own program
    without a context are made as "hub", which may call everything; the spoke that serves such a call cannot use that
    identity for calls of its own.

    `linger` is the time in seconds that spokes have to reconnect. For so long operations stay in the registry after
    their last server was lost; and for so long after its start a hub raises UNAVAILABLE instead of OPERATION_NOT_FOUND
    for operations that were never announced.

    Hubs with the same `cluster`, the URL (or a transport) of a Redis or NATS server, are one: a caller at one of them
    reaches the spokes of all. `cluster_secret` proves them to each other. `cluster_open=True` does without: then every
    client of that broker that may use the prefix "opwire-hubs" is believed, and can act as anyone.

    `anonymous` is the identity of callers without one; `max_described` bounds the bytes that one spoke may describe;
    `options` are those of `WebSocketServer` (`ssl`, `balance`, `rate`, `max_calls`, …). `BrokerNode` is the counterpart
    for Redis and NATS, which need no hub.

    Raises:
        UsageError: the URL or an option is invalid.
        MissingExtraError: `opwire[websocket]` is not installed.
    """

    def __init__(
        self,
        registry: OperationRegistry | None = None,
        url: str = f"ws://127.0.0.1:{PORT}",
        *,
        authenticate: Authenticator | None = None,
        name: str = "hub",
        version: str = VERSION,
        anonymous: Identity | None = None,
        linger: float = 30.0,
        max_described: int = MAX_DESCRIBED,
        cluster: "str | Sequence[str] | BrokerTransport | None" = None,
        cluster_secret: str | None = None,
        cluster_open: bool = False,
        **options: "Unpack[ServerOptions]",
    ) -> None:
        check_instance(OperationRegistry, registry=registry)
        check_instance(Authenticator, authenticate=authenticate)
        check_instance(Identity, anonymous=anonymous)
        check_counts(max_described=max_described)
        check_not_below_zero(linger=linger)  # 0: operations of a lost spoke are removed at once
        with needs_extra("websocket"):
            from opwire.transports.websocket.routes import SERVER
            from opwire.transports.websocket.server import WebSocketServer
        check_known(options, option_names(WebSocketServer), "Hub, whose address is its URL,")
        self.transport = WebSocketServer(*_address(url, is_secure=options.get("ssl") is not None), **options)
        self._address = SERVER
        self.registry = OperationRegistry() if registry is None else registry
        self.calls = PendingRequestMap(self.transport)
        self._remote = RemoteOperations(self.registry, self.calls, linger=linger, versions=True)
        self.handler = CallHandler(
            self.registry,
            self.calls,
            anonymous=anonymous,
            name=name,
            version=version,
            kind="hub",
            announces=lambda spec: spec.id not in self._remote,
        )
        self.handler.monitor.on_watched = self._watched
        self._own_statistics = self.handler.monitor.amend
        self.handler.monitor.amend = self._statistics
        self.transport.own = HUB
        self.transport.split, self.transport.eligible = self._remote.split, self._remote.eligible
        self.transport.admission = HubAdmission(authenticate, self.calls, self._remote, max_described=max_described)
        self._cluster = None
        if cluster is not None:
            from opwire.hub.cluster import Cluster, cluster_transport

            if isinstance(cluster, str | Sequence):
                cluster = cluster_transport(cluster, secret=cluster_secret)
            elif cluster_secret is not None:
                raise UsageError("cluster_secret goes with a URL; a transport has signed=ClusterSecret(…)")
            self._cluster = Cluster(cluster, self.transport, self._remote, self.registry, is_open=cluster_open)
            self.handler.responder.look_up = self._remote.look_up = self._cluster.look_up
            self.handler.describe_to = self._cluster.description

    def __repr__(self) -> str:
        return f"<Hub of {counted(len(self.registry), 'operation')} over {self.transport!r}>"

    @property
    def url(self) -> str:
        """The URL that spokes connect to."""
        return self.transport.url

    def _statistics(self, statistics: ServerStatistics) -> ServerStatistics:
        """Add the calls between spokes to the figures of the hub itself."""
        statistics = self._own_statistics(statistics)
        relayed, failed, open_calls = self.transport.relayed
        return replace(
            statistics,
            operations=len(self.registry),
            calls=statistics.calls + relayed,
            errors=statistics.errors + failed,
            in_flight=statistics.in_flight + open_calls,
            relayed=relayed,
            spokes=len(self.transport.peers),
        )

    def _watched(self, watched: bool) -> None:
        self.transport.relay.observer = self._relayed if watched else None

    def _relayed(self, call: "RoutedCall", code: str) -> None:
        """Show a call between two spokes to the watchers."""
        monitor, outcome, ended_at = self.handler.monitor, code or OK, time.monotonic()
        if call.caller != self._address:  # otherwise it was timed where it was made
            monitor.time(call.operation_id, ended_at - call.began, outcome)
        if monitor.watched:
            monitor.record_lazily(outcome, _record, call, outcome, ended_at, monitor.name)

    async def servers(self) -> list[ServerStatistics]:
        """Return the figures of the spokes; peers that do not respond, such as plain clients, are left out."""
        as_hub = Context(identity=HUB)

        async def observe(address: Address) -> ServerStatistics | None:
            try:
                envelope = await self.calls.call(
                    STATISTICS, to=address, context=as_hub, output_type=ServerStatistics, timeout=_STATISTICS_TIMEOUT
                )
                return envelope.data
            except CallError:  # it only calls, or is about to leave
                return None

        results = await asyncio.gather(*map(observe, self.transport.peers[:_MAX_OBSERVED_SPOKES]))
        return [statistics for statistics in results if statistics is not None]

    async def start(self) -> Self:
        """Listen.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._remote.begin()
        try:
            if self._cluster is not None:  # first, so that callers find the operations of others from the start
                await self._cluster.start()
            await self.calls.start()
            await self.handler.start()
            if self._cluster is not None:
                self._cluster.offer_own()
        except BaseException:
            await self.close()
            raise
        return self

    async def drain(self, timeout: float = 30.0) -> bool:
        """Send clients to another hub, finish the calls in flight, and close. Return False if some did not end in time.

        Until they have moved, for at most a few seconds, their new calls are served.
        """
        until = time.monotonic() + timeout
        self.transport.go_away("the hub is shutting down")
        await self.transport.moved(min(_SECONDS_TO_MOVE, timeout / 2))
        if self._cluster is not None:
            self._cluster.withdraw_own()
        served = await self.handler.drain(max(0.0, until - time.monotonic()))
        relayed = await self.transport.idle(until - time.monotonic())
        await self.close()
        return served and relayed

    async def close(self) -> None:
        """Stop listening. Calls in flight are cancelled: `drain` finishes them first."""
        await self.handler.close()
        if self._cluster is not None:
            await self._cluster.close()
        await self.calls.close()
        self._remote.clear()


def _record(call: "RoutedCall", outcome: str, ended_at: float, server: str) -> CallRecord:
    """Return the record of a call that ended at this monotonic time."""
    return CallRecord(
        time=round((time.time() - time.monotonic() + ended_at) * 1000),
        request_id=call.request_id,
        operation_id=call.operation_id,
        outcome=outcome,
        ms=round((ended_at - call.began) * 1000, 3),
        server=server,
        via="relay",
        caller=_identity_id(call.identity),
        input_bytes=call.request_bytes,
        output_bytes=call.response_bytes or None,
        items=call.items if call.streams else None,
        parent_request_id=call.parent_request_id,
    )


@lru_cache(maxsize=1_000)  # decoding takes 3 µs, a tenth of a relayed call
def _identity_id(identity: bytes) -> str | None:
    decoded = json.decode(identity, type=Identity | None)
    return decoded and decoded.id


def _address(url: str, *, is_secure: bool) -> tuple[str, int]:
    """Return the host and port that a hub listens at."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # the URL is not in the message: it may hold a password
        raise UsageError("a hub listens at ws://host:port or wss://host:port") from None
    if parts.scheme not in ("ws", "wss"):
        raise UsageError(f"a hub listens at ws:// or wss://, not {parts.scheme}://; BrokerNode is for brokers")
    if (parts.scheme == "wss") != is_secure:
        raise UsageError("wss:// needs ssl=, and ssl= needs wss://")
    return parts.hostname or "127.0.0.1", PORT if port is None else port
