"""The door of a server: who may come in, and what they may announce. A `Gate` decides, and may take its time.

Only the peer that a gate decides about waits for it; its announcements and withdrawals keep their order.

Passes the events of calls on, from one peer of a server to another. `Routes` says where to.

Nobody waits for a slow peer: what cannot be written to it at once fails its own call, and no other.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from itertools import islice
from secrets import token_bytes
from typing import Any, Protocol

from msgspec.structs import replace

from opwire.auth import Grant, RateLimit
from opwire.call import MAX_MESSAGE, Address, CallAborted, CallEvent, CallFailed, encode_event
from opwire.call.events import (
    Announce,
    Done,
    GoAway,
    Hello,
    Left,
    Pending,
    Refused,
    RefusedOperation,
    SessionEvent,
    SessionMessage,
    Withdraw,
    encode_session,
    refusal_error,
)
from opwire.errors import CallError, ErrorCode
from opwire.transports.websocket.connection import Connection
from opwire.transports.websocket.routes import (
    MARGIN,
    MAX_IDENTITY,
    NOBODY,
    SERVER,
    Aborted,
    Call,
    Head,
    Requested,
    Responded,
    Routes,
    Way,
    identity_json,
    request_stamp,
    stamp,
    stamped,
)

logger = logging.getLogger("opwire.transports")

_UNMATCHED = 100.0, 2_000  # events of a peer that no call needs, in kB: in a second, and at once
_SMALL = 1024  # bytes of an event that ends or steers a call: larger ones have no room of their own


class Peer:
    """A client as the server sees it."""

    connection: Connection

    def __init__(self, address: Address, rate: RateLimit | None = None) -> None:
        self.address = address
        self.rate = rate  # of its requests, and of what belongs to no call
        self.unmatched = RateLimit(*_UNMATCHED)
        self.greeted = False  # it has said hello
        self.group: str | None = None  # connections with one share their room: the identity; None without a token
        self.welcomed = False
        self.grant: Grant | None = None
        self.identity = NOBODY  # as JSON
        self.turn: asyncio.Future[None] | None = None  # to have its token checked
        self.expiry: asyncio.TimerHandle | None = None  # the end of its grant
        self.wishes: deque[Announce | Withdraw] = deque()  # that are not decided yet
        self.wished = 0  # operations in these
        self.reminder: asyncio.TimerHandle | None = None  # of those: the peer is told that they are not forgotten
        self.strikes = 0  # messages of it that could not be read
        self.max_message = MAX_MESSAGE
        self.stamps = {stray: stamp(address, stray=stray) for stray in (False, True)}

    @property
    def host(self) -> str:
        """The address that it connects from."""
        return self.connection.link.remote

    def send(self, message: bytes, *, control: bool) -> None:
        """Send a message. `control`: it ends or steers a call.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, RATE_LIMITED if it does not read, UNAVAILABLE if it is gone.
        """
        if len(message) > self.max_message + MARGIN:
            size = f"the message has {len(message):,} bytes, and {self.address} takes {self.max_message:,}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size)
        self.connection.send(message, control=control)

    def tell(self, event: CallEvent | SessionEvent, sender: Address = SERVER) -> None:
        """Tell it something that it can do without if it is gone; of a call, in the name of the call's other side."""
        if isinstance(event, SessionMessage):
            message = encode_session(event)
        else:
            message = encode_event(event)
            message = message if sender == SERVER else message[:-1] + stamp(sender)
        try:
            self.connection.send(message, control=True)
        except CallError as error:
            logger.debug("%s could not be told: %s", self.address, error)


class Relay:
    """What is for the server itself is handed to `deliver`."""

    def __init__(self, routes: Routes, deliver: Callable[[Peer, bytes, Head], None]) -> None:
        self._routes = routes
        self._deliver = deliver
        self.peers: dict[Address, Peer] = {}

    def join(self, peer: Peer) -> None:
        """A peer is there."""
        self.peers[peer.address] = peer
        delegates = peer.grant is not None and peer.grant.delegates
        self._routes.join(peer.address, peer.identity, delegates=delegates)

    def leave(self, peer: Peer, reason: str) -> None:
        """A peer is gone: those who share calls with it are told."""
        gone = peer.address
        del self.peers[gone]
        calls = self._routes.leave(gone)
        for call in calls:
            if call.caller not in (gone, SERVER):  # the server's own calls are ended by its books
                error = CallError(ErrorCode.UNAVAILABLE, f"the peer that had the call is gone: {reason}")
                self.peers[call.caller].tell(CallFailed.of(call.request_id, error), gone)
        for server in {call.server for call in calls} - {gone, SERVER}:
            self.peers[server].tell(Left(peer=gone, reason=reason))

    def pass_on(self, sender: Peer, message: bytes, head: Head) -> None:
        """An event arrived from a peer."""
        if isinstance(head, Requested):
            self._request(sender, message, head)
            return
        way = self._routes.follow(sender.address, head)
        if way is None:
            return
        if way.call is None:
            self._pass_unmatched(sender, message, head, way)
            return
        try:
            self._carry(sender, message, head, way)
        except CallError as error:
            if way.to == way.call.caller:
                self._cut_short(way.call, error)
            elif isinstance(head, Aborted):  # with a reason too long for a peer that does not keep up
                gave_up = CallAborted(request_id=head.request_id, reason="the caller gave up")
                self.peers[way.to].tell(gave_up, sender.address)

    def _pass_unmatched(self, sender: Peer, message: bytes, head: Head, way: Way) -> None:
        """An event arrived that no call needs: pass it on if that costs its receiver nothing, or else drop it."""
        now = time.monotonic()
        busy = way.to != SERVER and self.peers[way.to].connection.link.paused
        limited = sender.rate is not None and sender.rate.take(now)
        if busy or limited or any(sender.unmatched.take(now) for _ in range(1 + len(message) // _SMALL)):
            self._routes.dropped["flood"] += 1
            return
        try:
            self._carry(sender, message, head, way)
        except CallError as error:
            logger.debug("an unmatched event was dropped: %s", error)

    def refuse(self, caller: Peer, head: Head, error: CallError) -> None:
        """A request did not reach anybody. Whoever addressed it to a peer expects the answer from there."""
        failed = CallFailed.of(head.request_id, error)
        if error.retryable:  # what is too large for one is not offered to others
            failed = replace(failed, not_started=True)
        caller.tell(failed, head.peer or SERVER)

    def _request(self, sender: Peer, message: bytes, head: Requested) -> None:
        way = None
        if sender.rate is not None and (wait := sender.rate.take(time.monotonic())):
            error = CallError(ErrorCode.RATE_LIMITED, "this connection calls too often", retry_after=wait)
            sender.tell(CallFailed.of(head.request_id, error), head.peer or SERVER)
            return
        try:
            way = self._routes.request(sender.address, head)
            if way is not None:
                self._carry(sender, message, head, way)
        except CallError as error:
            if way is not None and way.call is not None:
                self._routes.end(way.call)
            self.refuse(sender, head, error)

    def _carry(self, sender: Peer, message: bytes, head: Head, way: Way) -> None:
        if isinstance(head, Requested):
            message = stamped(message, request_stamp(sender.address, way.identity))
        elif way.to != SERVER:
            message = stamped(message, sender.stamps[way.call is None])
        if way.to == SERVER:
            self._deliver(sender, message, head)
        else:
            control = not isinstance(head, (Requested, Responded)) and len(message) <= _SMALL
            self.peers[way.to].send(message, control=control)

    def _cut_short(self, call: Call, error: CallError) -> None:
        """An answer cannot be passed on: the caller gets the error in its place, and who serves the call may stop."""
        told = CallError(error.code, f"the answer could not be passed on: {error.message}")
        self.peers[call.caller].tell(CallFailed.of(call.request_id, told), call.server)
        if self._routes.end(call):
            self.peers[call.server].tell(CallAborted(request_id=call.request_id, reason=told.message), call.caller)


UNAUTHENTICATED, FORBIDDEN, TOO_MUCH = 4401, 4403, 4413
"""Why a connection is closed: its token is not good (any more), it is not wanted, it asks for more than is kept."""

_REMIND = 1.0  # seconds between two signs that an announcement is not forgotten
_REMINDED = 1_000  # announcements that one of these names
_CHECKS = 64  # tokens that are being checked at a time: unknown ones, and as many that were good before
_REMEMBERED = 10_000  # tokens that were good


class Gate(Protocol):
    """Decides about the peers of a server."""

    async def admit(self, token: str | None) -> Grant | None:
        """Return what a connection with this token may do; None: call what is public, and nothing more.

        Raises:
            CallError: it is not let in.
        """
        ...

    async def announced(
        self, peer: Address, grant: Grant | None, operation_ids: Collection[str]
    ) -> Mapping[str, CallError]:
        """Find out about operations that a peer wants to serve; return those that are refused, and why.

        Raises:
            CallError: nothing can be found out about any of them.
        """
        ...

    def accepted(self, peer: Address, operation_ids: Collection[str]) -> Collection[str]:
        """Let a peer serve these of the operations it has announced; return those that are subscriptions."""
        ...

    def withdrawn(self, peer: Address, operation_ids: Collection[str]) -> None:
        """A peer serves these operations no longer."""
        ...

    def lost(self, peer: Address) -> None:
        """A peer is gone."""
        ...

    def unserved(self, operation_id: str) -> None:
        """An operation is called that no peer serves. When this returns, the server itself answers.

        Raises:
            CallError: what the caller is told instead.
        """
        ...


class _Checks:
    """A bounded number of token checks at a time. Those that wait get their turn by key, and of one key the latest.

    Whatever comes in bulk under one key, such as made-up tokens from one host, does not delay what comes under others;
    and a flood that goes on does not delay a newcomer by more than one check.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._waiting: OrderedDict[str, list[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, peer: Peer, key: str) -> AsyncGenerator[None]:
        """Wait for a turn; `peer.turn` can be cancelled meanwhile."""
        if self._left:
            self._left -= 1
        else:
            await self._wait(peer, key)
        try:
            yield
        finally:
            self._left += 1
            while self._waiting and self._left:
                self._wake()

    async def _wait(self, peer: Peer, key: str) -> None:
        turn = peer.turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._left += 1  # it was its turn
            raise

    def _wake(self) -> None:
        key, turns = next(iter(self._waiting.items()))
        turn = turns.pop()
        if turns:
            self._waiting.move_to_end(key)
        else:
            del self._waiting[key]
        if not turn.done():
            self._left -= 1
            turn.set_result(None)


class Door:
    """Lets peers in, and lets them serve. Without a gate, every peer is anonymous, and announces whatever it likes."""

    def __init__(
        self,
        gate: Gate | None,
        routes: Routes,
        welcome: Callable[[Peer, Hello], None],
        make_room: Callable[[Peer], None],
    ) -> None:
        self._gate = gate
        self._routes = routes
        self._welcome = welcome
        self._make_room = make_room
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcing: Counter[str] = Counter()  # operations that are announced, and not decided yet
        self._unknown, self._known = _Checks(_CHECKS), _Checks(_CHECKS)
        self._good: OrderedDict[bytes, None] = OrderedDict()  # digests of tokens that were good
        self._secret = token_bytes(16)

    async def close(self, peers: Iterable[Peer]) -> None:
        """Decide nothing more, and let no grant of these peers expire."""
        for peer in peers:
            _stop_timers(peer)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- coming and going ---------------------------------------------------------------------------------------------

    def enter(self, peer: Peer, hello: Hello) -> None:
        """A peer has said hello."""
        if self._gate is None:
            try:
                self._make_room(peer)
            except CallError as full:
                self._turn_away(peer, full)
            else:
                self._welcome(peer, hello)
        else:
            self._start(self._admit(peer, hello, self._gate))

    async def _admit(self, peer: Peer, hello: Hello, gate: Gate) -> None:
        try:
            grant = await self._check(peer, hello.token, gate)
            if peer.connection.over:
                return
            identity = identity_json(grant and grant.identity)
            if len(identity) > MAX_IDENTITY:
                large = f"the identity has {len(identity):,} bytes, and at most {MAX_IDENTITY:,} are passed on"
                raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, large)
            peer.grant, peer.identity = grant, identity
            peer.group = grant.identity.id if grant is not None and hello.token else None
            self._make_room(peer)
        except Exception as error:  # an authenticator may be a user's own
            self._turn_away(peer, _told(error))
            return
        self._welcome(peer, hello)
        if grant is not None and grant.expires is not None:
            left = grant.expires - time.time()
            peer.expiry = asyncio.get_running_loop().call_later(max(0.0, left), self._expired, peer)

    async def _check(self, peer: Peer, token: str | None, gate: Gate) -> Grant | None:
        """Ask the gate what a token is worth. Those that were good before do not wait for those that are unknown."""
        digest = blake2b((token or "").encode(errors="surrogatepass"), key=self._secret, digest_size=16).digest()
        known = digest in self._good
        checks, key = (self._known, digest.hex()) if known else (self._unknown, peer.host)
        async with checks.turn(peer, key):
            grant = await gate.admit(token)
        if token:
            self._good[digest] = None
            self._good.move_to_end(digest)
            if len(self._good) > _REMEMBERED:
                self._good.popitem(last=False)
        return grant

    def _turn_away(self, peer: Peer, error: CallError) -> None:
        peer.tell(Refused(code=error.code.value, message=error.message))
        codes = {ErrorCode.UNAUTHENTICATED: UNAUTHENTICATED, ErrorCode.RATE_LIMITED: TOO_MUCH}
        peer.connection.end(codes.get(error.code, FORBIDDEN), error.message)

    def _expired(self, peer: Peer) -> None:
        reason = "the token has expired"
        peer.tell(GoAway(reason=reason))
        peer.connection.end(UNAUTHENTICATED, reason)

    def leave(self, peer: Peer) -> None:
        """A peer is gone."""
        if peer.turn is not None:
            peer.turn.cancel()
        if not peer.welcomed:
            return
        _stop_timers(peer)
        while peer.wishes:
            self._forget(peer)
        if self._gate is not None:
            self._gate.lost(peer.address)

    # --- what is served -----------------------------------------------------------------------------------------------

    def unserved(self, operation_id: str) -> None:
        """Check that an operation without a server is unknown, and not only late.

        Raises:
            CallError: UNAVAILABLE, if it may be served soon.
        """
        if operation_id in self._announcing:
            raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} is being announced at the moment")
        if self._gate is not None:
            self._gate.unserved(operation_id)

    def ask(self, peer: Peer, wish: Announce | Withdraw) -> None:
        """A peer wants to serve more, or less."""
        if isinstance(wish, Announce) and not wish.operations:
            empty = "session.announce names at least one operation"
            peer.tell(Refused(id=wish.id, code=ErrorCode.VALIDATION_ERROR.value, message=empty))
            return
        try:
            self._routes.check_room(peer.address, wish.operations, peer.wished)
        except CallError as error:
            peer.connection.end(TOO_MUCH, error.message)
            return
        if self._gate is None:
            self._settle(peer, wish, wish.operations)
            return
        peer.wishes.append(wish)
        peer.wished += len(wish.operations)
        if isinstance(wish, Announce):
            self._announcing.update(wish.operations)
        if len(peer.wishes) == 1:  # else those before it are being decided
            self._remind(peer)
            self._start(self._decide(peer, self._gate))

    def withdraw_all(self, peer: Peer) -> None:
        """A peer takes no more calls."""
        self._withdraw(peer, self._routes.operations(peer.address))

    async def _decide(self, peer: Peer, gate: Gate) -> None:
        while peer.wishes:
            wish = peer.wishes[0]
            if isinstance(wish, Announce):
                await self._announced(peer, gate, wish)
            else:
                self._settle(peer, wish, wish.operations)
            if peer.wishes:  # else the peer has left
                self._forget(peer)
        _stop_timers(peer, expiry=False)

    def _forget(self, peer: Peer) -> None:
        """Forget the first wish of a peer: it is decided, or the peer is gone."""
        wish = peer.wishes.popleft()
        peer.wished -= len(wish.operations)
        if isinstance(wish, Announce):
            for each in wish.operations:
                self._announcing[each] -= 1
                if not self._announcing[each]:
                    del self._announcing[each]

    async def _announced(self, peer: Peer, gate: Gate, wish: Announce) -> None:
        try:
            refused = await gate.announced(peer.address, peer.grant, wish.operations)
        except Exception as error:
            told = _told(error)
            peer.tell(Refused(id=wish.id, code=told.code.value, message=told.message))
            return
        if peer.connection.over:
            gate.lost(peer.address)  # it went while the gate decided
            return
        refusals = [RefusedOperation.of(each, error) for each, error in refused.items()]
        if refusals and not wish.partial:
            gate.accepted(peer.address, [])
            error = refusal_error(refusals)
            peer.tell(Refused(id=wish.id, code=error.code.value, message=error.message))
            return
        taken = [each for each in dict.fromkeys(wish.operations) if each not in refused]
        self._settle(peer, wish, taken, refusals, gate.accepted(peer.address, taken))

    def _settle(
        self,
        peer: Peer,
        wish: Announce | Withdraw,
        operation_ids: list[str],
        refused: Sequence[RefusedOperation] = (),
        streams: Iterable[str] = (),
    ) -> None:
        if isinstance(wish, Withdraw):
            self._withdraw(peer, operation_ids)
        else:
            self._routes.announce(peer.address, operation_ids, streams)
        peer.tell(Done(id=wish.id, refused=list(refused)))

    def _withdraw(self, peer: Peer, operation_ids: list[str]) -> None:
        self._routes.withdraw(peer.address, operation_ids)
        if self._gate is not None:
            self._gate.withdrawn(peer.address, operation_ids)

    def _remind(self, peer: Peer) -> None:
        """Tell a peer once a second which of its wishes are not decided yet, so that it waits for them."""
        peer.reminder = asyncio.get_running_loop().call_later(_REMIND, self._reminded, peer)

    def _reminded(self, peer: Peer) -> None:
        peer.tell(Pending(ids=[wish.id for wish in islice(peer.wishes, _REMINDED)]))
        self._remind(peer)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stop_timers(peer: Peer, *, expiry: bool = True) -> None:
    for timer in (peer.reminder, peer.expiry if expiry else None):
        if timer is not None:
            timer.cancel()


def _told(error: Exception) -> CallError:
    """Return what the peer is told of an error."""
    if isinstance(error, CallError):
        return error
    logger.error("a gate failed", exc_info=error)
    return CallError(ErrorCode.INTERNAL, "it could not be decided")
