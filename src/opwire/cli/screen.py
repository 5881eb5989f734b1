"""Everything that is printed: results on standard output, all else on standard error.

Rules: text that others wrote cannot steer the terminal. Colour and rich come only to a terminal, and rich is imported
only then. With `--json` what is printed is JSON, errors included.

A line that says what is waited for, on a terminal and only when it takes a while.
"""

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import StrEnum
from math import isfinite
from types import TracebackType
from typing import Any, Self, TextIO

import click
import msgspec

from opwire.errors import CallError, OpwireError
from opwire.typed.plain import harmless, harmless_json, write_json

_encoder = msgspec.json.Encoder()


def one_line(text: str) -> str:
    """The first line that says something, harmless."""
    return harmless(next((line.strip() for line in text.splitlines() if line.strip()), ""))


def counted(number: int, what: str) -> str:
    """`1 operation`, `1,223 operations`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def json_text(value: Any, *, indent: bool) -> str:
    """A value as JSON that is harmless as well: equal to any reader, since only escapes were added."""
    encoded = write_json(_encoder, value)
    text = (msgspec.json.format(encoded, indent=2) if indent else encoded).decode()
    return harmless_json(text)


class Form(StrEnum):
    """How a result is printed."""

    READABLE = "readable"
    JSON = "json"  # the data
    ENVELOPE = "envelope"  # the data and where it came from, as it travels
    RAW = "raw"  # the bytes of text and binary data as they are


class Screen:
    """The two streams, and how much is to be said on them. Options of the command line set the three switches."""

    def __init__(self) -> None:
        self.as_json = False
        self.verbose = False
        self.debug = False

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the results."""
        return sys.stdout.isatty()

    @property
    def is_interactive(self) -> bool:
        """Whether a person can be asked something."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    # --- results ----------------------------------------------------------------------------------------------------

    def line(self, text: str = "") -> None:
        """A line of result; its text is made harmless."""
        click.echo(harmless(text))

    def heading(self, text: str) -> None:
        """A line that stands out on a terminal."""
        click.secho(harmless(text), bold=True, color=_in_colour(sys.stdout))

    def marked(self, mark: str, colour: str, text: str) -> None:
        """A line with a mark before it."""
        click.echo(f"{click.style(mark, fg=colour)} {harmless(text)}", color=_in_colour(sys.stdout))

    def json(self, value: Any) -> None:
        """A value as JSON: on one line, or readable on a terminal."""
        click.echo(json_text(value, indent=self.is_terminal))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Rows of texts: drawn on a terminal, elsewhere one a line with tabs between the texts."""
        if not self.is_terminal:
            for row in rows:
                click.echo("\t".join(one_line(text) for text in row))
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
        table.columns[0].style = "bold"
        table.columns[0].overflow = "fold"  # an id is copied from here
        table.columns[-1].no_wrap = True
        for row in rows:
            table.add_row(*(Text(one_line(text)) for text in row))
        rich_console(sys.stdout).print(table)

    # --- everything else --------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A word for a person, on standard error."""
        click.echo(harmless(text), err=True)

    def detail(self, text: str) -> None:
        """A word for a person who asked for more."""
        if self.verbose:
            self.note(text)

    def warning(self, text: str) -> None:
        """Something is not as it should be, and the command goes on."""
        click.secho(f"warning: {harmless(text)}", fg="yellow", err=True, color=_in_colour(sys.stderr))

    def failure(self, error: Exception) -> None:
        """Why the command failed: one line, or one JSON object. Details with `-v`, the traceback with `--debug`."""
        if self.debug:
            click.echo(harmless("".join(traceback.format_exception(error))), err=True)
        if self.as_json:
            click.echo(json_text({"error": _error_data(error)}, indent=False), err=True)
            return
        click.secho(f"error: {_in_words(error)}", fg="red", err=True, color=_in_colour(sys.stderr))
        details = error.details if isinstance(error, CallError) else None
        if details is not None and self.verbose:
            click.echo(json_text(details, indent=True), err=True)

    @contextmanager
    def logging(self) -> Generator[None]:
        """Show what opwire logs as warnings, as long as the block lasts; other loggers, where they have no handler.

        Python's own last resort would write what a server sent to the terminal as it is.
        """
        logger = logging.getLogger("opwire")
        handler, before = _Warnings(self), logging.lastResort
        logger.addHandler(handler)
        logging.lastResort = handler
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logging.lastResort = before


class _Warnings(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.warning(record.getMessage())
        if record.exc_info and self._screen.debug:
            self._screen.note("".join(traceback.format_exception(*record.exc_info)))


def rich_console(stream: TextIO) -> Any:
    """A console of rich on a stream that is a terminal."""
    from rich.console import Console

    return Console(file=stream, highlight=False, no_color=not _in_colour(stream))


def _in_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _in_words(error: Exception) -> str:
    if isinstance(error, OpwireError):
        return harmless(str(error))
    return harmless(f"a fault of opwire itself: {type(error).__name__}: {error}; --debug shows where")


def _error_data(error: Exception) -> dict[str, Any]:
    if isinstance(error, click.ClickException):
        return {"code": "USAGE", "message": error.format_message()}
    if not isinstance(error, CallError):
        code = "CONFIGURATION" if isinstance(error, OpwireError) else "INTERNAL"
        return {"code": code, "message": _in_words(error)}
    data: dict[str, Any] = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    if error.details is not None:
        data["details"] = error.details
    if error.retry_after is not None and isfinite(error.retry_after):
        data["retryAfterMs"] = round(error.retry_after * 1000)
    return data


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
