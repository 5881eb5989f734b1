"""Terminal output: results on standard output, everything else on standard error.

Rules: foreign text cannot send control sequences to the terminal. Colour and rich are for terminals only, and rich is
imported lazily. With `--json` all output is JSON, including errors.
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
from typing import Any, Self, TextIO

import click
import msgspec

from opwire.errors import CallError, OpwireError
from opwire.typed.plain import harmless, harmless_json, write_json

_SPINNER_DELAY = 0.3  # seconds before a spinner appears: most calls have returned by then
_encoder = msgspec.json.Encoder()


def one_line(text: str) -> str:
    """Return the first line that is not blank, with control characters escaped."""
    return harmless(next((line.strip() for line in text.splitlines() if line.strip()), ""))


def counted(number: int, noun: str) -> str:
    """Return `1 operation`, `1,223 operations`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def json_text(value: Any, *, indent: bool) -> str:
    """Return a value as JSON with control characters escaped; it decodes to the same value."""
    encoded = write_json(_encoder, value)
    return harmless_json((msgspec.json.format(encoded, indent=2) if indent else encoded).decode())


class OutputFormat(StrEnum):
    """How a result is printed."""

    READABLE = "readable"
    JSON = "json"  # the data
    ENVELOPE = "envelope"  # data and meta, as encoded on the wire
    RAW = "raw"  # text and binary data without escapes


class Screen:
    """The two output streams. Command-line options set the three attributes."""

    def __init__(self) -> None:
        self.as_json = False
        self.verbose = False
        self.debug = False

    @property
    def is_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return sys.stdout.isatty()

    @property
    def is_interactive(self) -> bool:
        """Whether prompts are possible."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    # --- results ----------------------------------------------------------------------------------------------------

    def line(self, text: str = "") -> None:
        """Print a line of the result, with control characters escaped."""
        click.echo(harmless(text))

    def heading(self, text: str) -> None:
        """Print a line, in bold on a terminal."""
        click.secho(harmless(text), bold=True, color=_has_colour(sys.stdout))

    def marked(self, mark: str, colour: str, text: str) -> None:
        """Print a line after a coloured mark."""
        click.echo(f"{click.style(mark, fg=colour)} {harmless(text)}", color=_has_colour(sys.stdout))

    def json(self, value: Any) -> None:
        """Print a value as JSON: indented on a terminal, otherwise on one line."""
        click.echo(json_text(value, indent=self.is_terminal))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows as a table on a terminal, otherwise as lines separated by tabs.

        The last column is truncated to the width of the terminal. The first one, an id to copy, wraps instead.
        """
        if not self.is_terminal:
            for row in rows:
                click.echo("\t".join(one_line(text) for text in row))
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        console = rich_console(sys.stdout)
        table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, expand=True)
        table.columns[0].style = "bold"
        table.columns[0].overflow = "fold"
        table.columns[0].max_width = console.width * 2 // 3
        table.columns[-1].ratio = 1
        table.columns[-1].no_wrap = True
        for row in rows:
            table.add_row(*(Text(one_line(text)) for text in row))
        console.print(table)

    # --- everything else --------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a message on standard error."""
        click.echo(harmless(text), err=True)

    def detail(self, text: str) -> None:
        """Print a message with `-v` only."""
        if self.verbose:
            self.note(text)

    def warning(self, text: str) -> None:
        """Print a warning; the command continues."""
        click.secho(f"warning: {harmless(text)}", fg="yellow", err=True, color=_has_colour(sys.stderr))

    def failure(self, error: Exception) -> None:
        """Print an error as one line or one JSON object; details with `-v`, the traceback with `--debug`."""
        if self.debug:
            click.echo(harmless("".join(traceback.format_exception(error))), err=True)
        if self.as_json:
            click.echo(json_text({"error": _error_data(error)}, indent=False), err=True)
            return
        click.secho(f"error: {_error_text(error)}", fg="red", err=True, color=_has_colour(sys.stderr))
        if self.verbose and isinstance(error, CallError) and error.details is not None:
            click.echo(json_text(error.details, indent=True), err=True)

    @contextmanager
    def logging(self) -> Generator[None]:
        """Print log records of level WARNING and above while the block runs.

        This covers opwire's loggers and others that have no handler: the default of `logging` would print control
        sequences that a server sent.
        """
        logger = logging.getLogger("opwire")
        handler, before = _WarningHandler(self), logging.lastResort
        logger.addHandler(handler)
        logging.lastResort = handler
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logging.lastResort = before


class _WarningHandler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.warning(record.getMessage())
        if record.exc_info and self._screen.debug:
            self._screen.note("".join(traceback.format_exception(*record.exc_info)))


def rich_console(stream: TextIO) -> Any:
    """Return a rich console for a terminal."""
    from rich.console import Console

    return Console(file=stream, highlight=False, no_color=not _has_colour(stream))


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _error_text(error: Exception) -> str:
    if isinstance(error, OpwireError):
        return harmless(str(error))
    return harmless(f"internal error in opwire: {type(error).__name__}: {error}; --debug shows the traceback")


def _error_data(error: Exception) -> dict[str, Any]:
    if isinstance(error, click.ClickException):
        return {"code": "USAGE", "message": error.format_message()}
    if not isinstance(error, CallError):
        code = "CONFIGURATION" if isinstance(error, OpwireError) else "INTERNAL"
        return {"code": code, "message": _error_text(error)}
    data: dict[str, Any] = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    if error.details is not None:
        data["details"] = error.details
    if error.retry_after is not None and isfinite(error.retry_after):
        data["retryAfterMs"] = round(error.retry_after * 1000)
    return data


class Spinner:
    """Shows a line on standard error while the block runs, if that is a terminal and the block takes a while."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._status: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer = asyncio.get_running_loop().call_later(_SPINNER_DELAY, self._start)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._status is not None:
            self._status.stop()

    def update(self, text: str) -> None:
        """Replace the text."""
        self._text = text
        if self._status is not None:
            self._status.update(_plain(text))

    def _start(self) -> None:
        self._status = rich_console(sys.stderr).status(_plain(self._text))
        self._status.start()


def _plain(text: str) -> Any:
    """Return one line of text for rich, which parses a `str` as markup, even escaped brackets."""
    from rich.text import Text

    return Text(one_line(text))
