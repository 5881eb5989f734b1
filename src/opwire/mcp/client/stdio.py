"""The transport to a server process, over its standard input and output.

`ServerProcess` uses asyncio's own subprocess protocol: lines are limited, a dead server is noticed while a child still
holds the pipe, and such a child is ended. Messages are handled in the callback that receives them, since a reader task
would add a switch to every call; after 10 ms other tasks run.
"""

import asyncio
import logging
import os
import re
import shutil
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.questions import MAX_LOG_LINE_LENGTH, MAX_LOG_LINES_PER_SECOND, ServerLog
from opwire.mcp.client.servers import StdioServer
from opwire.mcp.client.transport import ClientTransport, TransportEvents
from opwire.mcp.messages import (
    RequestId,
    RPCMessage,
    RPCNotification,
    encode_message,
    read_message,
    split_batch,
)
from opwire.runtime.text import get_logger, harmless

logger = get_logger("opwire.mcp.client")

_READ_AHEAD_BYTES = 256 * 1024  # short lines take a multiple of that in memory
_SLICE_SECONDS = 0.01  # then other tasks run: a server can always have one more line ready
_EXIT_GRACE_SECONDS = 0.2  # output and process end in either order
_KILL_SIGNAL = getattr(signal, "SIGKILL", signal.SIGTERM)
_GROUP_POLL_SECONDS = 0.02  # the end of a process group is not signalled
_LAST_STDERR_LINES = 10  # in the error message of a server that ended
_LAST_LINE_LENGTH = 300
_MIN_SECRET_LENGTH = 8  # shorter values of `env`, such as "true" or a port, are part of many words


@asynccontextmanager
async def server_process(
    server: StdioServer, max_message: int, events: TransportEvents
) -> AsyncGenerator["ServerProcess"]:
    """Start the server; stop it and its children on exit.

    Raises:
        CallError: UNAVAILABLE, the program cannot be started.
    """
    loop = asyncio.get_running_loop()
    environment = server.environment
    try:
        _, process = await loop.subprocess_exec(
            lambda: ServerProcess(server, max_message, events),
            # Windows starts `npx.cmd` only by its full name.
            shutil.which(server.command, path=environment.get("PATH")) or server.command,
            *server.args,
            env=environment,
            cwd=server.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, FileNotFoundError) and error.filename != server.cwd:
            advice = "its arguments belong in `args`" if " " in server.command else "check its name, and PATH"
            reason = f"there is no program {server.command}; {advice}"
        in_folder = f" in {server.cwd}" if server.cwd else ""
        message = f"the MCP server {server.name} cannot be started{in_folder}: {reason}"
        raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False) from error
    try:
        yield process
    finally:
        await process.stop()


class _OutputPipe(asyncio.Protocol):
    """The standard output of a process. asyncio's own protocol passes data on in the next turn of the event loop."""

    def __init__(self, receive: Callable[..., None], replaced: asyncio.BaseProtocol) -> None:
        self.data_received = receive
        self.connection_lost = replaced.connection_lost


class ServerProcess(ClientTransport, asyncio.SubprocessProtocol):
    """A server process; each line of its output is a message."""

    has_headers = False

    def __init__(self, server: StdioServer, max_message: int, events: TransportEvents) -> None:
        self._server = server
        self._events = events
        self._max_message = max_message
        self._log = ServerLog(server.name)
        self._lines: deque[bytes] = deque()
        self._buffered = 0  # bytes in `_lines`
        self._partial = bytearray()  # the start of a line
        self._partial_stderr = b""
        self._last_lines: deque[str] = deque(maxlen=_LAST_STDERR_LINES)
        self._stderr_ended = False
        self._busy = False  # lines are being handled, or will be soon
        self._is_paused = False  # nothing is read, until the lines are handled
        self._held: asyncio.Task[None] | None = None  # reading waits for this
        self._writable = asyncio.Event()
        self._writable.set()
        self._exited = asyncio.Event()
        self._over = asyncio.Event()
        self._output_ended = False
        self._reported = False  # the end

    # --- callbacks of asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        self._stdout = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))
        if not self._stdout.is_closing():  # some programs end before they are connected
            self._stdout.set_protocol(_OutputPipe(self._receive, self._stdout.get_protocol()))
        # If the process is never stopped, because the loop was closed early, it is killed at interpreter exit.
        self._orphaned = weakref.finalize(self, _signal_group, self._transport.get_pid(), _KILL_SIGNAL)

    def pipe_data_received(self, fd: int, data: Any) -> None:
        if fd == 2:
            *lines, incomplete_line = (self._partial_stderr + data).split(b"\n")
            self._partial_stderr = incomplete_line[:MAX_LOG_LINE_LENGTH]
            if (
                len(lines) > MAX_LOG_LINES_PER_SECOND + _LAST_STDERR_LINES
            ):  # a pipe may hold 131,072 lines, which took 0.2 s
                lines[MAX_LOG_LINES_PER_SECOND + 1 : -_LAST_STDERR_LINES] = ()
            for line in lines:
                self._read_stderr(line)
        else:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        if self.failure is not None:  # the connection is over
            return
        if not self._partial and data.find(b"\n") == len(data) - 1:  # nearly always: one message
            self._lines.append(data[:-1])
            self._buffered += len(data)
            longest = len(data) - 1
        else:
            scanned = len(self._partial)
            self._partial += data
            longest = len(self._partial)
            end = self._partial.rfind(b"\n", scanned)  # the part before was scanned already
            if end >= 0:
                lines = list(filter(None, bytes(self._partial[:end]).split(b"\n")))
                del self._partial[: end + 1]
                self._lines.extend(lines)
                self._buffered += sum(map(len, lines)) + len(lines)
                longest = max(map(len, lines), default=0)
        if longest > self._max_message:
            self._lines.clear()
            self._partial.clear()
            self.fail(ErrorCode.PAYLOAD_TOO_LARGE, f"sent {longest} bytes in one message")
        if not self._busy:
            self._handle_lines()
        if self._buffered > _READ_AHEAD_BYTES:
            self._is_paused = True
            self._stdout.pause_reading()

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
            asyncio.get_running_loop().call_later(_EXIT_GRACE_SECONDS, end)

    def fail(self, code: ErrorCode, words: str) -> None:
        """End this connection; the first reason counts."""
        message = f"the MCP server {self._server.name} {words}; the connection is closed"
        self.failure = self.failure or CallError(code, message)
        self._over.set()
        self._writable.set()
        if not self._busy:
            self._handle_lines()

    def _read_stderr(self, line: bytes) -> None:
        text = line[:MAX_LOG_LINE_LENGTH].decode("utf-8", "replace").rstrip()
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
        for value in (self._server.env or {}).values():
            if len(value) >= _MIN_SECRET_LENGTH:
                text = text.replace(value, "***")
        lines = [f"  {harmless(line[:_LAST_LINE_LENGTH])}" for line in text.split("\n")]
        if missing:
            lines.append(f"not passed on to the server, although set here: {', '.join(missing)}; add it to its env")
        return "\n".join(("its last lines on stderr:", *lines))

    # --- messages -----------------------------------------------------------------------------------------------------

    def write(self, message: RPCMessage, headers: Mapping[str, str] | None = None) -> Awaitable[None] | None:
        if not self._writable.is_set() or self._stdin.is_closing():
            return self._write_later(message)
        if self.failure is not None:
            raise self.failure
        self._stdin.write(encode_message(message) + b"\n")
        return None

    async def _write_later(self, message: RPCMessage) -> None:
        if self._stdin.is_closing():
            await self._over.wait()  # soon: until then, the reason is unknown
        await self._writable.wait()  # before encoding, so that a server that does not read costs no memory
        if self.failure is not None:
            raise self.failure
        self._stdin.write(encode_message(message) + b"\n")

    def cancel(self, id: RequestId, notification: RPCNotification | None) -> None:
        if notification is not None and self.failure is None and not self._stdin.is_closing():
            self._stdin.write(encode_message(notification) + b"\n")

    def _handle_lines(self) -> None:
        """Handle received lines; after a while, or while the receiver is busy, later."""
        self._busy = True
        slice_ends = time.monotonic() + _SLICE_SECONDS
        while self._lines:
            line = self._lines.popleft()
            self._buffered -= len(line) + 1
            if line.startswith(b"[") and (parts := split_batch(line)) != [line]:
                self._lines.extendleft(reversed(parts))
                self._buffered += sum(map(len, parts)) + len(parts)
                continue
            try:
                message = read_message(line)
                wait_for = self._events.ignored(line) if message is None else self._events.received(message)
            except CallError as error:
                self._lines.clear()
                self.fail(error.code, f"broke the protocol: {error.message}")
                break
            except Exception:
                logger.exception("a message of the MCP server %s cannot be handled", self._server.name)
                self._lines.clear()
                self.fail(ErrorCode.UNAVAILABLE, "sent a message that could not be handled")
                break
            if wait_for is not None:
                self._held = asyncio.ensure_future(self._hold(wait_for))
                return
            if self._lines and time.monotonic() > slice_ends:
                asyncio.get_running_loop().call_soon(self._handle_lines)
                return
        self._busy = False
        if self.failure is not None:
            if not self._reported:
                self._reported = True
                self._events.ended()
        elif self._is_paused and not self._output_ended:
            self._is_paused = False
            self._stdout.resume_reading()

    async def _hold(self, wait_for: Awaitable[None]) -> None:
        try:
            await wait_for
        finally:
            self._held = None
            self._handle_lines()

    # --- shutdown -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close the input, then terminate the process group, then kill it; children end with it."""
        if self._held is not None:
            self._held.cancel()
        pid, patience = self._transport.get_pid(), self._server.stop_timeout
        try:
            self._stdin.close()
            await self._wait_for_exit(patience)
            if _signal_group(pid, signal.SIGTERM):
                for _ in range(int(patience / _GROUP_POLL_SECONDS)):
                    await asyncio.sleep(_GROUP_POLL_SECONDS)
                    if not _signal_group(pid, 0):
                        break
        finally:  # also when this is cancelled, as by ^C
            _signal_group(pid, _KILL_SIGNAL)
            self._orphaned.detach()
            try:
                await self._wait_for_exit(patience)
            finally:
                self._transport.close()

    async def _wait_for_exit(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), seconds)


def _signal_group(pid: int, number: int) -> bool:
    """Send a signal to a process and its children; return whether there is any."""
    if sys.platform == "win32":  # without process groups, closing the transport kills the process
        return False
    try:
        os.killpg(pid, number)  # the leader's id is the group's, also after the leader has exited
    except (ProcessLookupError, PermissionError):
        return False
    return True
