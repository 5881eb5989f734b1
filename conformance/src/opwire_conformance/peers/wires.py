"""Raw connections to the peer under test: JSON in both directions, and bounded waiting.

They use none of opwire's own sessions and call tables, which would hide what a peer sends. Everything that arrives is
checked against its published schema.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import Any, NamedTuple, NoReturn, cast

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.typing import Subprotocol

from opwire.errors import CallError, ErrorCode, system_message
from opwire.protocol.schemas import CALL_EVENT_SCHEMAS, SESSION_EVENT_SCHEMAS
from opwire.protocol.transport import Address
from opwire.runtime.text import shorten
from opwire.schema import Schema
from opwire.transports.broker_connection import BrokerConnection

SUBPROTOCOL = Subprotocol("opwire.v1")
PATIENCE = 4.0
"""Seconds to wait for anything that a peer has to send."""

SETTLE = 0.2
"""Seconds after which what must not arrive counts as absent."""

_MAX_MESSAGE = 8 * 1024 * 1024
_MAX_KEPT = 2_000  # messages that were not expected, and
_MAX_BYTES = 64 * 1024 * 1024  # of all messages of a run: more is a flood
_MAX_PROBLEMS = 20
_MAX_SHOWN = 200
_SCHEMAS = {type: Schema(schema) for type, schema in {**CALL_EVENT_SCHEMAS, **SESSION_EVENT_SCHEMAS}.items()}

Event = dict[str, Any]


class NotChecked(Exception):  # noqa: N818  it is not an error
    """A promise cannot be checked at this peer; the message says why."""


def broken(complaint: str) -> NoReturn:
    """Report a broken promise."""
    raise AssertionError(complaint)


def expect(holds: bool, complaint: str) -> None:
    """Report a broken promise unless the condition holds."""
    if not holds:
        broken(complaint)


def shown(event: object) -> str:
    """Return an event for a message, shortened."""
    return shorten(json.dumps(event, ensure_ascii=False, default=str), _MAX_SHOWN)


class Problems:
    """What is wrong with single events, of all connections of a run."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.events = 0
        self._bytes = 0

    @property
    def flooded(self) -> bool:
        """Whether so much was sent that the rest is not read."""
        return self._bytes > _MAX_BYTES

    def check(self, text: str | bytes) -> Event:
        """Parse a message, and check it against the schema of its type. Null is the same as absent."""
        self.events += 1
        self._bytes += len(text)
        if self.flooded:
            self._add(f"more than {_MAX_BYTES:,} bytes were sent")
            return {"type": "flood"}
        if isinstance(text, bytes):
            return self._invalid("a binary message", text)
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            return self._invalid("invalid JSON", text)
        if not isinstance(event, dict) or not isinstance(cast("Event", event).get("type"), str):
            return self._invalid("not an event", text)
        event = cast("Event", event)
        schema = _SCHEMAS.get(event["type"])
        if schema is None:
            self._add(f"unknown event {event['type'][:80]!r}")
            return event
        for problem in schema.problems({name: value for name, value in event.items() if value is not None})[:1]:
            self._add(f"{event['type']}: {problem.path}: {problem.message}")
        return event

    def _invalid(self, what: str, text: str | bytes) -> Event:
        self._add(f"{what}: {text[:80]!r}")
        return {"type": "invalid", "text": str(text[:80])}

    def _add(self, problem: str) -> None:
        if len(self.found) < _MAX_PROBLEMS and problem not in self.found:
            self.found.append(problem[:_MAX_SHOWN])


class Wire(ABC):
    """One connection: what arrives is kept until it is taken."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._kept: deque[Event] = deque(maxlen=_MAX_KEPT)
        self._news = asyncio.Event()
        self._numbers = count(1)
        self.closing: tuple[int, str] | None = None
        self.address: Address = ""  # of this end, for its peers

    @abstractmethod
    async def send_text(self, text: str | list[str]) -> None:
        """Send a message; a list is sent in fragments."""

    async def send(self, type: str, **fields: Any) -> None:
        """Send an event."""
        await self.send_text(json.dumps({"type": type, **fields}))

    async def ask(self, type: str, **fields: Any) -> int:
        """Send a session request; return its number."""
        number = next(self._numbers)
        await self.send(type, id=number, **fields)
        return number

    def record(self, text: str | bytes, **fields: Any) -> Event:
        """Keep a message that has arrived."""
        event = {**self._problems.check(text), **fields}
        if not self._problems.flooded:
            self._kept.append(event)
            self._news.set()
        return event

    def ended(self, code: int, reason: str) -> None:
        """Keep the end of the connection."""
        self.closing = code, reason
        self._news.set()

    def here(self, **fields: Any) -> list[Event]:
        """Return the kept messages with these fields; a tuple lists alternatives."""
        return [event for event in self._kept if _matches(event, fields)]

    async def take(self, what: str, **fields: Any) -> Event:
        """Wait for a message with these fields, and remove it.

        Raises:
            AssertionError: none arrived in time, or the connection was closed.
        """

        async def wait() -> Event:
            while True:
                self._news.clear()
                for event in self._kept:
                    if _matches(event, fields):
                        self._kept.remove(event)
                        return event
                if self.closing is not None:
                    broken(f"{what} did not arrive: the connection was closed ({self.closing[0]} {self.closing[1]})")
                await self._news.wait()

        try:
            async with asyncio.timeout(PATIENCE):
                return await wait()
        except TimeoutError:
            instead = f"; instead: {shown(self._kept[-1])}" if self._kept else ""
            broken(f"{what} did not arrive within {PATIENCE:g} s{instead}")

    async def closed(self, *codes: int) -> None:
        """Wait for the end of the connection, with one of these codes."""
        expected = " or ".join(map(str, codes))
        try:
            async with asyncio.timeout(PATIENCE):
                while self.closing is None:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            broken(f"the connection was not closed with {expected} within {PATIENCE:g} s")
        code, reason = self.closing
        expect(code in codes, f"the connection was closed with {code} {reason!r} instead of {expected}")


def _matches(event: Event, fields: dict[str, Any]) -> bool:
    return all(
        event.get(name) in value if isinstance(value, tuple) else event.get(name) == value
        for name, value in fields.items()
    )


class WebSocketWire(Wire):
    """A connection over WebSocket, of either side."""

    def __init__(self, connection: Connection, problems: Problems) -> None:
        super().__init__(problems)
        self.connection = connection

    async def send_text(self, text: str | list[str]) -> None:
        """Send a message; a list is sent in fragments."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.connection.send(text)
        except TimeoutError:
            broken("the peer does not read")
        except ConnectionClosed as closed:
            broken(f"the connection was closed: {closed}")

    async def read(self, handle: Callable[[Event], Awaitable[None]] | None = None) -> None:
        """Keep what arrives, until the connection ends."""
        try:
            async for message in self.connection:
                event = self.record(message)
                if self._problems.flooded:
                    break
                if handle is not None:
                    await handle(event)
        except (ConnectionClosed, AssertionError):
            pass  # closed, or not reading
        finally:
            self.ended(self.connection.close_code or 1006, self.connection.close_reason or "")

    async def pong(self) -> None:
        """Check that the peer answers a ping."""
        try:
            async with asyncio.timeout(PATIENCE):
                await (await self.connection.ping())
        except TimeoutError:
            broken(f"a ping was not answered within {PATIENCE:g} s")
        except ConnectionClosed as closed:
            broken(f"the connection was closed: {closed}")


async def open_websocket(url: str, problems: Problems) -> WebSocketWire:
    """Connect to a hub.

    Raises:
        CallError: UNAVAILABLE.
    """
    try:
        connection = await connect(
            url,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            max_size=_MAX_MESSAGE,
            ping_interval=None,
            open_timeout=PATIENCE,
            close_timeout=1,
        )
    except (OSError, TimeoutError, InvalidHandshake, InvalidMessage) as error:
        reason = system_message(error) if isinstance(error, OSError) else str(error) or type(error).__name__
        raise CallError(ErrorCode.UNAVAILABLE, f"no WebSocket connection: {reason[:_MAX_SHOWN]}") from error
    return WebSocketWire(connection, problems)


class BrokerWire(Wire):
    """An end on a broker. Each kept event has `sender` and `token` beside its own fields."""

    def __init__(self, connection: BrokerConnection, problems: Problems) -> None:
        super().__init__(problems)
        self.connection = connection
        self.address = token_hex(8)

    async def send_text(self, text: str | list[str]) -> None:
        """Send a message to all ends."""
        self.connection.broadcast("", "".join(text).encode())

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        """Keep a message to this end."""
        event = self.record(message.decode(errors="replace"), sender=sender, token=token)
        if event["type"] == "session.serving":
            with suppress(CallError):
                self.connection.send(sender, token, b'{"type":"session.waiting"}', control=True)

    def overheard(self, sender: Address, token: str, message: bytes) -> None:
        """Ignore broadcasts."""

    def routed(self, token: str, peer: Address) -> None:
        """Ignore which server got a request."""

    def undelivered(self, token: str, reason: str) -> None:
        """Keep the report that an operation has no server."""
        self._kept.append({"type": "undelivered", "token": token, "reason": reason})
        self._news.set()

    def refused(self, operation_id: str, reason: str) -> None:
        """Ignore missing permissions: the request is not answered."""

    def unreachable(self, peer: Address) -> None:
        """Ignore lost peers: their answers are missed."""

    def forbidden(self, peer: Address) -> None:
        """Ignore missing permissions: the message is not answered."""

    def disconnected(self, reason: str) -> None:
        """Keep the end of the connection."""
        self.ended(1006, reason)


class ServerRoute(NamedTuple):
    """How events get to a server: fields to add, or the end of a broker with its own tokens."""

    fields: Event
    end: Address | None = None


class ServerLine:
    """A way to one server: requests, and the events of their calls."""

    def __init__(self, wire: Wire, route: ServerRoute) -> None:
        self.wire = wire
        self._route = route
        self._tokens: dict[str, str] = {}  # by request id, over a broker

    async def request(self, operation_id: str, input: Any = None, **fields: Any) -> str:
        """Send a request; return its id."""
        request_id = fields.pop("requestId", None) or token_hex(8)
        self._tokens.setdefault(request_id, token_hex(8))
        await self.send("call.requested", requestId=request_id, operationId=operation_id, input=input, **fields)
        return request_id

    async def send(self, type: str, **fields: Any) -> None:
        """Send an event to the server."""
        event = {"type": type, **fields, **self._route.fields}
        if self._route.end is None:
            await self.wire.send_text(json.dumps(event))
            return
        token = self._tokens.get(fields.get("requestId", ""), "")
        connection = cast("BrokerWire", self.wire).connection
        connection.send(self._route.end, token, json.dumps(event).encode(), control=True)

    @property
    def end(self) -> Address:
        """The address of the server on a broker."""
        return self._route.end or ""

    def token(self, request_id: str) -> str:
        """Return the token of a call over a broker."""
        return self._tokens[request_id]

    async def take(self, request_id: str, what: str, type: str | tuple[str, ...], **fields: Any) -> Event:
        """Wait for an event of a call; another outcome of it is a broken promise."""
        types = type if isinstance(type, tuple) else (type,)
        ends = ("call.responded", "call.completed", "call.error", "call.aborted")
        event = await self.wire.take(what, requestId=request_id, type=(*types, *ends))
        expect(event["type"] in types, f"{what} was expected, and {shown(event)} arrived")
        for name, value in fields.items():
            expect(event.get(name) == value, f"{what}: {name} should be {value!r}: {shown(event)}")
        if self._route.end is not None:
            expect(event["token"] == self._tokens[request_id], f"{what} has another token: {shown(event)}")
        elif "peer" in self._route.fields and "identity" in self._route.fields:
            expect(event.get("peer") == self._route.fields["peer"], f"{what} names another caller: {shown(event)}")
        return event

    async def call(self, operation_id: str, input: Any = None, **fields: Any) -> Event:
        """Call a query or mutation; return its outcome, `call.responded` or `call.error`."""
        request_id = await self.request(operation_id, input, **fields)
        return await self.take(request_id, f"the outcome of {operation_id}", ("call.responded", "call.error"))

    async def absent(self, request_id: str, why: str, but: str = "call.progress") -> None:
        """Check that no further event of a call arrives, except for those of one type."""
        await asyncio.sleep(SETTLE)
        late = [event for event in self.wire.here(requestId=request_id) if event["type"] != but]
        expect(not late, f"{why}: {shown(late[0]) if late else ''}")
