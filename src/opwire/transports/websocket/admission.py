"""The admission of clients to a server, and of the operations that they announce.

An `AdmissionPolicy` decides. It may take its time: only the client that it decides about waits, and the announcements
and withdrawals of one client keep their order.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from itertools import islice
from secrets import token_bytes
from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from opwire.auth.tokens import Grant, grant_ended
from opwire.errors import CallError, ErrorCode
from opwire.protocol import events
from opwire.protocol.transport import Address
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.tasks import cancel_tasks, spawn
from opwire.runtime.text import get_logger
from opwire.transports.websocket.relay import MAX_IDENTITY, Peer, identity_json
from opwire.transports.websocket.routes import Routes

logger = get_logger("opwire.transports.websocket")

# Close codes: the token is invalid or has expired, the client is not admitted, it asks for more than is kept.
UNAUTHENTICATED, FORBIDDEN, TOO_MUCH = 4401, 4403, 4413

_SECONDS_BETWEEN_NOTICES = 1.0  # that an announcement is pending
_MAX_IDS_PER_NOTICE = 1_000
_MAX_UNDECIDED_BYTES = 4 * 1024 * 1024  # descriptions in the announcements of one peer
_MAX_TOTAL_UNDECIDED_BYTES = 64 * 1024 * 1024
_MAX_TOKEN_CHECKS = 64  # at a time: of unknown tokens, and as many of known ones
_MAX_TOKEN_RECHECKS = 4  # at a time, of open connections: new ones do not wait for them
_MAX_REMEMBERED_TOKENS = 10_000


class AdmissionPolicy(Protocol):
    """Decide about the clients of a server."""

    async def admit(self, token: str | None) -> Grant | None:
        """Return the grant of a connection with this token; None: it may call public operations, and nothing more.

        Raises:
            CallError: it is not admitted.
        """
        ...

    async def announced(
        self, peer: Address, grant: Grant | None, operation_ids: Collection[str], descriptions: Sequence[Raw] = ()
    ) -> Mapping[str, CallError]:
        """Check operations that a peer wants to serve; return those that are refused, with the reasons.

        `descriptions` are those that the announcement carries, as JSON.

        Raises:
            CallError: none of them can be checked.
        """
        ...

    def accepted(self, peer: Address, operation_ids: Collection[str]) -> Collection[str]:
        """Let a peer serve these of its announced operations; return those that are subscriptions."""
        ...

    def withdrawn(self, peer: Address, operation_ids: Collection[str]) -> None:
        """Remove operations that a peer has withdrawn."""
        ...

    def lost(self, peer: Address) -> None:
        """Remove a peer that has disconnected."""
        ...

    def unserved(self, operation_id: str) -> None:
        """Handle a call of an operation without a server. If this returns, the server itself responds.

        Raises:
            CallError: to respond with instead.
        """
        ...


class _TokenChecks:
    """A bounded number of concurrent token checks. Waiting ones take turns by key, the latest of each key first.

    A bulk under one key, such as invalid tokens from one host, does not delay checks under other keys; and a continuous
    flood does not delay a newcomer by more than one check.
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
            turn = peer.turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, []).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._left += 1  # it was its turn
                raise
        try:
            yield
        finally:
            self._left += 1
            while self._waiting and self._left:
                key, turns = next(iter(self._waiting.items()))
                turn = turns.pop()
                if turns:
                    self._waiting.move_to_end(key)
                else:
                    del self._waiting[key]
                if not turn.done():
                    self._left -= 1
                    turn.set_result(None)


class Admission:
    """Admit clients and their operations. Without a policy, every client is anonymous, and may announce anything."""

    def __init__(
        self,
        policy: AdmissionPolicy | None,
        routes: Routes,
        welcome: Callable[[Peer, events.Hello], None],
        make_room: Callable[[Peer], None],
    ) -> None:
        self._policy = policy
        self._routes = routes
        self._welcome = welcome
        self._make_room = make_room
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcing: Counter[str] = Counter()  # announced operations, undecided
        self._carried = 0  # bytes of descriptions in undecided announcements
        self._unknown, self._known = _TokenChecks(_MAX_TOKEN_CHECKS), _TokenChecks(_MAX_TOKEN_CHECKS)
        self._valid: BoundedDict[bytes, None] = BoundedDict(_MAX_REMEMBERED_TOKENS)  # digests of tokens that were valid
        self._rechecks = asyncio.Semaphore(_MAX_TOKEN_RECHECKS)
        self._secret = token_bytes(16)

    async def close(self, peers: Iterable[Peer]) -> None:
        """Cancel all decisions, and the expiry of these peers."""
        for peer in peers:
            peer.stop_timers()
        await cancel_tasks(*self._tasks)

    def enter(self, peer: Peer, hello: events.Hello) -> None:
        """Admit a peer that has sent hello, or refuse it."""
        if self._policy is None:
            try:
                self._make_room(peer)
            except CallError as full:
                self._reject(peer, full)
            else:
                self._welcome(peer, hello)
        else:
            spawn(self._admit(peer, hello, self._policy), self._tasks)

    async def _admit(self, peer: Peer, hello: events.Hello, policy: AdmissionPolicy) -> None:
        try:
            # Tokens that were valid before do not wait for unknown ones.
            token = (hello.token or "").encode(errors="surrogatepass")
            digest = blake2b(token, key=self._secret, digest_size=16).digest()
            checks, key = (self._known, digest.hex()) if digest in self._valid else (self._unknown, peer.host)
            async with checks.turn(peer, key):
                grant = await policy.admit(hello.token)
            if hello.token:
                self._valid.pop(digest, None)  # the latest last
                self._valid[digest] = None
            if peer.connection.over:
                return
            identity = identity_json(grant and grant.identity)
            if len(identity) > MAX_IDENTITY:
                large = f"the identity has {len(identity):,} bytes; the maximum is {MAX_IDENTITY:,}"
                raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, large)
            peer.grant, peer.identity = grant, identity
            peer.group = grant.identity.id if grant is not None and hello.token else None
            self._make_room(peer)
        except Exception as error:  # an authenticator may be a user's own
            self._reject(peer, _public_error(error))
            return
        self._welcome(peer, hello)
        if grant is not None:
            peer.expiry = spawn(self._end_with(grant, peer, hello.token, policy), self._tasks)

    async def _end_with(self, grant: Grant, peer: Peer, token: str | None, policy: AdmissionPolicy) -> None:
        """End a connection when its token has expired, was revoked, or grants less."""

        async def check() -> Grant | None:
            async with self._rechecks:
                return await policy.admit(token)

        reason = (await grant_ended(grant, check)).message
        peer.notify(events.GoAway(reason=reason))
        peer.connection.end(UNAUTHENTICATED, reason)

    def _reject(self, peer: Peer, error: CallError) -> None:
        peer.refuse(error)
        codes = {ErrorCode.UNAUTHENTICATED: UNAUTHENTICATED, ErrorCode.RATE_LIMITED: TOO_MUCH}
        peer.connection.end(codes.get(error.code, FORBIDDEN), error.message)

    def leave(self, peer: Peer) -> None:
        """Remove a peer that has disconnected."""
        if peer.turn is not None:
            peer.turn.cancel()
        if not peer.welcomed:
            return
        peer.stop_timers()
        while peer.changes:
            self._forget_change(peer)
        if self._policy is not None:
            self._policy.lost(peer.address)

    def unserved(self, operation_id: str) -> None:
        """Check that an operation without a server is unknown, and not only late.

        Raises:
            CallError: UNAVAILABLE, if it may be served soon.
        """
        if operation_id in self._announcing:
            raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} is being announced at the moment")
        if self._policy is not None:
            self._policy.unserved(operation_id)

    def change(self, peer: Peer, change: events.WireAnnounce | events.Withdraw) -> None:
        """Decide about an announcement or withdrawal."""
        carried = 0
        if isinstance(change, events.WireAnnounce):
            carried = change.carried
            error = self._invalid(peer, change, carried)
            if error is not None:
                peer.refuse(error, change.id)
                return
        try:
            self._routes.check_room(peer.address, change.operations, peer.changing)
        except CallError as error:
            peer.refuse(error, change.id)  # also if `partial`: a list of 130,000 refused ids would have 18 MB
            return
        if self._policy is None:
            if isinstance(change, events.Withdraw):
                self._routes.withdraw(peer.address, change.operations)
            else:
                self._routes.announce(peer.address, change.operations)
            peer.notify(events.Done(id=change.id))
            return
        peer.changes.append(change)
        peer.changing += len(change.operations)
        peer.carried += carried
        self._carried += carried
        if isinstance(change, events.WireAnnounce):
            # Copies, since each one refers to its whole message.
            peer.changes[-1] = replace(change, descriptions=[description.copy() for description in change.descriptions])
            self._announcing.update(change.operations)
        if len(peer.changes) == 1:  # else the earlier ones are being decided
            self._schedule_notice(peer)
            spawn(self._decide(peer, self._policy), self._tasks)

    def _invalid(self, peer: Peer, change: events.WireAnnounce, carried: int) -> CallError | None:
        """Return why an announcement is rejected before it is decided."""
        if not change.operations:
            return CallError(ErrorCode.VALIDATION_ERROR, "session.announce names at least one operation")
        if len(change.descriptions) > len(change.operations):
            return CallError(ErrorCode.VALIDATION_ERROR, "session.announce describes only the operations that it names")
        if peer.carried + carried > _MAX_UNDECIDED_BYTES or self._carried + carried > _MAX_TOTAL_UNDECIDED_BYTES:
            full = "earlier announcements with descriptions are not decided yet: send more of them after session.done"
            return CallError(ErrorCode.RATE_LIMITED, full)
        return None

    def withdraw(self, peer: Peer, operation_ids: list[str], *, moves: bool = False) -> None:
        """Withdraw operations of a peer; `moves`: all of them, which it serves elsewhere or soon again."""
        self._routes.withdraw(peer.address, operation_ids)
        if self._policy is not None and moves:
            self._policy.lost(peer.address)
        elif self._policy is not None:
            self._policy.withdrawn(peer.address, operation_ids)

    async def _decide(self, peer: Peer, policy: AdmissionPolicy) -> None:
        while peer.changes:
            change = peer.changes[0]
            if isinstance(change, events.WireAnnounce):
                await self._announce(peer, policy, change)
            else:
                self.withdraw(peer, change.operations)
                peer.notify(events.Done(id=change.id))
            if peer.changes:  # else the peer has left
                self._forget_change(peer)
        if peer.notice is not None:
            peer.notice.cancel()

    async def _announce(self, peer: Peer, policy: AdmissionPolicy, change: events.WireAnnounce) -> None:
        try:
            refused = await policy.announced(peer.address, peer.grant, change.operations, change.descriptions)
        except Exception as error:
            peer.refuse(_public_error(error), change.id)
            return
        if peer.connection.over:
            policy.lost(peer.address)  # it left during the decision
            return
        refusals = [events.RefusedOperation.of(operation_id, error) for operation_id, error in refused.items()]
        if refusals and not change.partial:
            policy.accepted(peer.address, [])
            peer.refuse(events.refusal_error(refusals), change.id)
            return
        accepted = [operation_id for operation_id in dict.fromkeys(change.operations) if operation_id not in refused]
        self._routes.announce(peer.address, accepted, policy.accepted(peer.address, accepted))
        peer.notify(events.Done(id=change.id, refused=refusals))

    def _forget_change(self, peer: Peer) -> None:
        """Remove the first change of a peer: it is decided, or the peer has left."""
        change = peer.changes.popleft()
        peer.changing -= len(change.operations)
        if isinstance(change, events.WireAnnounce):
            carried = change.carried
            peer.carried -= carried
            self._carried -= carried
            for operation_id in change.operations:
                self._announcing[operation_id] -= 1
                if not self._announcing[operation_id]:
                    del self._announcing[operation_id]

    def _schedule_notice(self, peer: Peer) -> None:
        """Send a peer the numbers of its pending changes once a second, so that it waits for them."""

        def notify() -> None:
            peer.notify(events.Pending(ids=[change.id for change in islice(peer.changes, _MAX_IDS_PER_NOTICE)]))
            self._schedule_notice(peer)

        peer.notice = asyncio.get_running_loop().call_later(_SECONDS_BETWEEN_NOTICES, notify)


def _public_error(error: Exception) -> CallError:
    """Return the error that the peer may see."""
    if isinstance(error, CallError):
        return error
    logger.error("the admission policy failed", exc_info=error)
    return CallError(ErrorCode.INTERNAL, "the admission policy failed")
