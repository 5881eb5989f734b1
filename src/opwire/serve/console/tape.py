"""The live part of the console: one stream of events per page, and the values of recent calls.

Rules: calls and figures need the scope `opwire:observe`, values `opwire:values`. A page that does not keep up loses the
oldest records, and delays no call. Values are kept only while a page that may see them is connected, bounded in number
and bytes; secret fields are replaced when they are read.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.logs import masked
from opwire.monitor import OBSERVE, CallMonitor, CallWatcher
from opwire.operation import holds
from opwire.registry import OperationRegistry
from opwire.serve.console.web import EventStreamWriter, Streams
from opwire.serve.guard import Receive, Send
from opwire.serve.http.request import Request

if TYPE_CHECKING:
    from opwire.policies import ApprovalChange, ApprovalQueue, ApprovalRequest

VALUES = "opwire:values"
"""The scope that shows inputs and outputs of calls."""

APPROVE = "opwire:approve"
"""The scope that shows calls which wait for approval, and decides about them."""

BATCH = 0.1
"""Seconds between two batches of records."""

STATISTICS_INTERVAL = 2.0
"""Seconds between two events with figures."""

MAX_STREAMS = 8
"""Event streams of one identity."""

MAX_ANONYMOUS = 32
"""Event streams of all anonymous callers."""

MAX_VALUE = 64 * 1024
"""Bytes of an input or output as JSON; larger ones are not kept."""

MAX_CALLS = 1_000
MAX_BYTES = 16 * 1024 * 1024
"""Calls whose values are kept, and their bytes in all; the oldest make room."""

_MAX_APPROVALS = 1_000  # changes that wait to be sent to one page


class CallValues(Struct, frozen=True):
    """The input of a call, and its output or error, as JSON; None if it is too large or has no JSON form."""

    input: bytes | None
    output: bytes | None
    error: str | None

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.input or b"") + len(self.output or b"") + len(self.error or "")


class ValueTape:
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
            error = str(result)[:MAX_VALUE] if isinstance(result, CallError) else type(result).__name__
            values = CallValues(_encoded(input), None, error)
        else:
            values = CallValues(_encoded(input), _encoded(getattr(result, "data", result)), None)
        if (before := self._kept.pop(request_id, None)) is not None:
            self._bytes -= before.size
        self._kept[request_id] = values
        self._bytes += values.size
        while len(self._kept) > MAX_CALLS or self._bytes > MAX_BYTES:
            self._bytes -= self._kept.pop(next(iter(self._kept))).size

    def shown(self, request_id: str) -> dict[str, Any]:
        """Return the values of a call, without secrets.

        Raises:
            CallError: OPERATION_NOT_FOUND.
        """
        found = self._kept.get(request_id)
        if found is None:
            wrong = "the values of this call are not kept: it ended before a page watched values, or too long ago"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, wrong)
        return {
            "input": _shown(found.input),
            "output": _shown(found.output),
            "error": found.error,
            "truncated": found.input is None or (found.output is None and found.error is None),
        }


def _encoded(value: Any) -> bytes | None:
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return encoded if len(encoded) <= MAX_VALUE else None


def _shown(encoded: bytes | None) -> Any:
    return None if encoded is None else masked(msgspec.json.decode(encoded))


class Tape:
    """Streams what happens to pages."""

    def __init__(
        self,
        registry: OperationRegistry,
        monitor: CallMonitor,
        streams: Streams,
        approvals: "ApprovalQueue | None",
        revision: Callable[[], str],
    ) -> None:
        self.values = ValueTape(monitor)
        self._registry = registry
        self._monitor = monitor
        self._streams = streams
        self._approvals = approvals
        self._revision = revision

    async def run(self, request: Request, receive: Receive, send: Send) -> None:
        """Stream events until the page disconnects.

        Raises:
            CallError: RATE_LIMITED, the caller has too many streams.
        """
        identity = request.identity
        most = MAX_ANONYMOUS if identity is None else MAX_STREAMS
        if self._streams.count(identity) >= most:
            raise CallError(ErrorCode.RATE_LIMITED, f"{most} pages are open already: close one")
        page = _WatchingPage(self._monitor, holds(identity, OBSERVE))
        with ExitStack() as stack:
            if page.observes:
                stack.enter_context(self._monitor.watching(page.watcher))
            if b"values=1" in request.query.split(b"&") and holds(identity, VALUES):
                stack.enter_context(self.values.watching())
            stack.callback(self._registry.on_change(lambda _: page.changed()))
            if self._approvals is not None and holds(identity, APPROVE):
                for each in self._approvals.waiting:
                    page.approvals.append(("approval", shown_approval(each)))
                stack.callback(self._approvals.on_change(page.decided))
            async with self._streams.writing(request, receive, send, counted=True) as (writer, _):
                await page.write(writer, self._revision)


class _WatchingPage:
    """What is to be sent to one page."""

    def __init__(self, monitor: CallMonitor, observes: bool) -> None:
        self.watcher = CallWatcher()
        self.observes = observes
        self.approvals: list[tuple[str, dict[str, Any]]] = []
        self._monitor = monitor
        self._has_changed = False

    def changed(self) -> None:
        """Note a change of the operations."""
        self._has_changed = True
        self.watcher.news.set()

    def decided(self, change: "ApprovalChange") -> None:
        """Note a call that waits for approval, or does not any more."""
        if change.kind == "waiting":
            self.approvals.append(("approval", shown_approval(change.request)))
        else:
            ended = {"id": change.request.id, "outcome": change.kind, "by": change.by, "reason": change.reason}
            self.approvals.append(("approvalEnded", ended))
        del self.approvals[:-_MAX_APPROVALS]
        self.watcher.news.set()

    async def write(self, writer: EventStreamWriter, revision: Callable[[], str]) -> None:
        """Write events as they happen, in batches."""
        monitor, news = self._monitor, self.watcher.news
        server = {"id": monitor.id, "name": monitor.name, "version": monitor.version, "kind": monitor.kind}
        await writer.event("hello", {"server": server, "now": round(time.time() * 1000), "revision": revision()})
        next_statistics = time.monotonic()
        while True:
            news.clear()
            await self._write_news(writer, revision)
            if self.observes and time.monotonic() >= next_statistics:
                await writer.event("statistics", monitor.snapshot())
                next_statistics = time.monotonic() + STATISTICS_INTERVAL
            await asyncio.sleep(BATCH)
            try:
                wait = next_statistics - time.monotonic() if self.observes else None
                async with asyncio.timeout(wait):
                    await news.wait()
            except TimeoutError:
                pass

    async def _write_news(self, writer: EventStreamWriter, revision: Callable[[], str]) -> None:
        records, dropped = self.watcher.take()
        if records:
            await writer.event("calls", {"records": records, "dropped": dropped})
        if self._has_changed:
            self._has_changed = False
            await writer.event("changed", {"revision": revision()})
        approvals, self.approvals = self.approvals, []
        for name, data in approvals:
            await writer.event(name, data)


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
