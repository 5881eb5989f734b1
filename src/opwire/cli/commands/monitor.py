"""`opwire ps`, `top`, `tap` and `console`: what runs, how busy it is, and which calls pass."""

import asyncio
import shutil
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click
from msgspec import to_builtins

from opwire.cli.commands.serve import ServeOptions, chosen_surfaces, serve, served_text, until_stopped, with_callers
from opwire.cli.options import (
    NumberRange,
    json_option,
    log_options,
    observed_source_options,
    shared_options,
    source_options,
)
from opwire.cli.screen import Screen, one_line, open_browser, rich_console
from opwire.cli.sources import Sources, check_variables, complete_url, served_tables
from opwire.cli.text import cells, cut, padded
from opwire.errors import CallError, ErrorCode, needs_extra
from opwire.names import counted
from opwire.observe.monitor import OUTCOMES, Statistics

if TYPE_CHECKING:
    from opwire.hub.observer import ObservedServer, Observer
    from opwire.observe.monitor import CallRecord, OperationStatistics, ServerStatistics

_RECONNECT_SECONDS = 1.0
_MAX_NAME_WIDTH = 16
_MIN_NAME_WIDTH = 8  # spoke-01 and spoke-02 are not the same
_MAX_BUSIEST_OPERATIONS = 10
_MIN_TERMINAL_WIDTH = 40
_NO_CALLS = Statistics()
_TEXT_COLUMNS = ("ID", "NAME", "KIND", "STATUS", "VERSION")
_OPTIONAL_COLUMNS = (
    "VERSION",
    "UP",
    "KIND",
    "OPS",
    "OPEN",
    "ID",
)  # columns that a narrow terminal leaves out, in this order


def _observer(sources: Sources) -> "Observer":
    """Return the observer of the URL or, without one, of the hub or broker in the configuration.

    Raises:
        click.UsageError: there is neither.
    """
    from opwire.hub.observer import Observer

    url = sources.url
    if url is None:
        config = sources.read(may_be_empty=True)
        if config.spoke is not None:
            from opwire.config.surfaces import spoke_of

            return Observer(spoke_of(config, None).transport)
        if config.hub is None:
            raise click.UsageError(
                "missing URL: add --url ws://127.0.0.1:8700 of a hub, or the URL of a broker or of an HTTP API"
            )
        url = config.hub.url.resolve("hub.url")
    return Observer(complete_url(url), **sources.connection_options(url))


@asynccontextmanager
async def _observing(sources: Sources) -> "AsyncGenerator[Observer]":
    """Connect the observer for the duration of the block; an error that demands a token says where it comes from."""
    with sources.token_hint():
        async with _observer(sources) as observer:
            yield observer


# --- ps and top -------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """The figures of all servers at one time, with those of the sample before."""

    seconds: float  # since the sample before
    servers: "list[ServerStatistics]"
    before: "dict[str, ServerStatistics]"  # by the id of the server

    def rate(self, server: "ServerStatistics", of: Callable[[Any], int]) -> float | None:
        """Return a counter's increase per second; None if the server is new."""
        before = self.before.get(server.id)
        return None if before is None or self.seconds <= 0 else max(of(server) - of(before), 0) / self.seconds

    def busiest(self) -> "list[tuple[OperationStatistics, float, float]]":
        """Return the operations with calls since the sample before: calls per second, and milliseconds per call."""
        sums: dict[str, tuple[OperationStatistics, int, float]] = {}
        for server in self.servers:
            if server.id not in self.before:
                continue
            before = {operation.id: operation for operation in self.before[server.id].busiest}
            for operation in server.busiest:
                old = before.get(operation.id, _NO_CALLS)
                if (calls := operation.calls - old.calls) > 0:
                    _, calls_so_far, spent = sums.get(operation.id, (operation, 0, 0.0))
                    sums[operation.id] = operation, calls_so_far + calls, spent + operation.seconds - old.seconds
        ranked = sorted(sums.values(), key=lambda entry: -entry[1])[:_MAX_BUSIEST_OPERATIONS]
        return [(operation, calls / self.seconds, 1000 * spent / calls) for operation, calls, spent in ranked]

    def data(self) -> list[dict[str, Any]]:
        """Return the servers as JSON data, with their rates."""

        def rounded(server: "ServerStatistics", of: Callable[[Any], int]) -> float | None:
            rate = self.rate(server, of)
            return None if rate is None else round(rate, 3)

        return [
            {
                **to_builtins(server),
                "callsPerSecond": rounded(server, lambda statistics: statistics.calls),
                "errorsPerSecond": rounded(server, lambda statistics: statistics.errors),
            }
            for server in self.servers
        ]


class Sampler:
    """Takes samples of all servers; the first error is raised if no server returns its figures."""

    def __init__(self, observer: "Observer") -> None:
        self._observer = observer
        self._before: dict[str, ServerStatistics] = {}
        self._time = 0.0
        self.failed: list[ObservedServer] = []

    async def sample(self) -> Sample:
        """Take a sample."""
        observed = await self._observer.servers()
        now = time.monotonic()
        self.failed = [observation for observation in observed if observation.error is not None]
        servers = [observation.statistics for observation in observed if observation.statistics is not None]
        if not servers and self.failed and self.failed[0].error is not None:
            raise _explained(self.failed[0].error)
        sample = Sample(now - self._time, servers, self._before)
        self._before, self._time = {server.id: server for server in servers}, now
        return sample


def _explained(error: CallError) -> CallError:
    if error.code is not ErrorCode.OPERATION_NOT_FOUND:
        return error
    hint = "this server has no monitor: run it with `opwire serve`, or pass monitor= to serve_http"
    return CallError(error.code, f"{error.message}; {hint}")


@click.command(name="ps")
@click.option(
    "--interval", type=NumberRange(0.1, 60), default=1.0, show_default=True, help="Seconds to measure the rates."
)
@observed_source_options
@json_option
@shared_options
@click.pass_obj
async def ps_command(screen: Screen, sources: Sources, interval: float) -> None:
    """List the servers behind a URL: health, version, operations, calls per second and errors.

    A hub is listed with its spokes, a broker with every server on it. The caller needs the scope opwire:observe, which
    the token of `opwire hub` and `opwire serve` has. --json prints one line per server.

    \b
      opwire ps --url ws://127.0.0.1:8700
      opwire ps --url nats://127.0.0.1:4222 --json
    """
    async with _observing(sources) as observer:
        sampler = Sampler(observer)
        await sampler.sample()
        await asyncio.sleep(interval)
        sample = await sampler.sample()
        if screen.as_json:
            for server in sample.data():
                screen.json_line(server)
        elif not sample.servers:
            screen.note("no server is connected")
        else:
            for line in server_lines(sample, _width(screen)):
                screen.line(line)
        for server in sampler.failed:
            screen.warning(f"the server at {server.address} did not return its figures: {server.error}")


@click.command(name="top")
@click.option(
    "--interval", type=NumberRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between two updates."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this number of updates.")
@observed_source_options
@json_option
@shared_options
@click.pass_obj
async def top_command(screen: Screen, sources: Sources, interval: float, count: int | None) -> None:
    """Show the servers behind a URL and their busiest operations, live, until ^C.

    In a pipe it prints one table per update, and with --json one line per server and update.
    """
    async with _observing(sources) as observer:
        sampler = Sampler(observer)
        await sampler.sample()
        with _TopScreen(screen) as top:
            while count is None or count > 0:
                await asyncio.sleep(interval)
                try:
                    top.show(await sampler.sample())
                except CallError as error:
                    if error.code is not ErrorCode.UNAVAILABLE:
                        raise
                    top.note(f"{datetime.now():%H:%M:%S}  not connected: {one_line(error.message)}")
                else:
                    count = None if count is None else count - 1


class _TopScreen:
    """The output of `top`: the whole terminal, or lines in a pipe and with `--json`."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._live: Any = None
        self._shown: list[str] = []

    def __enter__(self) -> "_TopScreen":
        if self._screen.is_terminal and not self._screen.as_json:
            from rich.live import Live

            self._live = Live(console=rich_console(sys.stdout), screen=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            for line in self._shown if kind is None else ():  # `--count` leaves the last table
                self._screen.line(line)

    def show(self, sample: Sample) -> None:
        """Show a sample."""
        if self._screen.as_json:
            for server in sample.data():
                self._screen.json_line({"time": round(time.time() * 1000), **server})
            return
        height = None if self._live is None else self._live.console.height
        lines = top_lines(sample, _width(self._screen), height)
        if self._live is not None:
            self._shown = lines
            self._update(lines)
            return
        for line in [*lines, ""]:
            self._screen.line(line)

    def note(self, text: str) -> None:
        """Show a message instead of a sample."""
        if self._live is None:
            self._screen.note(text)
        else:
            self._update([text])

    def _update(self, lines: list[str]) -> None:
        from rich.text import Text

        text = "\n".join(lines[: self._live.console.height])
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def server_lines(sample: Sample, width: int) -> list[str]:
    """Return the table of servers: names shrink, figures never do; a narrow terminal has fewer columns."""
    header = ("ID", "NAME", "KIND", "STATUS", "VERSION", "UP", "OPS", "OPEN", "CALLS/S", "CALLS", "ERRORS")
    rows: list[tuple[str, ...]] = [header]
    for server in sample.servers:
        up = max(time.time() - server.started / 1000, 0.0)
        rate = sample.rate(server, lambda statistics: statistics.calls)
        rows.append(
            (
                server.id[:6],
                cut(one_line(server.name), _MAX_NAME_WIDTH),
                cut(one_line(server.kind), 6),
                server.status,
                cut(one_line(server.version), 8) or "-",
                elapsed_text(up),
                figure(server.operations),
                figure(server.in_flight),
                "-" if rate is None else figure(rate),
                figure(server.calls),
                figure(server.errors),
            )
        )
    widths = {name: max(cells(row[column]) for row in rows) for column, name in enumerate(header)}
    dropped = iter(_OPTIONAL_COLUMNS)
    while (excess := sum(widths.values()) + len(widths) - 1 - width) > max(widths["NAME"] - _MIN_NAME_WIDTH, 0):
        if (optional := next(dropped, None)) is None:
            break
        del widths[optional]
    widths["NAME"] = max(widths["NAME"] - max(excess, 0), 4)  # wider than the terminal below 36 columns
    return [
        " ".join(
            padded(cut(text, widths[name]), widths[name]) if name in _TEXT_COLUMNS else text.rjust(widths[name])
            for name, text in zip(header, row, strict=True)
            if name in widths
        )
        for row in rows
    ]


def top_lines(sample: Sample, width: int, height: int | None = None) -> list[str]:
    """Return the screen of `top`: a summary, the servers, and the busiest operations, for which servers leave room."""
    rates = [
        sample.rate(server, lambda statistics: statistics.calls - statistics.relayed) or 0.0
        for server in sample.servers
    ]
    open_calls = sum(server.in_flight for server in sample.servers if server.kind != "hub")
    busiest = sample.busiest()
    servers = server_lines(sample, width)
    if height is not None and len(servers) > (room := max(height - 4 - len(busiest), 4)):
        servers[room - 1 :] = [f"… {len(servers) - room + 1} more: `opwire ps` lists all"]
    lines = [
        f"{datetime.now():%H:%M:%S}  {counted(len(sample.servers), 'server')}, {figure(sum(rates))} calls/s, "
        f"{figure(open_calls)} open",
        "",
        *servers,
    ]
    if busiest:
        size = max(width - 36, 9)
        lines += ["", f"{'OPERATION'.ljust(size)} {'CALLS/S':>8} {'MS/CALL':>8} {'CALLS':>8} {'ERRORS':>8}"]
        lines += [
            f"{padded(cut(one_line(operation.id), size), size)} {figure(rate):>8} {figure(ms):>8} "
            f"{figure(operation.calls):>8} {figure(operation.errors):>8}"
            for operation, rate, ms in busiest
        ]
    return lines


# --- tap --------------------------------------------------------------------------------------------------------------


@click.command(name="tap")
@click.option("--id", metavar="START", help="Only calls with a request id that starts with this.")
@click.option("--operation", metavar="PATTERN", help="Only these operations: shop.order, or shop.*")
@click.option(
    "--outcome",
    type=click.Choice(["ERROR", *sorted(OUTCOMES)], case_sensitive=False),
    metavar="OUTCOME",
    help="Only this outcome: OK, ERROR, or a code such as TIMEOUT.",
)
@click.option("--caller", metavar="NAME", help="Only calls of this identity.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this number of calls.")
@observed_source_options
@json_option
@shared_options
@click.pass_obj
async def tap_command(
    screen: Screen,
    sources: Sources,
    *,
    id: str | None,
    operation: str | None,
    outcome: str | None,
    caller: str | None,
    count: int | None,
) -> None:
    """Print the calls of a running hub, broker or HTTP API as they end, until ^C.

    A line has the time, the start of the request id, the duration, the outcome or the sizes of input and output, the
    operation and its caller. Inputs and outputs are not shown. The caller needs the scope opwire:observe.

    \b
      opwire tap --url ws://127.0.0.1:8700
      opwire tap --url redis://localhost --operation 'shop.*' --outcome error
    """
    said = None
    async with _observing(sources) as observer:
        if screen.is_terminal and not screen.as_json:
            screen.note("waiting for calls; ^C stops")
        while True:
            try:
                call_records = observer.calls(id=id, operation=operation, outcome=outcome, caller=caller)
                async with aclosing(call_records) as records:
                    async for record in records:
                        said = None
                        _show_record(screen, record)
                        count = None if count is None else count - 1
                        if count == 0:
                            return
                message = "the server has ended the stream"
            except CallError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise _explained(error) from None
                message = error.message
            if message != said:  # otherwise an outage fills the screen
                screen.note(f"not connected: {one_line(message)}; retrying")
                said = message
            await asyncio.sleep(_RECONNECT_SECONDS)


def _show_record(screen: Screen, record: "CallRecord") -> None:
    if screen.as_json:
        screen.json_line(to_builtins(record))
        return
    if record.dropped:
        screen.note(f"… {counted(record.dropped, 'call')} dropped: the output is too slow")
    text = record_line(record, _width(screen) - 2)
    screen.marked(*(("✓", "green") if record.outcome == "OK" else ("✗", "red")), text)


def record_line(record: "CallRecord", width: int) -> str:
    """Return the line of a call. The caller is cut first; a narrow terminal has no ids, then no sizes."""
    when = datetime.fromtimestamp(record.time / 1000)
    outcome = record.outcome
    if outcome == "OK":
        sizes = (record.input_bytes, record.output_bytes)
        outcome = "OK " + " → ".join("?" if size is None else bytes_text(size) for size in sizes)
        if record.items is not None:
            outcome = f"OK {counted(record.items, 'item')}"
    spent, operation = f"{milliseconds_text(record.ms):>8}", one_line(record.operation_id)
    start = f"{when:%H:%M:%S}.{record.time % 1000:03d} {record.request_id[:8]:<8} {spent} {outcome:<19} {operation}"
    if cells(start) > width:
        start = f"{when:%H:%M:%S} {spent} {outcome:<19} {operation}"
    if cells(start) > width:
        start = cut(f"{when:%H:%M:%S} {spent} {outcome.partition(' ')[0]} {operation}", width)
    caller = "-" if record.caller is None else record.caller
    room = width - cells(start) - 2
    return f"{start}  {cut(one_line(caller), room)}" if room > 2 else start


# --- text -------------------------------------------------------------------------------------------------------------


def _width(screen: Screen) -> int:
    return max(shutil.get_terminal_size((100, 24)).columns, _MIN_TERMINAL_WIDTH) if screen.is_terminal else 100


def figure(number: float) -> str:
    """Return a figure in at most six characters: 0, 3.2, 812, 12.4k, 3.1M."""
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    for scale, unit in ((1, ""), (1e3, "k"), (1e6, "M")):
        if number < 1e4 * scale:
            scaled = number / scale
            return f"{scaled:.0f}{unit}" if scaled >= 100 or not unit else f"{scaled:.1f}{unit}"
    return f"{number / 1e9:.0f}G"


def bytes_text(size: int) -> str:
    """Return a size in the largest unit that it fills: 12 B, 12 kB, 12 MB."""
    if size < 1_000:
        return f"{size} B"
    return f"{size // 1_000} kB" if size < 1_000_000 else f"{size // 1_000_000} MB"


def milliseconds_text(ms: float) -> str:
    """Return the duration of a call: 0.2 ms, 1.5 s, 15 min."""
    if ms < 1_000:
        return f"{ms:.1f} ms"
    return f"{ms / 1_000:.1f} s" if ms < 600_000 else f"{ms / 60_000:.0f} min"


def elapsed_text(seconds: float) -> str:
    """Return a duration in its two largest units: 12s, 3m04s, 2h10m, 5d03h."""
    minutes, remaining_seconds = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02d}h"
    if hours:
        return f"{hours}h{minute:02d}m"
    return f"{minutes}m{remaining_seconds:02d}s" if minutes else f"{remaining_seconds}s"


@click.command(name="console")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port.  [default: a free one]")
@click.option("--no-open", is_flag=True, help="Print the link instead of opening the browser.")
@log_options
@source_options
@shared_options
@click.pass_obj
def console_command(screen: Screen, sources: Sources, port: int, no_open: bool) -> None:
    """Open a web page that shows, calls and watches the operations, until ^C.

    It listens on this machine only, at 127.0.0.1, and serves the HTTP API beside the page. The link that is printed
    signs in once, with all permissions. `opwire serve --console` serves the page to others.

    With --url the page is that of a server elsewhere: calls have the permissions of the token in OPWIRE_TOKEN, which
    needs the scope opwire:observe for the calls and figures of others.

    \b
      opwire console --python shop.py
      opwire console --openapi https://petstore3.swagger.io/api/v3/openapi.json
      opwire console --url wss://hub.example:8700
    """

    def open_page(link: str) -> None:
        if not no_open:  # a thread: some browsers return only when they are closed
            threading.Thread(target=open_browser, args=(link,), daemon=True).start()

    if sources.url is not None:
        asyncio.run(_serve_remote(screen, sources, sources.url, port, open_page))
        return
    serve_options = ServeOptions(http=True, host="127.0.0.1", port=port, console=True)
    callers = with_callers(chosen_surfaces(sources.read(), serve_options), screen, is_open=False)
    check_variables(callers.config, *served_tables(callers.config))
    asyncio.run(serve(callers, screen, on_link=open_page))


async def _serve_remote(
    screen: Screen, sources: Sources, url: str, port: int, on_link: Callable[[str], object]
) -> None:
    """Serve the page of a server elsewhere. Only the link signs in, since the tokens of that server are not known."""
    sources.check_only_url()
    if screen.log_format == "json":
        raise click.UsageError("use --log-format text: only the link signs in, and it would be in the JSON log")
    from opwire.hub.remote_server import RemoteServer

    with needs_extra("http"):
        from opwire.console import ConsoleSystem, serve_console
    url = complete_url(url)
    name = urlsplit(url).netloc.rpartition("@")[2] or "remote"
    async with RemoteServer(url, name=name, **sources.connection_options(url)) as remote:
        system = ConsoleSystem(servers=remote.servers)
        console = serve_console(remote.registry, title=name, monitor=remote.monitor, system=system)
        async with console.listening("127.0.0.1", port) as address:
            link = f"{address}/#link={console.create_link()}"
            screen.note(f"console of {name} at this link, which signs in once, within 5 minutes:")
            screen.note(link)
            if remote.monitor.problem is not None:
                screen.warning(f"{name}: {remote.monitor.problem}")

            def ready() -> None:
                screen.note(f"showing {served_text(remote.registry)}; ^C stops")
                on_link(link)

            await until_stopped(screen, ready=ready)
