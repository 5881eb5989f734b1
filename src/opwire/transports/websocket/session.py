"""One session of a client with a server: from the handshake to the end of the connection.

It holds all state of one connection. After a loss, the client opens another session.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from ssl import SSLContext
from typing import Any, Literal

from websockets.client import ClientProtocol
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from opwire.errors import CallError, ErrorCode
from opwire.protocol import events
from opwire.protocol.events import (
    CallAborted,
    CallEvent,
    CallFailed,
    CallProgress,
    CallRequested,
    decode_event,
    encode_event,
)
from opwire.protocol.transport import Address, Receiver
from opwire.runtime.tasks import resolve
from opwire.runtime.text import get_logger
from opwire.transports.websocket.connection import SUBPROTOCOL, WebSocketConnection
from opwire.transports.websocket.relay import MARGIN, read_origin, relay_header
from opwire.transports.websocket.routes import SERVER, RequestedHead, read_head

logger = get_logger("opwire.transports.websocket")

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
