"""One visit of a client to a server: from the handshake to the end of the connection.

Whatever is true of one connection alone is kept here. After a loss there is another visit.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from ssl import SSLContext
from typing import Any, Literal

from websockets.client import ClientProtocol
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from opwire.call import Address, CallAborted, CallEvent, CallFailed, CallRequested, Receiver, encode_event
from opwire.call.events import (
    VERSION,
    Announce,
    Done,
    GoAway,
    Hello,
    Here,
    Left,
    Pending,
    Refused,
    RefusedOperation,
    SessionEvent,
    SessionMessage,
    Welcome,
    decode_message,
    encode_session,
)
from opwire.errors import CallError, ErrorCode
from opwire.transports.websocket.connection import SUBPROTOCOL, Connection
from opwire.transports.websocket.routes import MARGIN, SERVER, Requested, origin, read_head, stamp

logger = logging.getLogger("opwire.transports")

PATIENCE = 10.0
"""Seconds within which the server has to confirm what it was asked, or to say that it is still being decided."""

_CHUNK = 500  # operations, and
_CHUNK_BYTES = 200_000  # characters of their ids that are announced at once: they have to fit into a message

Dropped = Literal["malformed", "foreign"]

_WELCOME = -1  # the number of the question that has none: hello
_NORMAL, _WRONG_PROTOCOL = 1000, 1002
_SHOWN = 200  # characters of an error


class Visit:
    """`lost` is called once, with the reason, if a visit that was welcome is ended by anybody else."""

    def __init__(
        self,
        uri: WebSocketURI,
        receiver: Receiver,
        lost: Callable[[str], None],
        dropped: Counter[Dropped],
        *,
        limit: int,
        heartbeat: float | None,
        max_backlog: int,
        token: str | None = None,
    ) -> None:
        self._uri = uri
        self._receiver = receiver
        self._lost = lost
        self._dropped = dropped
        self._limit = limit
        self._heartbeat = heartbeat
        self._token = token
        self._core = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=limit + MARGIN)
        self._connection = Connection(
            self._core, greeted=self._greeted, arrived=self._arrived, lost=self._ended, max_backlog=max_backlog
        )
        self._most = limit  # bytes of a message that both sides take
        self._numbers = count(1)
        self._questions: dict[int, asyncio.Future[SessionEvent | CallError]] = {}  # to the server, by number
        self._limits: dict[int, asyncio.Timeout] = {}  # of the time for these
        self._unanswered: set[str] = set()  # requests that nobody has answered yet
        self._why = "the connection is not there yet"
        self.welcome = False
        self.leaving = False  # the server wants no new requests

    # --- the beginning and the end ------------------------------------------------------------------------------------

    async def begin(self, ssl: SSLContext | None) -> None:
        """The three handshakes: of TCP, of WebSocket, and of the session.

        Raises:
            OSError, ValueError: the host cannot be reached, or cannot be one.
            CallError: it does not want us, or is none of ours.
        """
        welcome = self._expect(_WELCOME)
        secure = (ssl or True) if self._uri.secure else None
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self._connection.link, self._uri.host, self._uri.port, ssl=secure)
        self._core.send_request(self._core.connect())
        self._connection.reply()
        await _read(welcome)

    def drop(self) -> None:
        """End the visit without a word."""
        self._connection.drop()
        self._forget("the connection was given up")

    async def close(self) -> None:
        """Say goodbye, and wait until the server has heard it."""
        self._forget("this end is closed")
        await self._connection.close(_NORMAL, "")

    def _greeted(self, _: Request | Response) -> None:
        if self._core.state is not State.OPEN:
            return  # refused: the connection ends by itself, with the reason
        if self._core.subprotocol == SUBPROTOCOL:
            hello = Hello(version=VERSION, max_message=self._limit, token=self._token)
            self._connection.send(encode_session(hello), control=True)
        else:
            self._connection.end(_WRONG_PROTOCOL, f"it does not speak {SUBPROTOCOL}")

    def _welcomed(self, welcome: Welcome) -> None:
        if self.welcome:
            self._dropped["malformed"] += 1
        elif welcome.version != VERSION:
            self._connection.end(_WRONG_PROTOCOL, f"it speaks version {welcome.version}, and not {VERSION}")
        else:
            self.welcome = True
            self._most = min(self._limit, welcome.max_message)
            self._connection.beat(self._heartbeat or welcome.heartbeat_ms / 1000)
            self._answered(_WELCOME, welcome)

    def _ended(self, reason: str) -> None:
        welcome = self.welcome
        self._forget(reason)
        if welcome:
            self._lost(reason)

    def check(self) -> None:
        """Raises CallError(UNAVAILABLE), with the reason, unless this visit is welcome and goes on."""
        if not self.welcome:
            raise CallError(ErrorCode.UNAVAILABLE, self._why)

    def _forget(self, reason: str) -> None:
        self.welcome, self._why = False, reason
        self._unanswered.clear()
        for number in list(self._questions):
            self._answered(number, CallError(ErrorCode.UNAVAILABLE, reason))

    # --- sending ------------------------------------------------------------------------------------------------------

    def request(self, event: CallRequested, to: Address | None) -> None:
        """Send a request to a peer, or (None) to whoever serves its operation.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        self.send(event, to, control=False)
        self._unanswered.add(event.request_id)

    def send(self, event: CallEvent, to: Address | None, *, control: bool) -> None:
        """Send an event to a peer, or (None) to whoever has the request.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED, PAYLOAD_TOO_LARGE.
        """
        if isinstance(event, CallAborted):
            self._unanswered.discard(event.request_id)
        message = encode_event(event, limit=self._most)
        # The server is named, too: without a name, an answer could be taken for one to another caller with the same id.
        self._connection.send(message if to is None else message[:-1] + stamp(to), control=control)

    async def ask(self, question: Callable[..., SessionEvent], **fields: Any) -> SessionEvent:
        """Ask the server for something that it confirms: the kind of event, and its fields beside the number.

        Raises:
            CallError: UNAVAILABLE, or what the server refuses it with.
        """
        self.check()
        number = next(self._numbers)
        answer = self._expect(number)
        try:
            self._connection.send(encode_session(question(id=number, **fields)), control=True)
            async with asyncio.timeout(PATIENCE) as self._limits[number]:
                return await _read(answer)
        except TimeoutError:
            silent = f"the server said nothing of it for {PATIENCE:g} s"
            raise CallError(ErrorCode.UNAVAILABLE, silent) from None
        finally:
            self._questions.pop(number, None)
            self._limits.pop(number, None)

    async def announce(self, operation_ids: Sequence[str]) -> list[RefusedOperation]:
        """Serve these operations; return those that the server refuses.

        All of them are named at once, in as many messages as it takes, so that the server knows what will come.

        Raises:
            CallError: UNAVAILABLE.
        """
        tasks = [asyncio.ensure_future(self._announce(chunk)) for chunk in _chunks(operation_ids)]
        try:
            return [refusal for refused in await asyncio.gather(*tasks) for refusal in refused]
        finally:
            for task in tasks:
                task.cancel()

    async def _announce(self, operation_ids: list[str]) -> list[RefusedOperation]:
        try:
            done = await self.ask(Announce, operations=operation_ids, partial=True)
        except CallError as error:
            if error.code in (
                ErrorCode.ACCESS_DENIED,
                ErrorCode.VALIDATION_ERROR,
            ):  # of a server that takes all or none
                return [RefusedOperation.of(each, error) for each in operation_ids]
            raise
        return done.refused if isinstance(done, Done) else []

    def _still_pending(self, event: Pending) -> None:
        """The server is still deciding: wait for it as long as it says so."""
        until = asyncio.get_running_loop().time() + PATIENCE
        for number in event.ids:
            if number in self._limits and number in self._questions:
                self._limits[number].reschedule(until)

    def _expect(self, number: int) -> "asyncio.Future[SessionEvent | CallError]":
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        return answer

    def _answered(self, number: int, answer: SessionEvent | CallError) -> None:
        question = self._questions.pop(number, None)
        if question is not None and not question.done():
            question.set_result(answer)

    # --- what arrives -------------------------------------------------------------------------------------------------

    def _arrived(self, message: bytes) -> None:
        try:
            event = decode_message(message, limit=self._limit + MARGIN)
            if isinstance(event, SessionMessage):
                self._session(event)
                return
            sender, stray = origin(message)
        except CallError as error:
            self._unreadable(message, error.message[:_SHOWN])
            return
        if stray and event.request_id in self._unanswered:
            self._dropped["foreign"] += 1  # not from the one who has the request
            return
        if not isinstance(event, CallRequested):
            self._unanswered.discard(event.request_id)
        self._receiver.received(event, sender)

    def _session(self, event: SessionEvent) -> None:
        match event:
            case Welcome():
                self._welcomed(event)
            case Done() | Here():
                self._answered(event.id, event)
            case Pending():
                self._still_pending(event)
            case Refused():
                self._answered(event.id or _WELCOME, event.error())
            case GoAway():
                self.leaving = True
            case Left(peer=str(peer)):
                self._receiver.lost(peer, event.reason)
            case _:
                self._dropped["malformed"] += 1

    def _unreadable(self, message: bytes, reason: str) -> None:
        """Whoever waits for the call is told, here or there; the connection goes on."""
        self._dropped["malformed"] += 1
        logger.warning("a message from %s cannot be read: %s", self._uri.host, reason)
        try:
            head = read_head(message)
        except CallError:
            return  # nobody can say what it was about
        failed = CallFailed.of(head.request_id, CallError(ErrorCode.PROTOCOL_ERROR, reason))
        if isinstance(head, Requested):
            try:
                self.send(failed, head.peer or SERVER, control=True)
            except CallError as gone:
                logger.debug("%s could not be told: %s", head.peer, gone)
        elif not head.stray:
            self._unanswered.discard(head.request_id)
            self._receiver.received(failed, head.peer or SERVER)


async def _read(answer: "asyncio.Future[SessionEvent | CallError]") -> SessionEvent:
    event = await answer
    if isinstance(event, CallError):
        raise event
    return event


def _chunks(operation_ids: Sequence[str]) -> Iterator[list[str]]:
    chunk, size = list[str](), 0
    for each in operation_ids:
        if chunk and (len(chunk) == _CHUNK or size + len(each) > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += len(each)
    if chunk:
        yield chunk
