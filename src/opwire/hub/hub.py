"""`Hub`: a WebSocket server that connects spokes, lists what they serve in its registry, and relays their calls.

auth = StaticTokens({os.environ["BILLING"]: Grant(Identity(id="billing"), announces=("billing",))})

async with Hub(registry, "ws://0.0.0.0:8700", authenticate=auth) as hub:
    await hub.registry.execute("billing.charge", {"order": 17})  # served by a spoke

async with Spoke(billing, "ws://hub.example:8700", token=os.environ["BILLING"]):  # elsewhere
    ...
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, Unpack
from urllib.parse import urlsplit

from msgspec import Raw, Struct, field, json
from msgspec.structs import replace

from opwire.auth.tokens import Authenticator, Grant
from opwire.errors import (
    CallError,
    ErrorCode,
    UsageError,
    check_counts,
    check_instance,
    check_known,
    check_not_below_zero,
    needs_extra,
)
from opwire.hub.remote_operations import HUB, DescribedOperation, RemoteOperations
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.model.operation import OperationType
from opwire.names import counted
from opwire.observe.logs import OK
from opwire.observe.monitor import STATISTICS, CallRecord, ServerStatistics
from opwire.protocol.description import OperationInfo
from opwire.protocol.discovery import OPERATIONS
from opwire.protocol.events import id_batches
from opwire.protocol.handler import CallHandler
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address
from opwire.registry import OperationRegistry
from opwire.runtime.tasks import AsyncResource
from opwire.transports.connect import option_names
from opwire.typed.plain import MAX_DEPTH, read_json, survey
from opwire.version import VERSION

if TYPE_CHECKING:
    from opwire.transports.broker import BrokerTransport
    from opwire.transports.websocket.routes import RoutedCall
    from opwire.transports.websocket.server import ServerOptions

PORT = 8700
"""The default port of a hub."""

MAX_DESCRIBED = 64 * 1024 * 1024
"""Bytes of the descriptions of one spoke, by default."""

_MOVING = 5.0  # seconds for clients to connect to another hub
_STATISTICS = 2.0  # seconds for the figures of a spoke
_MAX_OBSERVED = 1_000  # spokes that are asked for their figures
_DESCRIBE_TIMEOUT = 10.0  # seconds between two descriptions
_MAX_DESCRIBING = 4  # spokes that describe themselves at the same time
_TURN = 2.0  # seconds after which the next one may begin
_YIELD_EVERY = 8  # descriptions after which other tasks run
_MAX_UNREQUESTED = 1_000  # descriptions beside the requested ones: a peer may not support requests for some
_json_decoder = json.Decoder()
_FAULTS_OF_SPOKE = (ErrorCode.VALIDATION_ERROR, ErrorCode.ACCESS_DENIED, ErrorCode.PAYLOAD_TOO_LARGE)


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
    reaches the spokes of all. `cluster_secret` proves them to each other; without it, every client of that broker that
    may use the prefix "opwire-hubs" is believed.

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
        **options: "Unpack[ServerOptions]",
    ) -> None:
        check_instance(OperationRegistry, registry=registry)
        check_instance(Authenticator, authenticate=authenticate)
        check_instance(Identity, anonymous=anonymous)
        check_counts(max_described=max_described)
        check_not_below_zero(linger=linger)  # 0: operations of a lost spoke are removed at once
        with needs_extra("websocket"):
            from opwire.hub.cluster import Cluster, cluster_transport
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
            if isinstance(cluster, str | Sequence):
                cluster = cluster_transport(cluster, secret=cluster_secret)
            elif cluster_secret is not None:
                raise UsageError("cluster_secret goes with a URL; a transport has signed=ClusterSecret(…)")
            self._cluster = Cluster(cluster, self.transport, self._remote, self.registry)
            self.handler.look_up = self._remote.look_up = self._cluster.look_up
            self.handler.describe_to = self._cluster.description

    def __repr__(self) -> str:
        return f"<Hub of {counted(len(self.registry), 'operation')} over {self.transport!r}>"

    @property
    def url(self) -> str:
        """The URL that spokes connect to."""
        return self.transport.url

    def _statistics(self, found: ServerStatistics) -> ServerStatistics:
        """Add the calls between spokes to the figures of the hub itself."""
        found = self._own_statistics(found)
        relayed, failed, open_calls = self.transport.relayed
        return replace(
            found,
            operations=len(self.registry),
            calls=found.calls + relayed,
            errors=found.errors + failed,
            in_flight=found.in_flight + open_calls,
            relayed=relayed,
            spokes=len(self.transport.peers),
        )

    def _watched(self, watched: bool) -> None:
        self.transport.relay.observer = self._relayed if watched else None

    def _relayed(self, call: "RoutedCall", code: str) -> None:
        """Show a call between two spokes to the watchers."""
        monitor, outcome, ended = self.handler.monitor, code or OK, time.monotonic()
        if call.caller != self._address:  # otherwise it was timed where it was made
            monitor.time(call.operation_id, ended - call.began, outcome)
        if monitor.watched:
            monitor.record_lazily(outcome, _record, call, outcome, ended, monitor.name)

    async def servers(self) -> list[ServerStatistics]:
        """Return the figures of the spokes; peers that do not respond, such as plain clients, are left out."""
        as_hub = Context(identity=HUB)

        async def observe(address: Address) -> ServerStatistics | None:
            try:
                found = await self.calls.call(
                    STATISTICS, to=address, context=as_hub, output_type=ServerStatistics, timeout=_STATISTICS
                )
                return found.data
            except CallError:  # it only calls, or is about to leave
                return None

        found = await asyncio.gather(*map(observe, self.transport.peers[:_MAX_OBSERVED]))
        return [each for each in found if each is not None]

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
        await self.transport.moved(min(_MOVING, timeout / 2))
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


def _record(call: "RoutedCall", outcome: str, ended: float, server: str) -> CallRecord:
    """Return the record of a call that ended at this monotonic time."""
    return CallRecord(
        time=round((time.time() - time.monotonic() + ended) * 1000),
        request_id=call.request_id,
        operation_id=call.operation_id,
        outcome=outcome,
        ms=round((ended - call.began) * 1000, 3),
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
    found = json.decode(identity, type=Identity | None)
    return found and found.id


class _Announcement(Struct, eq=False):
    """The state of one announcement: what the hub learns about the operations in it."""

    wanted: dict[str, None]
    described: dict[str, DescribedOperation] = field(default_factory=dict[str, DescribedOperation])
    unchanged: dict[str, str] = field(default_factory=dict[str, str])  # with their digests
    rejected: dict[str, CallError] = field(default_factory=dict[str, CallError])
    unanswered: dict[str, CallError] = field(default_factory=dict[str, CallError])  # why they are not described


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


class HubAdmission:
    """The admission policy of a hub: authenticates connections, and validates the operations that they announce.

    The schemas are in the announcement, or requested from the spoke, without an identity: a spoke describes itself
    because its hub asks. What a spoke does not describe is rejected, unless its grant says `undescribed`.
    Without an authenticator, connections are anonymous and announce nothing. `max_described` bounds the bytes that one
    spoke may describe.
    """

    def __init__(
        self,
        authenticator: Authenticator | None,
        calls: PendingRequestMap,
        remote: RemoteOperations,
        *,
        max_described: int = MAX_DESCRIBED,
    ) -> None:
        self._authenticator = authenticator
        self._calls = calls
        self._remote = remote
        self._max_described = max_described
        self._describing = asyncio.Semaphore(_MAX_DESCRIBING)
        self._announcements: dict[Address, _Announcement] = {}
        self._sizes: dict[Address, dict[str, int]] = {}  # of accepted descriptions, by peer
        self._totals: Counter[Address] = Counter()

    async def admit(self, token: str | None) -> Grant | None:
        """Return the grant of a spoke with this token; None: it may call public operations.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        return None if self._authenticator is None else await self._authenticator.authenticate(token)

    async def announced(
        self, peer: Address, grant: Grant | None, operation_ids: Collection[str], descriptions: Sequence[Raw] = ()
    ) -> Mapping[str, CallError]:
        """Validate operations that a spoke announces; return the rejected ones with their errors.

        Raises:
            CallError: UNAVAILABLE, the spoke does not respond.
        """
        allowed = [each for each in operation_ids if grant is not None and grant.may_announce(each)]
        found = self._announcements[peer] = _Announcement(dict.fromkeys(allowed))
        name = "a spoke without a token" if grant is None else grant.identity.id
        for each in operation_ids:
            if each not in found.wanted:
                found.rejected[each] = CallError(ErrorCode.ACCESS_DENIED, f"{name} may not announce {each}")
        undescribed = grant is not None and grant.undescribed
        try:
            await self._learn(peer, allowed, descriptions, found)
        except CallError:
            if not undescribed:
                raise
            found.unchanged.clear()
        known = found.described.keys() | found.unchanged.keys() | found.rejected.keys()
        for id in [each for each in found.wanted if each not in known]:
            if undescribed:  # a mutation is never retried, nor called by GET
                self._describe(peer, id, {"id": id, "type": OperationType.MUTATION.value}, found)
            else:
                message = f"{OPERATIONS} of the spoke does not describe {id}"
                found.rejected[id] = found.unanswered.get(id) or CallError(ErrorCode.VALIDATION_ERROR, message)
        for id, operation in found.described.items():
            try:
                self._remote.check_conflict(peer, operation)
            except CallError as error:
                found.rejected[id] = error
        return found.rejected

    def accepted(self, peer: Address, operation_ids: Collection[str]) -> set[str]:
        """Register these of the announced operations; return the subscriptions among them."""
        found = self._announcements.pop(peer)
        self._forget_sizes(peer, found.described.keys() - set(operation_ids))
        self._remote.join(peer, [each for each in operation_ids if each in found.unchanged])
        self._remote.add(peer, [found.described[each] for each in operation_ids if each in found.described])
        return {each for each in operation_ids if self._remote.is_subscription(each)}

    def withdrawn(self, peer: Address, operation_ids: Collection[str]) -> None:
        """Remove operations that a spoke no longer serves."""
        self._remote.remove(peer, operation_ids)
        self._forget_sizes(peer, operation_ids)

    def lost(self, peer: Address) -> None:
        """Remove a spoke that has disconnected."""
        self._remote.lost(peer)
        self._announcements.pop(peer, None)
        self._sizes.pop(peer, None)
        del self._totals[peer]

    def unserved(self, operation_id: str) -> None:
        """Check that an operation without a server is unknown, and not only late.

        Raises:
            CallError: UNAVAILABLE, a spoke that serves it may still connect.
        """
        # Without an authenticator spokes announce nothing; with other hubs, they are asked first.
        if self._authenticator is not None and self._remote.look_up is None:
            self._remote.check_unknown(operation_id)

    # --- descriptions -------------------------------------------------------------------------------------------------

    async def _learn(
        self, peer: Address, operation_ids: list[str], descriptions: Sequence[Raw], found: _Announcement
    ) -> None:
        """Read the descriptions in an announcement, and request those that are missing there."""
        if descriptions:
            await self._read_carried(peer, descriptions, found)
        known = found.described.keys() | found.rejected.keys()
        for batch in id_batches([each for each in operation_ids if each not in known]):
            await self._request(peer, batch, found)
        # An unchanged operation may have been replaced meanwhile: the spoke then describes its own version.
        while stale := [each for each, digest in found.unchanged.items() if self._remote.digest(each) != digest]:
            for batch in id_batches(stale):
                await self._request(peer, batch, found, conditional=False)

    async def _request(
        self, peer: Address, batch: list[str], found: _Announcement, *, conditional: bool = True
    ) -> None:
        """Request the descriptions of a batch; split it into halves if the spoke fails to respond to it at once."""
        for each in batch:
            found.unchanged.pop(each, None)
        digests = {each: self._remote.digest(each) for each in batch} if conditional else {}
        known = {each: digest for each, digest in digests.items() if digest is not None}
        try:
            await self._read(peer, batch, known, found)
        except CallError as error:
            if error.code not in _FAULTS_OF_SPOKE:
                message = f"the spoke did not describe its operations: {error.message}"
                raise CallError(ErrorCode.UNAVAILABLE, message) from error
            if len(batch) == 1:
                found.unanswered[batch[0]] = error
                return
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                await self._request(peer, half, found, conditional=conditional)

    async def _read(self, peer: Address, batch: list[str], known: dict[str, str], found: _Announcement) -> None:
        input = {"operations": batch, "known": known} if known else {"operations": batch}
        number = unrequested = 0
        items = self._calls.subscribe(OPERATIONS, input, to=peer, idle_timeout=_DESCRIBE_TIMEOUT)
        async with self._turn(), aclosing(items):
            async for item in items:
                number += 1
                if number % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)  # buffered items would be read in one go otherwise: 25 ms per spoke
                match item.data:
                    case {"unchanged": [*ids]}:
                        same = known.keys() & {each for each in ids if isinstance(each, str)}
                        found.unchanged.update((each, known[each]) for each in same)
                    case {"id": str(id)} if id in found.wanted:
                        self._describe(peer, id, item.data, found)
                    case _:
                        unrequested += 1
                        if unrequested > _MAX_UNREQUESTED:
                            message = "the spoke describes operations that were not requested"
                            raise CallError(ErrorCode.PROTOCOL_ERROR, message)

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """Wait for a turn to read descriptions, so that calls are not delayed when all spokes connect at once.

        A turn ends after two seconds: a slow spoke continues without blocking others.
        """
        await self._describing.acquire()
        stack = ExitStack()
        stack.callback(self._describing.release)
        timer = asyncio.get_running_loop().call_later(_TURN, stack.close)
        try:
            yield
        finally:
            timer.cancel()
            stack.close()

    async def _read_carried(self, peer: Address, descriptions: Sequence[Raw], found: _Announcement) -> None:
        """Read the descriptions of an announcement. Invalid ones without an id are ignored: theirs is requested."""
        async with self._turn():
            for number, each in enumerate(descriptions):
                if number % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                try:
                    data = read_json(_json_decoder, bytes(each))
                except (ValueError, RecursionError):
                    continue
                match data:
                    case {"id": str(id)} if id in found.wanted and survey(data).deep:
                        deep = f"the description of {id} is nested deeper than {MAX_DEPTH}"
                        found.rejected[id] = CallError(ErrorCode.VALIDATION_ERROR, deep)
                    case {"id": str(id)} if id in found.wanted:
                        self._describe(peer, id, data, found)
                    case _:
                        pass  # of an operation that may not be announced, and is rejected

    def _describe(self, peer: Address, id: str, data: Any, found: _Announcement) -> None:
        found.rejected.pop(id, None)
        try:
            info = OperationInfo.read(data)
            fingerprint = info.fingerprint()
            self._forget_sizes(peer, [id])
            self._sizes.setdefault(peer, {})[id] = fingerprint.size
            self._totals[peer] += fingerprint.size
            if self._totals[peer] > self._max_described:
                self._forget_sizes(peer, [id])
                message = f"the descriptions of one spoke have at most {self._max_described:,} bytes"
                raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
            found.described[id] = self._remote.check(info, fingerprint.digest)
        except CallError as error:
            found.rejected[id] = error

    def _forget_sizes(self, peer: Address, operation_ids: Iterable[str]) -> None:
        sizes = self._sizes.get(peer, {})
        for each in operation_ids:
            self._totals[peer] -= sizes.pop(each, 0)
