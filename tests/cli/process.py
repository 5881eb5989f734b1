"""`opwire` as a process of its own, in a pipe or on a terminal."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "opwire.cli"]
SHOP = ("--python", "tests.cli.shop:registry")


def opwire(*arguments: str, input: str | None = None, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, **env},
    )


class Running:
    """A command that goes on until it is asked to stop. What it says on standard error can be waited for."""

    def __init__(self, *arguments: str, cwd: Path = ROOT, **env: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, **env},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=20)

    def says(self, pattern: str) -> str:
        """Wait for a line that holds this; gives the first group of the pattern."""
        assert self._process.stderr is not None
        said: list[str] = []
        patience = threading.Timer(60, self._process.kill)  # which ends its standard error, too
        patience.start()
        try:
            for line in self._process.stderr:
                said.append(line)
                if found := re.search(pattern, line):
                    return found[1] if found.groups() else found[0]
        finally:
            patience.cancel()
        raise AssertionError(f"{pattern!r} was not said, but {said}")

    def ends(self) -> int:
        """Wait until it has ended; gives its exit code."""
        return self._process.wait(60)

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; gives its exit code."""
        self.send(number)
        return self._process.wait(60)


# The first terminal that the leader of a session opens is its own: ^C reaches it, and it alone. A script that runs the
# tests in the background (`make test &`) ignores SIGINT, and a child inherits that through exec.
_TAKE_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.argv[1], sys.argv[1:])
"""


def _without_size() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "PAGER", "NO_COLOR")}


def unstyled(shown: str) -> str:
    """What a terminal shows in the end: no escape sequences, no progress of loading, and the line ends of text."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r\n", "\n")
    text = re.sub(r"^.*\r", "", text, flags=re.MULTILINE)  # each frame of the spinner erases the one before
    return re.sub("^[\u2800-\u28ff] loading [^\n]*\n", "", text, flags=re.MULTILINE)  # and the result the last one


class OnTerminal:
    """A command on a terminal of this size: what it shows can be waited for, and answered."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 100,
        rows: int = 40,
        command: Sequence[str] = COMMAND,
        cwd: Path = ROOT,
        **env: str,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        self._process: subprocess.Popen[Any] = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**_without_size(), "TERM": "xterm", **env},
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)
        os.close(self._master)

    def expect(self, text: str, timeout: float = 40) -> str:
        """Wait until a text is shown; gives all that was shown up to it, and goes on behind it."""
        until = time.monotonic() + timeout
        while text not in self._shown:
            assert self._read(until - time.monotonic()), f"{text!r} was not shown, but {self._shown!r}"
        before, _, self._shown = self._shown.partition(text)
        return before

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def interrupt(self) -> tuple[int, str]:
        """Press ^C until it ends, as people do: the first may come too early. Return as `end` does."""
        until = time.monotonic() + 40
        while self._process.poll() is None and time.monotonic() < until:
            self.type("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        return self.end()

    def end(self, timeout: float = 40) -> tuple[int, str]:
        """The exit code, and the rest of what was shown."""
        until = time.monotonic() + timeout
        while self._read(until - time.monotonic()):
            pass
        return self._process.wait(20), self._shown

    def _read(self, timeout: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(timeout, 0))
        try:
            data = os.read(self._master, 65_536) if ready else b""
        except OSError:  # so Linux says that the other side is closed
            return False
        self._shown += self._decoder.decode(data)
        return bool(data)
