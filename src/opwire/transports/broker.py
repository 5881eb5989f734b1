"""Calls over a broker: everything that brokers have in common.

A broker passes messages on, and knows neither calls nor which peers are alive. `BrokerTransport` adds that: tokens that
authenticate replies, leases that expire when a peer is gone, and reconnection. What differs from one broker to another
is a `BrokerConnection`.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from itertools import count
from secrets import randbits, token_hex

from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts
from opwire.protocol.batch import decode_batch
from opwire.protocol.events import (
    BULK,
    MAX_ID,
    MAX_MESSAGE,
    CallAborted,
    CallEvent,
    CallFailed,
    CallRequested,
    CallResponded,
    Here,
    Left,
    Serving,
    SessionEvent,
    SessionMessage,
    Waiting,
    Who,
    decode_message,
    encode_event,
    encode_session,
    is_final,
)
from opwire.protocol.transport import Address, Receiver
from opwire.runtime.deadlines import back_off
from opwire.runtime.tasks import cancel_tasks
from opwire.runtime.text import get_logger
from opwire.transports.batches import BATCHING, Batches, batch_number
from opwire.transports.broker_connection import BrokerConnection, RequestSigner
from opwire.transports.leases import MOMENT, Asked, Leases, Probes
from opwire.transports.link import keep_running

logger = get_logger("opwire.transports")

PATIENCE = 5.0
"""Timeout of a broker's confirmations, in seconds."""

_MAX_SERVERS, _MAX_REASON = 10_000, 200  # replies to one query, which any client can send; characters of a reason
_TURN = 0.01  # seconds of a heartbeat, after which other tasks have their turn
_TOKEN_BYTES = 19  # of a token in JSON: 16 digits, two quotes, a comma
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before a reconnection; the first attempt follows at once


class BrokerTransport:
    """One end of a broker: a `Transport`.

    `heartbeat` is the interval, in seconds, at which a server reports its calls in flight. A call that is missing from
    three heartbeats fails with UNAVAILABLE: that is how long it takes to detect a server that is frozen or cut off. One
    with a closed connection to the broker is detected much earlier, by `Probes`. `max_message` is the limit of a
    message in bytes; the broker's own limit applies as well. `signed` proves identities in both directions; without it,
    the identity on a request is ignored.
    """

    local = False
    vouches = False
    lossy = True

    def __init__(
        self,
        connection: BrokerConnection,
        *,
        heartbeat: float = 1.0,
        max_message: int = MAX_MESSAGE,
        signed: RequestSigner | None = None,
    ) -> None:
        check_above_zero(heartbeat=heartbeat)
        check_counts(max_message=max_message)
        self.connection = connection  # `start` connects it
        self._heartbeat = heartbeat
        self._max_message = max_message
        self.signed = signed
        self._leases = Leases(3 * heartbeat)
        self._batches = Batches(connection)
        self._probes = Probes(self._leases, self._batches.probe, self._report)
        self._receiver: Receiver | None = None
        self.address: Address | None = None  # of this end: changes with each connection; None while disconnected
        self._closed, self._away = True, ""  # the latter: why it is disconnected
        self._operations: dict[str, None] = {}  # announced ones, in order
        self._queries = count(randbits(32))  # random, so that an end that did not receive a query cannot reply to it
        self._found: dict[int, dict[Address, None]] = {}  # servers by query
        self._broken = asyncio.Event()  # set while disconnected
        self._unreported: dict[Address, list[str]] = {}  # ended calls to report after a reconnection
        self._tasks: list[asyncio.Task[None]] = []
        self.malformed = self.foreign = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.connection.name}, {'' if self.connected else 'not '}connected>"

    @property
    def trusted(self) -> bool:
        """Whether the identity on a request was verified."""
        return self.signed is not None and self.signed.verifies

    @property
    def max_message(self) -> int:
        """The limit of a message in bytes, as far as it is known."""
        return min(self._max_message, self.connection.max_message)

    @property
    def connected(self) -> bool:
        """Whether the broker is connected."""
        return self.address is not None

    async def start(self, receiver: Receiver) -> None:
        """Connect."""
        self._receiver, self._closed = receiver, False
        self._operations.clear()
        self._broken = asyncio.Event()  # bound to this event loop, which may differ from the last one
        self._probes.stop()
        try:
            await self._connect()
        except BaseException:
            self._closed, self.address = True, None
            await self.connection.close()
            raise
        work = (keep_running("the heartbeat", self._beat), keep_running("the reconnection", self._stay_connected))
        self._tasks = [asyncio.get_running_loop().create_task(each) for each in work]

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve further operations, now and after every reconnection."""
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, "this end is closed")
        new = [each for each in dict.fromkeys(operation_ids) if each not in self._operations]
        self._operations.update(dict.fromkeys(new))
        here = self._here()
        try:
            await self._in_time("the announcement", self.connection.serve(new))
        except CallError:
            if self.address == here:  # rejected by the broker; after a lost connection they are announced again
                for each in new:
                    self._operations.pop(each, None)
            raise

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving operations."""
        known = [each for each in dict.fromkeys(operation_ids) if each in self._operations]
        for each in known:
            del self._operations[each]
        if self.connected and known:
            # A caller that has not heard of its call yet would learn that the operation has no server, and fail it.
            self._report(dict(self._leases.beats()))
            try:
                await self._in_time("the withdrawal", self.connection.unserve(known))
                self._report(dict(self._leases.beats()))  # also those that were on their way
            except CallError as gone:  # nothing is routed here then, and they are not announced again
                logger.debug("the connection was lost during a withdrawal: %s", gone)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Query all servers, and return those that reply within `wait` seconds."""
        here = self._here()
        number = next(self._queries)
        found = self._found[number] = {}
        try:
            self.connection.broadcast("", encode_session(Who(id=number)))
            await asyncio.sleep(wait)
        finally:
            del self._found[number]
        if self.address != here:
            raise CallError(ErrorCode.UNAVAILABLE, f"the connection to {self.connection.name} was lost in the query")
        return list(found)

    def request(self, event: CallRequested, to: Address | None = None) -> None:
        """Send a request to one of the servers of its operation, or to a certain one."""
        if self.address is None:
            self._here()
        if self.signed is not None:
            event = self.signed.leaving(event, to)
        limit = self.connection.max_message
        message = encode_event(event, limit=limit if limit < self._max_message else self._max_message)
        streams, now = event.credits is not None, time.monotonic()
        routed = to is not None or event.sticky_key is not None
        route = None if routed else self._leases.sole_server(event.operation_id, now, streams)
        asked = self._leases.ask(event.request_id, event.operation_id, now, streams=streams, server=to)
        if self._probes.due > now + MOMENT:
            self._probes.soon(now)
        try:
            if to is not None:
                self._batches.send(to, asked.token, message, control=False)
            elif route is None or not self._batches.request(route, asked, message):
                self.connection.request(event.operation_id, asked.token, message, event.sticky_key)
        except BaseException:
            self._leases.end(asked.token)
            raise

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, or (None) to the server of the request."""
        if type(event) is CallResponded and event.seq is None and to is not None and self._respond(event, to):
            return  # nearly all are
        if isinstance(event, CallRequested):
            self.request(event, to)
            return
        if self.address is None:
            self._here()
        token = None if to is None else self._leases.held(to, event.request_id)
        if to is None or token is None:
            self._send_without_lease(event, to)
            return
        message = encode_event(event, limit=self.max_message)
        control = not isinstance(event, BULK)
        try:
            self._batches.add(to, token, message, control=control)
        except CallError:
            if control:  # nothing smaller could end it: the caller sees it missing from the heartbeats
                self._leases.release(to, event.request_id)
            raise
        if is_final(event):
            self._leases.release(to, event.request_id)
            if self.signed is not None:
                self.signed.ended(event.request_id)

    def _respond(self, event: CallResponded, to: Address) -> bool:
        """Send the only response to a request; return False if it has no lease. If that fails, the request goes on."""
        token = self._leases.release(to, event.request_id)
        if token is None:
            return False
        try:
            limit = self.connection.max_message
            message = encode_event(event, limit=limit if limit < self._max_message else self._max_message)
            self._batches.add(to, token, message, control=False)
        except BaseException:
            self._leases.hold(to, event.request_id, token, time.monotonic())
            raise
        if self.signed is not None:
            self.signed.ended(event.request_id)
        return True

    async def close(self) -> None:
        """Disconnect. Peers fail the calls that they share with this end."""
        if self._closed:
            return
        self._closed = True
        self._probes.stop()
        tasks, self._tasks = self._tasks, []
        try:
            await cancel_tasks(*tasks)
            await self.withdraw(list(self._operations))
        finally:  # also if the caller is cancelled while the broker is silent
            if self.connected:
                self._batches.flush()
                self._unreported = self._leases.clear()
                self._report_ended()
            await self.connection.close()  # until then, requests that are sent to this end directly are rejected
            self.address = None

    # --- sending ------------------------------------------------------------------------------------------------------

    def _here(self) -> Address:
        if self.address is not None:
            return self.address
        name, absence = self.connection.name, self._away
        if self._closed:
            absence = "this end is closed"
        elif not absence.startswith(name):  # otherwise the broker rejects the connection, and says what to do about it
            absence = f"{name} is not reachable at the moment" + (f": {absence}" if absence else "")
        raise CallError(ErrorCode.UNAVAILABLE, absence)

    def _send_without_lease(self, event: CallEvent, to: Address | None) -> None:
        """Steer an outgoing call, or reply to a plain client of the broker.

        While the server of a call is unknown, its end is broadcast: the token identifies the call.
        """
        asked = self._leases.asked(event.request_id)
        if asked is not None and to not in (None, asked.server):
            asked = None  # a received request has the same id; its caller must not get our token
        server, token = (to, "") if asked is None else (asked.server, asked.token)
        over = isinstance(event, CallAborted)
        if over:
            self._leases.end(token)  # even if it cannot be sent: the reply to the next heartbeat reports it
        message = encode_event(event, limit=self.max_message)
        if server is not None:
            self._batches.send(server, token, message, control=not isinstance(event, BULK))
        elif asked is not None and over:  # nothing else: the token of an open call is never broadcast
            self.connection.broadcast(token, message)
        else:
            raise CallError(ErrorCode.UNAVAILABLE, "the peer is gone")

    def _notify(self, to: Address, event: SessionEvent | CallFailed, token: str = "") -> None:
        """Send an optional event to a peer, or (an empty address) to all."""
        try:
            session = isinstance(event, SessionMessage)
            message = encode_session(event) if session else encode_event(event, limit=self.max_message)
            if to:
                self._batches.send(to, token, message, control=True)
            else:
                self.connection.broadcast(token, message)
        except CallError as error:
            logger.debug("no message could be sent to %s: %s", to or "all peers", error)

    def _report_ended(self) -> None:
        for peer, tokens in self._unreported.items():
            for portion in self._portions(tokens):
                self._notify(peer, Left(tokens=portion))
        self._unreported = {}

    def _portions(self, tokens: list[str]) -> Iterator[list[str]]:
        """Split tokens by message, as many as fit."""
        size = max(1, (self.max_message - 100) // _TOKEN_BYTES)
        return (tokens[start : start + size] for start in range(0, len(tokens), size))

    # --- events -------------------------------------------------------------------------------------------------------

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        """Handle a message to this end: an event, or a batch of them."""
        receiver, limit = self._receiver, self._max_message
        if receiver is None or self.address is None:
            return
        batched = message[:1] == b"["
        try:
            events = decode_batch(message, limit) if batched else [(token, decode_message(message, limit=limit))]
        except CallError as error:
            self._unreadable(sender, "" if batched else token, error)
            return
        now = time.monotonic()
        for shown, event in events:
            if type(event) is CallRequested:
                if batched and event.operation_id not in self._operations:  # its caller lets the broker route it again
                    gone = f"{event.operation_id} is not served here any more"
                    self._notify(sender, _unavailable(event.request_id, gone, not_started=True), shown)
                else:
                    self._requested(event, sender, shown, now, receiver)
            elif isinstance(event, SessionMessage):
                self._session(event, sender, shown)
            elif isinstance(event, CallError):
                self._unreadable(sender, shown, event)
            elif self._leases.authenticates(event, sender, shown, now):
                receiver.received(event, sender)
            else:
                self.foreign += 1

    def _requested(self, event: CallRequested, sender: Address, token: str, now: float, receiver: Receiver) -> None:
        if not sender:  # no reply is possible, so it is not run
            self.malformed += 1
            return
        try:
            if len(event.request_id) > MAX_ID:  # it is remembered for longer than the request takes
                raise CallError(ErrorCode.VALIDATION_ERROR, f"the request id has more than {MAX_ID:,} characters")
            if self.signed is not None:
                event = self.signed.arriving(event, self.address)
        except CallError as refused:
            self._notify(sender, CallFailed.of(event.request_id, refused), token)
            return
        # A plain client of the broker sends no token: it gets its reply, but holds no lease.
        if token and not self._leases.hold(sender, event.request_id, token, now):
            self.foreign += 1
            return
        if self._probes.due > now + MOMENT:
            self._probes.soon(now)
        receiver.received(event, sender)

    def overheard(self, sender: Address, token: str, message: bytes) -> None:
        """Handle a broadcast: a query for servers, or the end of calls that may be held here."""
        if self._receiver is None or self.address is None:
            return
        try:
            event = decode_message(message, limit=self._max_message)
        except CallError:
            self.malformed += 1
            return
        if isinstance(event, Who):
            if self._operations:
                self._notify(sender, Here(id=event.id, peers=[self.address]))
        elif isinstance(event, Left):
            self._session(event, sender, token)
        elif isinstance(event, CallAborted) and self._leases.held(sender, event.request_id) is not None:
            self.arrived(sender, token, message)

    def _unreadable(self, sender: Address, token: str, error: CallError) -> None:
        """Fail the call of an invalid message, here or at the peer; the connection stays open."""
        self.malformed += 1
        request_id = None if error.details is None else error.details.get("requestId")
        if self.malformed <= 10 or self.malformed.bit_count() == 1:  # any client can send any number
            unknown = "" if isinstance(request_id, str) else ", of an unknown call"
            logger.warning("invalid message %d%s, from %s: %s", self.malformed, unknown, sender, error.message)
        if not isinstance(request_id, str):
            return
        failed = CallFailed.of(request_id, CallError(error.code, error.message))
        if self._leases.asked(request_id) is None:
            self._notify(sender, failed, token)
        elif self._leases.authenticates(failed, sender, token, time.monotonic()):
            self._deliver(failed, sender)

    def _session(self, event: SessionEvent, sender: Address, shown: str) -> None:
        now = time.monotonic()
        match event:
            case Serving():
                token, gone = self._leases.confirm(sender, event.tokens, now)
                if token or gone:
                    self._notify(sender, Waiting(gone=gone), token)
            case Waiting():
                for request_id in self._leases.heard(sender, shown, event.gone, now):
                    self._leases.release(sender, request_id)
                    self._deliver(CallAborted(request_id=request_id, reason="the caller is not waiting"), sender)
            case Left():  # by its tokens, not by its address, which can be forged
                calls, requests = self._leases.over(event.tokens)
                reason = event.reason[:_MAX_REASON]
                self._lose([], calls, reason)
                for caller, request_id in requests:
                    self._deliver(CallAborted(request_id=request_id, reason=reason), caller)
            case Here():
                found = self._found.get(event.id)
                if sender and found is not None and len(found) < _MAX_SERVERS:
                    found[sender] = None
            case _:
                self.malformed += 1

    def routed(self, token: str, peer: Address) -> None:
        """Record the server that received a request."""
        self._leases.routed(token, peer)

    def undelivered(self, token: str, reason: str) -> None:
        """Fail the request that no server received; if it was a probe, those of servers that are gone."""
        for asked in self._leases.undelivered(token):
            was_sent = asked.token != token or asked.probed
            self._fail(asked, f"{asked.operation_id}: {'no server is left; it may have run' if was_sent else reason}")

    def refused(self, operation_id: str, reason: str) -> None:
        """Fail the requests for an operation that this end may not call."""
        for asked in self._leases.unanswered(operation_id):
            self._fail(asked, f"{asked.operation_id}: {reason}")

    def unreachable(self, peer: Address, token: str = "") -> None:
        """Handle the loss of a peer. The requests of a batch that was not delivered are sent again."""
        served, unsent = self._leases.left(peer, batch_number(token))
        for asked in unsent:
            self._fail(asked, "the peer is gone", not_started=True)
        self._lose([peer], served, "the peer is gone")

    def forbidden(self, peer: Address) -> None:
        """Handle missing permission to send messages to a peer: the broker has to route all requests."""
        for asked in self._leases.forbidden(peer):
            self._fail(asked, "no permission to send it to its server", not_started=True)

    def _lose(self, peers: list[Address], calls: list[Asked], reason: str) -> None:
        for asked in calls:
            self._fail(asked, f"{reason} before {asked.operation_id} ended")
        for peer in peers:
            if self._receiver is not None:
                self._receiver.lost(peer, reason)

    def _fail(self, asked: Asked, reason: str, *, not_started: bool | None = None) -> None:
        self._deliver(_unavailable(asked.request_id, reason, not_started=not_started), asked.server or "")

    def _deliver(self, event: CallEvent, sender: Address) -> None:
        if self._receiver is not None:
            self._receiver.received(event, sender)

    # --- heartbeats and connections -----------------------------------------------------------------------------------

    async def _beat(self) -> None:
        due = time.monotonic()
        while True:
            due += self._heartbeat
            await asyncio.sleep(due - time.monotonic())
            turn = time.monotonic()
            try:
                if self.connected:
                    for caller, tokens in self._leases.beats():
                        self._report({caller: tokens})
                        if time.monotonic() - turn > _TURN:  # 20,000 callers take 0.3 s
                            await asyncio.sleep(0)
                            turn = time.monotonic()
                    self.connection.beat(self._heartbeat)
            except Exception:  # the next one has to follow
                logger.exception("a heartbeat failed")
            late = time.monotonic() - due
            if late >= self._heartbeat:  # this process was blocked, and may not have read the latest messages
                due += late
                continue
            expired = self._leases.expire(time.monotonic())
            silence = f"no message from it for {3 * self._heartbeat:g} s"
            for asked in expired.calls:
                self._fail(asked, f"the server of {asked.operation_id} is gone: {silence}")
            self._lose(expired.callers, [], silence)

    def _report(self, in_flight: Mapping[Address, list[str]]) -> None:
        for caller, tokens in in_flight.items():
            for portion in self._portions(tokens):
                self._notify(caller, Serving(tokens=portion))

    def disconnected(self, reason: str) -> None:
        """Handle the loss of the connection: every call over it fails at once."""
        self._away = reason
        self._broken.set()
        if self.address is None or self._receiver is None:
            return
        self.address = None
        self._batches.clear()
        for peer, tokens in self._leases.clear().items():
            self._unreported.setdefault(peer, []).extend(tokens)
        logger.warning("the connection to %s was lost: %s", self.connection.name, reason)
        self._receiver.lost(None, f"the connection to {self.connection.name} was lost ({reason})")

    async def _connect(self) -> None:
        """Connect, and announce the operations."""
        self._broken.clear()
        address = BATCHING + token_hex(8)
        await self._in_time("the connection", self.connection.connect(address, self))
        self.address, self._away = address, ""
        if self._operations:
            await self._in_time("the announcement", self.connection.serve(list(self._operations)))
        self._report_ended()

    async def _stay_connected(self) -> None:
        """Reconnect whenever the connection is lost."""
        attempt, tried_at = 0, time.monotonic()
        while True:
            await self._broken.wait()
            if time.monotonic() - tried_at > PATIENCE:  # otherwise it was rejected or dropped at once
                attempt = 0
            await asyncio.sleep(back_off(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE) if attempt else 0)
            attempt += 1
            try:
                await self._connect()
            except Exception as error:
                # Not even a bug here may prevent the next attempt.
                log = logger.debug if isinstance(error, CallError) else logger.exception
                log("%s cannot be reached yet: %s", self.connection.name, error)
                self.disconnected(error.message if isinstance(error, CallError) else "an unexpected error: see the log")
                await self.connection.close()
            else:
                # At the level of the loss: a log that shows one of them shows both.
                logger.warning("reconnected to %s", self.connection.name)
            tried_at = time.monotonic()

    async def _in_time(self, what: str, work: Coroutine[None, None, None]) -> None:
        """Await a confirmation of the broker, with a timeout."""
        try:
            async with asyncio.timeout(PATIENCE):
                await work
        except TimeoutError:
            silent = f"{self.connection.name} did not confirm {what} within {PATIENCE:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, silent) from None


def _unavailable(request_id: str, reason: str, *, not_started: bool | None) -> CallFailed:
    return CallFailed(request_id=request_id, code=ErrorCode.UNAVAILABLE, message=reason, not_started=not_started)
