"""Terminal output: results on standard output, everything else on standard error.

Rules: foreign text cannot send control sequences to the terminal. Colour and rich are for terminals only, and rich is
imported lazily. With `--json` all output is JSON, including errors.

Results: printed for a person, printed for a program, or saved to files.

Text and JSON are printed. Images, audio and other binary data are described, and saved by `--output`.
"""

import asyncio
import logging
import mimetypes
import os
import shutil
import sys
import time
import traceback
from base64 import b64decode
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TextIO

import click
import msgspec
from msgspec import UnsetType

from opwire.cli.text import cells, wrapped
from opwire.errors import CallError, OpwireError
from opwire.model.envelope import MCPContentBlock, MCPResponseMeta, ResponseEnvelope, encode_envelope
from opwire.observe.logs import JSONFormatter
from opwire.runtime.text import harmless, harmless_json, traceback_of
from opwire.typed.plain import as_dict, write_json

_SPINNER_DELAY_SECONDS = 0.3  # most calls have returned by then
_MAX_HINT_CHARACTERS = 500
_encoder = msgspec.json.Encoder()


def one_line(text: str) -> str:
    """Return the first line that is not blank, with control characters escaped."""
    return harmless(next((line.strip() for line in text.splitlines() if line.strip()), ""))


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


class Line(tuple[tuple[str, str], ...]):
    """A line of parts, each with a style: `bold`, `dim` or an empty string."""

    __slots__ = ()

    def plain(self) -> str:
        """Return the text, with control characters escaped."""
        return harmless("".join(text for text, _ in self)).rstrip()

    def styled(self) -> str:
        """Return the text with the escape sequences of its styles."""
        return "".join(
            click.style(harmless(text), **{style: True}) if style else harmless(text) for text, style in self
        )


LogFormat = Literal["text", "json"]


class Screen:
    """The two output streams. Command-line options set the attributes.

    `log_format` is None for commands that are not servers. With "json", all of standard error is JSON, one object per
    line.
    """

    def __init__(self) -> None:
        self.as_json = False
        self.verbose = False
        self.debug = False
        self.log_format: LogFormat | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return sys.stdout.isatty()

    @property
    def size(self) -> os.terminal_size:
        """The columns and lines of the terminal; COLUMNS and LINES override them."""
        return shutil.get_terminal_size()

    @property
    def width(self) -> int:
        """The columns of the terminal, at least 20."""
        return max(self.size.columns, 20)

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
        folded_text = folded(f"{mark} {harmless(text)}", sys.stdout, hanging="  ").removeprefix(mark)
        click.echo(f"{click.style(mark, fg=colour)}{folded_text}", color=_has_colour(sys.stdout))

    def json(self, value: Any) -> None:
        """Print a value as JSON: indented on a terminal, otherwise on one line."""
        click.echo(json_text(value, indent=self.is_terminal))

    def json_line(self, value: Any) -> None:
        """Print a value as JSON on one line, for streams of values."""
        click.echo(json_text(value, indent=False))

    def rows(self, rows: Iterable[Sequence[str]]) -> None:
        """Print rows as lines, with tabs between their columns."""
        for row in rows:
            click.echo("\t".join(map(one_line, row)))

    def lines(self, lines: Iterable[Line]) -> None:
        """Print lines, with their styles on a terminal."""
        for line in lines:
            click.echo(line.styled() if _has_colour(sys.stdout) else line.plain())

    def pages(self, lines: Sequence[Line]) -> None:
        """Print lines on a terminal, by `$PAGER` (`less` by default) if they do not fit on it."""
        rows = sum(max(1, -(-cells(line.plain()) // self.width)) for line in lines)
        if rows < self.size.lines:
            self.lines(lines)
            return
        os.environ.setdefault("LESS", "FRX")  # as git does: quit if it fits, keep colours, leave the text on the screen
        has_colour = _has_colour(sys.stdout)
        text = "\n".join(line.styled() if has_colour else line.plain() for line in lines)
        click.echo_via_pager(text, color=has_colour)

    # --- everything else --------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a message on standard error."""
        if self.log_format == "json":
            self._log_line(logging.INFO, text)
        else:
            _print_error(folded(harmless(text)))

    def detail(self, text: str) -> None:
        """Print a message with `-v` only."""
        if self.verbose:
            self.note(text)

    def warning(self, text: str) -> None:
        """Print a warning; the command continues."""
        if self.log_format == "json":
            self._log_line(logging.WARNING, text)
            return
        _print_error(folded(f"warning: {harmless(text)}"), fg="yellow")

    def failure(self, error: Exception) -> None:
        """Print an error as one line or one JSON object, and its hint; `-v` adds details, `--debug` the traceback."""
        if self.log_format == "json":
            self._log_line(logging.ERROR, _error_text(error), error if self.debug else None)
            return
        if self.debug:
            _print_error(harmless("".join(traceback.format_exception(error))))
        if self.as_json:
            _print_error(json_text({"error": _error_data(error)}, indent=False))
            return
        _print_error(folded(f"error: {_error_text(error)}"), fg="red")
        if self.verbose and isinstance(error, CallError) and error.details is not None:
            _print_error(json_text(error.details, indent=True))
        elif isinstance(error, CallError) and isinstance(hint := as_dict(error.details).get("hint"), str):
            _print_error(folded(f"hint: {one_line(hint)[:_MAX_HINT_CHARACTERS]}"))

    def _log_line(self, level: int, text: str, error: Exception | None = None) -> None:
        caught = None if error is None else (type(error), error, error.__traceback__)
        record = logging.LogRecord("opwire.cli", level, __file__, 0, "%s", (text,), caught)
        _print_error(JSONFormatter().format(record))

    @contextmanager
    def logging(self) -> Generator[None]:
        """Print log records of level WARNING and above while the block runs; with `-v`, what MCP servers print as well.

        This covers opwire's loggers and others that have no handler: the default of `logging` would print control
        sequences that a server sent.
        """
        logger = logging.getLogger("opwire")
        handler, before = _LogHandler(self), logging.lastResort
        children = list(map(logging.getLogger, ("opwire.access", "opwire.transports", "opwire.registry")))
        # What MCP servers print on standard error is shown with `-v`.
        servers = logging.getLogger("opwire.mcp.client")
        levels = [(affected_logger, affected_logger.level) for affected_logger in (logger, servers, *children)]
        logger.addHandler(handler)
        servers.setLevel(logging.INFO)
        logging.lastResort = handler
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logging.lastResort = before
            for affected_logger, level in levels:
                affected_logger.setLevel(level)

    def start_log(self, log_format: LogFormat, *, access: bool) -> None:
        """Print the log of a server: tracebacks, connections, and one line per call if `access` is set.

        With `-v` it has all records of level INFO.
        """
        self.log_format = log_format
        if self.verbose:
            logging.getLogger("opwire").setLevel(logging.INFO)
        logging.getLogger("opwire.transports").setLevel(logging.INFO)
        logging.getLogger("opwire.access").setLevel(logging.INFO if access else logging.WARNING)


class _LogHandler(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def handle(self, record: logging.LogRecord) -> bool:
        is_mcp_server = record.name == "opwire.mcp.client"
        is_shown = self._screen.verbose if is_mcp_server else self._screen.log_format is not None
        return super().handle(record) if is_shown or record.levelno >= logging.WARNING else False

    def emit(self, record: logging.LogRecord) -> None:
        screen = self._screen
        if screen.log_format == "json":
            _print_error(JSONFormatter().format(record))
            return
        text, traceback_text = record.getMessage(), traceback_of(record)
        if screen.log_format is None and record.levelno < logging.WARNING:
            screen.note(text)
            return
        if screen.log_format is None:
            screen.warning(text if traceback_text is None or screen.debug else f"{text}; --debug shows the traceback")
            if screen.debug and traceback_text is not None:
                screen.note(traceback_text)
            return
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        is_error, is_warning = record.levelno >= logging.ERROR, record.levelno >= logging.WARNING
        kind = "error: " if is_error else "warning: " if is_warning else ""
        _print_error(f"{clock} {kind}{harmless(text)}", fg="red" if is_error else "yellow" if is_warning else None)
        if traceback_text is not None:
            screen.note(traceback_text)


def rich_console(stream: TextIO) -> Any:
    """Return a rich console for a terminal."""
    from rich.console import Console

    return Console(file=stream, highlight=False, no_color=not _has_colour(stream))


def folded(text: str, stream: TextIO | None = None, *, hanging: str = "") -> str:
    """Return a message with the lines that are longer than the terminal broken between words, not within them.

    `hanging` indents what follows a break.
    """
    if not (stream or sys.stderr).isatty():
        return text
    width = max(shutil.get_terminal_size().columns, 20)
    lines = list[str]()
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        lines += [line] if cells(line) <= width else wrapped(line, width, indent, indent + hanging)
    return "\n".join(lines)


def _print_error(text: str, fg: str | None = None) -> None:
    with suppress(OSError):  # a log on a full disk, or that is not read any more, ends no server and no call
        click.secho(text, fg=fg, err=True, color=_has_colour(sys.stderr))


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
    if error.foreign_code is not None:
        data["foreignCode"] = error.foreign_code
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
            self._timer = asyncio.get_running_loop().call_later(_SPINNER_DELAY_SECONDS, self._start)
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

    @contextmanager
    def paused(self) -> Generator[None]:
        """Show nothing while the block runs, which uses the terminal itself."""
        was_enabled = self._timer is not None
        self.__exit__()
        self._status = None
        try:
            yield
        finally:
            if was_enabled:
                self.__enter__()

    def _start(self) -> None:
        self._status = rich_console(sys.stderr).status(_plain(self._text))
        self._status.start()


def _plain(text: str) -> Any:
    """Return one line of text for rich, which parses a `str` as markup, even escaped brackets."""
    from rich.text import Text

    return Text(one_line(text))


MAX_SHOWN = 20_000
"""Characters of a text on a terminal; longer text is truncated. Pipes and files get all of it."""


class ResultPart(NamedTuple):
    """A part of a result that can be saved as a file; `text` is None for binary data."""

    content: bytes
    media_type: str
    text: str | None = None

    def __str__(self) -> str:
        return f"[{self.media_type}, {len(self.content):,} bytes]"


def is_error(envelope: ResponseEnvelope[Any]) -> bool:
    """Return whether the tool returned an error as its result (`isError`)."""
    return isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error


def show(envelope: ResponseEnvelope[Any], form: OutputFormat, screen: Screen) -> None:
    """Print a result on standard output."""
    if form is OutputFormat.ENVELOPE:
        click.echo(json_text(msgspec.Raw(encode_envelope(envelope)), indent=screen.is_terminal))
    elif form is OutputFormat.JSON:
        screen.json(envelope.data)
    elif form is OutputFormat.RAW:
        content = b"".join(part.content for part in parts(envelope))
        if not screen.is_terminal:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
            return
        try:
            screen.line(content.decode())
        except UnicodeDecodeError:
            message = f"the result is {len(content):,} bytes of binary data: save it with --output FILE, or pipe it"
            raise click.UsageError(message) from None
    else:
        for part in parts(envelope):
            text = f"{part} --output FILE saves it" if part.text is None else part.text
            if screen.is_terminal and len(text) > MAX_SHOWN:
                screen.line(text[:MAX_SHOWN])
                screen.note(f"… {len(text) - MAX_SHOWN:,} more characters: --output FILE saves them, a pipe gets them")
            else:
                screen.line(text)


def parts(envelope: ResponseEnvelope[Any]) -> list[ResultPart]:
    """Return the parts of a result: the content blocks of an MCP tool, or the data and its images and audio."""
    data, meta = envelope.data, envelope.meta
    if isinstance(data, bytes):
        media_type = getattr(meta, "content_type", "").partition(";")[0]
        return [ResultPart(data, media_type or "application/octet-stream")]
    blocks = meta.content if isinstance(meta, MCPResponseMeta) else []
    if isinstance(meta, MCPResponseMeta) and isinstance(meta.structured_content, UnsetType) and data == blocks:
        return [_block_part(block) for block in blocks]  # without structured content, the blocks are the data
    # Text blocks beside structured data repeat it.
    return [_part(data), *(_block_part(block) for block in blocks if block["type"] in ("image", "audio"))]


def _part(value: Any, media_type: str = "text/plain") -> ResultPart:
    if isinstance(value, str):
        return ResultPart(value.encode(errors="replace"), media_type, value)
    text = json_text(value, indent=True)
    return ResultPart(f"{text}\n".encode(), "application/json", text)


def _block_part(block: MCPContentBlock) -> ResultPart:
    match block:
        case {"type": "text", "text": str(text)}:
            return _part(text)
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return _part(text, resource.get("mimeType", "text/plain"))
        case {"type": "resource_link"}:
            return _part(block)._replace(text=f"[{block.get('name', 'resource')}] {block['uri']}")
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            pass
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            media_type = resource.get("mimeType", "application/octet-stream")
        case _:
            return _part(block)
    try:
        return ResultPart(b64decode(data, validate=True), media_type)
    except ValueError:
        return _part(data, media_type)  # some servers declare base64 and send plain text


def write_file(path: Path, content: bytes, *, new: bool = False, mode: int = 0o666) -> None:
    """Write a file, and remove a new one that cannot be written whole. With `new`, an existing one is not overwritten.

    Raises:
        click.ClickException: the file cannot be written.
    """
    existed = path.exists()
    try:
        if new:
            path.touch(mode, exist_ok=False)
        path.write_bytes(content)
    except FileExistsError:
        raise click.UsageError(f"{path} already exists, and is not overwritten") from None
    except OSError as error:
        if not existed:
            with suppress(OSError):
                path.unlink()
        raise click.ClickException(f"{path}: cannot write the file: {error.strerror}") from None


def save(envelope: ResponseEnvelope[Any], path: Path, screen: Screen) -> None:
    """Write a result to a file. Texts around a single binary part are printed; otherwise several parts are numbered.

    Raises:
        click.ClickException: a file cannot be written.
    """
    envelope_parts = parts(envelope)
    binary = [part for part in envelope_parts if part.text is None]
    if len(binary) == 1:
        for part in envelope_parts:
            if part.text is not None and part.media_type != "application/json":
                screen.line(part.text)
        envelope_parts = binary
    for number, part in enumerate(envelope_parts, 1):
        suffix = mimetypes.guess_extension(part.media_type) or path.suffix
        target = path if len(envelope_parts) == 1 else path.with_name(f"{path.stem}-{number}{suffix}")
        write_file(target, part.content)
        screen.note(f"{part} saved to {target}")


def open_browser(url: str) -> bool:
    """Open a window with this page; return False where a browser would take over the terminal, or there is none."""
    is_remote = bool(os.environ.get("SSH_CONNECTION"))
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if is_remote or not (display or sys.platform in ("win32", "darwin")):
        return False
    import webbrowser  # 5 ms

    return webbrowser.open(url)
