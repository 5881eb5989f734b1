"""The door of a server: who may come in, and what they may announce. A `Gate` decides, and may take its time.

Only the peer that a gate decides about waits for it; its announcements and withdrawals keep their order.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from itertools import islice
from secrets import token_bytes
from typing import Any, Protocol

from opwire.auth import Grant
from opwire.call import Address
from opwire.call.session import Announce, Done, GoAway, Hello, Pending, Refusal, Refused, Withdraw, refusal_error
from opwire.errors import CallError, ErrorCode
from opwire.transports.websocket.relay import Peer
from opwire.transports.websocket.routes import Routes
from opwire.transports.websocket.stamps import MAX_IDENTITY, identity_json

logger = logging.getLogger("opwire.transports")

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
        refusals = [Refusal.of(each, error) for each, error in refused.items()]
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
        refused: Sequence[Refusal] = (),
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
