"""`WebSocketServer`: the end that listens. It serves and calls like any other, and relays between its clients."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from secrets import token_hex
from ssl import SSLContext
from typing import get_args

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Origin

from opwire.auth import RateLimit
from opwire.auth.tokens import is_own
from opwire.call import (
    MAX_MESSAGE,
    Address,
    CallAborted,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallRequested,
    CallResponded,
    Receiver,
    decode_event,
    encode_event,
)
from opwire.call.events import VERSION, Announce, GoAway, Hello, Here, Welcome, Who, Withdraw, decode_message
from opwire.errors import CallError, ErrorCode, check_above_zero
from opwire.operation import Identity
from opwire.transports.link import MAX_BACKLOG, Backlogs, Link
from opwire.transports.websocket.admission import TOO_MUCH, Door, Gate, Peer, Relay
from opwire.transports.websocket.connection import SUBPROTOCOL, Connection
from opwire.transports.websocket.routes import (
    MARGIN,
    NOBODY,
    SERVER,
    Balance,
    Call,
    Dropped,
    Head,
    Requested,
    Routes,
    identity_json,
    read_head,
)

logger = logging.getLogger("opwire.transports")

MALFORMED, UNEXPECTED, LATE = 4400, 4401, 4408
"""Why a connection is closed: what came cannot be read, came before the welcome, or too late."""

HEARTBEAT = 3.0
"""Seconds between two signs of life: a peer that is frozen is noticed after 6 to 9 s."""

_GOING_AWAY = 1001
_KNOWN_BACKLOGS = 16  # full backlogs that may wait altogether for peers that do not read
_ANONYMOUS_BACKLOG = 2 * 1024 * 1024  # bytes that may wait for a peer without a grant
_ANONYMOUS_BACKLOGS = 32  # full ones that may wait for these altogether
_LOOK = 0.01  # seconds between two looks at whether calls are left
_STRIKES = 100  # messages of a connection that cannot be read, after which it is closed
_SHOWN = 200  # characters of an error that are told to whoever caused it
_BULKY = (CallRequested, CallResponded)
_ANSWERS = (CallResponded, CallCompleted, CallFailed)


class WebSocketServer:
    """Listens, and is one of the ends itself: a `Transport`. `url` is where others connect to.

        server = WebSocketServer(port=8765)
        async with PendingRequestMap(server) as calls, CallHandler(registry, calls):
            ...

    `heartbeat` is how often, in seconds, every connection is pinged; one that is silent is ended after two to three
    beats. A client has at most `max_calls` calls open, makes at most `rate` a second (after `burst` at once), and
    serves at most `max_operations`. `balance` says which server of an operation gets the next call.
    Web pages are refused unless their origin is among `origins`: any page that a user looks at could connect otherwise.

    Of `max_connections`, no identity can keep all: when there is no room, a newcomer takes the place of a connection of
    the identity that has the most, first of all of one without a token. `max_pending` connections that have not been
    welcomed yet come on top; above that, the oldest of them is dropped. `max_backlog` bytes may wait for a peer that
    does not read, or 2 MB if a gate has let it in without a grant, and 16 and 32 times as many for all such peers.

    This is a building block: until it is given a `gate`, every connection is anonymous and may announce whatever it
    likes. `Hub` is the whole. Identities can be believed, since it writes them itself. `own` is the identity of the
    server's own program: a peer that serves a call of it cannot call on with it, whatever its grant says.
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
        limit: int = MAX_MESSAGE,
        ssl: SSLContext | None = None,
        origins: Sequence[str] = (),
        max_connections: int = 1_000,
        max_pending: int = 500,
        max_calls: int = 10_000,
        max_operations: int = 20_000,
        max_backlog: int = MAX_BACKLOG,
        hello_timeout: float = 5.0,
        balance: Balance = "least_busy",
        rate: float | None = None,
        burst: int = 1_000,
    ) -> None:
        check_above_zero(
            heartbeat=heartbeat,
            limit=limit,
            max_connections=max_connections,
            max_pending=max_pending,
            max_calls=max_calls,
            max_operations=max_operations,
            max_backlog=max_backlog,
            hello_timeout=hello_timeout,
        )
        if balance not in get_args(Balance):
            known = ", ".join(get_args(Balance))
            raise CallError(ErrorCode.VALIDATION_ERROR, f"balance is one of {known}, not {balance!r}")
        self._host = host
        self._port = port
        self._heartbeat = heartbeat
        self._limit = limit
        self._ssl = ssl
        self._origins = [None, *map(Origin, origins)]
        self._max_connections = max_connections
        self._max_pending = max_pending
        self._max_calls = max_calls
        self._max_operations = max_operations
        self._max_backlog = max_backlog
        self._hello_timeout = hello_timeout
        self._balance: Balance = balance
        check_above_zero(rate=rate, burst=burst)
        self._rate = None if rate is None else partial(RateLimit, rate, burst)
        if self._rate is not None:
            self._rate()  # raises here what it would raise for each connection
        self.gate: Gate | None = None  # asked from the next start on
        self.own: Identity | None = None
        self._receiver: Receiver | None = None
        self._listener: asyncio.Server | None = None
        self._connected: set[Peer] = set()  # all of them; those that are welcome are the relay's
        self._pending: dict[Peer, None] = {}  # those that are not welcome yet, the oldest first
        self._backlogs = Backlogs(_KNOWN_BACKLOGS * max_backlog)
        self._anonymous_backlog = min(max_backlog, _ANONYMOUS_BACKLOG)
        self._anonymous_backlogs = Backlogs(_ANONYMOUS_BACKLOGS * self._anonymous_backlog)
        self._open()

    def _open(self) -> None:
        self._routes = Routes(
            max_calls=self._max_calls,
            max_operations=self._max_operations,
            balance=self._balance,
            unserved=None if self.gate is None else self._unserved,
            identifies=self.gate is not None,
        )
        self._relay = Relay(self._routes, self._deliver)
        self._door = Door(self.gate, self._routes, self._welcome, self._make_room)
        # Whoever remembers the peers of another server is not to take ours for them.
        prefix = token_hex(4)
        self._names = (f"{prefix}-{number}" for number in count(1))

    @property
    def url(self) -> str:
        """Where clients connect to; known when it has been started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'wss' if self._ssl else 'ws'}://{host}:{self._port}"

    @property
    def peers(self) -> list[Address]:
        """The clients that are connected."""
        return list(self._relay.peers)

    @property
    def dropped(self) -> Counter[Dropped]:
        """What was passed on to nobody, and why, since the start."""
        return self._routes.dropped

    async def start(self, receiver: Receiver) -> None:
        """Listen.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._receiver = receiver
        self._open()
        loop = asyncio.get_running_loop()
        try:
            shake = None if self._ssl is None else self._hello_timeout
            self._listener = await loop.create_server(
                self._accept, self._host, self._port, ssl=self._ssl, ssl_handshake_timeout=shake
            )
        except OSError as error:
            taken = f"{self._host}:{self._port} cannot be listened on: {error}"
            raise CallError(ErrorCode.UNAVAILABLE, taken) from error
        self._port = self._listener.sockets[0].getsockname()[1]

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations.

        Raises:
            CallError: UNAVAILABLE, if this end is closed.
        """
        self._here()
        self._routes.announce(SERVER, operation_ids)

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations no longer."""
        self._routes.withdraw(SERVER, operation_ids)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Who serves anything; that is known at once.

        Raises:
            CallError: UNAVAILABLE, if this end is closed.
        """
        self._here()
        return self._routes.servers()

    def request(self, event: CallRequested) -> Address:
        """Send a request to one of those who serve its operation.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self._here()
        address = self._routes.turn(event.operation_id, event.sticky_key)
        self.send(event, address)
        return address

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        receiver = self._here()
        if to == SERVER:  # to itself: through the wire format too, so that it is the same as for everyone
            receiver.received(decode_event(encode_event(event, limit=self._limit), limit=self._limit), SERVER)
            return
        peer = None if to is None else self._relay.peers.get(to)
        if peer is None:
            raise CallError(ErrorCode.UNAVAILABLE, "the peer is gone")
        waits_for = self._routes.waits_for(peer.address, event.request_id)
        if isinstance(event, _ANSWERS) and waits_for not in (None, SERVER):
            raise CallError(ErrorCode.UNAVAILABLE, f"{peer.address} waits for the answer of another peer")
        message = encode_event(event, limit=min(self._limit, peer.max_message))
        if isinstance(event, CallRequested):
            self._ask(peer, event, message)
            return
        if isinstance(event, CallAborted):
            self._routes.give_up(SERVER, event.request_id, peer.address)
        peer.send(message, control=not isinstance(event, _BULKY))
        if waits_for == SERVER and _ends(event):
            self._routes.give_up(peer.address, event.request_id)

    def _ask(self, peer: Peer, event: CallRequested, message: bytes) -> None:
        """Send a request of the server's own, and remember whose identity its server may pass on.

        That of the server's own program is not passed on.
        """
        is_program = self.own is not None and event.identity == self.own
        identity = NOBODY if is_program else identity_json(event.identity)
        delegable = not is_own(event.operation_id) and not is_program
        call = Call(event.request_id, SERVER, peer.address, event.credits is not None, identity, delegable)
        self._routes.open(call)
        try:
            peer.send(message, control=False)
        except CallError:
            self._routes.end(call)
            raise

    def go_away(self, reason: str = "the server is about to leave") -> None:
        """Accept no more connections, and let clients send no more requests. What is in hand goes on until `close`."""
        if self._listener is not None:
            self._listener.close()
        for peer in self._relay.peers.values():
            peer.tell(GoAway(reason=reason))

    async def idle(self, timeout: float) -> bool:
        """Wait until no call is passed on any more; False if some are, after so many seconds."""
        until = time.monotonic() + timeout
        while len(self._routes) and time.monotonic() < until:  # noqa: ASYNC110  the table is pure, and tells nobody
            await asyncio.sleep(_LOOK)
        return not len(self._routes)

    async def close(self) -> None:
        """Leave: clients learn that this end is gone."""
        if self._listener is None:
            return
        self.go_away()
        self._listener = None
        await self._door.close(self._connected)
        closing = [peer.connection.close(_GOING_AWAY, "the server leaves") for peer in self._connected]
        await asyncio.gather(*closing)
        self._connected.clear()
        self._pending.clear()
        self._open()

    def _here(self) -> Receiver:
        if self._listener is None or self._receiver is None:
            raise CallError(ErrorCode.UNAVAILABLE, "this end is closed")
        return self._receiver

    # --- connections --------------------------------------------------------------------------------------------------

    def _accept(self) -> Link:
        core = ServerProtocol(origins=self._origins, subprotocols=[SUBPROTOCOL], max_size=self._limit + MARGIN)
        peer = Peer(next(self._names), None if self._rate is None else self._rate())
        peer.connection = Connection(
            core,
            greeted=partial(self._greeted, peer, core),
            arrived=partial(self._arrived, peer),
            lost=partial(self._lost, peer),
            max_backlog=self._anonymous_backlog,
        )
        peer.connection.expect("hello", self._hello_timeout, LATE)
        self._connected.add(peer)
        self._pending[peer] = None
        if len(self._pending) > self._max_pending:
            silent = (each for each in self._pending if not each.greeted)
            oldest = next(silent, peer)
            del self._pending[oldest]
            oldest.connection.link.abort(f"{self._max_pending} connections wait to be welcomed")
        return peer.connection.link

    def _greeted(self, peer: Peer, core: ServerProtocol, request: Request | Response) -> None:
        if not isinstance(request, Request):
            return  # which the core of a server does not read
        core.send_response(core.accept(request))
        peer.connection.reply()

    def _make_room(self, newcomer: Peer) -> None:
        """Make sure that there is room for a peer.

        Raises:
            CallError: RATE_LIMITED, if all the others have as much right to theirs.
        """
        peers = self._relay.peers.values()
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
        leaving = next((peer for peer in group if self._routes.idle(peer.address)), group[0])
        leaving.connection.end(TOO_MUCH, "its place is needed for others")

    def _unserved(self, operation_id: str) -> None:
        self._door.unserved(operation_id)

    def _lost(self, peer: Peer, reason: str) -> None:
        self._connected.discard(peer)
        self._pending.pop(peer, None)
        self._door.leave(peer)
        if peer.welcomed:
            self._relay.leave(peer, reason)
            if self._receiver is not None:
                self._receiver.lost(peer.address, reason)

    # --- what arrives -------------------------------------------------------------------------------------------------

    def _arrived(self, peer: Peer, message: bytes) -> None:
        if not peer.welcomed:
            self._first(peer, message)
            return
        try:
            head = read_head(message)
        except CallError:
            self._other(peer, message)
        else:
            self._relay.pass_on(peer, message, head)

    def _first(self, peer: Peer, message: bytes) -> None:
        try:
            event = decode_message(message, limit=self._limit)
        except CallError:
            peer.connection.end(MALFORMED, "the first message cannot be read: it has to be session.hello")
            return
        match event:
            case Hello(version=version) if version == VERSION and not peer.greeted:
                peer.greeted = True
                self._door.enter(peer, event)
            case Hello() if peer.greeted:
                peer.connection.end(UNEXPECTED, "session.hello comes once")
            case Hello():
                peer.connection.end(MALFORMED, f"version {VERSION} is spoken here, and not {event.version}")
            case _:
                first = "nothing comes before session.welcome" if peer.greeted else "session.hello comes first"
                peer.connection.end(UNEXPECTED, first)

    def _welcome(self, peer: Peer, hello: Hello) -> None:
        peer.welcomed = True
        self._pending.pop(peer, None)
        peer.max_message = hello.max_message
        link = peer.connection.link
        if self.gate is None or peer.grant is not None:
            link.max_backlog, link.backlogs = self._max_backlog, self._backlogs
        else:
            link.backlogs = self._anonymous_backlogs
        self._relay.join(peer)
        welcome = Welcome(
            version=VERSION,
            peer=peer.address,
            max_message=self._limit,
            heartbeat_ms=max(1, round(self._heartbeat * 1000)),
        )
        peer.tell(welcome)
        peer.connection.beat(self._heartbeat)

    def _other(self, peer: Peer, message: bytes) -> None:
        """An event of the session arrived, or something that cannot be read."""
        try:
            event = decode_message(message, limit=self._limit + MARGIN)
        except CallError as error:
            self._malformed(peer, error)
            return
        match event:
            case Announce() | Withdraw():
                self._door.ask(peer, event)
            case Who():
                peer.tell(Here(id=event.id, peers=self._routes.servers()))
            case GoAway():
                self._door.withdraw_all(peer)
            case _:
                self._malformed(peer, CallError(ErrorCode.PROTOCOL_ERROR, f"{type(event).__name__} was not expected"))

    def _deliver(self, peer: Peer, message: bytes, head: Head) -> None:
        """An event for the server itself arrived."""
        if self._receiver is None or self._listener is None:
            return
        try:
            event = decode_event(message, limit=self._limit + MARGIN)
        except CallError as error:
            if isinstance(head, Requested):
                self._routes.give_up(peer.address, head.request_id)
                self._malformed(peer, error)
            else:  # whoever waits for the answer here is told
                self._malformed(peer, CallError(error.code, error.message))
                self._receiver.received(CallFailed.of(head.request_id, error), peer.address)
        else:
            self._receiver.received(event, peer.address)

    def _malformed(self, peer: Peer, error: CallError) -> None:
        """A message cannot be read: its sender is told which call that was, and the connection goes on for a while."""
        self._routes.dropped["malformed"] += 1
        peer.strikes += 1
        shown = error.message[:_SHOWN]
        if peer.strikes == 1:  # more of them would fill the log
            logger.warning("a message from %s cannot be read: %s", peer.address, shown)
        if peer.strikes > _STRIKES:
            peer.connection.end(MALFORMED, f"{_STRIKES} messages could not be read")
            return
        match error.details:
            case {"requestId": str(request_id)}:
                peer.tell(CallFailed.of(request_id, CallError(ErrorCode.PROTOCOL_ERROR, shown)))
            case _:
                pass


def _ends(event: CallEvent) -> bool:
    """Whether a call is over with this event of the one who serves it."""
    return event.seq is None if isinstance(event, CallResponded) else not isinstance(event, CallCredit)
