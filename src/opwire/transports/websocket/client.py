"""`WebSocketTransport`: the end that connects to a `WebSocketServer`, and reconnects after a loss.

One session of a client with a server: from the handshake to the end of the connection.

It holds all state of one connection. After a loss, the client opens another session.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from ssl import SSLContext
from typing import Any, Literal

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

from opwire import deadlines
from opwire.call import events
from opwire.call.events import (
    MAX_MESSAGE,
    CallAborted,
    CallEvent,
    CallFailed,
    CallProgress,
    CallRequested,
    Here,
    Who,
    Withdraw,
    encode_event,
    refusal_error,
)
from opwire.call.transport import Address, Receiver
from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero
from opwire.transports.link import MAX_BACKLOG
from opwire.transports.websocket.connection import SUBPROTOCOL, WebSocketConnection
from opwire.transports.websocket.routes import MARGIN, SERVER, RequestedHead, read_head, read_origin, relay_header

logger = logging.getLogger("opwire.transports")

PATIENCE = 10.0  # seconds within which the server has to answer a session request, or to report that it is pending

_CHUNK = 500  # operations, and
_CHUNK_CHARACTERS = 200_000  # characters of their ids in one announcement, which has to fit into a message
_HELLO = -1  # the number of the session request without one: hello
_NORMAL, _WRONG_PROTOCOL = 1000, 1002
_MAX_SHOWN = 200  # characters of an error

Dropped = Literal["malformed", "foreign"]
_Response = events.SessionEvent | CallError


class ClientSession:
    """A session. `lost` is called once, with the reason, if an established session is not ended from here."""

    def __init__(
        self,
        uri: WebSocketURI,
        receiver: Receiver,
        lost: Callable[[str], None],
        dropped: Counter[Dropped],
        *,
        max_message: int,
        heartbeat: float | None,
        max_backlog: int,
        token: str | None = None,
    ) -> None:
        self._uri = uri
        self._receiver = receiver
        self._on_loss = lost
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
        self.leaving = False  # the server accepts no new requests

    async def begin(self, ssl: SSLContext | None) -> None:
        """Perform the three handshakes: of TCP, of WebSocket, and of the session.

        Raises:
            OSError, ValueError: the host cannot be reached, or is invalid.
            CallError: the server refuses, or speaks another protocol.
        """
        loop = asyncio.get_running_loop()
        self._requests[_HELLO] = loop.create_future()
        welcome = self._requests[_HELLO]
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
            self._on_loss(reason)

    def _end(self, reason: str) -> None:
        self.welcome, self._why = False, reason
        self._unanswered.clear()
        for number in list(self._requests):
            self._resolve(number, CallError(ErrorCode.UNAVAILABLE, reason))

    def _resolve(self, number: int, response: _Response) -> None:
        request = self._requests.pop(number, None)
        if request is not None and not request.done():
            request.set_result(response)

    def request(self, event: CallRequested, to: Address | None) -> None:
        """Send a request to a peer, or (None) to a server of its operation.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self.send(event, to, control=False)
        self._unanswered.add(event.request_id)

    def send(self, event: CallEvent, to: Address | None, *, control: bool) -> None:
        """Send an event to a peer, or (None) to the one that has the request.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        if isinstance(event, CallAborted):
            self._unanswered.discard(event.request_id)
        message = encode_event(event, limit=self._max_sent)
        # The server is named, too: otherwise a response could go to another caller with the same id.
        self._connection.send(message if to is None else message[:-1] + relay_header(to), control=control)

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
            silent = f"the server did not answer for {PATIENCE:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, silent) from None
        finally:
            self._requests.pop(number, None)
            self._timeouts.pop(number, None)
        if isinstance(response, CallError):
            raise response
        return response

    async def announce(self, operation_ids: Sequence[str]) -> list[events.RefusedOperation]:
        """Announce these operations; return those that the server refuses.

        All of them are sent at once, in as many messages as necessary, so that the server knows what will come.

        Raises:
            CallError: UNAVAILABLE.
        """
        chunks, size = list[list[str]](), 0
        for each in operation_ids:
            if not chunks or len(chunks[-1]) == _CHUNK or size + len(each) > _CHUNK_CHARACTERS:
                chunks.append([])
                size = 0
            chunks[-1].append(each)
            size += len(each)
        tasks = [asyncio.ensure_future(self._announce(chunk)) for chunk in chunks]
        try:
            return [refusal for refused in await asyncio.gather(*tasks) for refusal in refused]
        finally:
            for task in tasks:
                task.cancel()

    async def _announce(self, operation_ids: list[str]) -> list[events.RefusedOperation]:
        try:
            done = await self.ask(events.Announce, operations=operation_ids, partial=True)
        except CallError as error:
            if error.code not in (ErrorCode.ACCESS_DENIED, ErrorCode.VALIDATION_ERROR):
                raise
            return [events.RefusedOperation.of(each, error) for each in operation_ids]  # it accepts all or none
        return done.refused if isinstance(done, events.Done) else []

    def _arrived(self, message: bytes) -> None:
        try:
            event = events.decode_message(message, limit=self._max_received + MARGIN)
            if isinstance(event, events.SessionMessage):
                self._session_event(event)
                return
            sender, unmatched = read_origin(message)
        except CallError as error:
            self._malformed(message, error.message[:_MAX_SHOWN])
            return
        if unmatched and event.request_id in self._unanswered:
            self._dropped["foreign"] += 1  # not from the server that has the request
            return
        if not isinstance(event, CallRequested | CallProgress):  # progress does not decide which peer may reply
            self._unanswered.discard(event.request_id)
        self._receiver.received(event, sender)

    def _session_event(self, event: events.SessionEvent) -> None:
        match event:
            case events.Welcome() if not self.welcome:
                if event.version != events.VERSION:
                    wrong = f"it speaks version {event.version} instead of {events.VERSION}"
                    self._connection.end(_WRONG_PROTOCOL, wrong)
                    return
                self.welcome = True
                self._max_sent = min(self._max_received, event.max_message)
                self._connection.beat(self._heartbeat or event.heartbeat_ms / 1000)
                self._resolve(_HELLO, event)
            case events.Done() | events.Here():
                self._resolve(event.id, event)
            case events.Pending():  # extend the timeout as long as the server is deciding
                until = asyncio.get_running_loop().time() + PATIENCE
                for number in self._timeouts.keys() & self._requests.keys() & set(event.ids):
                    self._timeouts[number].reschedule(until)
            case events.Refused():
                self._resolve(event.id or _HELLO, event.error())
            case events.GoAway():
                self.leaving = True
            case events.Left(peer=str(peer)):
                self._receiver.lost(peer, event.reason)
            case _:
                self._dropped["malformed"] += 1

    def _malformed(self, message: bytes, reason: str) -> None:
        """Fail the call of an invalid message, locally or at the peer; the connection stays open."""
        self._dropped["malformed"] += 1
        logger.warning("invalid message from %s: %s", self._uri.host, reason)
        try:
            head = read_head(message)
        except CallError:
            return  # of an unknown call
        failed = CallFailed.of(head.request_id, CallError(ErrorCode.PROTOCOL_ERROR, reason))
        if isinstance(head, RequestedHead):
            try:
                self.send(failed, head.peer or SERVER, control=True)
            except CallError as gone:
                logger.debug("could not inform %s: %s", head.peer, gone)
        elif not head.unmatched:
            self._unanswered.discard(head.request_id)
            self._receiver.received(failed, head.peer or SERVER)


_STEADY = 5.0  # seconds: a connection that lasted longer was not refused
_FORMS = "ws://host:port or wss://host:port"

# At most 2 s between two attempts, so that a restarted hub has all its spokes again soon.
back_off = partial(deadlines.back_off, first=0.1, longest=2.0)


class WebSocketTransport:
    """A `Transport` over a connection to a `WebSocketServer`.

        transport = WebSocketTransport("wss://hub.example:8765", token="…")
        async with PendingRequestMap(transport) as calls:
            ...

    Several URLs, in a list or as `ws://host1:port,host2:port`, are tried in turn. `token` is sent to the server; a
    callback is called for a new one at every connection, and returns it without blocking. An exception of the callback
    is logged, and the connection is retried.

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
            self._uris = [parse_uri(each) for text in ([url] if isinstance(url, str) else url) for each in _each(text)]
        except (InvalidURI, ValueError, TypeError, AttributeError):  # do not repeat it: it may contain a password
            raise UsageError(f"invalid URL of a WebSocket server; expected {_FORMS}") from None
        if not self._uris:
            raise UsageError(f"a URL is missing: give at least one, {_FORMS}")
        self._name = _shown(self._uris[0])
        self._token = token
        self._heartbeat = heartbeat
        self._max_message = max_message
        self._ssl = ssl
        self._connect_timeout = connect_timeout
        self._max_backlog = max_backlog
        self._receiver: Receiver | None = None
        self._session: ClientSession | None = None
        self.connected = False  # there is a session, and the operations are announced again
        self._closed = True
        self._operations: dict[str, None] = {}  # in the order of the announcements
        self._broken = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self.dropped: Counter[Dropped] = Counter()

    async def start(self, receiver: Receiver) -> None:
        """Connect to the first server that can be reached.

        Raises:
            CallError: UNAVAILABLE; UNAUTHENTICATED, if the server rejects the token.
        """
        self._receiver, self._closed = receiver, False
        self._operations.clear()
        try:
            for left in reversed(range(len(self._uris))):
                try:
                    await self._connect(receiver)
                    break
                except CallError as error:
                    if not left:
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
            CallError: UNAVAILABLE; ACCESS_DENIED or VALIDATION_ERROR, if the server refuses some of them. These are not
                announced again; the others are served.
        """
        if self._closed:
            raise self._unavailable()
        wanted = list(dict.fromkeys(operation_ids))
        self._operations.update(dict.fromkeys(wanted))
        session = self._open()
        try:
            refused = await session.announce(wanted)
        except CallError as error:
            if session.welcome and session is self._session:  # unknown what is served: reconnect
                session.drop()
                self._lost(error.message)
            raise
        if refused:
            await self.withdraw([each.operation for each in refused])  # an earlier version may have been accepted
            raise refusal_error(refused)

    async def withdraw(self, operation_ids: Iterable[str]) -> None:
        """Stop serving these operations."""
        known = [each for each in dict.fromkeys(operation_ids) if each in self._operations]
        for each in known:
            del self._operations[each]
        if not known:
            return
        try:
            await self._open().ask(Withdraw, operations=known)
        except CallError as gone:  # then nothing is routed here, and they will not be announced again
            logger.debug("a withdrawal was not confirmed: %s", gone)

    async def servers(self, wait: float = 0.5) -> list[Address]:
        """Return the addresses of all servers; `wait` is ignored, since the hub knows them.

        Raises:
            CallError: UNAVAILABLE.
        """
        answer = await self._open().ask(Who)
        return answer.peers if isinstance(answer, Here) else []

    def request(self, event: CallRequested) -> None:
        """Send a request to one of the servers of its operation.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self.send(event, None)

    def send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, or to the server that has the request.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        session = self._open()
        if not isinstance(event, CallRequested):
            session.send(event, to, control=not isinstance(event, events.BULK))
        elif session.leaving or not self.connected:
            raise self._unavailable()
        else:
            session.request(event, to)

    async def close(self) -> None:
        """Disconnect: the server stops routing to this end, and informs the peers that share calls with it."""
        if self._closed:
            return
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        session, self._session, self.connected = self._session, None, False
        if session is not None:
            await session.close()

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
        """Connect, and announce the operations.

        Raises:
            CallError: UNAVAILABLE, or the error of the server.
        """
        self._broken.clear()
        self._name = _shown(self._uris[0])
        try:
            token = self._token() if callable(self._token) else self._token
        except Exception as error:  # of a user's callback; its message may contain a secret
            failed = f"the callback for the token of {self._name} raised {type(error).__name__}"
            raise CallError(ErrorCode.UNAVAILABLE, failed) from error
        session = self._session = ClientSession(
            self._uris[0],
            receiver,
            self._lost,
            self.dropped,
            max_message=self._max_message,
            heartbeat=self._heartbeat,
            max_backlog=self._max_backlog,
            token=token,
        )
        try:
            async with asyncio.timeout(self._connect_timeout):
                await session.begin(self._ssl)
            await self._announce_again(session)
        except TimeoutError as error:
            late = f"{self._name} did not answer within {self._connect_timeout:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, late) from error
        except CallError as error:
            raise CallError(error.code, f"{self._name} cannot be used: {error.message}") from error
        except (OSError, ValueError) as error:
            raise CallError(ErrorCode.UNAVAILABLE, f"{self._name} cannot be reached: {error}") from error
        finally:
            if not self.connected:
                session.drop()
                self._session = None

    async def _announce_again(self, session: ClientSession) -> None:
        announced: set[str] = set()
        while new := [each for each in self._operations if each not in announced]:  # there may be more meanwhile
            refused = await session.announce(new)
            if refused:  # the others are served, and these are announced again after the next loss
                logger.warning("%s: %s", self._name, refusal_error(refused).message)
            announced.update(new)
        session.check()  # it may have ended just now
        self.connected = True

    def _lost(self, reason: str) -> None:
        """Fail every call over the lost connection."""
        self._session, self.connected = None, False
        self._broken.set()
        logger.warning("the connection to %s was lost: %s", self._name, reason)
        if self._receiver is not None:
            self._receiver.lost(None, f"the connection to {self._name} was lost ({reason})")

    async def _stay_connected(self, receiver: Receiver) -> None:
        """Reconnect after every loss, with any number of attempts."""
        attempt, tried_at = 0, time.monotonic()
        while True:
            await self._broken.wait()
            if time.monotonic() - tried_at > _STEADY:  # else it was refused or dropped at once, and would be again
                attempt = 0
            if attempt:
                await asyncio.sleep(back_off(attempt))
            attempt += 1
            self._uris.append(self._uris.pop(0))
            try:
                await self._connect(receiver)
            except CallError as error:
                # An unreachable server is logged once, when it is lost; other errors are logged every time.
                expected = error.code is ErrorCode.UNAVAILABLE and isinstance(error.__cause__, OSError)
                logger.log(logging.DEBUG if expected else logging.WARNING, "not connected yet: %s", error)
                self._broken.set()
            except Exception:  # a bug here must not end the attempts
                logger.exception("not connected yet")
                self._broken.set()
            else:
                # At the level of the loss: a log that shows one of them shows both.
                logger.warning("reconnected to %s", self._name)
            tried_at = time.monotonic()


def _each(url: str) -> list[str]:
    """Return the URLs of `ws://host1:port,host2:port`."""
    scheme, separator, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return [f"{scheme}{separator}{host}{slash}{path}" for host in hosts.split(",")]


def _shown(uri: WebSocketURI) -> str:
    """Return the URL without user, password and query, which may contain tokens."""
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    return f"{'wss' if uri.secure else 'ws'}://{host}:{uri.port}{uri.path}"
