"""Replay the transcripts of docs/reference/transcripts: what a peer sends byte by byte, and what it has to receive.

A line is `<connection>> text` (sent) or `<connection>< text` (received); `#` begins a comment. `<name>` in a line
stands for a value that differs from run to run: its first occurrence binds it, and later ones repeat it.
"""

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

TRANSCRIPTS = Path(__file__).parent.parent.parent / "docs" / "reference" / "transcripts"

_LINE = re.compile(r"(\w+)([<>]) ?(.*)")
_NAME = re.compile(r"<(\w+)>")
_PATIENCE = 20.0
_TEXT, _CLOSE = 1, 8
_UPGRADE = (
    "GET / HTTP/1.1",
    "Host: hub.example",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: opwire.v1",
    "",
)


class Wire(Protocol):
    """One connection, as text lines."""

    async def send(self, line: str) -> None: ...
    async def receive(self) -> str: ...


Open = Callable[[str], Awaitable[Wire]]


async def replay(transcript: str, connect: Open) -> None:
    """Play the peer's part of a transcript. A name opens its connection when it first appears.

    Raises:
        AssertionError: something else was received.
    """
    wires: dict[str, Wire] = {}
    bound: dict[str, str] = {}
    async with asyncio.timeout(_PATIENCE):
        for number, line in enumerate((TRANSCRIPTS / transcript).read_text(encoding="utf-8").splitlines(), 1):
            if not line or line.startswith("#"):
                continue
            found = _LINE.fullmatch(line)
            assert found is not None, f"{transcript}:{number} is not a line of a transcript"
            name, way, text = found.groups()
            if name not in wires:
                wires[name] = await connect(name)
            if way == ">":
                parts = _NAME.split(text)
                parts[1::2] = [bound[each] for each in parts[1::2]]
                await wires[name].send("".join(parts))
                continue
            received = await wires[name].receive()
            match = re.fullmatch(_pattern(text, bound), received)
            assert match is not None, f"{transcript}:{number}\nexpected {text}\nreceived {received}"
            bound |= match.groupdict()


def _pattern(text: str, bound: dict[str, str]) -> str:
    """Return a pattern for a received line, in which names that are not bound yet are groups."""
    parts = _NAME.split(text)
    named: set[str] = set()
    for index in range(1, len(parts), 2):
        name = parts[index]
        if name in bound:
            parts[index] = re.escape(bound[name])
        else:
            parts[index] = f"(?P={name})" if name in named else f"(?P<{name}>[\\w.:+=, -]+)"
            named.add(name)
    parts[::2] = map(re.escape, parts[::2])
    return "".join(parts)


class HttpThenFrames:
    """A connection to a hub: lines of HTTP up to the empty one, then text frames.

    Frames are masked with zeros, so that the bytes on the wire are the text itself.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sends_http = self._receives_http = True

    async def send(self, line: str) -> None:
        if self._sends_http and self._receives_http and line.startswith("{"):
            await self._upgrade()
        if self._sends_http:
            self._writer.write(line.encode() + b"\r\n")
            self._sends_http = bool(line)
            return
        data = line.encode()
        size = len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        self._writer.write(b"\x81" + length + bytes(4) + data)

    async def _upgrade(self) -> None:
        """Perform the upgrade of a transcript that leaves it out."""
        for line in _UPGRADE:
            await self.send(line)
        while await self.receive():
            pass

    async def receive(self) -> str:
        if self._receives_http:
            line = (await self._reader.readuntil(b"\r\n"))[:-2].decode()
            self._receives_http = bool(line)
            return line
        while True:
            first, size = await self._reader.readexactly(2)
            if size == 126:
                size = int.from_bytes(await self._reader.readexactly(2), "big")
            payload = await self._reader.readexactly(size)
            if first & 15 == _TEXT:
                return payload.decode()
            if first & 15 == _CLOSE:
                return f"close {int.from_bytes(payload[:2], 'big')} {payload[2:].decode()}"
            # else a ping: the transcript takes less than two of them


class RedisCommands:
    """A connection to Redis in RESP2: commands with quoted words, and replies in one line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, line: str) -> None:
        words = [each.replace("\\n", "\n").encode() for each in shlex.split(line)]
        encoded = b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in words)
        self._writer.write(b"*%d\r\n" % len(words) + encoded)

    async def receive(self) -> str:
        line = (await self._reader.readuntil(b"\r\n"))[:-2].decode()
        if line.startswith("$") and line != "$-1":
            return (await self._reader.readexactly(int(line[1:]) + 2))[:-2].decode().replace("\n", "\\n")
        if line.startswith("*"):
            return " ".join([await self.receive() for _ in range(int(line[1:]))])
        return line.lstrip(":+")


class Lines:
    """A connection to NATS: its protocol is made of lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, line: str) -> None:
        self._writer.write(line.encode() + b"\r\n")

    async def receive(self) -> str:
        while True:
            line = (await self._reader.readuntil(b"\r\n"))[:-2].decode()
            if not line.startswith(("PING", "INFO", "Nats-")):  # headers of a status differ between versions
                return line


class Calls:
    """An end in Python: a line sent is an operation to call, and a line received is what it returned."""

    def __init__(self, call: Callable[[str], Awaitable[object]]) -> None:
        self._call = call
        self._open: asyncio.Future[object] | None = None

    async def send(self, line: str) -> None:
        self._open = asyncio.ensure_future(self._call(line))

    async def receive(self) -> str:
        assert self._open is not None
        return json.dumps(await self._open)


@asynccontextmanager
async def connections(
    host: str,
    port: int,
    kind: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Wire],
    call: Callable[[str], Awaitable[object]] | None = None,
) -> AsyncIterator[Open]:
    """Open connections of this kind, and close them at the end. The one named `python` makes calls."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(name: str) -> Wire:
        if name == "python" and call is not None:
            return Calls(call)
        reader, writer = await asyncio.open_connection(host, port)
        writers.append(writer)
        return kind(reader, writer)

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
