"""Calls over a broker: whatever is the same for every broker.

A broker passes messages on, and knows neither calls nor who is alive. `BrokerTransport` adds what is missing: who may
answer a request, leases that end when a peer is gone, a new beginning after the connection was lost. What differs from
one broker to another is a `BrokerConnection`.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from itertools import count
from secrets import randbits, token_hex
from typing import TYPE_CHECKING

from opwire.call import (
    MAX_MESSAGE,
    Address,
    CallAborted,
    CallEvent,
    CallFailed,
    CallRequested,
    CallResponded,
    Receiver,
    encode_event,
)
from opwire.call.events import (
    Here,
    Left,
    Serving,
    SessionEvent,
    SessionMessage,
    Waiting,
    Who,
    decode_message,
    encode_session,
)
from opwire.errors import CallError, ErrorCode
from opwire.transports.broker_connection import BrokerConnection
from opwire.transports.leases import Asked, Leases, Probes, is_final
from opwire.transports.link import back_off, keep_running

if TYPE_CHECKING:  # it needs PyJWT, which an end that signs nothing does without
    from opwire.auth import SignedRequests

logger = logging.getLogger("opwire.transports")

PATIENCE = 5.0
"""Seconds within which a broker has to confirm what was asked of it."""

_MAX_SERVERS = 10_000  # that one question finds: any client may answer it
_MAX_REASON = 200  # characters of a peer's farewell that are repeated
_TOKEN_BYTES = 19  # of a token in JSON: 16 digits, two quotes, a comma


class BrokerTransport:
    """One end of a broker: a `Transport`.

    `heartbeat` is how often, in seconds, a server says which calls it has in hand. A call that nobody has named for
    three beats fails with UNAVAILABLE: that is how long it takes to notice a server that is frozen or cut off. One
    whose connection to the broker has ended is noticed much earlier, by `probes`.
    `signed` proves identities in both directions; without it, no identity that a caller states is believed.
    """

    local = False
    vouches = False
    lossy = True

    def __init__(
        self,
        connection: BrokerConnection,
        *,
        heartbeat: float = 1.0,
        limit: int = MAX_MESSAGE,
        signed: "SignedRequests | None" = None,
    ) -> None:
        self._connection = connection
        self._heartbeat = heartbeat
        self._limit = limit
        self._signed = signed
        self._leases = Leases(3 * heartbeat)
        self._probes = Probes(self._leases, connection, self._name)
        self._receiver: Receiver | None = None
        self._address: Address | None = None  # another one for each connection; None while there is none
        self._closed = True
        self._operations: dict[str, None] = {}  # what we serve, in the order of the announcements
        self._questions = count(randbits(32))  # an end that has not heard a question cannot answer it
        self._found: dict[int, dict[Address, None]] = {}  # who answered which question
        self._broken = asyncio.Event()  # set while there is no connection
        self._farewell: dict[Address, list[str]] = {}  # whom to tell after a reconnection which calls are over
        self._tasks: list[asyncio.Task[None]] = []
        self._away = ""  # why there is no connection
        self.malformed = 0
        self.foreign = 0

    @property
    def trusted(self) -> bool:
        """Whether the identity on a request was proven."""
        return self._signed is not None and self._signed.verifies

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached at the moment."""
        return self._address is not None

    async def start(self, receiver: Receiver) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._receiver, self._closed = receiver, False
        self._operations.clear()
        self._broken = asyncio.Event()  # of this event loop, which may be another one than last time
        self._probes.stop()
        try:
            await self._connect()
        except BaseException:
            self._closed, self._address = True, None
            await self._connection.close()
            raise
        work = (keep_running("the heartbeat", self._beat), keep_running("the reconnection", self._stay_connected))
        self._tasks = [asyncio.get_running_loop().create_task(each) for each in work]

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations, now and after every reconnection.

        Raises:
            CallError: UNAVAILABLE.
        """
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, "this end is closed")
        new = [each for each in dict.fromkeys(operation_ids) if each not in self._operations]
        self._operations.update(dict.fromkeys(new))
        here = self._here()
        try:
            await self._in_time("the announcement", self._connection.serve(new))
        except CallError:
            if self._address == here:  # the broker refuses them; after a lost connection they are announced again
                for each in new:
                    self._operations.pop(each, None)
            raise

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations no longer."""
        known = [each for each in dict.fromkeys(operation_ids) if each in self._operations]
        for each in known:
            del self._operations[each]
        if self.connected and known:
            try:
                await self._in_time("the withdrawal", self._connection.unserve(known))
            except CallError as gone:  # then nothing is routed here, and they will not be announced again
                logger.debug("the connection was lost during a withdrawal: %s", gone)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Ask who serves anything, and wait so many seconds for answers.

        Raises:
            CallError: UNAVAILABLE.
        """
        here = self._here()
        number = next(self._questions)
        found = self._found[number] = {}
        try:
            self._connection.broadcast("", encode_session(Who(id=number)))
            await asyncio.sleep(wait)
        finally:
            del self._found[number]
        if self._address != here:
            raise CallError(ErrorCode.UNAVAILABLE, f"the connection to {self._connection.name} was lost meanwhile")
        return list(found)

    def request(self, event: CallRequested) -> None:
        """Send a request to one of those who serve its operation.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self._ask(event, None)

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, or to whoever has the request.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        if isinstance(event, CallRequested):
            self._ask(event, to)
            return
        self._here()
        token = None if to is None else self._leases.held(to, event.request_id)
        if to is None or token is None:
            self._tell_without_lease(event, to)
            return
        message, control = encode_event(event, limit=self._most()), not isinstance(event, CallResponded)
        try:
            self._connection.send(to, token, message, control=control)
        except CallError:
            if control:  # there is no smaller word to end it with: the caller learns it from our silence about it
                self._leases.release(to, event.request_id)
            raise
        if is_final(event):
            self._leases.release(to, event.request_id)

    async def close(self) -> None:
        """Leave: peers learn that the calls which they share with this end are over."""
        if self._closed:
            return
        self._closed = True
        self._probes.stop()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
            await self.withdraw(list(self._operations))
        finally:  # whoever loses patience with a silent broker leaves it, too
            if self.connected:
                self._farewell = self._leases.clear()
                self._say_farewell()
            self._address = None
            await self._connection.close()

    # --- sending ------------------------------------------------------------------------------------------------------

    def _here(self) -> Address:
        if self._address is None:
            raise CallError(ErrorCode.UNAVAILABLE, "this end is closed" if self._closed else self._absence())
        return self._address

    def _absence(self) -> str:
        """Say why there is no connection: a server that refuses us is reached, and says what to do about it."""
        name = self._connection.name
        if self._away.startswith(name):
            return self._away
        return f"{name} is not reachable at the moment" + (f": {self._away}" if self._away else "")

    def _most(self) -> int:
        most = self._connection.max_message
        return self._limit if self._limit < most else most

    def _ask(self, event: CallRequested, to: Address | None) -> None:
        self._here()
        if self._signed is not None:
            event = self._signed.leaving(event)
        message = encode_event(event, limit=self._most())
        streams, now = event.credits is not None, time.monotonic()
        token = self._leases.ask(event.request_id, event.operation_id, now, streams=streams, server=to)
        try:
            if to is None:
                self._connection.request(event.operation_id, token, message, event.sticky_key)
            else:
                self._connection.send(to, token, message, control=False)
        except BaseException:
            self._leases.end(token)
            raise
        self._probes.soon(now)

    def _tell_without_lease(self, event: CallEvent, to: Address | None) -> None:
        """Steer a call of ours, or answer a plain client of the broker.

        Where the server of a call is not known yet, all are told that it is over: the token says whose it is.
        """
        asked = self._leases.asked(event.request_id)
        if asked is not None and to not in (None, asked.server):
            asked = None  # somebody's request has the id of one of ours, whose token is not for him
        server, token = (to, "") if asked is None else (asked.server, asked.token)
        over = isinstance(event, CallAborted)
        if over:
            self._leases.end(token)  # even if it cannot be sent: the next beat tells the server
        message = encode_event(event, limit=self._most())
        if server is not None:
            self._connection.send(server, token, message, control=not isinstance(event, CallResponded))
        elif asked is not None and over:  # nothing else: the token of a call that goes on is not for all
            self._connection.broadcast(token, message)
        else:
            raise CallError(ErrorCode.UNAVAILABLE, "the peer is gone")

    def _tell(self, to: Address, event: SessionEvent | CallFailed, token: str = "") -> None:
        """Tell a peer, or all (""), something that they can do without."""
        try:
            session = isinstance(event, SessionMessage)
            message = encode_session(event) if session else encode_event(event, limit=self._most())
            if to:
                self._connection.send(to, token, message, control=True)
            else:
                self._connection.broadcast(token, message)
        except CallError as error:
            logger.debug("%s could not be told: %s", to or "nobody", error)

    def _say_farewell(self) -> None:
        for peer, tokens in self._farewell.items():
            for portion in self._portions(tokens):
                self._tell(peer, Left(tokens=portion))
        self._farewell = {}

    def _portions(self, tokens: list[str]) -> Iterator[list[str]]:
        """Tokens by the message: as many as the broker lets through."""
        size = max(1, (self._most() - 100) // _TOKEN_BYTES)
        return (tokens[start : start + size] for start in range(0, len(tokens), size))

    # --- what arrives -------------------------------------------------------------------------------------------------

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        """A message for this end arrived; called by the medium."""
        if self._receiver is None or self._address is None:
            return
        try:
            event = decode_message(message, limit=self._limit)
        except CallError as error:
            self._unreadable(sender, token, error)
            return
        if isinstance(event, SessionMessage):
            self._session(event, sender, token)
        elif isinstance(event, CallRequested):
            self._requested(event, sender, token)
        elif self._leases.accepts(event, sender, token, time.monotonic()):
            self._receiver.received(event, sender)
        else:
            self.foreign += 1

    def _requested(self, event: CallRequested, sender: Address, token: str) -> None:
        if not sender:  # it could not be answered, so it does not run
            self.malformed += 1
            return
        if self._signed is not None:
            try:
                event = self._signed.arriving(event)
            except CallError as refused:
                self._tell(sender, CallFailed.of(event.request_id, refused), token)
                return
        # A plain client of the broker has no token: it gets its answer, but holds no lease.
        now = time.monotonic()
        if token and not self._leases.hold(sender, event.request_id, token, now):
            self.foreign += 1
            return
        self._deliver(event, sender)
        self._probes.soon(now)

    def overheard(self, sender: Address, token: str, message: bytes) -> None:
        """A message for all arrived; called by the medium. It is a question, or about calls that we may hold."""
        if self._receiver is None or self._address is None:
            return
        try:
            event = decode_message(message, limit=self._limit)
        except CallError:
            self.malformed += 1
            return
        if isinstance(event, Who):
            if self._operations:
                self._tell(sender, Here(id=event.id, peers=[self._address]))
        elif isinstance(event, Left):
            self._session(event, sender, token)
        elif isinstance(event, CallAborted) and self._leases.held(sender, event.request_id) is not None:
            self.arrived(sender, token, message)

    def _unreadable(self, sender: Address, token: str, error: CallError) -> None:
        """Fail the call that an invalid message is about, here or at the peer; the connection goes on."""
        self.malformed += 1
        if self.malformed <= 10 or self.malformed.bit_count() == 1:  # any client can send any number of them
            logger.warning("invalid message %d, from %s: %s", self.malformed, sender, error.message)
        request_id = None if error.details is None else error.details.get("requestId")
        if not isinstance(request_id, str):
            return  # it does not say whose it was
        failed = CallFailed.of(request_id, CallError(ErrorCode.PROTOCOL_ERROR, error.message))
        if self._leases.asked(request_id) is None:
            self._tell(sender, failed, token)
        elif self._leases.believe(failed, sender, token, time.monotonic()):
            self._deliver(failed, sender)

    def _session(self, event: SessionEvent, sender: Address, shown: str) -> None:
        now = time.monotonic()
        match event:
            case Serving():
                token, gone = self._leases.confirm(sender, event.tokens, now)
                if token or gone:
                    self._tell(sender, Waiting(gone=gone), token)
            case Waiting():
                for request_id in self._leases.heard(sender, shown, event.gone, now):
                    self._leases.release(sender, request_id)
                    self._deliver(CallAborted(request_id=request_id, reason="the caller waits no longer"), sender)
            case Left():  # by its tokens, and not by its address, which anybody could write
                calls, callers = self._leases.over(event.tokens)
                self._lose(callers, calls, event.reason[:_MAX_REASON])
            case Here():
                found = self._found.get(event.id)
                if sender and found is not None and len(found) < _MAX_SERVERS:
                    found[sender] = None
            case _:
                self.malformed += 1

    def routed(self, token: str, peer: Address) -> None:
        """The broker gave a request to a server; called by the medium."""
        self._leases.routed(token, peer)

    def undelivered(self, token: str, reason: str) -> None:
        """No server got a request, or a probe for it; called by the medium."""
        for asked in self._leases.undelivered(token):
            self._fail(asked, f"{asked.operation_id}: {reason}")

    def refused(self, operation_id: str, reason: str) -> None:
        """The broker does not let us ask for an operation; called by the medium."""
        for asked in self._leases.unanswered(operation_id):
            self._fail(asked, f"{asked.operation_id}: {reason}")

    def unreachable(self, peer: Address) -> None:
        """Nobody listens at an address any more; called by the medium."""
        self._lose([peer], self._leases.left(peer), "the peer is gone")

    def _lose(self, peers: list[Address], calls: list[Asked], reason: str) -> None:
        for asked in calls:
            self._fail(asked, f"{reason} before {asked.operation_id} was answered")
        for peer in peers:
            if self._receiver is not None:
                self._receiver.lost(peer, reason)

    def _fail(self, asked: Asked, reason: str) -> None:
        failed = CallFailed(request_id=asked.request_id, code=ErrorCode.UNAVAILABLE, message=reason)
        self._deliver(failed, asked.server or "")

    def _deliver(self, event: CallEvent, sender: Address) -> None:
        if self._receiver is not None:
            self._receiver.received(event, sender)

    # --- beats and connections ----------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        due = time.monotonic()
        while True:
            due += self._heartbeat
            await asyncio.sleep(due - time.monotonic())
            try:
                self._say_what_is_in_hand()
            except Exception:  # the next one has to come all the same
                logger.exception("a beat failed")
            late = time.monotonic() - due
            if late < self._heartbeat:
                self._expire()
            else:  # this very process was held up, and there may be news that it has not read yet
                due += late

    def _say_what_is_in_hand(self) -> None:
        if self.connected:
            self._name(dict(self._leases.beats()))
            self._connection.beat(self._heartbeat)

    def _name(self, in_hand: Mapping[Address, list[str]]) -> None:
        for caller, tokens in in_hand.items():
            for portion in self._portions(tokens):
                self._tell(caller, Serving(tokens=portion))

    def _expire(self) -> None:
        expired = self._leases.expire(time.monotonic())
        silence = f"nothing was heard of it for {3 * self._heartbeat:g} s"
        for asked in expired.calls:
            self._fail(asked, f"the server of {asked.operation_id} is gone: {silence}")
        self._lose(expired.callers, [], silence)

    def disconnected(self, reason: str) -> None:
        """The connection is gone; called by the medium. Every call over it ends at once."""
        self._away = reason
        self._broken.set()
        if self._address is None or self._receiver is None:
            return
        self._address = None
        for peer, tokens in self._leases.clear().items():
            self._farewell.setdefault(peer, []).extend(tokens)
        logger.warning("the connection to %s was lost: %s", self._connection.name, reason)
        self._receiver.lost(None, f"the connection to {self._connection.name} was lost ({reason})")

    async def _connect(self) -> None:
        """Connect, and serve what was announced."""
        self._broken.clear()
        address = token_hex(8)
        await self._in_time("the connection", self._connection.connect(address, self))
        self._address, self._away = address, ""
        if self._operations:
            await self._in_time("the announcement", self._connection.serve(list(self._operations)))
        self._say_farewell()

    async def _stay_connected(self) -> None:
        """Whenever the connection is lost, connect again, however often it takes."""
        attempt, tried_at = 0, time.monotonic()
        while True:
            await self._broken.wait()
            if time.monotonic() - tried_at > PATIENCE:  # else it was refused or dropped at once, and would be again
                attempt = 0
            await asyncio.sleep(back_off(attempt))
            attempt += 1
            try:
                await self._connect()
            except Exception as error:
                # Not even a fault of ours may keep this end away for good.
                tell = logger.debug if isinstance(error, CallError) else logger.exception
                tell("%s cannot be reached yet: %s", self._connection.name, error)
                self.disconnected(error.message if isinstance(error, CallError) else "an unexpected error: see the log")
                await self._connection.close()
            else:
                logger.info("connected to %s again", self._connection.name)
            tried_at = time.monotonic()

    async def _in_time(self, what: str, work: Coroutine[None, None, None]) -> None:
        """Await something of the broker, which may be frozen."""
        try:
            async with asyncio.timeout(PATIENCE):
                await work
        except TimeoutError:
            silent = f"{self._connection.name} did not confirm {what} within {PATIENCE:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, silent) from None
