"""The process's standard input and output as the streams of an MCP connection.

The SDK's own reads in a thread that nothing can interrupt: a server that is told to stop would wait for the client's
next line. Here both threads are left behind. What handlers print goes to standard error, out of the protocol's way.
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
from typing import Any, BinaryIO, cast

import anyio
from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from opwire.errors import CallError, ErrorCode
from opwire.invoke import CLOSE_GRACE
from opwire.typed.plain import replace_surrogates

logger = logging.getLogger("opwire.serve")

MAX_LINE = 16 * 1024 * 1024
"""Bytes of a message: a longer one is refused."""


@asynccontextmanager
async def stdio_streams() -> AsyncGenerator[MessageStream]:
    """The streams to serve a client on, for as long as the block lasts. They end with the standard input.

    Raises:
        CallError: UNAVAILABLE, if standard input or output is closed.
    """
    with _standard_files() as (source, sink):
        async with line_streams(source, sink) as streams:
            yield streams


@asynccontextmanager
async def line_streams(source: BinaryIO, sink: RawIOBase) -> AsyncGenerator[MessageStream]:
    """The streams of a connection over two files that hold a message a line."""
    lines, writer = _Lines(source), _Writer(sink)
    async with create_client_server_memory_streams() as ((incoming, outgoing), theirs):
        reading = asyncio.create_task(_read(lines, outgoing, writer))
        writing = asyncio.create_task(_write(incoming, writer))
        try:
            try:
                yield theirs
            finally:
                await theirs[1].aclose()
                await asyncio.wait([writing], timeout=CLOSE_GRACE)  # the last answers
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            lines.close()
            writer.close()


async def _read(lines: "_Lines", messages: Any, writer: "_Writer") -> None:
    async with messages:
        while line := await lines.next():
            try:
                message = _message(line)
            except _UnreadableError as error:
                await writer.write(_line(_unreadable(error.id)))
                continue
            try:
                await messages.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server has ended
                return


async def _write(messages: Any, writer: "_Writer") -> None:
    async for each in messages:
        await writer.write(_line(each.message))


def _line(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _message(line: bytes) -> JSONRPCMessage:
    """The message of a line. A character that JavaScript has cut in the middle is replaced.

    Raises:
        _UnreadableError: it is none; with the id of what was meant to be a request, so that nobody waits for ever.
    """
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    id: Any = None
    try:
        found: Any = json.loads(line.decode("utf-8-sig", "replace"))
        id = cast("dict[str, Any]", found).get("id") if isinstance(found, dict) else None
        return jsonrpc_message_adapter.validate_python(replace_surrogates(found), by_name=False)
    except (ValueError, RecursionError):
        raise _UnreadableError(id) from None


class _UnreadableError(Exception):
    def __init__(self, id: Any) -> None:
        super().__init__()
        self.id = replace_surrogates(id) if type(id) in (int, str) else None


def _unreadable(id: int | str | None) -> JSONRPCError:
    wrong = ErrorData(code=PARSE_ERROR, message=f"a line is one JSON-RPC message of at most {MAX_LINE:,} bytes")
    return JSONRPCError(jsonrpc="2.0", id=id, error=wrong)


class _Lines:
    """The lines of a file, read by a thread of its own, each when it is asked for."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[asyncio.Future[bytes] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="opwire-stdin", daemon=True).start()

    async def next(self) -> bytes:
        """The next line that is not blank; b"" at the end."""
        line: asyncio.Future[bytes] = self._loop.create_future()
        self._asked.put(line)
        return await line

    def close(self) -> None:
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            _settle(self._loop, asked, self._line())

    def _line(self) -> bytes:
        try:
            while (line := self._source.readline(MAX_LINE)).isspace():
                pass
            ended = not line or line.endswith(b"\n")
            while not ended:
                more = self._source.readline(MAX_LINE)
                ended = not more or more.endswith(b"\n")
                line = b"too long" if more else line
            return line
        except (OSError, ValueError):  # somebody closed the file
            return b""


class _Writer:
    """Writes to a file in a thread of its own, which a client that does not read may block for ever."""

    def __init__(self, sink: RawIOBase) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[bytes, asyncio.Future[bytes]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="opwire-stdout", daemon=True).start()

    async def write(self, data: bytes) -> None:
        done: asyncio.Future[bytes] = self._loop.create_future()
        self._jobs.put((data, done))
        await done

    def close(self) -> None:
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            data, done = job
            try:
                while data:
                    data = data[self._sink.write(data) :]
            except (OSError, ValueError):
                logger.debug("standard output is closed: an answer is lost with its reader")
            _settle(self._loop, done, b"")


def _settle(loop: asyncio.AbstractEventLoop, waiting: "asyncio.Future[bytes]", value: bytes) -> None:
    """Wake who waits, from a thread. Nobody may: the call was cancelled, the loop closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if waiting.done() else waiting.set_result(value))


@contextmanager
def _standard_files() -> Generator[tuple[BinaryIO, RawIOBase]]:
    """Private copies of the standard input and output; meanwhile the public ones lead nowhere and to standard error.

    Raises:
        CallError: UNAVAILABLE, if this process has none.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:  # their numbers may mean something else by now
        raise CallError(ErrorCode.UNAVAILABLE, "standard input or output is closed; a server on stdio needs both")
    source, sink = os.dup(0), os.dup(1)
    try:
        with Path(os.devnull).open("rb") as nowhere:
            os.dup2(nowhere.fileno(), 0)
        os.dup2(2, 1)
        # Not closed: a thread may still wait on them, and their numbers must not come to mean something else.
        yield os.fdopen(source, "rb", closefd=False), os.fdopen(sink, "wb", buffering=0, closefd=False)
    finally:
        os.dup2(source, 0)
        os.dup2(sink, 1)
