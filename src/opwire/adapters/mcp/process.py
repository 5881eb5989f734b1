"""The stdio transport: JSON-RPC messages as lines, and the server's process with its process group.

The SDK parses messages strictly. A call with an invalid response would then wait forever, so an invalid response
becomes an error for its caller, and ends the connection if its caller is unknown. Other output of a server is ignored.

The size in bytes bounds the cost of a message only if it has few values: 16 MB of `[],` took 15 s and 1.2 GB to parse.
So the values are bounded too, and counted before anything is decoded.

The SDK's `stdio_client` does not limit the length of a line, does not notice that a server died while a child process
still holds the pipe, and leaves such a child behind. `ServerProcess` uses asyncio's own subprocess protocol instead.
"""

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter
from msgspec import Struct

from opwire.adapters.mcp.errors import MAX_SHOWN, ServerLog, too_large
from opwire.adapters.mcp.servers import StdioServer
from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import harmless, replace_surrogates

logger = logging.getLogger("opwire.mcp")

# A surrogate pair, or (in the group) a lone surrogate, or any other escape: an escaped backslash starts nothing.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
MAX_ID = 200
"""Characters of a request id: longer ones are not the client's, and every log line would repeat them."""

_decoder = msgspec.json.Decoder()


class _Head(Struct):
    """The id and method of a message, decoded without the rest of it."""

    id: int | str | None = None
    method: str | None = None


_head_decoder = msgspec.json.Decoder(_Head)


def max_values(max_message: int) -> int:
    """Return the limit of JSON values in a message: 262,144 for 16 MiB, which take about 100 ms to parse."""
    return max(max_message // 64, 1000)


def has_few_values(raw: bytes, limit: int) -> bool:
    """Return whether JSON has at most `limit` values: each needs a comma or a bracket outside of strings."""

    def separators(json: bytes) -> int:
        return json.count(b",") + json.count(b"[") + json.count(b"{")

    if len(raw) <= limit or separators(raw) <= limit:
        return True
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # every remaining quote starts or ends a string
    if plain.count(b'"') > 2 * limit:
        return False
    return separators(b"".join(plain.split(b'"')[::2])) <= limit


class MessageStream(ABC):
    """Both streams of the SDK's dispatcher in one; `failure` is the reason of its end.

    The code that opened it closes it: `aclose` is a no-op.
    """

    failure: CallError | None = None

    @abstractmethod
    async def send(self, item: SessionMessage, /) -> None:
        """Send one message.

        Raises:
            BrokenResourceError: the stream has ended. The dispatcher expects this exception.
        """

    @abstractmethod
    async def receive(self) -> SessionMessage:
        """Return the next message.

        Raises:
            EndOfStream: the stream has ended.
        """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:  # noqa: B027 - the same for every stream
        """Do nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def write_message(message: JSONRPCMessage) -> bytes:
    """Encode a message as one line, without its end. NaN and infinities become null."""
    return msgspec.json.encode(message.model_dump(by_alias=True, exclude_unset=True))


def repair_surrogates(raw: bytes) -> bytes:
    """Replace escapes of lone surrogates by U+FFFD: JavaScript encodes them where it cuts a string."""
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return raw
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], raw)


def read_message(raw: bytes, limit: int) -> SessionMessage | None:
    """Parse a message of at most `limit` values; return None if this is not a message.

    Raises:
        CallError: PROTOCOL_ERROR, an invalid response to an unknown request.
    """
    if not has_few_values(raw, limit):
        large = large_message(raw, limit)
        return SessionMessage(large) if large is not None and _has_usable_id(large) else None
    try:
        # msgspec decodes the values in a third of the time of the adapter's own parser.
        message = jsonrpc_message_adapter.validate_python(_decoder.decode(raw), by_name=False)
    except (ValueError, RecursionError):
        return _parse_leniently(raw)
    return SessionMessage(message) if _has_usable_id(message) else None


def _has_usable_id(message: JSONRPCMessage) -> bool:
    """Return whether the id is a plausible one, not a number of thousands of digits."""
    id = getattr(message, "id", None)
    return len(id) <= MAX_ID if isinstance(id, str) else id is None or abs(id) < 2**63


def large_message(raw: bytes, limit: int) -> JSONRPCMessage | None:
    """Return the replacement of a message of too many values: an error for its caller, or a request to reject.

    A notification is dropped.

    Raises:
        CallError: PROTOCOL_ERROR, invalid JSON, or a response to an unknown request.
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


def _parse_leniently(raw: bytes) -> SessionMessage | None:
    """Parse what strict parsing rejects: a byte order mark, invalid UTF-8, lone surrogates, invalid responses."""
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
    if isinstance(id, float) and id.is_integer():  # some languages only have floats
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
        invalid = ErrorData(code=PARSE_ERROR, message="the answer is not a JSON-RPC response of MCP, or is too deep")
        answer = JSONRPCError(jsonrpc="2.0", id=replace_surrogates(id), error=invalid)
        return SessionMessage(answer) if _has_usable_id(answer) else None
    return None


_READ_AHEAD = 256 * 1024  # buffered bytes of whole lines: short lines take a multiple of that in memory
_SLICE = 0.01  # seconds of reading until other tasks run: a server can always have one more line ready
_EXIT_GRACE = 0.2  # seconds between the end of the output and the exit of the process, in either order
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_POLL = 0.02  # seconds between two checks of a process group: its end is not signalled
_LAST_LINES = 10  # of stderr, for the error message of a server that ended
_LAST_CHARACTERS = 300  # of each of them
_MIN_SECRET = 8  # characters: shorter values of `env`, such as "true" or a port, are part of many words


@asynccontextmanager
async def server_process(server: StdioServer, max_message: int) -> AsyncGenerator["ServerProcess"]:
    """Start the server; stop it and its children on exit.

    Raises:
        CallError: UNAVAILABLE, the program cannot be started.
    """
    loop = asyncio.get_running_loop()
    environment = server.environment
    try:
        _, process = await loop.subprocess_exec(
            lambda: ServerProcess(server, max_message),
            # Windows starts `npx.cmd` only by its full name.
            shutil.which(server.command, path=environment.get("PATH")) or server.command,
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
    """A server process; each line of its output is a message."""

    def __init__(self, server: StdioServer, max_message: int) -> None:
        self._server = server
        self._max_message = max_message
        self._max_values = max_values(max_message)
        self._log = ServerLog(server.name)
        self._slice_ends = 0.0
        self._lines: deque[bytes] = deque()
        self._buffered = 0  # bytes in `_lines`
        self._partial = bytearray()  # the start of a line
        self._partial_stderr = b""
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._stderr_ended = False
        self._received = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._exited = asyncio.Event()
        self._over = asyncio.Event()
        self._output_ended = False
        self._warned = False

    # --- callbacks of asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        self._stdout = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))
        # If the process is never stopped, because the loop was closed early, it is killed at interpreter exit.
        self._orphaned = weakref.finalize(self, _signal_group, self._transport.get_pid(), _KILL)

    def pipe_data_received(self, fd: int, data: Any) -> None:
        if fd == 2:
            *lines, rest = (self._partial_stderr + data).split(b"\n")
            self._partial_stderr = rest[:MAX_SHOWN]
            for line in lines:
                self._read_stderr(line)
            return
        if self.failure is not None:  # the connection is over
            return
        scanned = len(self._partial)
        self._partial += data
        end = self._partial.rfind(b"\n", scanned)  # the part before was scanned already
        if end >= 0:
            lines = bytes(self._partial[:end]).split(b"\n")
            del self._partial[: end + 1]
            self._lines.extend(lines)
            self._buffered += end + 1
            self._received.set()
            if self._buffered > _READ_AHEAD:
                self._stdout.pause_reading()
            longest = max(map(len, lines))
        else:
            longest = len(self._partial)
        if longest > self._max_message:
            self._lines.clear()
            self._partial.clear()
            self.fail(ErrorCode.PAYLOAD_TOO_LARGE, f"sent {longest} bytes in one message")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:
            self._read_stderr(self._partial_stderr)
            self._stderr_ended = True
            if not self._exited.is_set():  # a server may close its stderr and go on
                return
        self._output_ended |= fd == 1
        self._ending()

    def process_exited(self) -> None:
        self._exited.set()
        self._ending()

    def _ending(self) -> None:
        """End when the outputs and the process have ended; but one of them may stay for long."""

        def end() -> None:
            status = self._transport.get_returncode()
            if status is None:
                words = "closed its input or its output"
            else:
                words = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            self.fail(ErrorCode.UNAVAILABLE, words)

        if self._output_ended and self._stderr_ended and self._exited.is_set():
            end()
        else:
            asyncio.get_running_loop().call_later(_EXIT_GRACE, end)

    def fail(self, code: ErrorCode, words: str) -> None:
        """End this connection; the first reason counts."""
        message = f"the MCP server {self._server.name} {words}; the connection is closed"
        self.failure = self.failure or CallError(code, message)
        self._over.set()
        self._received.set()
        self._writable.set()

    def _read_stderr(self, line: bytes) -> None:
        text = line[:MAX_SHOWN].decode("utf-8", "replace").rstrip()
        if text:
            self._log.write(logging.INFO, text)
            self._last_lines.append(text)

    @property
    def last_output(self) -> str:
        """The last lines of stderr, for an error message: without values of `env`, which may be secrets."""
        if not self._last_lines:
            return ""
        text = "\n".join(self._last_lines)
        missing = [name for name in self._server.withheld if re.search(rf"\b{re.escape(name)}\b", text)]
        for value in filter(lambda each: len(each) >= _MIN_SECRET, (self._server.env or {}).values()):
            text = text.replace(value, "***")
        lines = [f"  {harmless(line[:_LAST_CHARACTERS])}" for line in text.split("\n")]
        if missing:
            lines.append(f"not passed on to the server, although set here: {', '.join(missing)}; add it to its env")
        return "\n".join(("its last lines on stderr:", *lines))

    # --- the streams of the dispatcher --------------------------------------------------------------------------------

    async def send(self, item: SessionMessage, /) -> None:
        if self._stdin.is_closing():
            await self._over.wait()  # soon: until then, the reason is unknown
        await self._writable.wait()  # before encoding, so that a server that does not read costs no memory
        if self.failure is None:
            self._stdin.write(write_message(item.message) + b"\n")
            await self._writable.wait()
        if self.failure is not None:
            raise anyio.BrokenResourceError

    async def receive(self) -> SessionMessage:
        while True:
            while not self._lines:
                if self.failure is not None:
                    raise anyio.EndOfStream
                self._received.clear()
                await self._received.wait()
                self._slice_ends = time.monotonic() + _SLICE
            if time.monotonic() > self._slice_ends:
                await asyncio.sleep(0)
                self._slice_ends = time.monotonic() + _SLICE
                continue  # the connection may be over by now
            line = self._lines.popleft()
            self._buffered -= len(line) + 1
            if self._buffered <= _READ_AHEAD:
                self._stdout.resume_reading()
            try:
                message = read_message(line, self._max_values)
            except CallError as error:
                self._lines.clear()
                self.fail(error.code, f"broke the protocol: {error.message}")
                continue
            if message is not None:
                return message
            if line.strip() and not self._warned:  # once: a server that prints to stdout does so all the time
                self._warned = True
                shown = line[:200].decode("utf-8", "replace")
                logger.warning("%s writes to stdout what is not a message, for example: %r", self._server.name, shown)

    # --- shutdown -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close the input, then terminate the process group, then kill it; children end with it."""
        pid, patience = self._transport.get_pid(), self._server.stop_timeout
        try:
            self._stdin.close()
            await self._wait_for_exit(patience)
            if _signal_group(pid, signal.SIGTERM):
                for _ in range(int(patience / _POLL)):
                    await asyncio.sleep(_POLL)
                    if not _signal_group(pid, 0):
                        break
        finally:  # also when this is cancelled
            _signal_group(pid, _KILL)
            self._orphaned.detach()
        await self._wait_for_exit(patience)
        self._transport.close()

    async def _wait_for_exit(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._exited.wait(), seconds)
        except TimeoutError:
            pass


def _signal_group(pid: int, number: int) -> bool:
    """Send a signal to a process and its children; return whether there is any."""
    if sys.platform == "win32":  # without process groups, closing the transport kills the process
        return False
    try:
        os.killpg(pid, number)  # the leader's id is the group's, also after the leader has exited
    except (ProcessLookupError, PermissionError):
        return False
    return True
