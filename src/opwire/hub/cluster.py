"""Several hubs as one: they share their routes and pass calls to each other, over a broker.

Each hub is one peer of the broker. It streams what its own clients serve to the other hubs (`RouteFeed`), and adds each
of them to its relay as a peer (`HubPeer`). Leases, tokens and probes of the broker are those of any other call, so a
call that crosses ends exactly once, and a hub that is gone is noticed like any other server.

Rule 1: a hub announces what its own clients and its own registry serve, never what it learned from another hub, and a
request from a hub goes to a client, never to a third hub: a call crosses at most once.
Rule 2: the hub of a caller establishes its identity, and whether it may delegate; the others believe it. Therefore the
prefix is for hubs alone: credentials of the broker, or a shared secret (`ClusterSecret`), keep others out.
Rule 3: an operation counts as unknown after every other hub has said which change of its routes is the latest, and all
changes up to these have arrived.

On the way a request id is `<address of the caller>/<its request id>`; ids without a slash are requests of the hubs
themselves: `opwire.hub.routes` and `opwire.hub.sync`.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import blake2b
from hmac import compare_digest
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Unpack, cast

from msgspec import Struct, field
from msgspec.structs import replace

from opwire.auth.tokens import MIN_TOKEN, rejected
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub.remote_operations import DescribedOperation, RemoteOperations
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.operation import Change, OperationSpec, is_own
from opwire.observe.monitor import Statistics
from opwire.protocol.description import OperationInfo
from opwire.protocol.discovery import SelfDescription
from opwire.protocol.events import (
    MAX_ID,
    CallAborted,
    CallAnswer,
    CallCredit,
    CallEvent,
    CallFailed,
    CallRequested,
    SessionEvent,
    SessionMessage,
    decode_event,
    encode_event,
)
from opwire.protocol.handler import CallHandler
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address
from opwire.registry import OperationRegistry
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.tasks import cancel_tasks, spawn
from opwire.runtime.text import get_logger
from opwire.transports.broker import BrokerTransport
from opwire.transports.connect import TransportOptions, connect
from opwire.transports.websocket.relay import MARGIN, MAX_IDENTITY, Peer, identity_json
from opwire.transports.websocket.routes import ANONYMOUS, SERVER, RequestedHead, read_head

if TYPE_CHECKING:
    from opwire.transports.websocket.server import WebSocketServer

logger = get_logger("opwire.hub")

PREFIX = "opwire-hubs"
"""The default prefix of the hubs on their broker."""

ROUTES, SYNC = "opwire.hub.routes", "opwire.hub.sync"

_MAX_HUBS = 1_000  # and as many that have not proven yet that they are hubs
_MAX_OPERATIONS_PER_HUB = 200_000
_MAX_DESCRIBED_BYTES = 256 * 1024 * 1024  # for one hub
_MAX_LOGGED_REJECTIONS = 1_000
_MAX_IGNORED_ADDRESSES = 10_000  # that did not prove to be hubs
_SECONDS_IGNORED = 60.0
_SECONDS_TO_REPLY = 0.25  # for the hubs that are there already
_SECONDS_BETWEEN_SEARCHES = 5.0  # for hubs that were missed
_ROUTES_TIMEOUT = 5.0  # seconds
_PROOF_TIMEOUT = 3.0  # seconds
_MAX_SECONDS_PER_TURN = 0.005  # registering a route of 1 MB takes ten times as long
_PROOF_LIFETIME, _MAX_CLOCK_SKEW = 20.0, 10.0  # seconds
_ANY_SIZE = 2**62
_NO_CALLS = Statistics()
_ADDRESS = re.compile(r"[0-9a-f]{16}")  # of a peer of a broker

# --- proof ------------------------------------------------------------------------------------------------------------


class ClusterSecret:
    """Proves that requests come from a hub that knows the secret, and not from another client of the broker.

        NatsTransport("nats://…", prefix="opwire-hubs", signed=ClusterSecret(os.environ["SECRET"]))

    A request is valid for some seconds, once, at the hub to which it was sent. Everything else is proven by the token
    of its request.

    Raises:
        UsageError: the secret is too short.
    """

    verifies = True

    def __init__(self, secret: str) -> None:
        if len(secret) < MIN_TOKEN:
            raise UsageError(f"the secret of a cluster needs at least {MIN_TOKEN} characters: secrets.token_urlsafe()")
        self._key = secret.encode(errors="surrogatepass")
        # Proofs that were used, in two generations: each is remembered for longer than it is valid, at any rate.
        self._used: set[str] = set()
        self._used_before: set[str] = set()
        self._generation = 0.0  # when it began

    def leaving(self, event: CallRequested, to: Address | None = None) -> CallRequested:
        """Return a request with its proof."""
        until = int(time.time() + _PROOF_LIFETIME)
        return replace(event, credential=f"{until}.{self._signature(event, until, to)}")

    def arriving(self, event: CallRequested, here: Address | None = None) -> CallRequested:
        """Check the proof of a request.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        until, _, signature = (event.credential or "").partition(".")
        now = time.time()
        valid = (
            until.isdecimal()
            and len(until) < 16
            and now - _MAX_CLOCK_SKEW < int(until) < now + _PROOF_LIFETIME + _MAX_CLOCK_SKEW
        )
        if not valid or not compare_digest(self._signature(event, int(until), here).encode(), signature.encode()):
            raise rejected("a request needs the secret of the cluster", "missing, wrong or expired proof")
        if now - self._generation > _PROOF_LIFETIME + 2 * _MAX_CLOCK_SKEW:
            self._used, self._used_before, self._generation = set(), self._used, now
        if signature in self._used or signature in self._used_before:
            raise rejected("the request was used before", "replayed request")
        self._used.add(signature)
        return replace(event, credential=None)

    def ended(self, request_id: str) -> None:
        """Forget a request; there is nothing to forget."""

    def _signature(self, event: CallRequested, until: int, to: Address | None) -> str:
        # The input encodes to the same JSON before and after its transport.
        proven = replace(event, credential=None, deadline=until, timeout_ms=None, traceparent=None, tracestate=None)
        return self.proof(f"{to}/".encode() + encode_event(proven, limit=_ANY_SIZE))

    def proof(self, text: bytes) -> str:
        """Return what only a holder of the secret can compute from a text."""
        return blake2b(text, key=blake2b(self._key, person=b"opwire-hubs-1").digest(), digest_size=16).hexdigest()


def cluster_transport(
    url: str | Sequence[str], *, secret: str | None = None, **options: Unpack[TransportOptions]
) -> BrokerTransport:
    """Return the transport of a cluster; the options are those of the transport.

    Raises:
        UsageError: the URL or the secret is invalid.
    """
    urls = [url] if isinstance(url, str) else list(url)
    if any(url.startswith(("ws://", "wss://")) for url in urls):
        raise UsageError("the hubs of a cluster meet on a broker: cluster is the URL of Redis or NATS")
    if secret is not None:
        options["signed"] = ClusterSecret(secret)
    options.setdefault("prefix", PREFIX)
    return cast("BrokerTransport", connect(url, **options))


# --- routes -----------------------------------------------------------------------------------------------------------

Version = tuple[str, str]
"""A version of an operation: the operation's id, and the version."""


class RouteChange(Struct, omit_defaults=True):
    """A change of the routes of a hub, or (without an operation) the end of those that it had when asked.

    `number` counts the changes, from 1. Without a description the operation is not served there any more; `expected`:
    it is expected back.
    """

    number: int
    id: str = ""
    version: str = ""
    description: dict[str, Any] | None = None
    expected: bool = False
    proof: str = ""  # in the first one, if there is a secret


class RouteFeed:
    """What this hub offers to others: a stream for each of them, in which only the last change of a route counts."""

    def __init__(self) -> None:
        self.number = 0
        self._offered: dict[Version, RouteChange] = {}
        self._followers: dict[asyncio.Event, dict[Version, RouteChange]] = {}

    def put(self, id: str, version: str, spec: OperationSpec | None, *, expected: bool = False) -> None:
        """Offer a version of an operation, or (None) do not offer it any more."""
        key = id, version
        if spec is None and key not in self._offered:
            return
        self.number += 1
        change = RouteChange(self.number, id, version, expected=expected)
        if spec is None:
            del self._offered[key]
        else:
            change.description = OperationInfo.of(spec, _NO_CALLS).plain()
            self._offered[key] = change
        for news, changes in self._followers.items():
            changes.pop(key, None)  # so that numbers ascend
            changes[key] = change
            news.set()

    def __contains__(self, key: Version) -> bool:
        return key in self._offered

    async def follow(self) -> AsyncIterator[RouteChange]:
        """Yield what is offered, and then every change."""
        news, changes = asyncio.Event(), dict(sorted(self._offered.items(), key=lambda item: item[1].number))
        self._followers[news] = changes
        number, greeted = self.number, False
        try:
            while True:
                while changes:
                    yield changes.pop(next(iter(changes)))
                if not greeted:
                    greeted = True
                    yield RouteChange(number)
                news.clear()
                await news.wait()
        finally:
            del self._followers[news]


# --- other hubs -------------------------------------------------------------------------------------------------------


class HubPeer(Peer):
    """Another hub, as a peer of the relay."""

    hub = True

    def __init__(self, address: Address, transport: BrokerTransport, max_message: int) -> None:
        super().__init__(address)
        self.welcomed = True
        self.max_message = max_message
        self._transport = transport

    def send(self, message: bytes, *, control: bool, caller: Address | None = None) -> None:
        """Send a message of a client to the hub that serves the call, or that has its caller.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, RATE_LIMITED, UNAVAILABLE; PROTOCOL_ERROR, if the message is invalid.
        """
        self._pass(decode_event(message, limit=self.max_message + MARGIN), caller)

    def notify(self, event: CallEvent | SessionEvent, sender: Address = SERVER) -> None:
        """End a call there: one that it serves by `call.aborted`, or one of its callers by `call.error`."""
        if isinstance(event, SessionMessage):
            return
        try:
            self._pass(event, sender if isinstance(event, CallAborted) else None)
        except CallError as error:
            logger.debug("could not notify the hub at %s: %s", self.address, error)

    def _pass(self, event: CallEvent, caller: Address | None) -> None:
        if caller is not None:
            event = replace(event, request_id=f"{caller}/{event.request_id}")
            if len(event.request_id) > MAX_ID:
                raise CallError(ErrorCode.VALIDATION_ERROR, "the request id is too long to be passed to another hub")
        self._transport.send(event, self.address)


class _KnownHub(Struct, eq=False):
    """The state of another hub: which changes of its routes have arrived.

    It is `proven` by a request or by its routes. Until then it is only a peer that was found on the broker: it is not a
    peer of the relay, and leaves no room for others if there are many.
    """

    peer: HubPeer
    proven: bool = False
    sizes: dict[Version, int] = field(default_factory=dict[Version, int])  # of descriptions, in bytes
    described: int = 0  # their sum
    number: int = -1
    complete: bool = False  # everything that it offered at first has arrived
    lost: bool = False
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None


class _ClusterCalls(PendingRequestMap):
    """The calls of the hubs themselves. Events of other calls, with a slash in their ids, go to the relay."""

    def __init__(self, cluster: "Cluster", transport: BrokerTransport) -> None:
        super().__init__(transport)
        self._cluster = cluster

    def received(self, event: CallEvent, sender: Address) -> None:
        if isinstance(event, CallRequested):
            self._cluster.meet(sender, proven=True)  # by its first request, a new hub makes itself known
        if "/" in event.request_id:
            self._cluster.relay(event, sender)
        else:
            super().received(event, sender)

    def lost(self, peer: Address | None, reason: str) -> None:
        super().lost(peer, reason)
        self._cluster.lost(peer, reason)


class Cluster:
    """Connects a hub to the others on a broker. `server` relays, `remote` lists their operations in the registry.

    Raises:
        UsageError: the hubs have no secret, and the cluster is not open.
    """

    def __init__(
        self,
        transport: BrokerTransport,
        server: "WebSocketServer",
        remote: RemoteOperations,
        registry: OperationRegistry,
        *,
        is_open: bool = False,
    ) -> None:
        self._transport = transport
        self._secret = transport.signed if isinstance(transport.signed, ClusterSecret) else None
        if self._secret is None and not is_open:
            raise UsageError(
                "a cluster needs a secret, or any client of its broker could join as a hub: set cluster_secret (on the "
                "command line OPWIRE_CLUSTER_SECRET), the same for all hubs; or cluster_open, if only hubs may use its "
                "prefix on that broker"
            )
        self._server = server
        self._remote = remote
        self._registry = registry
        self._calls = _ClusterCalls(self, transport)
        self._feed = RouteFeed()
        self._handler = CallHandler(self._own_operations(), self._calls, name="hub", kind="hub")
        self._hubs: dict[Address, _KnownHub] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._barrier: asyncio.Task[None] | None = None
        self._stop_watching: Callable[[], object] = lambda: None
        self._rejected: set[str] = set()  # logged already
        self._ignored = BoundedDict[Address, float](_MAX_IGNORED_ADDRESSES)  # until when, in monotonic time

    def _own_operations(self) -> OperationRegistry:
        registry, public = OperationRegistry(normalize="off"), AccessControl(public=True)

        async def routes(context: Context) -> AsyncIterator[Any]:
            """Stream the routes of this hub."""
            if self._secret is not None:
                yield RouteChange(0, proof=self._secret.proof((context.request_id or "").encode()))
            async for change in self._feed.follow():
                yield change

        async def sync() -> int:
            """Return the number of the latest change."""
            return self._feed.number

        registry.subscription(ROUTES, access=public)(routes)
        registry.query(SYNC, access=public)(sync)
        return registry

    async def start(self) -> None:
        """Connect to the broker, and learn the routes of the hubs that are there."""
        self._remote.on_local = self._offer
        await self._calls.start()
        await self._handler.start()
        await self._search(_SECONDS_TO_REPLY)
        try:
            async with asyncio.timeout(_ROUTES_TIMEOUT):
                await asyncio.gather(*(self._until(hub, 0) for hub in list(self._hubs.values())))
        except TimeoutError:
            logger.warning("some hubs did not send their routes within %g s; they are awaited", _ROUTES_TIMEOUT)
        spawn(self._keep_searching(), self._tasks)

    def offer_own(self) -> None:
        """Offer the operations of the hub's own registry, now and when it changes."""
        for spec in self._registry.list():
            self._changed(Change("added", spec))
        self._stop_watching = self._registry.on_change(self._changed)

    def withdraw_own(self) -> None:
        """Offer the operations of the hub's own registry no longer."""
        self._stop_watching()
        for spec in self._registry.list():
            if spec.id not in self._remote:
                self._feed.put(spec.id, spec.version, None)

    def _changed(self, change: Change) -> None:
        id = change.spec.id
        if id not in self._remote and not is_own(id):
            self._feed.put(id, change.spec.version, None if change.kind == "removed" else change.spec)

    def _offer(self, operation_id: str, version: str) -> None:
        spec, expected = self._remote.served_here(operation_id, version)
        self._feed.put(operation_id, version, spec, expected=expected)

    async def close(self) -> None:
        """Disconnect."""
        self._stop_watching()
        self._remote.on_local = lambda _id, _version: None
        await cancel_tasks(*self._tasks)
        await self._handler.close()
        await self._calls.close()

    # --- routes of others ---------------------------------------------------------------------------------------------

    def meet(self, address: Address, *, proven: bool = False) -> None:
        """Add another hub, and follow its routes. Any client of the broker can state an address, such as `server`.

        `proven`: it has sent a valid request. Without that it has to send its routes soon.
        """
        hub = self._hubs.get(address)
        if hub is None:
            if address == self._transport.address or not _ADDRESS.fullmatch(address):
                return
            if not proven and self._ignored.get(address, 0.0) > time.monotonic():
                return
            if sum(known_hub.proven == proven for known_hub in self._hubs.values()) >= _MAX_HUBS:
                return
            hub = self._hubs[address] = _KnownHub(HubPeer(address, self._transport, self._transport.max_message))
            hub.task = spawn(self._follow(hub), self._tasks)
            if not proven:
                spawn(self._await_proof(hub), self._tasks)
        if proven:
            self._accept(hub)

    def _accept(self, hub: _KnownHub) -> None:
        """Use a hub that is proven."""
        if not hub.proven:
            hub.proven = True
            self._ignored.pop(hub.peer.address, None)
            self._remote.hubs.add(hub.peer.address)
            self._server.relay.join(hub.peer)
            self._server.routes.address = self._transport.address or ""
            spawn(self._notify(hub), self._tasks)

    async def _await_proof(self, hub: _KnownHub) -> None:
        await asyncio.sleep(_PROOF_TIMEOUT)
        if not hub.proven:
            self.lost(hub.peer.address, f"it did not prove to be a hub within {_PROOF_TIMEOUT:g} s", connected=True)

    def lost(self, address: Address | None, reason: str, *, connected: bool = False) -> None:
        """Remove a hub that is gone, or (None) all of them; its operations linger.

        A hub that is still `connected` holds the leases of its calls: it would wait for those that end here unnoticed.
        """
        for hub_address in [address] if address is not None else list(self._hubs):
            hub = self._hubs.pop(hub_address, None)
            if hub is not None:
                hub.lost = True
                if hub.proven:
                    self._server.leave(hub.peer, f"the hub at {hub_address} is gone: {reason}", connected=connected)
                    self._remote.lost(hub_address)
                    self._remote.hubs.discard(hub_address)
                elif connected:
                    self._ignored[hub_address] = (
                        time.monotonic() + _SECONDS_IGNORED
                    )  # so that it delays lookups only once
                if hub.task is not None and hub.task is not asyncio.current_task():
                    hub.task.cancel()
                spawn(self._notify(hub), self._tasks)

    async def _search(self, wait: float) -> None:
        for address in await self._transport.servers(wait):
            self.meet(address)

    async def _keep_searching(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_SEARCHES if self._transport.connected else _SECONDS_TO_REPLY)
            try:
                await self._search(_SECONDS_TO_REPLY)
            except CallError as error:
                logger.info("the other hubs cannot be found at the moment: %s", error)

    async def _follow(self, hub: _KnownHub) -> None:
        address, reason = hub.peer.address, "it has left"
        first, context, began = True, Context(request_id=token_hex(12)), time.monotonic()
        expected = "" if self._secret is None else self._secret.proof((context.request_id or "").encode())
        try:
            changes = self._calls.subscribe(ROUTES, to=address, context=context, output_type=RouteChange)
            async for item in changes:
                if first and not compare_digest(item.data.proof.encode(), expected.encode()):
                    raise CallError(ErrorCode.UNAUTHENTICATED, "it does not know the secret of this cluster")
                self._accept(hub)
                self._apply(hub, item.data)
                await self._notify(hub)
                first = False
                if time.monotonic() - began > _MAX_SECONDS_PER_TURN:
                    await asyncio.sleep(0)
                    began = time.monotonic()
        except CallError as error:
            reason = error.message
            logger.info("the routes of the hub at %s cannot be followed any more: %s", address, reason)
        self.lost(address, reason, connected=True)

    async def _notify(self, hub: _KnownHub) -> None:
        async with hub.news:
            hub.news.notify_all()

    def _apply(self, hub: _KnownHub, change: RouteChange) -> None:
        address, id = hub.peer.address, change.id
        hub.number = max(hub.number, change.number)
        if not id:
            hub.complete = not change.proof
        elif change.description is None:
            self._withdraw(hub, change)
        elif id not in self._registry or id in self._remote:  # otherwise it is served here as well
            try:
                operation = self._checked(hub, change)
                self._remote.add(address, [operation])
                self._server.routes.announce(address, [id], [id] if self._remote.is_subscription(id) else [])
            except CallError as error:
                self._withdraw(hub, change)
                if id not in self._rejected and len(self._rejected) < _MAX_LOGGED_REJECTIONS and len(id) <= MAX_ID:
                    self._rejected.add(id)
                    logger.warning("ignoring an operation of the hub at %s: %s", address, error.message)

    def _checked(self, hub: _KnownHub, change: RouteChange) -> DescribedOperation:
        """Return the operation of a change.

        Raises:
            CallError: VALIDATION_ERROR, if it is invalid or served in another way; RATE_LIMITED.
        """
        info = OperationInfo.read(change.description)
        if (info.id, info.version) != (change.id, change.version) or is_own(info.id) or len(info.id) > MAX_ID:
            wrong = "its description is that of another operation, or has an id that is reserved or too long"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        fingerprint, key = info.fingerprint(), (info.id, info.version)
        operation = self._remote.check(info, fingerprint.digest)
        self._remote.check_conflict(hub.peer.address, operation)
        described = hub.described - hub.sizes.get(key, 0) + fingerprint.size
        if described > _MAX_DESCRIBED_BYTES or (key not in hub.sizes and len(hub.sizes) >= _MAX_OPERATIONS_PER_HUB):
            limit = f"{_MAX_OPERATIONS_PER_HUB:,} operations and {_MAX_DESCRIBED_BYTES:,} bytes"
            raise CallError(ErrorCode.RATE_LIMITED, f"at most {limit} are accepted from one hub")
        hub.sizes[key], hub.described = fingerprint.size, described
        return operation

    def _withdraw(self, hub: _KnownHub, change: RouteChange) -> None:
        address = hub.peer.address
        hub.described -= hub.sizes.pop((change.id, change.version), 0)
        leave = self._remote.lost if change.expected else self._remote.remove
        leave(address, [change.id], change.version)
        if not self._remote.serves(address, change.id):  # not even another version
            self._server.routes.withdraw(address, [change.id])

    # --- certainty ----------------------------------------------------------------------------------------------------

    async def look_up(self, operation_id: str) -> None:
        """Wait until an operation has a server, or all changes of the routes so far have arrived.

        Raises:
            CallError: UNAVAILABLE, the other hubs cannot be asked at the moment, or spokes may still be connecting.
        """
        if is_own(operation_id) or (operation_id in self._registry and not self._remote.is_absent(operation_id)):
            return
        before = self._barrier
        if before is not None and not before.done():  # it began before this call: the change may be a later one
            await asyncio.wait([before])
        if self._barrier is before or self._barrier is None:
            self._barrier = spawn(self._synchronise(), self._tasks)
        try:
            await asyncio.shield(self._barrier)
        except (CallError, TimeoutError) as error:
            unsure = f"{operation_id} is not served here, and other hubs cannot be asked at the moment: {error}"
            raise CallError(ErrorCode.UNAVAILABLE, unsure) from error
        self._remote.check_unknown(operation_id)

    async def _synchronise(self) -> None:
        if not self._transport.connected:
            raise CallError(ErrorCode.UNAVAILABLE, "the broker of the hubs is not connected")
        async with asyncio.timeout(_ROUTES_TIMEOUT):
            await asyncio.gather(*map(self._catch_up, list(self._hubs.values())))

    async def _catch_up(self, hub: _KnownHub) -> None:
        async with hub.news:  # one that was just found may be a hub, or another client of the broker
            await hub.news.wait_for(lambda: hub.lost or hub.proven)
        if hub.lost:
            return
        try:
            latest = await self._calls.call(SYNC, to=hub.peer.address, output_type=int, timeout=_ROUTES_TIMEOUT)
        except CallError:
            if hub.lost or hub.number < 0:  # it may not be a hub at all
                return
            raise
        await self._until(hub, latest.data)

    async def _until(self, hub: _KnownHub, number: int) -> None:
        async with hub.news:
            await hub.news.wait_for(lambda: hub.lost or (hub.complete and hub.number >= number))

    # --- calls --------------------------------------------------------------------------------------------------------

    def relay(self, event: CallEvent, sender: Address) -> None:
        """Pass on an event of a call that crosses."""
        hub = self._hubs.get(sender)
        if hub is None or not hub.proven:
            if isinstance(event, CallRequested):  # not from a hub, or from too many: otherwise it is kept for a reply
                refused = CallError(ErrorCode.UNAVAILABLE, "this hub does not accept the sender as another hub")
                stranger = HubPeer(sender, self._transport, self._transport.max_message)
                stranger.notify(CallFailed.of(event.request_id, refused))
            return  # otherwise it is lost, and so are its calls
        peer, id, identity, caller = hub.peer, event.request_id, ANONYMOUS, None
        is_from_caller = isinstance(event, CallCredit | CallAnswer)
        if isinstance(event, CallRequested):
            identity, event = identity_json(event.identity), replace(event, identity=None)
            if len(identity) > MAX_IDENTITY or len(id) > MAX_ID:
                large = CallError(ErrorCode.PAYLOAD_TOO_LARGE, "the identity or the request id is too long")
                peer.notify(CallFailed.of(id, large))
                return
        elif isinstance(event, CallAborted):
            is_from_caller = self._server.routes.open_call(sender, id) is not None
        if not is_from_caller and not isinstance(event, CallRequested):  # from the server of a call that was made here
            caller, _, request_id = id.partition("/")
            event = replace(event, request_id=request_id)
        try:
            message = encode_event(event, limit=peer.max_message + MARGIN)
            head = read_head(message)
            head.peer = caller
            if isinstance(head, RequestedHead):
                self._server.relay.pass_request(peer, message, head, identity)
            else:
                self._server.relay.pass_on(peer, message, head)
        except CallError as error:
            logger.debug("an event of the hub at %s was dropped: %s", sender, error)

    def description(self, about: SelfDescription, caller: Address) -> SelfDescription | None:
        """Return the description of what this hub offers, for callers at other hubs."""
        return about.of(lambda spec: (spec.id, spec.version) in self._feed) if caller in self._hubs else None
