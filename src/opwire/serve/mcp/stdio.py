"""The standard input and output of the process as the streams of an MCP connection.

The SDK's own streams read in a thread that cannot be interrupted: on shutdown a server would wait for the client's next
line. Here both threads are daemons, and abandoned. Output that handlers print goes to standard error.
"""

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import anyio
from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from opwire.errors import CallError, ErrorCode
from opwire.invoke import CLOSE_GRACE
from opwire.typed.plain import as_dict, replace_surrogates

logger = logging.getLogger("opwire.serve")

MAX_LINE = 16 * 1024 * 1024
"""Longest message in bytes; longer ones are rejected."""


@asynccontextmanager
async def stdio_streams() -> AsyncGenerator[MessageStream]:
    """Yield the streams of a client on stdio. They end with the standard input.

    Raises:
        CallError: UNAVAILABLE, if standard input or output is closed.
    """
    with _standard_files() as (source, sink):
        async with line_streams(source, sink) as streams:
            yield streams


@asynccontextmanager
async def line_streams(source: BinaryIO, sink: RawIOBase) -> AsyncGenerator[MessageStream]:
    """Yield the streams of a connection over two files with one message per line."""
    lines, writer = _LineReader(source), _LineWriter(sink)
    async with create_client_server_memory_streams() as ((incoming, outgoing), theirs):

        async def read() -> None:
            async with outgoing:
                while line := await lines.next():
                    message = _parse(line)
                    if isinstance(message, JSONRPCError):
                        await writer.write(message)
                        continue
                    try:
                        await outgoing.send(SessionMessage(message))
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server has ended
                        return

        async def write() -> None:
            async for each in incoming:
                if isinstance(each, SessionMessage):
                    await writer.write(each.message)

        reading, writing = asyncio.create_task(read()), asyncio.create_task(write())
        try:
            try:
                yield theirs
            finally:
                await theirs[1].aclose()
                await asyncio.wait([writing], timeout=CLOSE_GRACE)  # for the last responses
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            lines.close()
            writer.close()


def _parse(line: bytes) -> JSONRPCMessage:
    """Parse the message of a line; lone surrogates, which JavaScript writes, are replaced.

    Return an error for an invalid line, with the id of the request if there is one, so that its client does not wait.
    """
    with suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    id: Any = None
    with suppress(ValueError, RecursionError):
        found: Any = json.loads(line.decode("utf-8-sig", "replace"))
        id = as_dict(found).get("id")
        return jsonrpc_message_adapter.validate_python(replace_surrogates(found), by_name=False)
    error = ErrorData(code=PARSE_ERROR, message=f"a line is one JSON-RPC message of at most {MAX_LINE:,} bytes")
    return JSONRPCError(jsonrpc="2.0", id=replace_surrogates(id) if type(id) in (int, str) else None, error=error)


class _LineReader:
    """Read the lines of a file in a thread, each on demand."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[asyncio.Future[bytes] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="opwire-stdin", daemon=True).start()

    async def next(self) -> bytes:
        """Return the next line that is not blank; b"" at the end."""
        line: asyncio.Future[bytes] = self._loop.create_future()
        self._requests.put(line)
        return await line

    def close(self) -> None:
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                while (line := self._source.readline(MAX_LINE)).isspace():
                    pass
                ended = not line or line.endswith(b"\n")
                while not ended:
                    more = self._source.readline(MAX_LINE)
                    ended = not more or more.endswith(b"\n")
                    line = b"too long" if more else line
            except (OSError, ValueError):  # the file was closed
                line = b""
            _resolve(self._loop, request, line)


class _LineWriter:
    """Write messages to a file in a thread, which a client that does not read may block indefinitely."""

    def __init__(self, sink: RawIOBase) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[bytes, asyncio.Future[bytes]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="opwire-stdout", daemon=True).start()

    async def write(self, message: JSONRPCMessage) -> None:
        written: asyncio.Future[bytes] = self._loop.create_future()
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        self._queue.put((line, written))
        await written

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            line, written = job
            try:
                while line:
                    line = line[self._sink.write(line) :]
            except (OSError, ValueError):
                logger.debug("standard output is closed: a message is dropped")
            _resolve(self._loop, written, b"")


def _resolve(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[bytes]", value: bytes) -> None:
    """Set the result of a future from a thread, unless it is cancelled or its loop closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(value))


@contextmanager
def _standard_files() -> Generator[tuple[BinaryIO, RawIOBase]]:
    """Yield private copies of standard input and output; meanwhile the public ones are empty and standard error.

    Raises:
        CallError: UNAVAILABLE, if the process has none.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:  # their descriptors may belong to other files by now
        raise CallError(ErrorCode.UNAVAILABLE, "standard input or output is closed; a server on stdio needs both")
    source, sink = os.dup(0), os.dup(1)
    try:
        with Path(os.devnull).open("rb") as empty:
            os.dup2(empty.fileno(), 0)
        os.dup2(2, 1)
        # Not closed: a thread may still wait on them, and their descriptors must not be reused.
        yield os.fdopen(source, "rb", closefd=False), os.fdopen(sink, "wb", buffering=0, closefd=False)
    finally:
        os.dup2(source, 0)
        os.dup2(sink, 1)
