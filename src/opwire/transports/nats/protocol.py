"""The client's side of the NATS protocol: bytes in, events out. No I/O, no clock, no tasks.

Rule 1: the events do not depend on how the bytes are split.
Rule 2: invalid bytes raise PROTOCOL_ERROR; the parser is unusable afterwards.
Rule 3: what a server can make us buffer is bounded, and buffered data is parsed again only when it may be complete.

Lines are decoded and encoded as Latin-1, so that a subject of arbitrary bytes survives.
"""

import re
from collections.abc import Iterable
from typing import final

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode

MAX_LINE_BYTES = 32 * 1024  # INFO lists every server of a cluster, other lines have a few hundred
MAX_PAYLOAD = 64 * 1024 * 1024  # bytes: the maximum that a NATS server can be configured for

PING = b"PING\r\n"
PONG = b"PONG\r\n"

_CRLF = b"\r\n"
_MESSAGES = frozenset(("MSG", "HMSG"))
_STATUS = re.compile(rb"NATS/1\.0 ([0-9]{3})(?![0-9])")


@final
class Message(Struct, frozen=True, gc=False):
    """MSG or HMSG. Of the headers only the status is decoded: 503 means that the subject has no subscriber."""

    subject: str
    sid: str
    reply: str
    payload: bytes
    status: int = 0


class Info(Struct, frozen=True):
    """INFO: properties of the server. It is the first event of a connection, and may be sent again."""

    server_name: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int = 1024 * 1024
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    connect_urls: list[str] = []
    ldm: bool = False  # "lame duck mode": the server is about to shut down
    jetstream: bool = False
    cluster: str = ""  # its name, if the server is part of one


class ServerError(Struct, frozen=True):
    """-ERR. The server may or may not close the connection after it."""

    text: str


class Ping(Struct, frozen=True):
    """PING: the server expects a PONG."""


class Pong(Struct, frozen=True):
    """PONG: the server has processed everything that was sent before our PING."""


Control = Info | ServerError | Ping | Pong
Event = Message | Control

_info = msgspec.json.Decoder(Info)


class Parser:
    """Parse the bytes of a server into events."""

    def __init__(self) -> None:
        self._buffer: list[bytes] = []  # an incomplete event
        self._buffered_bytes = 0
        self._needed_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete.

        Raises:
            CallError: PROTOCOL_ERROR.
        """
        if self._buffer:
            self._buffer.append(data)
            self._buffered_bytes += len(data)
            if self._buffered_bytes < self._needed_bytes:
                return []
            data = b"".join(self._buffer)
            self._buffer = []
        events: list[Event] = []
        at = 0
        while at < len(data):
            at = self._next(data, at, events)
        return events

    def _next(self, data: bytes, at: int, events: list[Event]) -> int:
        """Parse one event, and return where the next one begins. An incomplete one is kept."""
        end = data.find(b"\n", at, at + MAX_LINE_BYTES)
        if end < 0:
            if len(data) - at >= MAX_LINE_BYTES:
                raise _invalid(f"a line has more than {MAX_LINE_BYTES:,} bytes")
            return self._keep(data, at, 0)
        line, begin = data[at:end].decode("latin-1"), end + 1
        fields = line.split(" ")  # the last one ends with \r
        if fields[0] not in _MESSAGES:
            events += _control(line.rstrip("\r"))
            return begin
        stop = begin + _size(fields[-1])
        if stop + 2 > len(data):
            return self._keep(data, at, stop + 2 - at)
        if data[stop : stop + 2] != _CRLF:
            raise _invalid("a message is longer than the server said")
        if len(fields) == 5 and fields[0] == "MSG":  # nearly all are
            events.append(Message(fields[1], fields[2], fields[3], data[begin:stop]))
        else:
            events.append(_message(fields, data[begin:stop]))
        return stop + 2

    def _keep(self, data: bytes, at: int, need: int) -> int:
        self._buffer, self._buffered_bytes, self._needed_bytes = [data[at:]], len(data) - at, need
        return len(data)


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = -1
    if not 0 <= size <= MAX_PAYLOAD:
        raise _invalid(f"{text[:20]!r} is not the size of a message")
    return size


def _message(fields: list[str], block: bytes) -> Message:
    match fields:
        case ["MSG", subject, sid, _]:
            return Message(subject, sid, "", block)
        case ["HMSG", subject, sid, *reply, length, _] if len(reply) <= 1 and _size(length) <= len(block):
            headers, payload = block[: _size(length)], block[_size(length) :]
            # The server forwards the headers of clients unparsed: an invalid status is ignored.
            status = _STATUS.match(headers)
            return Message(subject, sid, reply[0] if reply else "", payload, int(status[1]) if status else 0)
        case _:
            raise _invalid(f"{fields[0]} with {len(fields) - 1} fields")


def _control(line: str) -> list[Control]:
    word, _, arguments = line.partition(" ")
    match word:
        case "PING":
            return [Ping()]
        case "PONG":
            return [Pong()]
        case "+OK":
            return []
        case "-ERR":
            return [ServerError(arguments.strip().strip("'"))]
        case "INFO":
            try:
                return [_info.decode(arguments.encode("latin-1"))]
            except (ValueError, RecursionError) as error:
                raise _invalid(f"INFO cannot be parsed: {error}") from error
        case _:
            raise _invalid(f"unknown command {word[:20]!r}; check that it is a NATS server")


def _invalid(problem: str) -> CallError:
    return CallError(ErrorCode.PROTOCOL_ERROR, f"invalid NATS protocol data: {problem}")


def connect(fields: dict[str, object]) -> bytes:
    """Encode CONNECT: the client's credentials and options."""
    return b"CONNECT " + msgspec.json.encode(fields) + _CRLF


def publish(subject: str, reply: str, payload: bytes, headers: bytes = b"") -> bytes:
    """Encode PUB, or HPUB with a block of headers; the reply subject is optional."""
    to = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"%b%b\r\n" % (f"PUB {to} {len(payload)}\r\n".encode("latin-1"), payload)
    head = f"HPUB {to} {len(headers)} {len(headers) + len(payload)}\r\n"
    return b"".join((head.encode("latin-1"), headers, payload, _CRLF))


def subscribe(subject: str, sid: str | int, queue: str = "") -> bytes:
    """Encode SUB, under an id of ours; within an optional queue group, one member receives each message."""
    return (f"SUB {subject} {queue} {sid}\r\n" if queue else f"SUB {subject} {sid}\r\n").encode("latin-1")


def unsubscribe(sids: Iterable[str | int]) -> bytes:
    """Encode UNSUB for each subscription."""
    return "".join(f"UNSUB {sid}\r\n" for sid in sids).encode("latin-1")
