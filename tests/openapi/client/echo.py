"""A real HTTP server on loopback that tells what arrived, byte for byte, or sends a configured response.

    async with EchoServer() as server:
        await client.get(f"{server.url}/anything?q=1")   # {"method": "GET", "path": "/anything", "query": "q=1", …}
        server.on("/gone", answer(404, b"no such thing"))

It is written on plain streams, since most of what a client has to survive is what no HTTP library would send.
"""

import asyncio
import gzip
import json
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Self

from msgspec import Struct

JSON = "application/json"


class Arrived(Struct, frozen=True):
    """A request as it stood on the wire: `path` and `query` are not decoded."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, or None; several are joined."""
        values = [value for each, value in self.headers if each.lower() == name.lower()]
        return ", ".join(values) if values else None

    def echo(self) -> dict[str, Any]:
        """The request as JSON, the body as base64."""
        return {
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "headers": [list(pair) for pair in self.headers],
            "body": b64encode(self.body).decode(),
        }


class Exchange:
    """A request, and the connection on which a script answers it."""

    def __init__(self, request: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def left(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        """Close the connection after what was sent."""
        self._writer.close()

    def reset(self) -> None:
        """Break the connection."""
        self._writer.transport.abort()


Script = Callable[[Exchange], Awaitable[None]] | bytes
"""What is answered: bytes as they are, or whatever a function does."""


def answer(status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    """A well-formed answer."""
    head = {"Content-Length": str(len(body)), **(headers or {})}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> bytes:
    """A well-formed answer in JSON."""
    return answer(status, json.dumps(value).encode(), {"Content-Type": JSON, **(headers or {})})


def redirect(status: int, location: str) -> bytes:
    """A redirect."""
    return answer(status, b"", {"Location": location})


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_head(content_type: str = "text/event-stream", **headers: str) -> bytes:
    """The head of a response with a body until the connection closes, or in chunks if the headers say so."""
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def events(*pieces: bytes, ends: bool = True) -> Script:
    """A chunked event stream, one chunk a piece; one that does not end is cut off instead."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_head(**{"Transfer-Encoding": "chunked"}))
        for piece in pieces:
            await exchange.send(chunk(piece))
        if ends:
            await exchange.send(chunk(b""))
        else:
            exchange.close()

    return script


def gzip_bomb(megabytes: int) -> bytes:
    """An answer of zeros, a thousand times smaller on the wire."""
    body = gzip.compress(bytes(megabytes * 1024 * 1024), compresslevel=9)
    return answer(200, body, {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"})


async def silence(exchange: Exchange) -> None:
    """Never answer."""
    await exchange.left()


class EchoServer:
    """The server. `arrived` are all requests so far; `open` is the number of connections that are open now."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.arrived: list[Arrived] = []
        self.accepted = 0  # connections that there ever were
        self.open = 0
        self._changed = asyncio.Condition()
        self._scripts: dict[str, list[Script]] = {}
        self._tls = tls

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on(self, path: str, *scripts: Script) -> None:
        """How requests to a path are answered: one script a request, the last one from then on."""
        self._scripts[path] = list(scripts)

    async def connections(self, number: int) -> None:
        """Wait until this number of connections is open."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: self.open == number)

    async def requests(self, number: int) -> None:
        """Wait until this number of requests has arrived."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: len(self.arrived) >= number)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        await self._count(1)
        try:
            while request := await _read(reader):
                self.arrived.append(request)
                await self._count(0)
                await self._answer(Exchange(request, reader, writer))
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone, or the server closes
        finally:
            writer.close()
            self._tasks.discard(task)
            await self._count(-1)

    async def _answer(self, exchange: Exchange) -> None:
        scripts = self._scripts.get(exchange.request.path)
        if scripts is None:
            await exchange.send(json_answer(exchange.request.echo()))
            return
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        if isinstance(script, bytes):
            await exchange.send(script)
        else:
            await script(exchange)

    async def _count(self, change: int) -> None:
        self.open += change
        async with self._changed:
            self._changed.notify_all()


async def _read(reader: asyncio.StreamReader) -> Arrived | None:
    """The next request of a connection, or None at its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    fields = {name.lower(): value for name, value in headers}
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = b"".join([piece async for piece in _chunks(reader)])
    else:
        body = await reader.readexactly(int(fields.get("content-length", 0)))
    path, _, query = target.partition("?")
    return Arrived(method, path, query, headers, body)


async def _chunks(reader: asyncio.StreamReader):
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
