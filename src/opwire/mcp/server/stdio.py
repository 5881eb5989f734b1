"""A client over a pair of streams, such as the standard input and output of this process: one message per line.

The first request decides the era: with the envelope of the stateless one, every request has to have it; otherwise the
client shakes hands. What the other era would send is rejected.

Pipes and sockets, as every client gives, are read and written on the event loop: a call takes 0.1 ms less than with
threads. Other files, and Windows, have a thread in each direction. Those are daemons, and abandoned at the end: a read
cannot be interrupted, and a server would wait for the client's next line.

Output that handlers print goes to standard error.
"""

import asyncio
import os
import stat
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

from opwire.errors import ERROR_TABLE, CallError, ErrorCode
from opwire.mcp.messages import (
    InvalidMessageError,
    RequestId,
    RPCCode,
    RPCError,
    RPCFailure,
    RPCNotification,
    RPCRequest,
    RPCResponse,
    decode_message,
    encode_message,
    encode_reply,
    split_batch,
)
from opwire.mcp.revisions import BATCHED, STATELESS_VERSIONS, VERSION_META, read_envelope
from opwire.mcp.server.calls import Params, ServedRequest
from opwire.mcp.server.clients import ClientState
from opwire.mcp.server.server import RegistryServer
from opwire.registry.invoke import CLOSE_GRACE
from opwire.runtime.tasks import resolve, spawn, start_eagerly
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict

logger = get_logger("opwire.mcp.server")

MAX_LINE = 16 * 1024 * 1024
"""Longest message in bytes; longer ones are rejected."""

MAX_UNREAD = 100
"""Messages that wait until the client reads; with more of them, nothing is read from the client."""

Write = Callable[[bytes], Awaitable[None] | None]

_CHUNK_BYTES = 64 * 1024
_TOO_LONG_LINE = b"too long"  # not a message: it is rejected as such


# --- the connection ---------------------------------------------------------------------------------------------------


class DuplexRequest(ServedRequest, kw_only=True):
    """A request on a connection."""

    connection: "DuplexConnection"

    async def send(self, message: RPCRequest | RPCNotification) -> None:
        """Send a message."""
        await self.connection.send(encode_message(message))


class DuplexConnection:
    """One client. `write` takes an encoded message, and returns what to wait for until the next one, if anything."""

    def __init__(self, server: RegistryServer, write: Write) -> None:
        self._server = server
        self._write = write
        self._client = ClientState()
        self._tasks = self._client.tasks
        self._is_stateless: bool | None = None
        self._running: dict[RequestId, DuplexRequest] = {}
        self._announcing: asyncio.Task[None] | None = None
        self._unread = 0  # messages that wait
        self._keeps_up = asyncio.Event()

    def receive(self, line: bytes) -> Awaitable[None] | None:
        """Handle a message or a batch; the caller waits for what is returned before it reads on."""
        if line.startswith(b"[") and self._client.version == BATCHED and not self._is_stateless:
            parts = split_batch(line)
            if parts != [line]:
                waits = [wait for wait in map(self.receive, parts) if wait is not None]
                return _all(waits) if waits else None
        try:
            message = decode_message(line)
        except InvalidMessageError as error:
            return self._write(encode_message(RPCFailure.of(error.id, _error_of(error))))
        match message:
            case RPCRequest():
                return self._start(message)
            case RPCNotification(method="notifications/cancelled", params=params):
                id: Any = (params or {}).get("requestId")
                if type(id) in (int, str) and (request := self._running.pop(id, None)) is not None:
                    spawn(request.stop(), self._tasks)
            case RPCNotification(method="notifications/initialized") if not self._is_stateless:
                self._client.follow(self._server.bus)
                self._announcing = self._announcing or spawn(self._client.announce(self.send), self._tasks)
            case _:
                self._client.receive(message)
        return None

    async def close(self) -> None:
        """Cancel the client's calls, answer them, and wait until they have ended."""
        self._client.close()
        running, self._running = self._running, {}
        stopping = [spawn(request.stop(), self._tasks) for request in running.values()]
        try:
            async with asyncio.timeout(CLOSE_GRACE):
                for id in running:
                    closed = RPCFailure.of(id, RPCError(RPCCode.CONNECTION_CLOSED, "Connection closed"))
                    await self.send(encode_message(closed))
        except TimeoutError:  # the client does not read
            pass
        if stopping:
            await asyncio.wait(stopping)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, message: RPCRequest) -> Awaitable[None] | None:
        has_envelope = VERSION_META in as_dict((message.params or {}).get("_meta"))
        if self._is_stateless is None:
            self._is_stateless = has_envelope and message.method != "initialize"
        try:
            self._check(message, has_envelope)
            if message.method == "initialize":  # at once: requests may follow without waiting
                result = self._server.initialize(message.params)
                self._client.agree(message.params, result)
                return self._write(encode_reply(RPCResponse(message.id, result)))
        except RPCError as error:
            return self._write(encode_message(RPCFailure.of(message.id, error)))
        client = None if self._is_stateless else self._client
        request = DuplexRequest(message, self._server.trusted, client, connection=self)
        self._running[message.id] = request
        request.task = start_eagerly(self._serve(request))
        if self._unread < MAX_UNREAD:
            return None
        self._keeps_up.clear()
        return cast("Awaitable[None]", self._keeps_up.wait())

    def _check(self, message: RPCRequest, has_envelope: bool) -> None:
        """Reject a request that cannot be served now, or not in the era of this connection.

        Raises:
            RPCError: what is wrong with it.
        """
        if self._is_stateless and message.method == "initialize":
            requested_version = (message.params or {}).get("protocolVersion")
            data: Params = {"supported": list(STATELESS_VERSIONS)}
            if isinstance(requested_version, str):
                data["requested"] = requested_version[:100]
            raise RPCError(RPCCode.UNSUPPORTED_PROTOCOL_VERSION, "this connection began without a handshake", data)
        if self._is_stateless:
            read_envelope(message.method, message.params, None)
        elif has_envelope and message.method != "initialize":
            wrong = f"this connection began with a handshake; requests of {STATELESS_VERSIONS[-1]} need another one"
            raise RPCError(RPCCode.INVALID_REQUEST, wrong)
        rejection = self._client.rejection(message, self._running, is_stateless=bool(self._is_stateless))
        if rejection is not None:
            raise rejection

    async def _serve(self, request: DuplexRequest) -> None:
        reply = await self._server.respond(request)
        if self._running.get(request.message.id) is request:  # else it was cancelled, and gets no response
            del self._running[request.message.id]
            await self.send(reply)

    async def send(self, encoded: bytes) -> None:
        """Send an encoded message, and wait if the client does not keep up."""
        wait_for = self._write(encoded)
        if wait_for is None:
            return
        self._unread += 1
        try:
            await wait_for
        finally:
            self._unread -= 1
            if self._unread < MAX_UNREAD:
                self._keeps_up.set()


def _error_of(error: InvalidMessageError) -> RPCError:
    if error.excess is None:
        return RPCError(RPCCode.PARSE_ERROR, f"{error}; a line is one JSON-RPC message of at most {MAX_LINE:,} bytes")
    problem = f"the message has {error.excess}, too many for its size: send values in parts, or as text"
    return RPCError(ERROR_TABLE[ErrorCode.PAYLOAD_TOO_LARGE].json_rpc_code, problem)


async def _all(waits: list[Awaitable[None]]) -> None:
    for wait in waits:
        await wait


# --- files ------------------------------------------------------------------------------------------------------------


class LineSplitter:
    """Split a stream into lines that are not blank. A line above the limit becomes one that is invalid."""

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._partial = bytearray()
        self._is_skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that the data completes."""
        scanned = len(self._partial)
        self._partial += data
        end = self._partial.rfind(b"\n", scanned)
        lines: list[bytes] = []
        if end >= 0:
            lines = bytes(self._partial[:end]).split(b"\n")
            del self._partial[: end + 1]
            if self._is_skipping:
                self._is_skipping = False
                lines[0] = _TOO_LONG_LINE
        if len(self._partial) > self._max_line:
            self._partial.clear()
            self._is_skipping = True
        return [_TOO_LONG_LINE if len(line) > self._max_line else line for line in lines if line and not line.isspace()]

    def end(self) -> list[bytes]:
        """Return the last line, which has no end."""
        return self.feed(b"\n")


class LineFiles(ABC):
    """Both files of a connection. `ended` is set at the end of the input."""

    def __init__(self, source: BinaryIO, sink: RawIOBase) -> None:
        self.ended = asyncio.Event()
        self._source = source
        self._sink = sink
        self._splitter = LineSplitter(MAX_LINE)

    @abstractmethod
    async def start(self, connection: DuplexConnection) -> None:
        """Pass lines to a connection from now on."""

    @abstractmethod
    def write(self, line: bytes) -> Awaitable[None] | None:
        """Write a line, without its end; return what to wait for if the client does not keep up."""

    @abstractmethod
    async def close(self) -> None:
        """Write what is buffered, if the client reads it, and read nothing more."""


async def serve_files(server: RegistryServer, source: BinaryIO, sink: RawIOBase) -> None:
    """Serve the client behind two files until the input ends."""
    modes = [os.fstat(file.fileno()).st_mode for file in (source, sink)]
    is_piped = sys.platform != "win32" and all(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes)
    files = PipedFiles(source, sink) if is_piped else ThreadedFiles(source, sink)
    connection = DuplexConnection(server, files.write)
    try:
        await files.start(connection)
        await files.ended.wait()
    finally:
        try:
            await connection.close()
        finally:
            await files.close()


class PipedFiles(LineFiles, asyncio.Protocol):
    """Pipes or sockets on the event loop."""

    def __init__(self, source: BinaryIO, sink: RawIOBase) -> None:
        super().__init__(source, sink)
        self._writable = asyncio.Event()
        self._writable.set()
        self._flushed = asyncio.Event()
        self._lines: list[bytes] = []  # received, and not handled yet
        self._handling: asyncio.Task[None] | None = None

    async def start(self, connection: DuplexConnection) -> None:
        loop = asyncio.get_running_loop()
        self._connection = connection
        writer = _PipeWriter(self._sink, self._writable, self._flushed)
        self._out, _ = await loop.connect_write_pipe(lambda: writer, self._sink)
        self._in, _ = await loop.connect_read_pipe(lambda: self, self._source)

    def write(self, line: bytes) -> Awaitable[None] | None:
        if not self._out.is_closing():
            self._out.write(line + b"\n")
        return None if self._writable.is_set() else cast("Awaitable[None]", self._writable.wait())

    async def close(self) -> None:
        self._in.close()
        if self._handling is not None:
            self._handling.cancel()
        self._out.close()  # after what is buffered
        try:
            async with asyncio.timeout(CLOSE_GRACE):
                await self._flushed.wait()
        except TimeoutError:
            self._out.abort()

    def data_received(self, data: bytes) -> None:
        self._take(self._splitter.feed(data))

    def eof_received(self) -> None:
        self._take(self._splitter.end())
        if self._handling is None:
            self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        os.set_blocking(self._source.fileno(), True)  # as it was: the file may have other users
        self.eof_received()

    def _take(self, lines: list[bytes]) -> None:
        self._lines += lines
        if self._handling is None:
            while self._lines:
                wait_for = self._connection.receive(self._lines.pop(0))
                if wait_for is not None:
                    self._in.pause_reading()
                    self._handling = asyncio.ensure_future(self._resume_after(wait_for))
                    break

    async def _resume_after(self, wait_for: Awaitable[None]) -> None:
        await wait_for
        self._handling = None
        self._take([])
        if self._handling is None:
            self._in.resume_reading()
            if self._in.is_closing():
                self.ended.set()


class _PipeWriter(asyncio.Protocol):
    def __init__(self, sink: RawIOBase, writable: asyncio.Event, closed: asyncio.Event) -> None:
        self._sink = sink
        self._writable = writable
        self._closed = closed

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            logger.debug("standard output is closed: messages are dropped")
        os.set_blocking(self._sink.fileno(), True)
        self._writable.set()
        self._closed.set()


class ThreadedFiles(LineFiles):
    """Any files, with a thread for each."""

    def __init__(self, source: BinaryIO, sink: RawIOBase) -> None:
        super().__init__(source, sink)
        self._loop = asyncio.get_running_loop()
        self._wanted: SimpleQueue[bool] = SimpleQueue()  # True: another chunk
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._queue: SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = SimpleQueue()
        self._pump: asyncio.Task[None] | None = None
        self._last: asyncio.Future[None] | None = None

    async def start(self, connection: DuplexConnection) -> None:
        for run in (self._read, self._write):
            threading.Thread(target=run, name="opwire-stdio", daemon=True).start()
        self._pump = asyncio.create_task(self._handle(connection))

    async def _handle(self, connection: DuplexConnection) -> None:
        is_open = True
        while is_open:
            self._wanted.put(True)
            chunk = await self._chunks.get()
            is_open = bool(chunk)
            for line in self._splitter.feed(chunk) if chunk else self._splitter.end():
                wait_for = connection.receive(line)
                if wait_for is not None:
                    await wait_for
        self.ended.set()

    def _read(self) -> None:
        while self._wanted.get():
            try:
                chunk = cast("Any", self._source).read1(_CHUNK_BYTES)
            except (OSError, ValueError):  # the file was closed
                chunk = b""
            self._call(self._chunks.put_nowait, chunk)

    def _write(self) -> None:
        while (job := self._queue.get()) is not None:
            line, written = job
            try:
                while line:
                    line = line[self._sink.write(line) :]
            except (OSError, ValueError):
                logger.debug("standard output is closed: a message is dropped")
            self._call(resolve, written)

    def write(self, line: bytes) -> Awaitable[None] | None:
        self._last = self._loop.create_future()
        self._queue.put((line + b"\n", self._last))
        return self._last

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        if self._last is not None:
            await asyncio.wait([self._last], timeout=CLOSE_GRACE)
        self._wanted.put(False)
        self._queue.put(None)

    def _call(self, function: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)


@contextmanager
def standard_files() -> Generator[tuple[BinaryIO, RawIOBase]]:
    """Yield private copies of standard input and output; meanwhile the public ones are empty and standard error.

    Raises:
        CallError: UNAVAILABLE, if the process has none.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:  # their descriptors may belong to other files by now
        raise CallError(ErrorCode.UNAVAILABLE, "standard input or output is closed; a server on stdio needs both")
    before = os.dup(0), os.dup(1)
    source, sink = os.dup(0), os.dup(1)
    try:
        with Path(os.devnull).open("rb") as empty:
            os.dup2(empty.fileno(), 0)
        os.dup2(2, 1)
        # Not closed: a thread may still wait on them, and their descriptors must not be reused. uvloop closes them.
        yield os.fdopen(source, "rb", closefd=False), os.fdopen(sink, "wb", buffering=0, closefd=False)
    finally:
        for descriptor, copy in enumerate(before):
            os.dup2(copy, descriptor)
            os.close(copy)
