"""`WebSocketTransport`: the end that connects to a `WebSocketServer`, and reconnects after a loss.

A `ClientSession` holds all state of one connection, from the handshake to its end. After a loss, the transport opens
another session.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from random import sample, uniform
from ssl import SSLContext
from typing import Any, Literal

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, system_message
from opwire.protocol import events
from opwire.protocol.events import (
    MAX_MESSAGE,
    CallAborted,
    CallEvent,
    CallFailed,
    CallProgress,
    CallRequested,
    Here,
    Who,
    Withdraw,
    decode_event,
    encode_event,
    refusal_error,
)
from opwire.protocol.transport import Address, MovableReceiver, Receiver
from opwire.runtime import deadlines
from opwire.runtime.tasks import cancel_tasks, resolve
from opwire.runtime.text import get_logger
from opwire.transports.link import MAX_BACKLOG
from opwire.transports.websocket.connection import SUBPROTOCOL, WebSocketConnection
from opwire.transports.websocket.relay import MARGIN, read_origin, relay_header
from opwire.transports.websocket.routes import SERVER, RequestedHead, read_head

logger = get_logger("opwire.transports.websocket")

# --- one session ------------------------------------------------------------------------------------------------------

PATIENCE = 10.0  # seconds within which the server has to answer a session request, or to report that it is pending

_CALL_EVENT_PREFIX = b'{"type":"call.'  # as `encode_event` writes it
_MIN_BEAT_MS, _MAX_BEAT_MS = 10, 86_400_000  # that a server may ask for
_HELLO_NUMBER = -1  # the number of the session request without one: hello
_NORMAL, _WRONG_PROTOCOL = 1000, 1002
_MAX_ERROR_LENGTH = 200

Dropped = Literal["malformed", "foreign"]
_Response = events.SessionEvent | CallError


class ClientSession:
    """A session. `lost` is called once, with the reason, if an established session is not ended from here.

    `going` is called when the server is about to leave.
    """

    def __init__(
        self,
        uri: WebSocketURI,
        receiver: Receiver,
        lost: Callable[["ClientSession", str], None],
        going: Callable[["ClientSession"], None],
        dropped: Counter[Dropped],
        *,
        max_message: int,
        heartbeat: float | None,
        max_backlog: int,
        token: str | None = None,
    ) -> None:
        self._uri = uri
        self.receiver = receiver
        self._on_loss = lost
        self._on_going = going
        self._dropped = dropped
        self._max_received = max_message
        self._max_sent = max_message  # bytes of a message that both sides accept
        self._heartbeat = heartbeat
        self._token = token
        self._core = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=max_message + MARGIN)
        self._connection = WebSocketConnection(
            self._core, greeted=self._greeted, arrived=self._arrived, lost=self._lost, max_backlog=max_backlog
        )
        self._numbers = count(1)
        self._requests: dict[int, asyncio.Future[_Response]] = {}  # session requests in flight, by number
        self._timeouts: dict[int, asyncio.Timeout] = {}  # of these
        self._unanswered: set[str] = set()  # calls without any response yet
        self._why = "the connection is not there yet"
        self.welcome = False
        self.leaving = False  # no new requests are sent

    async def begin(self, ssl: SSLContext | None) -> None:
        """Perform the three handshakes: of TCP, of WebSocket, and of the session.

        Raises:
            OSError, ValueError: the host cannot be reached, or is invalid.
            CallError: the server refuses, or speaks another protocol.
        """
        loop = asyncio.get_running_loop()
        welcome = self._requests[_HELLO_NUMBER] = loop.create_future()
        secure = (ssl or True) if self._uri.secure else None
        await loop.create_connection(lambda: self._connection.link, self._uri.host, self._uri.port, ssl=secure)
        self._core.send_request(self._core.connect())
        self._connection.reply()
        response = await welcome
        if isinstance(response, CallError):
            raise response

    def drop(self) -> None:
        """End the session without a close frame."""
        self._connection.drop()
        self._end("the connection was given up")

    async def close(self) -> None:
        """End the session with a close frame, and wait for the server's."""
        self._end("this end is closed")
        await self._connection.close(_NORMAL, "")

    def retire(self, receiver: Receiver) -> None:
        """Tell the server that new requests go elsewhere; calls in flight go on, for this receiver."""
        self.receiver = receiver
        self.leaving = True
        with suppress(CallError):  # it is being lost
            self._connection.send(events.encode_session(events.GoAway(reason="moved")), control=True)

    def check(self) -> None:
        """Raise CallError(UNAVAILABLE), with the reason, unless the session is established."""
        if not self.welcome:
            raise CallError(ErrorCode.UNAVAILABLE, self._why)

    def _greeted(self, _: Request | Response) -> None:
        if self._core.state is not State.OPEN:
            return  # refused: the connection ends by itself, with the reason
        if self._core.subprotocol == SUBPROTOCOL:
            hello = events.Hello(version=events.VERSION, max_message=self._max_received, token=self._token)
            self._connection.send(events.encode_session(hello), control=True)
        else:
            self._connection.end(_WRONG_PROTOCOL, f"it does not speak {SUBPROTOCOL}")

    def _lost(self, reason: str) -> None:
        was_welcome = self.welcome
        self._end(reason)
        if was_welcome:
            self._on_loss(self, reason)

    def _end(self, reason: str) -> None:
        self.welcome, self._why = False, reason
        self._unanswered.clear()
        for number in list(self._requests):
            self._resolve(number, CallError(ErrorCode.UNAVAILABLE, reason))

    def _resolve(self, number: int, response: _Response) -> None:
        if (request := self._requests.pop(number, None)) is not None:
            resolve(request, response)

    def request(self, event: CallRequested, to: Address | None) -> None:
        """Send a request to a peer, or (None) to a server of its operation."""
        message = encode_event(event, limit=self._max_sent)
        self._connection.send(message if to is None else message[:-1] + relay_header(to), control=False)
        self._unanswered.add(event.request_id)

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event other than a request to a peer, or (None) to the one that has the request."""
        if type(event) is CallAborted:
            self._unanswered.discard(event.request_id)
        message = encode_event(event, limit=self._max_sent)
        # The server is named, too: otherwise a response could go to another caller with the same id.
        message = message if to is None else message[:-1] + relay_header(to)
        self._connection.send(message, control=type(event) not in events.BULK)

    async def ask(self, kind: Callable[..., events.SessionEvent], **fields: Any) -> events.SessionEvent:
        """Send a session request of this kind, with these fields and a number, and return the response.

        Raises:
            CallError: UNAVAILABLE, or the error of the server.
        """
        self.check()
        number = next(self._numbers)
        request = self._requests[number] = asyncio.get_running_loop().create_future()
        try:
            self._connection.send(events.encode_session(kind(id=number, **fields)), control=True)
            async with asyncio.timeout(PATIENCE) as self._timeouts[number]:
                response = await request
        except TimeoutError:
            raise CallError(ErrorCode.UNAVAILABLE, f"the server did not answer for {PATIENCE:g} s") from None
        finally:
            self._requests.pop(number, None)
            self._timeouts.pop(number, None)
        if isinstance(response, CallError):
            raise response
        return response

    async def announce(self, operation_ids: Sequence[str]) -> list[events.RefusedOperation]:
        """Announce these operations; return those that the server refuses.

        All of them are sent at once, in as many messages as necessary, so that the server knows what will come.
        """
        tasks = [asyncio.ensure_future(self._announce(ids)) for ids in events.id_batches(operation_ids)]
        try:
            return [refusal for refused in await asyncio.gather(*tasks) for refusal in refused]
        finally:
            for task in tasks:
                task.cancel()

    async def _announce(self, operation_ids: list[str]) -> list[events.RefusedOperation]:
        try:
            done = await self.ask(events.Announce, operations=operation_ids, partial=True)
        except CallError as error:
            if error.code not in (ErrorCode.ACCESS_DENIED, ErrorCode.VALIDATION_ERROR, ErrorCode.RATE_LIMITED):
                raise
            return [
                events.RefusedOperation.of(operation_id, error) for operation_id in operation_ids
            ]  # it accepts all or none
        return done.refused if isinstance(done, events.Done) else []

    def _arrived(self, message: bytes) -> None:
        try:
            if message.startswith(_CALL_EVENT_PREFIX):  # nearly always
                event = decode_event(message, limit=self._max_received + MARGIN)
            else:
                event = events.decode_message(message, limit=self._max_received + MARGIN)
                if isinstance(event, events.SessionMessage):
                    self._session_event(event)
                    return
            sender, unmatched = read_origin(message)
        except CallError as error:
            self._malformed(message, CallError(error.code, error.message[:_MAX_ERROR_LENGTH]))
            return
        if unmatched and event.request_id in self._unanswered:
            self._dropped["foreign"] += 1  # not from the server that has the request
            return
        if type(event) is not CallRequested and type(event) is not CallProgress:
            self._unanswered.discard(event.request_id)  # progress does not decide which peer may reply
        self.receiver.received(event, sender)

    def _session_event(self, event: events.SessionEvent) -> None:
        match event:
            case events.Welcome() if not self.welcome:
                if event.version != events.VERSION:
                    wrong = f"it speaks version {event.version} instead of {events.VERSION}"
                    self._connection.end(_WRONG_PROTOCOL, wrong)
                    return
                self.welcome = True
                self._max_sent = min(self._max_received, event.max_message)
                beat_ms = min(max(event.heartbeat_ms, _MIN_BEAT_MS), _MAX_BEAT_MS)
                self._connection.beat(self._heartbeat or beat_ms / 1000)
                self._resolve(_HELLO_NUMBER, event)
            case events.Done() | events.Here():
                self._resolve(event.id, event)
            case events.Pending():  # extend the timeout as long as the server is deciding
                until = asyncio.get_running_loop().time() + PATIENCE
                for number in self._timeouts.keys() & self._requests.keys() & set(event.ids):
                    self._timeouts[number].reschedule(until)
            case events.Refused():
                self._resolve(event.id or _HELLO_NUMBER, event.error())
            case events.GoAway():
                self._on_going(self)
            case events.Left(peer=str(peer)):
                self.receiver.lost(peer, event.reason)
            case _:
                self._dropped["malformed"] += 1

    def _malformed(self, message: bytes, error: CallError) -> None:
        """Fail the call of an invalid message, locally or at the peer; the connection stays open."""
        self._dropped["malformed"] += 1
        count = self._dropped["malformed"]
        if count <= 10 or count.bit_count() == 1:  # peers behind the server can send any number
            logger.warning("invalid message %d from %s: %s", count, self._uri.host, error.message)
        try:
            head = read_head(message)
        except CallError:
            return  # of an unknown call
        failed = CallFailed.of(head.request_id, error)
        if isinstance(head, RequestedHead):
            try:
                self.send(failed, head.peer or SERVER)
            except CallError as send_error:
                logger.debug("could not inform %s: %s", head.peer, send_error)
        elif not head.unmatched:
            self._unanswered.discard(head.request_id)
            self.receiver.received(failed, head.peer or SERVER)
            if not head.from_caller and not head.ends_call(streams=True):
                # Neither the server nor the relay knows that it has ended.
                with suppress(CallError):
                    self.send(CallAborted(request_id=head.request_id, reason=error.message), head.peer or SERVER)


# --- the transport ----------------------------------------------------------------------------------------------------

_MIN_STEADY_SECONDS = 5.0  # a connection that lasted longer was not refused
_MAX_RECONNECT_DELAY = 0.2  # seconds, so that the clients of a lost hub do not connect to another at once
_URL_FORMS = "ws://host:port or wss://host:port"

# At most 2 s between two attempts, so that a restarted hub has all its spokes again soon.
back_off = partial(deadlines.back_off, first=0.1, longest=2.0)


class _OtherReceiver:
    """Receives for a session that is not the current one, so that requests from there are answered there."""

    def __init__(self, receiver: Receiver, others: dict[str, ClientSession], session: ClientSession) -> None:
        self._sessions_by_call = others
        self._session = session
        self.lost = receiver.lost
        self._received = receiver.received

    def received(self, event: CallEvent, sender: Address) -> None:
        if isinstance(event, CallRequested):
            self._sessions_by_call[event.request_id] = self._session
        self._received(event, sender)


class WebSocketTransport:
    """A `Transport` over a connection to a `WebSocketServer`.

        transport = WebSocketTransport("wss://hub.example:8765", token="…")
        async with PendingRequestMap(transport) as calls:
            ...

    Several URLs, in a list or as `ws://host1:port,host2:port`, are tried in turn. `token` is sent to the server; a
    callback is called for a new one at every connection, and returns it without blocking. An exception of the callback
    is logged, and the connection is retried.

    When the server is about to leave, it connects to another one, or again, announces its operations there, and sends
    new requests there from then on; calls in flight go on over the old connection.

    After a loss it reconnects by itself, and announces its operations again; those that the server refuses then are
    logged. While it is not `connected`, everything that sends raises UNAVAILABLE. `heartbeat` is the number of seconds
    between pings; the default is the server's. The identities on requests are trusted: the server has written them,
    and it was chosen here.

    Raises:
        UsageError: an invalid URL or option.
    """

    local = False
    trusted = True
    vouches = False
    lossy = False
    hub = SERVER

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | Callable[[], str] | None = None,
        heartbeat: float | None = None,
        max_message: int = MAX_MESSAGE,
        ssl: SSLContext | None = None,
        connect_timeout: float = 10.0,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        check_above_zero(
            heartbeat=heartbeat, max_message=max_message, connect_timeout=connect_timeout, max_backlog=max_backlog
        )
        try:
            self._uris = [
                parse_uri(url_of_host)
                for text in ([url] if isinstance(url, str) else url)
                for url_of_host in _urls_of_hosts(text)
            ]
        except (InvalidURI, ValueError, TypeError, AttributeError):  # do not repeat it: it may contain a password
            raise UsageError(f"invalid URL of a WebSocket server; expected {_URL_FORMS}") from None
        if not self._uris:
            raise UsageError(f"a URL is missing: give at least one, {_URL_FORMS}")
        self._name = _without_secrets(self._uris[0])
        self._token = token
        self._heartbeat = heartbeat
        self._max_message = max_message
        self._ssl = ssl
        self._connect_timeout = connect_timeout
        self._max_backlog = max_backlog
        self._receiver: Receiver | None = None
        self._session: ClientSession | None = None
        self._sessions_by_call: dict[
            str, ClientSession
        ] = {}  # the sessions of calls that are not in the current one, by id
        self._retired: set[ClientSession] = set()  # replaced, until the server closes them
        self.connected = False  # there is a session, and the operations are announced again
        self._closed = True
        self._operations: dict[str, None] = {}  # in the order of the announcements
        self._broken = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self.dropped: Counter[Dropped] = Counter()

    def __repr__(self) -> str:
        state = "connected" if self.connected else "closed" if self._closed else "not connected"
        return f"<WebSocketTransport to {self._name}, {state}>"

    async def start(self, receiver: Receiver) -> None:
        """Connect to the first server that can be reached.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, if the server rejects the token.
        """
        self._receiver, self._closed = receiver, False
        self._operations.clear()
        try:
            for remaining in reversed(range(len(self._uris))):
                try:
                    await self._connect(receiver)
                    break
                except CallError as error:
                    if not remaining:
                        raise
                    logger.info("%s", error)
                    self._uris.append(self._uris.pop(0))
        except BaseException:
            self._closed = True
            raise
        self._reconnecting = asyncio.get_running_loop().create_task(self._stay_connected(receiver))

    async def announce(self, operation_ids: Iterable[str]) -> None:
        """Serve these operations, now and after every reconnection.

        Raises:
            CallError: UNAVAILABLE; ACCESS_DENIED, VALIDATION_ERROR or RATE_LIMITED, if the server refuses some of them.
                These are not announced again; the others are served.
        """
        if self._closed:
            raise self._unavailable()
        new_ids = list(dict.fromkeys(operation_ids))
        self._operations.update(dict.fromkeys(new_ids))
        session = self._open()
        try:
            refused = await session.announce(new_ids)
        except CallError as error:
            if session.welcome and session is self._session:  # unknown what is served: reconnect
                session.drop()
                self._lost(session, error.message)
            raise
        if refused:
            await self.withdraw([refusal.operation for refusal in refused])  # an earlier version may have been accepted
            raise refusal_error(refused)

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving these operations."""
        served_ids = [operation_id for operation_id in dict.fromkeys(operation_ids) if operation_id in self._operations]
        for operation_id in served_ids:
            del self._operations[operation_id]
        if not served_ids:
            return
        try:
            await self._open().ask(Withdraw, operations=served_ids)
        except CallError as error:  # then nothing is routed here, and they will not be announced again
            logger.debug("a withdrawal was not confirmed: %s", error)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Return the addresses of all servers; `wait` is ignored, since the hub knows them."""
        answer = await self._open().ask(Who)
        return answer.peers if isinstance(answer, Here) else []

    def request(self, event: CallRequested, to: Address | None = None) -> None:
        """Send a request to one of the servers of its operation, or to a certain one."""
        self._sessions_by_call.pop(event.request_id, None)  # it was not started in a former session
        session = self._open()
        if session.leaving or not self.connected:
            raise self._unavailable()
        session.request(event, to)

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, or to the server that has the request."""
        if isinstance(event, CallRequested):
            self.request(event, to)
        else:
            session = self._sessions_by_call.get(event.request_id) or self._open()
            session.send(event, to)

    async def close(self) -> None:
        """Disconnect: the server stops routing to this peer, and informs the peers that share calls with it."""
        if self._closed:
            return
        self._closed = True
        await cancel_tasks(self._reconnecting)
        sessions = [*self._retired, *([] if self._session is None else [self._session])]
        self._session, self.connected = None, False
        self._retired.clear()
        self._sessions_by_call.clear()
        await asyncio.gather(*(session.close() for session in sessions))

    def _open(self) -> ClientSession:
        if self._session is None or not self._session.welcome:
            raise self._unavailable()
        return self._session

    def _unavailable(self) -> CallError:
        if self._closed:
            return CallError(ErrorCode.UNAVAILABLE, "this end is closed")
        leaving = self._session is not None and self._session.leaving
        state = "is about to leave" if leaving else "is not reachable at the moment"
        return CallError(ErrorCode.UNAVAILABLE, f"{self._name} {state}")

    async def _connect(self, receiver: Receiver) -> None:
        """Connect, announce the operations, and use this session from then on.

        Raises:
            CallError: UNAVAILABLE, or the error of the server.
        """
        self._broken.clear()
        self._name = _without_secrets(self._uris[0])
        try:
            token = self._token() if callable(self._token) else self._token
        except Exception as error:  # of a user's callback; its message may contain a secret
            message = f"the callback for the token of {self._name} raised {type(error).__name__}"
            raise CallError(ErrorCode.UNAVAILABLE, message) from error
        session = ClientSession(
            self._uris[0],
            receiver,
            self._lost,
            self._going_away,
            self.dropped,
            max_message=self._max_message,
            heartbeat=self._heartbeat,
            max_backlog=self._max_backlog,
            token=token,
        )
        session.receiver = _OtherReceiver(receiver, self._sessions_by_call, session)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await session.begin(self._ssl)
            await self._announce_again(session)
            self._replace(session, receiver)
        except TimeoutError as error:
            message = f"{self._name} did not answer within {self._connect_timeout:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, message) from error
        except CallError as error:
            raise CallError(error.code, f"{self._name} cannot be used: {error.message}") from error
        except (OSError, ValueError) as error:
            reason = system_message(error)
            raise CallError(ErrorCode.UNAVAILABLE, f"{self._name} cannot be reached: {reason}") from error
        finally:
            if self._session is not session:
                session.drop()
                self._forget(session, "the connection was given up")

    async def _announce_again(self, session: ClientSession) -> None:
        announced: set[str] = set()
        while self._operations.keys() != announced:  # they may change meanwhile
            if withdrawn_ids := announced - self._operations.keys():
                await session.ask(Withdraw, operations=list(withdrawn_ids))
                announced -= withdrawn_ids
            new_ids = [operation_id for operation_id in self._operations if operation_id not in announced]
            refused = await session.announce(new_ids) if new_ids else []
            if refused:  # the others are served, and these are announced again after the next loss
                logger.warning("%s: %s", self._name, refusal_error(refused).message)
            announced.update(new_ids)
        session.check()  # it may have ended just now

    def _replace(self, session: ClientSession, receiver: Receiver) -> None:
        former, self._session, self.connected = self._session, session, True
        self._broken.clear()
        if former is not None and isinstance(receiver, MovableReceiver):
            for request_id in receiver.open_requests():
                self._sessions_by_call.setdefault(request_id, former)
            former.retire(_OtherReceiver(receiver, self._sessions_by_call, former))
            self._retired.add(former)
        for request_id in [request_id for request_id, other in self._sessions_by_call.items() if other is session]:
            del self._sessions_by_call[request_id]
        session.receiver = receiver

    def _going_away(self, session: ClientSession) -> None:
        """Connect to another server, since this one is about to leave. Requests are sent to it meanwhile."""
        if session is self._session and isinstance(self._receiver, MovableReceiver):
            self._broken.set()
        else:
            session.leaving = True

    def _lost(self, session: ClientSession, reason: str) -> None:
        """Fail every call over the lost connection."""
        if session is not self._session:
            self._forget(session, f"the former connection was lost ({reason})")
            return
        for retired in self._retired:  # a rare case: the calls over all of them fail
            retired.drop()
        self._retired.clear()
        self._sessions_by_call.clear()
        self._session, self.connected = None, False
        self._broken.set()
        logger.warning("the connection to %s was lost: %s", self._name, reason)
        if self._receiver is not None:
            self._receiver.lost(None, f"the connection to {self._name} was lost ({reason})")

    def _forget(self, session: ClientSession, reason: str) -> None:
        """Fail the calls of a session that is not the current one."""
        self._retired.discard(session)
        request_ids = [request_id for request_id, other in self._sessions_by_call.items() if other is session]
        for request_id in request_ids:
            del self._sessions_by_call[request_id]
        if isinstance(self._receiver, MovableReceiver):
            self._receiver.lost_requests(request_ids, reason)

    async def _stay_connected(self, receiver: Receiver) -> None:
        """Reconnect after every loss, with any number of attempts."""
        attempt, tried_at = 0, time.monotonic()
        while True:
            await self._broken.wait()
            moves = self._session is not None  # the server is about to leave, and has not left yet
            if (
                time.monotonic() - tried_at > _MIN_STEADY_SECONDS
            ):  # else it was refused or dropped at once, and would be again
                attempt = 0
            if attempt:
                await asyncio.sleep(back_off(attempt))
            elif len(self._uris) > 1:  # the others of a lost hub go there at the same time
                await asyncio.sleep(uniform(0, _MAX_RECONNECT_DELAY))  # noqa: S311
                self._uris[1:] = sample(self._uris[1:], len(self._uris) - 1)
            attempt += 1
            self._uris.append(self._uris.pop(0))
            try:
                await self._connect(receiver)
            except CallError as error:
                # An unreachable server is logged once, when it is lost; other errors are logged every time.
                expected = error.code is ErrorCode.UNAVAILABLE and isinstance(error.__cause__, OSError)
                logger.log(logging.DEBUG if expected else logging.WARNING, "not connected yet: %s", error)
                self._broken.set()
                if moves and attempt >= len(self._uris) and self._session is not None and not self._session.leaving:
                    self._session.retire(receiver)  # there is no other
            except Exception:  # a bug here must not end the attempts
                logger.exception("not connected yet")
                self._broken.set()
            else:
                # At the level of the loss: a log that shows one of them shows both.
                logger.warning("reconnected to %s", self._name)
            tried_at = time.monotonic()


def _urls_of_hosts(url: str) -> list[str]:
    """Return the URLs of `ws://host1:port,host2:port`."""
    scheme, separator, address = url.partition("://")
    hosts, slash, path = address.partition("/")
    return [f"{scheme}{separator}{host}{slash}{path}" for host in hosts.split(",")]


def _without_secrets(uri: WebSocketURI) -> str:
    """Return the URL without user, password and query, which may contain tokens."""
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    return f"{'wss' if uri.secure else 'ws'}://{host}:{uri.port}{uri.path}"
