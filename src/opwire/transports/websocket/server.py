"""`WebSocketServer`: the end that listens. It serves and calls like any other, and relays between its clients."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import count
from secrets import token_hex
from ssl import SSLContext
from typing import TypedDict

from msgspec.structs import replace
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Origin

from opwire.errors import CallError, ErrorCode, check_above_zero, check_choice, system_message
from opwire.model.identity import Identity
from opwire.names import counted
from opwire.protocol import events
from opwire.protocol.events import BULK, CallAborted, CallEvent, CallRequested, decode_event, encode_event, is_final
from opwire.protocol.transport import Address, Receiver
from opwire.runtime.limits import TokenBucket
from opwire.runtime.text import get_logger, one_line
from opwire.transports.link import Backlogs, Link
from opwire.transports.websocket.admission import TOO_MUCH, Admission, AdmissionPolicy
from opwire.transports.websocket.connection import SUBPROTOCOL, WebSocketConnection
from opwire.transports.websocket.relay import MARGIN, Peer, Relay, identity_json, read_identity
from opwire.transports.websocket.routes import (
    ANONYMOUS,
    SERVER,
    Balance,
    Dropped,
    EventHead,
    RequestedHead,
    RoutedCall,
    Routes,
)

logger = get_logger("opwire.transports.websocket")

# Close codes: an invalid message, one before the welcome, one that came too late.
MALFORMED, UNEXPECTED, LATE = 4400, 4401, 4408

PROBES = ("/healthz", "/readyz")
"""Paths that answer a plain GET of an orchestrator with 200, without a token."""

HEARTBEAT = 3.0  # seconds between pings: a frozen peer is detected after 6 to 9 s

_GOING_AWAY = 1001
_MAX_BACKLOG = 64 * 1024 * 1024  # for a peer with a grant: a relay cannot wait, as the end of a call does
_MAX_FULL_BACKLOGS = 4  # the total of these peers
_MAX_ANONYMOUS_BACKLOG = 2 * 1024 * 1024  # for a peer without a grant
_MAX_FULL_ANONYMOUS_BACKLOGS = 32  # the total of these
_SECONDS_BETWEEN_CHECKS = 0.01  # for open calls
_MAX_INVALID_MESSAGES = 100  # after which a connection is closed
_MAX_ERROR_LENGTH = 200  # that its sender sees
_closed = partial(CallError, ErrorCode.UNAVAILABLE, "this end is closed")
_RESPONSES = (events.CallResponded, events.CallCompleted, events.CallFailed, events.CallProgress, events.CallQuestion)


class ServerOptions(TypedDict, total=False):
    """The keyword arguments of `WebSocketServer`."""

    heartbeat: float
    max_message: int
    ssl: SSLContext | None
    origins: Sequence[str]
    max_connections: int
    max_pending: int
    max_calls: int
    max_operations: int
    max_backlog: int
    hello_timeout: float
    balance: Balance
    rate: float | None
    burst: int


class WebSocketServer:
    """A `Transport` that listens for clients, and relays between them. Clients connect to `url`.

        server = WebSocketServer(port=8765)
        async with PendingRequestMap(server) as calls, CallHandler(registry, calls):
            ...

    `heartbeat` is the number of seconds between pings; a silent connection is ended after two to three. A client has at
    most `max_calls` open calls, makes at most `rate` calls per second (after `burst` at once), and serves at most
    `max_operations`. `balance` chooses the server of an operation for the next call.
    Web pages are rejected unless their origin is among `origins`: any page that a user visits could connect otherwise.

    No identity can use up `max_connections`: when they are all in use, a new connection replaces one of the identity
    with the most, preferably one without a token. Up to `max_pending` connections wait for admission; above that, the
    oldest of them is dropped. Up to `max_backlog` bytes are queued for a peer that does not read, or 2 MB if the policy
    has admitted it without a grant; in total, 4 and 32 times as many.

    This is a building block: without an `admission` policy, every connection is anonymous and may announce anything.
    `Hub` is the complete product. Identities can be trusted, since the server writes them itself. `own` is the identity
    of the server's own program: a peer that serves one of its calls cannot call on with it, even if its grant
    delegates. `routes` and `relay` are those between the clients, and other hubs.

    Raises:
        UsageError: an invalid option.
    """

    local = False
    trusted = True
    vouches = True
    lossy = False

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        heartbeat: float = HEARTBEAT,
        max_message: int = events.MAX_MESSAGE,
        ssl: SSLContext | None = None,
        origins: Sequence[str] = (),
        max_connections: int = 1_000,
        max_pending: int = 500,
        max_calls: int = 10_000,
        max_operations: int = 20_000,
        max_backlog: int = _MAX_BACKLOG,
        hello_timeout: float = 5.0,
        balance: Balance = "least_busy",
        rate: float | None = None,
        burst: int = 1_000,
    ) -> None:
        check_above_zero(
            heartbeat=heartbeat,
            max_message=max_message,
            max_connections=max_connections,
            max_pending=max_pending,
            max_calls=max_calls,
            max_operations=max_operations,
            max_backlog=max_backlog,
            hello_timeout=hello_timeout,
            rate=rate,
            burst=burst,
        )
        check_choice(Balance, balance=balance)
        self._host = host
        self._port = port
        self._heartbeat = heartbeat
        self._max_message = max_message
        self._ssl = ssl
        self._origins = [None, *map(Origin, origins)]
        self._max_connections = max_connections
        self._max_pending = max_pending
        self._max_backlog = max_backlog
        self._hello_timeout = hello_timeout
        self._new_routes = partial(Routes, max_calls=max_calls, max_operations=max_operations, balance=balance)
        self._rate = None if rate is None else partial(TokenBucket, rate, burst)
        if self._rate is not None:
            self._rate()  # raises here what it would raise for each connection
        self._policy: AdmissionPolicy | None = None
        self.own: Identity | None = None
        self.split: Container[str] = ()  # see `Routes`
        self.eligible: Callable[[str, str | None], Container[Address] | None] | None = None
        self._receiver: Receiver | None = None
        self._listener: asyncio.Server | None = None
        self.connections: set[Peer] = set()  # all of them; the relay has those that are welcomed
        self._pending: dict[Peer, None] = {}  # not welcomed yet, the oldest first
        self._backlogs = Backlogs(_MAX_FULL_BACKLOGS * max_backlog)
        self._anonymous_backlog = min(max_backlog, _MAX_ANONYMOUS_BACKLOG)
        self._anonymous_backlogs = Backlogs(_MAX_FULL_ANONYMOUS_BACKLOGS * self._anonymous_backlog)
        self._reset()

    @property
    def admission(self) -> AdmissionPolicy | None:
        """The policy that admits clients and their operations; set before the start."""
        return self._policy

    @admission.setter
    def admission(self, policy: AdmissionPolicy | None) -> None:
        self._policy = policy
        self._reset()

    def _reset(self) -> None:
        policy = self._policy
        self.routes = self._new_routes(identifies=policy is not None)
        self.routes.own = identity_json(self.own)
        self.routes.split, self.routes.eligible = self.split, self.eligible
        self._going = False  # clients were asked to leave
        self.relay = Relay(self.routes, self._deliver, self._session_message)
        self._admission = Admission(policy, self.routes, self._welcome, self._make_room)
        self.routes.unserved = None if policy is None else self._admission.unserved
        # A client that remembers the addresses of another server must not mistake ours for them.
        prefix = token_hex(4)
        self._addresses = (f"{prefix}-{number}" for number in count(1))

    @property
    def url(self) -> str:
        """Return the URL for clients; known after the start."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'wss' if self._ssl else 'ws'}://{host}:{self._port}"

    def __repr__(self) -> str:
        state = "closed" if self._listener is None else counted(len(self.peers), "client")
        return f"<WebSocketServer at {self.url}, {state}>"

    @property
    def listening(self) -> bool:
        """Return whether clients can connect."""
        return self._listener is not None and self._listener.is_serving()

    @property
    def peers(self) -> list[Address]:
        """Return the addresses of the connected clients."""
        return [address for address, peer in self.relay.peers.items() if not peer.hub]

    @property
    def relayed(self) -> tuple[int, int, int]:
        """Return the calls between clients since the start: ended, of these failed, and open ones."""
        return self.relay.ended, self.relay.failed, self.routes.relayed

    def leave(self, hub: Peer, reason: str, *, connected: bool) -> None:
        """Remove another hub, which was added by `relay.join`, and fail its calls; it may still be connected."""
        self.relay.leave(hub, reason, connected=connected)
        if self._receiver is not None:
            self._receiver.lost(hub.address, reason)

    @property
    def dropped(self) -> Counter[Dropped]:
        """Return the numbers of dropped events since the start, by reason."""
        return self.routes.dropped

    async def start(self, receiver: Receiver) -> None:
        """Listen."""
        self._receiver = receiver
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._accept,
                self._host,
                self._port,
                ssl=self._ssl,
                ssl_handshake_timeout=None if self._ssl is None else self._hello_timeout,
            )
        except OSError as error:
            message = f"cannot listen on {self._host}:{self._port}: {system_message(error)}"
            raise CallError(ErrorCode.UNAVAILABLE, message) from error
        self._port = self._listener.sockets[0].getsockname()[1]

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations."""
        self._open()
        self.routes.announce(SERVER, operation_ids)

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving these operations."""
        self.routes.withdraw(SERVER, operation_ids)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Return the addresses of all servers; `wait` is ignored, since they are known."""
        self._open()
        return self.routes.servers()

    def request(self, event: CallRequested) -> Address:
        """Send a request to one of the servers of its operation."""
        self._open()
        address = self.routes.choose(event.operation_id, event.sticky_key, event.version)
        self.send(event, address)
        return address

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer."""
        receiver, limit = self._receiver, self._max_message
        if self._listener is None or receiver is None:
            raise _closed()
        if to == SERVER:  # through the wire format too, so that it is the same as for any peer
            receiver.received(decode_event(encode_event(event, limit=limit), limit=limit), SERVER)
            return
        peer = None if to is None else self.relay.peers.get(to)
        if peer is None:
            raise CallError(ErrorCode.UNAVAILABLE, "the peer is gone")
        kind = type(event)
        call = self.routes.open_call(peer.address, event.request_id)
        waits_for = None if call is None else call.server
        if waits_for is not None and waits_for != SERVER and kind in _RESPONSES:
            raise CallError(ErrorCode.UNAVAILABLE, f"{peer.address} waits for the answer of another peer")
        message = encode_event(event, limit=min(limit, peer.max_message))
        if isinstance(event, CallRequested):
            self._send_request(peer, event, message)
            return
        if kind is CallAborted:
            self.routes.give_up(SERVER, event.request_id, peer.address)
        peer.send(message, control=kind not in BULK, caller=SERVER if waits_for is None else None)
        if call is not None and waits_for == SERVER and is_final(event):
            self.routes.end(call)

    def _send_request(self, peer: Peer, event: CallRequested, message: bytes) -> None:
        """Send a request of the server's own, and record the identity that its server may delegate.

        The identity of the server's own program is not delegated.
        """
        is_program = self.own is not None and event.identity == self.own
        identity = ANONYMOUS if is_program else identity_json(event.identity)
        call = RoutedCall(
            event.request_id,
            SERVER,
            peer.address,
            event.credits is not None,
            identity,
            progress=event.progress is True,
            questions=event.questions is True,
            delegable=not is_program,
            operation_id=event.operation_id,
            began=time.monotonic(),
            request_bytes=len(message),
            parent_request_id=event.parent_request_id,
        )
        self.routes.open(call)
        try:
            peer.send(message, control=False, caller=SERVER)
        except CallError:
            self.routes.end(call)
            raise

    def go_away(self, reason: str = "the server is about to leave") -> None:
        """Reject new connections, and tell clients to send no more requests. Calls in flight go on until `close`."""
        self._going = True
        if self._listener is not None:
            self._listener.close()
        for peer in self.relay.peers.values():
            if not peer.hub:
                peer.notify(events.GoAway(reason=reason))

    async def moved(self, timeout: float) -> None:
        """Wait after `go_away` until all clients have moved elsewhere, or cannot; at most this many seconds."""
        until, peers = time.monotonic() + timeout, self.relay.peers
        while time.monotonic() < until and any(not peer.moved and not peer.hub for peer in peers.values()):  # noqa: ASYNC110
            await asyncio.sleep(_SECONDS_BETWEEN_CHECKS)

    async def idle(self, timeout: float) -> bool:
        """Reject new requests, and wait until no calls are in flight; return False if some are after the timeout."""
        until = time.monotonic() + timeout
        self.routes.closing = True
        while len(self.routes) and time.monotonic() < until:  # noqa: ASYNC110  the table is pure, without callbacks
            await asyncio.sleep(_SECONDS_BETWEEN_CHECKS)
        return not len(self.routes)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._listener is None:
            return
        self.go_away()
        self._listener = None
        await self._admission.close(self.connections)
        await asyncio.gather(*(peer.connection.close(_GOING_AWAY, "the server leaves") for peer in self.connections))
        self.connections.clear()
        self._pending.clear()
        self._reset()

    def _open(self) -> Receiver:
        if self._listener is None or self._receiver is None:
            raise _closed()
        return self._receiver

    # --- connections --------------------------------------------------------------------------------------------------

    def _accept(self) -> Link:
        core = ServerProtocol(origins=self._origins, subprotocols=[SUBPROTOCOL], max_size=self._max_message + MARGIN)
        peer = Peer(next(self._addresses), None if self._rate is None else self._rate())

        def greeted(request: Request | Response) -> None:
            if isinstance(request, Request):  # the core of a server parses nothing else
                # Probes of an orchestrator. While the server drains it does not listen, so it is ready if it answers.
                is_probe = request.path in PROBES
                core.send_response(core.reject(HTTPStatus.OK, "ok\n") if is_probe else core.accept(request))
                peer.connection.reply()

        peer.connection = WebSocketConnection(
            core,
            greeted=greeted,
            arrived=partial(self._first_message, peer),
            lost=partial(self._lost, peer),
            max_backlog=self._anonymous_backlog,
        )
        peer.connection.expect("hello", self._hello_timeout, LATE)
        self.connections.add(peer)
        self._pending[peer] = None
        if len(self._pending) > self._max_pending:
            oldest = next((waiting_peer for waiting_peer in self._pending if not waiting_peer.greeted), peer)
            del self._pending[oldest]
            oldest.connection.link.abort(f"{self._max_pending} connections wait for admission")
        return peer.connection.link

    def _make_room(self, newcomer: Peer) -> None:
        """Replace a connection by that of a peer, if all are in use.

        Raises:
            CallError: RATE_LIMITED, if all the others have as much right to theirs.
        """
        peers = [peer for peer in self.relay.peers.values() if not peer.hub]
        if len(peers) < self._max_connections:
            return
        groups = Counter(peer.group for peer in peers)
        if newcomer.group is not None and groups[None]:
            largest = None
        else:
            largest = max(groups, key=lambda group: groups[group])
            if newcomer.group is None or groups[largest] <= groups[newcomer.group] + 1:
                full = f"there are {self._max_connections:,} connections already"
                raise CallError(ErrorCode.RATE_LIMITED, full, retryable=True)
        group = [peer for peer in peers if peer.group == largest]
        leaving = next((peer for peer in group if self.routes.idle(peer.address)), group[0])
        leaving.connection.end(TOO_MUCH, "its place is needed for others")

    def _welcome(self, peer: Peer, hello: events.Hello) -> None:
        peer.welcomed = True
        self._pending.pop(peer, None)
        peer.max_message = hello.max_message
        link = peer.connection.link
        if self._policy is None or peer.grant is not None:
            link.max_backlog, link.backlogs = self._max_backlog, self._backlogs
        else:
            link.backlogs = self._anonymous_backlogs
        self.relay.join(peer)
        peer.connection.arrived = partial(self.relay.arrived, peer)
        beat = max(1, round(self._heartbeat * 1000))
        peer.notify(
            events.Welcome(version=events.VERSION, peer=peer.address, max_message=self._max_message, heartbeat_ms=beat)
        )
        peer.connection.beat(self._heartbeat)

    def _lost(self, peer: Peer, reason: str) -> None:
        self.connections.discard(peer)
        self._pending.pop(peer, None)
        self._admission.leave(peer)
        if peer.welcomed:
            if served := self.routes.operations(peer.address):
                what = one_line(served[0]) + (f" and {len(served) - 1:,} more" if len(served) > 1 else "")
                whose = f" of {one_line(peer.group)}" if peer.group else ""
                logger.warning("connection %s%s, which served %s, was lost: %s", peer.address, whose, what, reason)
            self.relay.leave(peer, reason)
            if self._receiver is not None:
                self._receiver.lost(peer.address, reason)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _first_message(self, peer: Peer, message: bytes) -> None:
        """Handle a message before the welcome; the relay gets those after it."""
        try:
            event = events.decode_message(message, limit=self._max_message)
        except CallError:
            peer.connection.end(MALFORMED, "invalid first message: expected session.hello")
            return
        match event:
            case events.Hello(version=version) if version == events.VERSION and not peer.greeted:
                peer.greeted = True
                self._admission.enter(peer, event)
            case events.Hello() if peer.greeted:
                peer.connection.end(UNEXPECTED, "session.hello comes once")
            case events.Hello():
                peer.connection.end(MALFORMED, f"unknown version {event.version}: this server speaks {events.VERSION}")
            case _:
                first = "nothing comes before session.welcome" if peer.greeted else "session.hello comes first"
                peer.connection.end(UNEXPECTED, first)

    def _session_message(self, peer: Peer, message: bytes) -> None:
        try:
            event = events.decode_message(message, limit=self._max_message + MARGIN)
        except CallError as error:
            self._malformed(peer, error)
            return
        match event:
            case events.WireAnnounce() | events.Withdraw():
                self._admission.change(peer, event)
            case events.Who():
                peer.notify(events.Here(id=event.id, peers=self.routes.servers()))
            case events.GoAway():
                peer.moved = True
                self._admission.withdraw(peer, self.routes.operations(peer.address), moves=self._going)
            case _:
                self._malformed(peer, CallError(ErrorCode.PROTOCOL_ERROR, f"{type(event).__name__} was not expected"))

    def _deliver(self, peer: Peer, message: bytes, head: EventHead, identity: bytes) -> None:
        """Deliver an event to the server itself. A request has the identity of its route, whatever it states."""
        if self._receiver is None or self._listener is None:
            return
        try:
            event = decode_event(message, limit=self._max_message + MARGIN)
        except CallError as error:
            if isinstance(head, RequestedHead):
                self.routes.give_up(peer.address, head.request_id)
                self._malformed(peer, error)
            else:  # fail the server's own call
                self._malformed(peer, CallError(error.code, error.message))
                self._receiver.received(events.CallFailed.of(head.request_id, error), peer.address)
                if (
                    self.routes.open_call(SERVER, head.request_id) is not None
                ):  # neither the table nor the peer ended it
                    with suppress(CallError):
                        self.send(
                            CallAborted(request_id=head.request_id, reason=error.message[:_MAX_ERROR_LENGTH]),
                            peer.address,
                        )
        else:
            if type(event) is CallRequested:
                proven_identity = None if identity is ANONYMOUS else read_identity(identity)
                if event.identity is not proven_identity or event.credential is not None:
                    event = replace(event, identity=proven_identity, credential=None)
            self._receiver.received(event, peer.address)

    def _malformed(self, peer: Peer, error: CallError) -> None:
        """Fail the call of an invalid message at its sender; the connection stays open for a while."""
        self.routes.dropped["malformed"] += 1
        peer.invalid_messages += 1
        message = error.message[:_MAX_ERROR_LENGTH]
        if peer.invalid_messages == 1:  # more of them would fill the log
            logger.warning("invalid message from %s: %s", peer.address, message)
        if peer.invalid_messages > _MAX_INVALID_MESSAGES:
            peer.connection.end(MALFORMED, f"{_MAX_INVALID_MESSAGES} invalid messages")
            return
        match error.details:
            case {"requestId": str(request_id)}:
                peer.notify(events.CallFailed.of(request_id, CallError(error.code, message)))
            case _:
                pass
