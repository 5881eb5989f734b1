"""The live part of the console: one stream of events per page, and the values of recent calls.

Rules: calls and figures need the scope `opwire:observe`, values `opwire:values`. Records are taken and encoded once for
all pages, at most `MAX_RECORDS_PER_SECOND` beside those of errors: calls without a record are counted, so that totals
are exact. A page that does not keep up loses the oldest batches, and delays no call. Values are kept only while a page
that may see them is connected, bounded in number and bytes; secret fields are replaced when they are read.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.responses import Response

from opwire.asgi.problem import Send
from opwire.asgi.request import App, Receive, Scope
from opwire.console.web import ConsoleEvents, Streams, json_reply, require
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import holds
from opwire.observe.logs import masked
from opwire.observe.monitor import OBSERVE, CallMonitor, CallRecord, CallWatcher
from opwire.openapi.server.request import Request
from opwire.registry import OperationRegistry

if TYPE_CHECKING:
    from opwire.policies import ApprovalChange, ApprovalQueue, ApprovalRequest

VALUES = "opwire:values"
"""The scope that shows inputs and outputs of calls."""

APPROVE = "opwire:approve"
"""The scope that shows calls which wait for approval, and decides about them."""

BATCH_INTERVAL = 0.2
"""Seconds between two batches of records."""

MAX_RECORDS_PER_SECOND = 1_500.0
"""Records per second, beside those of errors; a person reads fewer, and each costs 2 µs."""

STATISTICS_INTERVAL = 2.0
"""Seconds between two events with figures."""

MAX_STREAMS_OF_IDENTITY = 8
"""Event streams of one identity."""

MAX_ANONYMOUS_STREAMS = 32
"""Event streams of all anonymous callers."""

MAX_VALUE_BYTES = 64 * 1024
"""Bytes of an input or output as JSON; larger ones are not kept."""

MAX_CALLS_WITH_VALUES = 1_000
MAX_BYTES_OF_VALUES = 16 * 1024 * 1024
"""Calls with values that are kept, and their bytes in all; the oldest make room."""

_MAX_UNSENT_APPROVALS = 1_000  # for one page
_MAX_UNSENT_BATCHES = 10  # for one page
_MAX_FILTER_CHARACTERS = 200
_MAX_FILTER_WORDS = 8
_encoder = msgspec.json.Encoder()

_COLUMNS: dict[str, Callable[[CallRecord], str]] = {
    "operation": lambda record: record.operation_id,
    "caller": lambda record: record.caller or "",
    "outcome": lambda record: record.outcome,
    "via": lambda record: record.via,
    "server": lambda record: record.server,
    "id": lambda record: record.request_id,
}


class CallValues(Struct, frozen=True):
    """The input of a call, and its output or error, as JSON; None if it is too large or has no JSON form."""

    input: bytes | None
    output: bytes | None
    error: str | None

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.input or b"") + len(self.output or b"") + len(self.error or "")


class RecentValues:
    """The values of recent calls, by request id, while a page watches them."""

    def __init__(self, monitor: CallMonitor) -> None:
        self._monitor = monitor
        self._watchers = 0
        self._kept: dict[str, CallValues] = {}
        self._bytes = 0

    @contextmanager
    def watching(self) -> Generator[None]:
        """Keep values for the duration of the block."""
        self._watchers += 1
        self._monitor.on_values = self.put
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._monitor.on_values = None
                self._kept.clear()
                self._bytes = 0

    def put(self, request_id: str, input: Any, result: Any) -> None:
        """Keep the values of a call that has ended."""
        if isinstance(result, BaseException):
            error = str(result)[:MAX_VALUE_BYTES] if isinstance(result, CallError) else type(result).__name__
            values = CallValues(_encoded(input), None, error)
        else:
            values = CallValues(_encoded(input), _encoded(getattr(result, "data", result)), None)
        if (before := self._kept.pop(request_id, None)) is not None:
            self._bytes -= before.size
        self._kept[request_id] = values
        self._bytes += values.size
        while len(self._kept) > MAX_CALLS_WITH_VALUES or self._bytes > MAX_BYTES_OF_VALUES:
            self._bytes -= self._kept.pop(next(iter(self._kept))).size

    def shown(self, request_id: str) -> dict[str, Any]:
        """Return the values of a call, without secrets.

        Raises:
            CallError: OPERATION_NOT_FOUND.
        """
        recorded = self._kept.get(request_id)
        if recorded is None:
            wrong = "the values of this call are not kept: it ended before a page watched values, or too long ago"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, wrong)
        values = (recorded.input, recorded.output)
        input, output = (None if encoded is None else masked(msgspec.json.decode(encoded)) for encoded in values)
        return {
            "input": input,
            "output": output,
            "error": recorded.error,
            "truncated": recorded.input is None or (recorded.output is None and recorded.error is None),
        }


def _encoded(value: Any) -> bytes | None:
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return encoded if len(encoded) <= MAX_VALUE_BYTES else None


def matcher(words: str) -> Callable[[CallRecord], bool]:
    """Return the filter of a page: `caller:ann` looks in a column, another word in all of them; 8 words at most."""
    terms: list[tuple[str | None, str]] = []
    for word in words.lower().split()[:_MAX_FILTER_WORDS]:
        name, _, column_text = word.partition(":")
        terms.append((name, column_text) if name in _COLUMNS else (None, word))

    def matches(record: CallRecord) -> bool:  # 3 µs, however many words there are
        columns = {name: column(record).lower() for name, column in _COLUMNS.items()}
        everything = "\n".join(columns.values())
        return all(word in (everything if name is None else columns[name]) for name, word in terms)

    return matches


class CallLog:
    """Streams what happens to pages."""

    def __init__(
        self,
        registry: OperationRegistry,
        monitor: CallMonitor,
        streams: Streams,
        approvals: "ApprovalQueue | None",
        revision: Callable[[], str],
    ) -> None:
        self.values = RecentValues(monitor)
        self._registry = registry
        self._monitor = monitor
        self._feed = CallFeed(monitor)
        self._streams = streams
        self._approvals = approvals
        self._revision = revision

    async def show_values(self, request: Request) -> Response:
        """Return the values of a call, without secrets."""
        require(request, VALUES)
        return json_reply(request, self.values.shown(request.path.removeprefix("/api/calls/")))

    async def run(self, request: Request) -> App:
        """Return the stream of events, until the page disconnects.

        Raises:
            CallError: RATE_LIMITED, the caller has too many streams.
        """
        identity = request.identity
        most = MAX_ANONYMOUS_STREAMS if identity is None else MAX_STREAMS_OF_IDENTITY
        if self._streams.count(identity) >= most:
            raise CallError(ErrorCode.RATE_LIMITED, f"{most} pages are open already: close one")
        return partial(self._stream, request)

    async def _stream(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        identity = request.identity
        query = dict(parse_qsl(request.query.decode("latin-1")[: 8 * _MAX_FILTER_CHARACTERS]))
        page = WatchingPage()
        async with AsyncExitStack() as stack:
            if holds(identity, OBSERVE):
                await stack.enter_async_context(
                    self._feed.reading(page, query.get("filter", "").strip()[:_MAX_FILTER_CHARACTERS])
                )
            if query.get("values") == "1" and holds(identity, VALUES):
                stack.enter_context(self.values.watching())
            stack.callback(self._registry.on_change(lambda _: page.changed()))
            if self._approvals is not None and holds(identity, APPROVE):
                for approval in self._approvals.waiting:
                    page.approvals.append(("approval", shown_approval(approval)))
                stack.callback(self._approvals.on_change(page.decided))
            async with self._streams.writing(request, receive, send, counted=True) as writer:
                monitor = self._monitor
                server = {"id": monitor.id, "name": monitor.name, "version": monitor.version, "kind": monitor.kind}
                hello = {"server": server, "now": round(time.time() * 1000), "revision": self._revision()}
                await writer.event("hello", hello)
                await page.write(writer, self._revision)


class CallFeed:
    """Takes the records and figures of a monitor, in batches, and gives each of them to all pages, encoded once.

    A page with a filter gets the calls that match, of which there may be few among many.
    """

    def __init__(self, monitor: CallMonitor) -> None:
        self._monitor = monitor
        self._news = asyncio.Event()
        self._readers: dict[str, tuple[CallWatcher, set[WatchingPage]]] = {}  # by filter
        self._running: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def reading(self, page: "WatchingPage", words: str) -> AsyncGenerator[None]:
        """Give records and figures to a page for the duration of the block; `words` are its filter.

        Raises:
            CallError: RATE_LIMITED, there are too many watchers.
        """
        if words not in self._readers:
            watcher = CallWatcher(
                selects=matcher(words) if words else None, rate=MAX_RECORDS_PER_SECOND, news=self._news
            )
            self._monitor.watch(watcher)
            self._readers[words] = watcher, set()
        watcher, pages = self._readers[words]
        pages.add(page)
        page.put("statistics", self._figures())
        page.put("problem", {"message": self._monitor.problem})
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            yield
        finally:
            pages.remove(page)
            if not pages:
                del self._readers[words]
                self._monitor.unwatch(watcher)
            if not self._readers:
                self._running.cancel()
                self._running = None

    def _figures(self) -> dict[str, Any]:
        """Return the figures with their time, which those of a server elsewhere are older than."""
        measured = self._monitor.measured or time.time()
        return msgspec.to_builtins(self._monitor.snapshot()) | {"measured": round(measured * 1000)}

    async def _run(self) -> None:
        next_statistics = time.monotonic() + STATISTICS_INTERVAL
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_statistics - time.monotonic()):
                    await self._news.wait()
            await asyncio.sleep(BATCH_INTERVAL)  # a call and those that it made are in one batch, mostly
            self._news.clear()
            for watcher, pages in self._readers.values():
                records, dropped = watcher.take()
                if records or dropped:
                    encoded = _encoder.encode({"records": records, "dropped": dropped})
                    for page in pages:
                        page.put("calls", encoded, len(records) + dropped)
            if time.monotonic() >= next_statistics:
                next_statistics = time.monotonic() + STATISTICS_INTERVAL
                encoded = _encoder.encode(self._figures())
                for page in chain.from_iterable(pages for _, pages in self._readers.values()):
                    page.put("statistics", encoded)
                    page.put("problem", {"message": self._monitor.problem})


class WatchingPage:
    """What is to be sent to one page."""

    def __init__(self) -> None:
        self.approvals: list[tuple[str, dict[str, Any]]] = []
        self._batches: deque[tuple[str, Any, int]] = deque()
        self._dropped = 0
        self._has_changed = False
        self.news = asyncio.Event()

    def put(self, name: str, data: Any, calls: int = 0) -> None:
        """Note an event about a number of calls; of a page that does not keep up, drop the oldest."""
        if len(self._batches) == _MAX_UNSENT_BATCHES:
            self._dropped += self._batches.popleft()[2]
        self._batches.append((name, data, calls))
        self.news.set()

    def changed(self) -> None:
        """Note a change of the operations."""
        self._has_changed = True
        self.news.set()

    def decided(self, change: "ApprovalChange") -> None:
        """Note a call that waits for approval, or does not any more."""
        if change.kind == "waiting":
            self.approvals.append(("approval", shown_approval(change.request)))
        else:
            decision = {"id": change.request.id, "outcome": change.kind, "by": change.by, "reason": change.reason}
            self.approvals.append(("approvalEnded", decision))
        del self.approvals[:-_MAX_UNSENT_APPROVALS]
        self.news.set()

    def take(self) -> list[tuple[str, Any]]:
        """Return the events to be sent, which may be encoded already."""
        events = [(name, data) for name, data, _ in self._batches]
        if self._dropped:
            events.insert(0, ("calls", {"records": (), "dropped": self._dropped}))
        events += self.approvals
        self._batches.clear()
        self._dropped, self.approvals = 0, []
        return events

    async def write(self, writer: ConsoleEvents, revision: Callable[[], str]) -> None:
        """Write events as they happen."""
        while True:
            self.news.clear()
            for name, data in self.take():
                await writer.event(name, data)
            if self._has_changed:
                self._has_changed = False
                await writer.event("changed", {"revision": revision()})
            await asyncio.sleep(BATCH_INTERVAL)  # changes of many operations are one event
            await self.news.wait()


def shown_approval(request: "ApprovalRequest") -> dict[str, Any]:
    """Return a call that waits for approval."""
    return {
        "id": request.id,
        "operationId": request.spec.id,
        "identity": None if request.identity is None else request.identity.id,
        "input": request.shown_input,
        "message": str(request),
        "requestId": request.context.request_id,
        "since": round(request.since * 1000),
        "expires": round(request.expires * 1000),
    }
