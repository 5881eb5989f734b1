"""The client's side of the NATS protocol: bytes in, events out. No I/O, no clock, no tasks.

Rule 1: however the bytes are cut, the events are the same.
Rule 2: bytes that are not NATS raise PROTOCOL_ERROR. After that nothing can be made of what follows.
Rule 3: what a server can make us keep is bounded, and what is kept is looked at again only when it may be complete.

Lines are read as Latin-1 and written so again, so that a subject of whatever bytes survives.
"""

import re
from collections.abc import Iterable
from typing import final

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode

MAX_LINE = 32 * 1024
"""Bytes of a line from the server: of INFO, which names every server of a cluster. Others have a few hundred."""

MAX_PAYLOAD = 64 * 1024 * 1024
"""Bytes of a message: no NATS server can be told to let more through."""

PING = b"PING\r\n"
PONG = b"PONG\r\n"

_END = b"\r\n"
_MESSAGES = frozenset(("MSG", "HMSG"))
_STATUS = re.compile(rb"NATS/1\.0 ([0-9]{3})(?![0-9])")


@final
class Message(Struct, frozen=True, gc=False):
    """MSG or HMSG. Of the headers only the status matters to us: 503 says that nobody has subscribed."""

    subject: str
    sid: str
    reply: str
    payload: bytes
    status: int = 0


class Info(Struct, frozen=True):
    """INFO: what the server is and can do. It is the first thing that a server says, and may come again."""

    server_name: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int = 1024 * 1024
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    connect_urls: list[str] = []
    ldm: bool = False  # "lame duck mode": the server is about to shut down


class Complaint(Struct, frozen=True):
    """-ERR. Some are followed by the end of the connection, some are not."""

    text: str


class Ping(Struct, frozen=True):
    """The server wants to know whether we are alive."""


class Pong(Struct, frozen=True):
    """The server has done all that was sent before our PING."""


Control = Info | Complaint | Ping | Pong
Event = Message | Control

_info = msgspec.json.Decoder(Info)


class Parser:
    """Turns what a server sends into events."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []  # the beginning of something
        self._have = 0
        self._need = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete with these bytes.

        Raises:
            CallError: PROTOCOL_ERROR.
        """
        if self._kept:
            self._kept.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._kept)
            self._kept = []
        events: list[Event] = []
        at, length = 0, len(data)
        while at < length:
            end = data.find(b"\n", at, at + MAX_LINE)
            if end < 0:
                self._keep_line(data[at:])
                break
            fields = data[at:end].decode("latin-1").split(" ")  # the last one has a \r at its end
            begin = end + 1
            if fields[0] not in _MESSAGES:
                events += _other(data[at:end].decode("latin-1").rstrip("\r"))
                at = begin
                continue
            stop = begin + _size(fields[-1])
            if stop + 2 > length:
                self._keep(data[at:], stop + 2 - at)
                break
            if data[stop : stop + 2] != _END:
                raise _broken("a message is longer than the server said")
            if len(fields) == 5 and fields[0] == "MSG":  # nearly all are
                events.append(Message(fields[1], fields[2], fields[3], data[begin:stop]))
            else:
                events.append(_message(fields, data[begin:stop]))
            at = stop + 2
        return events

    def _keep(self, beginning: bytes, need: int) -> None:
        self._kept, self._have, self._need = [beginning], len(beginning), need

    def _keep_line(self, beginning: bytes) -> None:
        if len(beginning) >= MAX_LINE:
            raise _broken(f"a line has more than {MAX_LINE:,} bytes")
        self._keep(beginning, 0)


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = -1
    if not 0 <= size <= MAX_PAYLOAD:
        raise _broken(f"{text[:20]!r} is not the size of a message")
    return size


def _message(fields: list[str], block: bytes) -> Message:
    match fields:
        case ["MSG", subject, sid, _]:
            return Message(subject, sid, "", block)
        case ["HMSG", subject, sid, *reply, length, _] if len(reply) <= 1 and _size(length) <= len(block):
            headers, payload = block[: _size(length)], block[_size(length) :]
            return Message(subject, sid, reply[0] if reply else "", payload, _status(headers))
        case _:
            raise _broken(f"{fields[0]} with {len(fields) - 1} fields")


def _status(headers: bytes) -> int:
    """Return the 503 of `NATS/1.0 503`; 0 where there is no number.

    A server passes headers on unread, so any client can write anything there: that does not make the server invalid.
    """
    found = _STATUS.match(headers)
    return int(found[1]) if found is not None else 0


def _other(line: str) -> list[Control]:
    word, _, rest = line.partition(" ")
    match word:
        case "PING":
            return [Ping()]
        case "PONG":
            return [Pong()]
        case "+OK":
            return []
        case "-ERR":
            return [Complaint(rest.strip().strip("'"))]
        case "INFO":
            return [_read_info(rest)]
        case _:
            raise _broken(f"it said {word[:20]!r}")


def _read_info(text: str) -> Info:
    try:
        return _info.decode(text.encode("latin-1"))
    except (ValueError, RecursionError) as error:
        raise _broken(f"INFO cannot be parsed: {error}") from error


def _broken(what: str) -> CallError:
    return CallError(ErrorCode.PROTOCOL_ERROR, f"invalid NATS protocol data: {what}")


def connect(fields: dict[str, object]) -> bytes:
    """CONNECT: who we are, and what we can do."""
    return b"CONNECT " + msgspec.json.encode(fields) + _END


def publish(subject: str, reply: str, payload: bytes) -> bytes:
    """PUB: a message, and where answers go, if any are wanted."""
    head = f"PUB {subject} {reply} {len(payload)}\r\n" if reply else f"PUB {subject} {len(payload)}\r\n"
    return b"%b%b\r\n" % (head.encode("latin-1"), payload)


def subscribe(subject: str, sid: str | int, queue: str = "") -> bytes:
    """SUB: receive what is published on a subject, under a name of ours; of a queue one member alone gets it."""
    return (f"SUB {subject} {queue} {sid}\r\n" if queue else f"SUB {subject} {sid}\r\n").encode("latin-1")


def unsubscribe(sids: Iterable[str | int]) -> bytes:
    """UNSUB."""
    return "".join(f"UNSUB {sid}\r\n" for sid in sids).encode("latin-1")
