"""Calls over a broker: everything that brokers have in common.

A broker passes messages on, and knows neither calls nor which peers are alive. `BrokerTransport` adds that: tokens that
authenticate replies, leases that expire when a peer is gone, and reconnection. What differs from one broker to another
is a `BrokerConnection`.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import count
from math import inf
from secrets import randbits, token_hex

from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts
from opwire.protocol.events import (
    BULK,
    MAX_ID,
    MAX_MESSAGE,
    CallAborted,
    CallEvent,
    CallFailed,
    CallRequested,
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
from opwire.transports.broker_connection import BrokerConnection, RequestSigner
from opwire.transports.leases import (
    MOMENT,
    Action,
    Deliver,
    LeaseEvent,
    Leases,
    LosePeer,
    OutgoingCall,
    ProbeSchedule,
    Send,
)
from opwire.transports.link import keep_running

logger = get_logger("opwire.transports")

PATIENCE = 5.0
"""Timeout of a broker's confirmations, in seconds."""

_MAX_SERVERS_PER_QUERY = 10_000  # any client can reply
_MAX_SECONDS_PER_TURN = 0.01  # of a heartbeat, before other tasks run
_BYTES_PER_TOKEN = 19  # in JSON: 16 digits, two quotes, a comma
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before a reconnection; the first attempt follows at once
_PROBE = encode_session(Waiting())  # without news: only whether the broker can deliver it matters


class Probes:
    """The timer that probes the servers of long calls, and reports long requests to their callers.

    `send` sends a probe to the server of a call, or to those of its operation; `report` sends the tokens of requests in
    flight to their callers.
    """

    def __init__(
        self,
        leases: Leases,
        send: Callable[[OutgoingCall], None],
        report: Callable[[Mapping[Address, list[str]]], None],
    ) -> None:
        self._leases = leases
        self._schedule = ProbeSchedule(leases.calls)
        self._send = send
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        self.next_check = inf

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to check."""
        return self._timer is None

    def check_soon(self, now: float) -> None:
        """Schedule a check for a new call or request."""
        if self.next_check > now + MOMENT:
            self._check_at(now + MOMENT)

    def stop(self) -> None:
        """Cancel the timer until there is a new call."""
        self._check_at(inf)

    def _check_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.next_check = None, when
        if when < inf:
            self._timer = asyncio.get_running_loop().call_later(when - time.monotonic(), self._check)

    def _check(self) -> None:
        now = time.monotonic()
        try:
            self._report(self._leases.requests.early_reports(now))
            for call in self._schedule.due(now):
                # If it cannot be delivered, the broker calls `BrokerListener.unreachable` or `undelivered`.
                try:
                    self._send(call)
                except CallError as error:
                    logger.debug("%s was not probed: %s", call.operation_id, error)
        except Exception:  # the timer has to go on
            logger.exception("calls in flight could not be probed")
        now = time.monotonic()
        next_report = inf if self._leases.requests.are_reported else now + MOMENT
        next_check = self._schedule.next_check(now) if len(self._leases.calls) else inf
        self._check_at(min(next_report, next_check))


class BrokerTransport:
    """One peer of a broker: a `Transport`.

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
        self.leases = Leases(3 * heartbeat)
        self.probes = Probes(self.leases, self._probe, self._report)
        self._receiver: Receiver | None = None
        self.address: Address | None = None  # of this peer: changes with each connection; None while disconnected
        self._closed = True
        self._disconnect_reason = ""
        self._operations: dict[str, None] = {}  # announced ones, in order
        self._query_ids = count(randbits(32))  # random, so that a peer that did not receive a query cannot reply to it
        self._servers_by_query: dict[int, dict[Address, None]] = {}
        self._disconnected = asyncio.Event()
        self._ended_tokens: dict[Address, list[str]] = {}  # to report after a reconnection
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
        self._disconnected = asyncio.Event()  # bound to this event loop, which may differ from the last one
        self.probes.stop()
        try:
            await self._connect()
        except BaseException:
            self._closed, self.address = True, None
            await self.connection.close()
            raise
        work = (keep_running("the heartbeat", self._beat), keep_running("the reconnection", self._stay_connected))
        self._tasks = [asyncio.get_running_loop().create_task(task) for task in work]

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve further operations, now and after every reconnection."""
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, "this end is closed")
        new_ids = [id for id in dict.fromkeys(operation_ids) if id not in self._operations]
        self._operations.update(dict.fromkeys(new_ids))
        address = self._connected_address()
        try:
            await self._in_time("the announcement", self.connection.serve(new_ids))
        except CallError:
            if self.address == address:  # rejected by the broker; after a lost connection they are announced again
                for id in new_ids:
                    self._operations.pop(id, None)
            raise

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving operations."""
        served_ids = [id for id in dict.fromkeys(operation_ids) if id in self._operations]
        for id in served_ids:
            del self._operations[id]
        if self.connected and served_ids:
            # A caller that has not heard of its call yet would learn that the operation has no server, and fail it.
            self._report(dict(self.leases.requests.reports()))
            try:
                await self._in_time("the withdrawal", self.connection.unserve(served_ids))
                self._report(dict(self.leases.requests.reports()))  # also those that were on their way
            except CallError as error:  # nothing is routed here then, and they are not announced again
                logger.debug("the connection was lost during a withdrawal: %s", error)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Query all servers, and return those that reply within `wait` seconds."""
        address = self._connected_address()
        query_id = next(self._query_ids)
        servers = self._servers_by_query[query_id] = {}
        try:
            self.connection.broadcast("", encode_session(Who(id=query_id)))
            await asyncio.sleep(wait)
        finally:
            del self._servers_by_query[query_id]
        if self.address != address:
            raise CallError(ErrorCode.UNAVAILABLE, f"the connection to {self.connection.name} was lost in the query")
        return list(servers)

    async def close(self) -> None:
        """Disconnect. Peers fail the calls that they share with this peer."""
        if self._closed:
            return
        self._closed = True
        self.probes.stop()
        tasks, self._tasks = self._tasks, []
        try:
            await cancel_tasks(*tasks)
            await self.withdraw(list(self._operations))
        finally:  # also if the caller is cancelled while the broker is silent
            if self.connected:
                self._ended_tokens = self.leases.clear()
                self._report_ended()
            await self.connection.close()  # until then, requests that are sent to this peer directly are rejected
            self.address = None

    # --- sending ------------------------------------------------------------------------------------------------------

    def request(self, event: CallRequested, to: Address | None = None) -> None:
        """Send a request to one of the servers of its operation, or to a certain one."""
        if self.address is None:
            self._connected_address()
        if self.signed is not None:
            event = self.signed.leaving(event, to)
        message = encode_event(event, limit=min(self._max_message, self.connection.max_message))
        now = time.monotonic()
        calls, rerouted_to = self.leases.calls, None
        if calls.reroutes and to is None and event.sticky_key is None:
            rerouted_to = calls.reroutes.server(event.operation_id, now)
        call = calls.start(
            event.request_id,
            event.operation_id,
            now,
            streams=event.credits is not None,
            server=to or rerouted_to,
            rerouted=rerouted_to is not None,
        )
        if self.probes.next_check > now + MOMENT:
            self.probes.check_soon(now)
        try:
            if call.server is None:
                self.connection.request(event.operation_id, call.token, message, event.sticky_key)
            else:
                self.connection.send(call.server, call.token, message, control=False)
        except BaseException:
            calls.end(call)
            raise

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, or (None) to the server of the request."""
        if isinstance(event, CallRequested):
            self.request(event, to)
            return
        if self.address is None:
            self._connected_address()
        request = None if to is None else self.leases.requests.by_caller_and_id.get((to, event.request_id))
        if request is None:
            self._send_without_lease(event, to)
            return
        message = encode_event(event, limit=min(self._max_message, self.connection.max_message))
        control = not isinstance(event, BULK)
        try:
            self.connection.send(request.caller, request.token, message, control=control)
        except CallError:
            if control:  # nothing smaller could end it: the caller sees it missing from the heartbeats
                self.leases.requests.end(request)
            raise
        if is_final(event):
            self.leases.requests.end(request)
            if self.signed is not None:
                self.signed.ended(event.request_id)

    def _send_without_lease(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to the server of a call of this peer, or to a plain client of the broker.

        While the server of a call is unknown, its abort is broadcast: the token identifies the call.
        """
        call = self.leases.calls.by_request_id.get(event.request_id)
        if call is not None and to not in (None, call.server):
            call = None  # a received request has the same id; its caller must not get our token
        aborts = isinstance(event, CallAborted)
        if call is not None and aborts:
            self.leases.calls.end(call)  # even if it cannot be sent: the reply to the next heartbeat reports it
        server, token = (to, "") if call is None else (call.server, call.token)
        message = encode_event(event, limit=self.max_message)
        if server is not None:
            self.connection.send(server, token, message, control=not isinstance(event, BULK))
        elif call is not None and aborts:  # nothing else: the token of an open call is never broadcast
            self.connection.broadcast(token, message)
        else:
            raise CallError(ErrorCode.UNAVAILABLE, "the peer is gone")

    def _notify(self, to: Address, event: SessionEvent | CallFailed, token: str = "") -> None:
        """Send an optional event to a peer, or (an empty address) to all."""
        try:
            is_session = isinstance(event, SessionMessage)
            message = encode_session(event) if is_session else encode_event(event, limit=self.max_message)
            if to:
                self.connection.send(to, token, message, control=True)
            else:
                self.connection.broadcast(token, message)
        except CallError as error:
            logger.debug("no message could be sent to %s: %s", to or "all peers", error)

    def _probe(self, call: OutgoingCall) -> None:
        """Send a message to the server of a call, or to one of its operation: the broker reports if it is gone."""
        if call.server:
            self.connection.send(call.server, call.token, _PROBE, control=True)
        else:
            self.connection.request(call.operation_id, call.token, _PROBE)

    def _report(self, tokens_by_caller: Mapping[Address, list[str]]) -> None:
        """Report the requests in flight to their callers."""
        for caller, tokens in tokens_by_caller.items():
            for tokens_of_message in self._portions(tokens):
                self._notify(caller, Serving(tokens=tokens_of_message))

    def _report_ended(self) -> None:
        """Report the calls that ended with the connection to the peers that share them."""
        for peer, tokens in self._ended_tokens.items():
            for tokens_of_message in self._portions(tokens):
                self._notify(peer, Left(tokens=tokens_of_message))
        self._ended_tokens = {}

    def _portions(self, tokens: list[str]) -> Iterator[list[str]]:
        """Split tokens by message, as many as fit."""
        size = max(1, (self.max_message - 100) // _BYTES_PER_TOKEN)
        return (tokens[start : start + size] for start in range(0, len(tokens), size))

    # --- the listener of the connection -------------------------------------------------------------------------------

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        """Handle a message to this peer."""
        if self._receiver is None or self.address is None:
            return
        try:
            event = decode_message(message, limit=self._max_message)
        except CallError as error:
            self._unreadable(sender, token, error)
            return
        now = time.monotonic()
        if isinstance(event, CallRequested):
            self._requested(event, sender, token, now, self._receiver)
        elif isinstance(event, SessionMessage):
            self._session(event, sender, token, now)
        elif self.leases.accept(event, sender, token, now):
            self._receiver.received(event, sender)
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
        except CallError as refusal:
            self._notify(sender, CallFailed.of(event.request_id, refusal), token)
            return
        # A plain client of the broker sends no token: it gets its reply, but holds no lease.
        if token and not self.leases.requests.add(sender, event.request_id, token, now):
            self.foreign += 1
            return
        if self.probes.next_check > now + MOMENT:
            self.probes.check_soon(now)
        receiver.received(event, sender)

    def _session(self, event: SessionEvent, sender: Address, token: str, now: float) -> None:
        if isinstance(event, LeaseEvent):
            self._perform(self.leases.handle(event, sender, token, now))
        elif isinstance(event, Here):
            servers = self._servers_by_query.get(event.id)
            if sender and servers is not None and len(servers) < _MAX_SERVERS_PER_QUERY:
                servers[sender] = None
        else:
            self.malformed += 1

    def _unreadable(self, sender: Address, token: str, error: CallError) -> None:
        """Fail the call of an invalid message, here or at the peer; the connection stays open."""
        self.malformed += 1
        request_id = None if error.details is None else error.details.get("requestId")
        if self.malformed <= 10 or self.malformed.bit_count() == 1:  # any client can send any number
            unknown_call = "" if isinstance(request_id, str) else ", of an unknown call"
            logger.warning("invalid message %d%s, from %s: %s", self.malformed, unknown_call, sender, error.message)
        if not isinstance(request_id, str):
            return
        failure = CallFailed.of(request_id, CallError(error.code, error.message))
        if self.leases.calls.by_request_id.get(request_id) is None:
            self._notify(sender, failure, token)
        elif self.leases.accept(failure, sender, token, time.monotonic()):
            self._perform([Deliver(failure, sender)])

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
            self._session(event, sender, token, time.monotonic())
        elif isinstance(event, CallAborted) and (sender, event.request_id) in self.leases.requests.by_caller_and_id:
            self.arrived(sender, token, message)

    def routed(self, token: str, peer: Address) -> None:
        """Record the server that received a request."""
        self.leases.calls.routed(token, peer)

    def undelivered(self, token: str, reason: str) -> None:
        """Fail the request that no server received; if it was a probe, those of servers that are gone."""
        self._perform(self.leases.calls.undelivered(token, reason))

    def refused(self, operation_id: str, reason: str) -> None:
        """Fail the requests for an operation that this peer may not call."""
        self._perform(self.leases.calls.refused(operation_id, reason))

    def unreachable(self, peer: Address) -> None:
        """Handle the loss of a peer."""
        self._perform(self.leases.lose(peer))

    def forbidden(self, peer: Address) -> None:
        """Handle missing permission to send messages to a peer: the broker has to route all requests."""
        self._perform(self.leases.calls.forbidden(peer))

    def disconnected(self, reason: str) -> None:
        """Handle the loss of the connection: every call over it fails at once."""
        self._disconnect_reason = reason
        self._disconnected.set()
        if self.address is None or self._receiver is None:
            return
        self.address = None
        for peer, tokens in self.leases.clear().items():
            self._ended_tokens.setdefault(peer, []).extend(tokens)
        logger.warning("the connection to %s was lost: %s", self.connection.name, reason)
        self._receiver.lost(None, f"the connection to {self.connection.name} was lost ({reason})")

    def _perform(self, actions: Iterable[Action]) -> None:
        """Do what the leases decided."""
        for action in actions:
            match action:
                case Send(peer, token, event):
                    self._notify(peer, event, token)
                case Deliver(event, sender) if self._receiver is not None:
                    self._receiver.received(event, sender)
                case LosePeer(peer, reason) if self._receiver is not None:
                    self._receiver.lost(peer, reason)
                case _:
                    pass

    # --- heartbeats and connections -----------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Report the requests in flight at every heartbeat, and end the leases that were not confirmed."""
        due = time.monotonic()
        while True:
            due += self._heartbeat
            await asyncio.sleep(due - time.monotonic())
            try:
                if self.connected:
                    await self._report_all()
                    self.connection.beat(self._heartbeat)
            except Exception:  # the next one has to follow
                logger.exception("a heartbeat failed")
            late = time.monotonic() - due
            if late >= self._heartbeat:  # this process was blocked, and may not have read the latest messages
                due += late
            else:
                self._perform(self.leases.expire(time.monotonic()))

    async def _report_all(self) -> None:
        turn_began = time.monotonic()
        for caller, tokens in self.leases.requests.reports():
            self._report({caller: tokens})
            if time.monotonic() - turn_began > _MAX_SECONDS_PER_TURN:  # 20,000 callers take 0.3 s
                await asyncio.sleep(0)
                turn_began = time.monotonic()

    async def _connect(self) -> None:
        """Connect, and announce the operations."""
        self._disconnected.clear()
        address = token_hex(8)
        await self._in_time("the connection", self.connection.connect(address, self))
        self.address, self._disconnect_reason = address, ""
        if self._operations:
            await self._in_time("the announcement", self.connection.serve(list(self._operations)))
        self._report_ended()

    async def _stay_connected(self) -> None:
        """Reconnect whenever the connection is lost."""
        attempt, tried_at = 0, time.monotonic()
        while True:
            await self._disconnected.wait()
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

    def _connected_address(self) -> Address:
        """Return the address of this peer.

        Raises:
            CallError: UNAVAILABLE, it is disconnected, and why.
        """
        if self.address is not None:
            return self.address
        name, reason = self.connection.name, self._disconnect_reason
        if self._closed:
            reason = "this end is closed"
        elif not reason.startswith(name):  # otherwise the broker rejects the connection, and says what to do about it
            reason = f"{name} is not reachable at the moment" + (f": {reason}" if reason else "")
        raise CallError(ErrorCode.UNAVAILABLE, reason)

    async def _in_time(self, confirmation: str, work: Coroutine[None, None, None]) -> None:
        """Await a confirmation of the broker, with a timeout."""
        try:
            async with asyncio.timeout(PATIENCE):
                await work
        except TimeoutError:
            silent = f"{self.connection.name} did not confirm {confirmation} within {PATIENCE:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, silent) from None
