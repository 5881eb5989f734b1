"""Processes that can be killed and frozen, and that never outlive the tests."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 20.0  # seconds for a process to import what it needs, or to end, on a busy machine

# Asks the kernel to kill this process with its parent, then becomes the command: the process id stays. A `preexec_fn`
# would do the same between fork and exec, which is not safe once the parent has threads.
_DIES_WITH_ITS_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):  # otherwise the parent died before the line above
    os.execv(sys.argv[2], sys.argv[2:])
"""


def unmeasured() -> dict[str, str]:
    """The environment without coverage, which takes CPU time from processes that are to be killed or are limited."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def mortal(command: Sequence[str]) -> list[str]:
    """The same command, killed by Linux when this process ends in any way. It begins with an absolute path."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return [*command]  # the kernel looks at the thread that starts a process, and other threads may end early
    return [sys.executable, "-I", "-S", "-c", _DIES_WITH_ITS_PARENT, str(os.getpid()), *command]


def suspend(pid: int) -> None:
    """Send SIGSTOP to a child, and return when all of its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def wait_until_gone(pid: int) -> None:
    """Return when a process has ended.

    Raises:
        AssertionError: it does not.
    """
    deadline = time.monotonic() + PATIENCE
    while _is_running(pid):
        assert time.monotonic() < deadline, f"the process {pid} is still there"
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()  # Z: it has ended, and its parent has not looked yet
    except (FileNotFoundError, ProcessLookupError):
        return False


class Worker:
    """A Python module in a process of its own. It prints `ready`, and ends by itself when its stdin is closed.

        async with Worker("tests.servers.worker", "redis", url) as worker:
            await worker.until("hanging")
            worker.kill()

    Leaving the block stops it, and asserts that it ended well unless the test killed it.
    """

    def __init__(self, module: str, *arguments: str, patience: float = PATIENCE, is_unmeasured: bool = False) -> None:
        self._patience = patience
        self._is_unmeasured = is_unmeasured
        self._command = [sys.executable, "-m", module, *arguments]
        self._news = asyncio.Event()
        self._killed = False
        self.lines: list[str] = []  # what it has printed, errors and log included

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *mortal(self._command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=ROOT,
            env=unmeasured() if self._is_unmeasured else None,
            limit=1024 * 1024,  # bytes of a line
            process_group=0,  # Ctrl-C is for the tests, which then stop their workers
        )
        self._reading = asyncio.create_task(self._read())
        try:
            await self.until("ready")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._killed:
            await self.stop()
        else:
            await self._end()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def death(self) -> int:
        """Wait until the process has ended by itself; return its exit status, negative for a signal."""
        status = await self._process.wait()
        self._killed = True
        return status

    async def until(self, line: str, times: int = 1) -> None:
        """Wait until it has printed a line, this number of times.

        Raises:
            AssertionError: it does not print it, or ends before.
        """
        try:
            async with asyncio.timeout(self._patience):
                while self.lines.count(line) < times:
                    assert not self._reading.done(), f"the process ended without {line!r}:\n{self._output}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited {self._patience:g} s in vain for {line!r}:\n{self._output}") from None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._killed = True
        self.send_signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it do nothing from now on, while its connections stay open."""
        suspend(self.pid)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Ask it to end.

        Raises:
            AssertionError: it does not, or not well.
        """
        self.thaw()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()
        except TimeoutError:
            self.kill()
        await self._end()
        assert self._process.returncode == 0, f"the process ended with {self._process.returncode}:\n{self._output}"

    async def _end(self) -> None:
        self.kill()
        await self._process.wait()
        await self._reading

    def send_signal(self, number: int) -> None:
        if self._process.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it ended a moment ago

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._news.set()
        finally:
            self._news.set()

    @property
    def _output(self) -> str:
        return "\n".join(self.lines)
