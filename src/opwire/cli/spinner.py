"""A line that says what is waited for, on a terminal and only when it takes a while."""

import asyncio
import sys
from types import TracebackType
from typing import Any, Self

from opwire.cli.screen import one_line, rich_console

_PATIENCE = 0.3  # seconds before anything is shown: most things are done by then


class Spinner:
    """Shows a text on standard error as long as the block lasts, if that is a terminal."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._status: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._status is not None:
            self._status.stop()

    def update(self, text: str) -> None:
        """Show another text from now on."""
        self._text = text
        if self._status is not None:
            self._status.update(_plain(text))

    def _begin(self) -> None:
        self._status = rich_console(sys.stderr).status(_plain(self._text))
        self._status.start()


def _plain(text: str) -> Any:
    """Return text on one line that rich shows as it is: a `str` is markup, whatever stands before its brackets."""
    from rich.text import Text

    return Text(one_line(text))
