"""A server's process: started in a process group of its own, read line by line, stopped with its children.

The SDK's `stdio_client` has no limit for a line, does not notice that a server died while a child of it still holds
the pipe, and leaves such a child behind. This one does the same work on asyncio's own subprocess protocol.

JSON-RPC messages of MCP as bytes, and the shape of what carries them. No I/O.

The SDK reads a message strictly, or not at all. A call whose answer cannot be read would then wait for ever, so an
answer that is broken inside becomes an error for its caller, and one whose caller cannot be known ends the connection.
Anything else that a server writes is not a message.

Bytes bound what a message costs only if its values are few: 16 MB of `[],` took 15 s and 1.2 GB to parse. So the values
are bounded too, and counted before anything is built.
"""

import asyncio
import json
import logging
import os
import re
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import anyio
import msgspec
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter
from msgspec import Struct

from opwire.adapters.mcp.report import MAX_SHOWN, ServerLog, too_large
from opwire.adapters.mcp.servers import StdioServer
from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import replace_surrogates

logger = logging.getLogger("opwire.mcp")

# A whole pair, or (in the group) half of one, or any other escape: a backslash that is escaped begins nothing.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


MAX_ID = 200
"""Characters of a request id: longer ones are not ours, and every log line would repeat them."""

_decoder = msgspec.json.Decoder()


class _Head(Struct):
    """What a message is about, read without building the rest of it."""

    id: int | str | None = None
    method: str | None = None


_head_decoder = msgspec.json.Decoder(_Head)


def max_values(max_message: int) -> int:
    """Return how many JSON values a message may hold: 262,144 for 16 MiB, which take about 100 ms to parse."""
    return max(max_message // 64, 1000)


def has_few_values(raw: bytes, limit: int) -> bool:
    """Return whether JSON holds at most so many values: each needs a comma or a bracket outside of texts."""
    if len(raw) <= limit or _separators(raw) <= limit:
        return True
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote that is left begins or ends a text
    if plain.count(b'"') > 2 * limit:
        return False
    return _separators(b"".join(plain.split(b'"')[::2])) <= limit


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


class MessageStream:
    """Both streams of the SDK's dispatcher in one. The code that opened it closes it: `aclose` is a no-op.

    `failure` says why it ended, once it has.
    """

    failure: CallError | None = None

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message.

        Raises:
            BrokenResourceError: it has ended. The dispatcher expects this one.
        """
        raise NotImplementedError

    async def receive(self) -> SessionMessage:
        """The next message.

        Raises:
            EndOfStream: it has ended.
        """
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def write_message(message: JSONRPCMessage) -> bytes:
    """One line, without its end. NaN and infinities become null."""
    return msgspec.json.encode(message.model_dump(by_alias=True, exclude_unset=True))


def mended(raw: bytes) -> bytes:
    """JSON in which halves of surrogate pairs are U+FFFD: JavaScript writes them, where it cuts a text, as escapes."""
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return raw
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], raw)


def read_message(raw: bytes, limit: int) -> SessionMessage | None:
    """Return the message of at most `limit` values, or None if this is not a message.

    Raises:
        CallError: PROTOCOL_ERROR, it should have been a message, but of an unknown request.
    """
    if not has_few_values(raw, limit):
        large = large_message(raw, limit)
        return SessionMessage(large) if large is not None and _has_usable_id(large) else None
    try:
        # msgspec builds the values in a third of the time that the adapter's own parser takes.
        message = jsonrpc_message_adapter.validate_python(_decoder.decode(raw), by_name=False)
    except (ValueError, RecursionError):
        return _second_look(raw)
    return SessionMessage(message) if _has_usable_id(message) else None


def _has_usable_id(message: JSONRPCMessage) -> bool:
    """Return whether an id is one that a peer may choose, not a number of thousands of digits."""
    id = getattr(message, "id", None)
    return len(id) <= MAX_ID if isinstance(id, str) else id is None or abs(id) < 2**63


def large_message(raw: bytes, limit: int) -> JSONRPCMessage | None:
    """Return what stands for a message of too many values: an error for its caller, or a request to refuse.

    A notification is dropped.

    Raises:
        CallError: PROTOCOL_ERROR, it is not JSON, or of an unknown request.
    """
    try:
        head = _head_decoder.decode(raw)
    except (ValueError, RecursionError):
        head = _Head()
    if head.id is None and head.method is None:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"a message of more than {limit:,} JSON values was received")
    if head.id is None:
        logger.warning("a notification of more than %s JSON values is ignored", f"{limit:,}")
        return None
    if head.method is None:
        return JSONRPCError(jsonrpc="2.0", id=head.id, error=too_large(f"more than {limit:,} JSON values"))
    return JSONRPCRequest(jsonrpc="2.0", id=head.id, method=f"{head.method[:100]} with more than {limit:,} JSON values")


def _second_look(raw: bytes) -> SessionMessage | None:
    """Read what is left: a byte order mark, bytes that are not UTF-8, lone surrogates, broken answers, nonsense."""
    try:
        found = json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError) as error:
        if b'"jsonrpc"' in raw[:200]:
            raise CallError(
                ErrorCode.PROTOCOL_ERROR, "a message that is not JSON, or nested too deeply, was received"
            ) from error
        return None
    if not isinstance(found, dict):
        return None
    message = cast("dict[str, Any]", found)
    id = message.get("id")
    if isinstance(id, float) and id.is_integer():  # some languages have no other numbers
        id = message["id"] = int(id)
    try:
        plain = replace_surrogates(message)
        read = jsonrpc_message_adapter.validate_python(plain, by_name=False)
    except (ValueError, RecursionError):
        pass
    else:
        return SessionMessage(read) if _has_usable_id(read) else None
    is_answer = "method" not in message and not message.keys().isdisjoint(("jsonrpc", "result", "error"))
    if is_answer and type(id) in (int, str):
        broken = ErrorData(code=PARSE_ERROR, message="the answer is not a JSON-RPC response of MCP, or is too deep")
        answer = JSONRPCError(jsonrpc="2.0", id=replace_surrogates(id), error=broken)
        return SessionMessage(answer) if _has_usable_id(answer) else None
    return None


_READ_AHEAD = 256 * 1024  # bytes of whole lines that wait to be read: short lines take a multiple of that
_SLICE = 0.01  # seconds of reading after which others get a turn: a server can always have one more line ready
_LAST_WORDS = 0.2  # seconds between the end of the output and the end of the process, whichever comes first
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_POLL = 0.02  # seconds between two looks at a process group, whose end is not announced


@asynccontextmanager
async def server_process(server: StdioServer, max_message: int) -> AsyncGenerator["ServerProcess"]:
    """Start the server; leaving stops it and its children.

    Raises:
        CallError: UNAVAILABLE, it cannot be started.
    """
    loop = asyncio.get_running_loop()
    environment = get_default_environment() | (server.env or {})
    try:
        _, process = await loop.subprocess_exec(
            lambda: ServerProcess(server, max_message),
            server.command,
            *server.args,
            env=environment,
            cwd=server.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        at = f" in {server.cwd}" if server.cwd else ""
        message = f"the MCP server {server.name} cannot be started{at}: {reason}"
        raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False) from error
    try:
        yield process
    finally:
        await process.stop()


class ServerProcess(MessageStream, asyncio.SubprocessProtocol):
    """A process whose output is messages."""

    def __init__(self, server: StdioServer, max_message: int) -> None:
        self._server = server
        self._max_message = max_message
        self._max_values = max_values(max_message)
        self._log = ServerLog(server.name)
        self._turn_ends = 0.0
        self._lines: deque[bytes] = deque()
        self._waiting = 0  # bytes in them
        self._rest = bytearray()  # the beginning of a line
        self._words = b""  # the beginning of a line of stderr
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._exited = asyncio.Event()
        self._over = asyncio.Event()
        self._output_ended = False
        self._nonsense = 0

    # --- what asyncio tells -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        # If nobody stops the process in order, because the loop was closed under us, it ends with the interpreter.
        self._orphaned = weakref.finalize(self, _signal_group, self._transport.get_pid(), _KILL)

    def pipe_data_received(self, fd: int, data: Any) -> None:
        if fd == 2:
            *lines, rest = (self._words + data).split(b"\n")
            self._words = rest[:MAX_SHOWN]
            for line in lines:
                self._log_words(line)
        else:
            self._split(data)

    def _split(self, data: bytes) -> None:
        if self.failure is not None:  # the connection is over
            return
        begun = len(self._rest)
        self._rest += data
        end = self._rest.rfind(b"\n", begun)  # what was there before has no end: it was looked through already
        if end >= 0:
            lines = bytes(self._rest[:end]).split(b"\n")
            del self._rest[: end + 1]
            self._lines.extend(lines)
            self._waiting += end + 1
            self._news.set()
            if self._waiting > _READ_AHEAD:
                self._output.pause_reading()
            longest = max(map(len, lines))
        else:
            longest = len(self._rest)
        if longest > self._max_message:
            self._lines.clear()
            self._rest.clear()
            self.fail(CallError(ErrorCode.PAYLOAD_TOO_LARGE, self._sentence(f"sent {longest} bytes in one message")))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            if self._words:
                self._log_words(self._words)
            return
        self._output_ended |= fd == 1
        self._ending()

    def process_exited(self) -> None:
        self._exited.set()
        self._ending()

    def _ending(self) -> None:
        """It is over when the output has ended and the process too; but one of them may stay for long."""
        if self._output_ended and self._exited.is_set():
            self._end()
        else:
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._end)

    def _end(self) -> None:
        status = self._transport.get_returncode()
        if status is None:
            words = "closed its input or its output"
        elif status < 0:
            words = f"was ended by signal {-status}"
        else:
            words = f"ended with status {status}"
        self.fail(CallError(ErrorCode.UNAVAILABLE, self._sentence(words)))

    def fail(self, failure: CallError) -> None:
        """This connection is over; the first reason counts."""
        self.failure = self.failure or failure
        self._over.set()
        self._news.set()
        self._writable.set()

    def _sentence(self, words: str) -> str:
        return f"the MCP server {self._server.name} {words}; the connection is closed"

    def _log_words(self, line: bytes) -> None:
        self._log.write(logging.INFO, line[:MAX_SHOWN].decode("utf-8", "replace").rstrip())

    # --- the streams of the dispatcher --------------------------------------------------------------------------------

    async def send(self, item: SessionMessage, /) -> None:
        if self._input.is_closing():
            await self._over.wait()  # soon: until then, the reason is not known
        await self._writable.wait()  # before, so that a server that does not read costs no memory
        if self.failure is None:
            self._input.write(write_message(item.message) + b"\n")
            await self._writable.wait()
        if self.failure is not None:
            raise anyio.BrokenResourceError

    async def receive(self) -> SessionMessage:
        while True:
            while not self._lines:
                if self.failure is not None:
                    raise anyio.EndOfStream
                self._news.clear()
                await self._news.wait()
                self._turn_ends = time.monotonic() + _SLICE
            if time.monotonic() > self._turn_ends:
                await asyncio.sleep(0)
                self._turn_ends = time.monotonic() + _SLICE
                continue  # the connection may be over by now
            line = self._lines.popleft()
            self._waiting -= len(line) + 1
            if self._waiting <= _READ_AHEAD:
                self._output.resume_reading()
            try:
                message = read_message(line, self._max_values)
            except CallError as error:
                self._lines.clear()
                self.fail(CallError(error.code, self._sentence(f"broke the protocol: {error.message}")))
                continue
            if message is not None:
                return message
            self._pass_over(line)

    def _pass_over(self, line: bytes) -> None:
        if not line.strip():
            return
        self._nonsense += 1
        if self._nonsense == 1:  # once: a server that prints to stdout does so all the time
            shown = line[:200].decode("utf-8", "replace")
            logger.warning("%s writes to stdout what is not a message, for example: %r", self._server.name, shown)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close its input, then ask its group to end, then kill the group; its children end with it."""
        pid, patience = self._transport.get_pid(), self._server.stop_timeout
        try:
            self._input.close()
            await self._gone_within(patience)
            if _signal_group(pid, signal.SIGTERM):
                await self._group_gone_within(pid, patience)
        finally:  # also when we are cancelled while we wait
            _signal_group(pid, _KILL)
            self._orphaned.detach()
        await self._gone_within(patience)
        self._transport.close()

    async def _gone_within(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._exited.wait(), seconds)
        except TimeoutError:
            pass

    async def _group_gone_within(self, pid: int, seconds: float) -> None:
        for _ in range(int(seconds / _POLL)):
            await asyncio.sleep(_POLL)
            if not _signal_group(pid, 0):
                return

    @property
    def _input(self) -> asyncio.WriteTransport:
        return cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    @property
    def _output(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))


def _signal_group(pid: int, number: int) -> bool:
    """Send a signal to a process and its children; whether anybody was there."""
    if sys.platform == "win32":  # it has no groups; closing the transport kills the process
        return False
    try:
        os.killpg(pid, number)  # the leader's id is the group's, also after the leader has ended
    except (ProcessLookupError, PermissionError):
        return False
    return True
