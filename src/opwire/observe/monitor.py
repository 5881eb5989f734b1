"""What happens on a server: its figures, and a stream of the calls that end there.

Two operations beside those of the registry, on every server: the query `opwire.statistics` and the subscription
`opwire.calls`. `opwire ps`, `top` and `tap` use them.

    async for record in client.subscribe("opwire.calls", {"operation": "shop.*", "outcome": "ERROR"}):
        print(record["operationId"], record["outcome"], record["ms"])

Rules: both require the scope `opwire:observe`, so anonymous callers are rejected. A record has no input, no output and
no error message, which may contain secrets. Calls of `opwire.*` are not recorded: a watcher would watch itself. Without
a watcher no record is created. A slow watcher loses the oldest records, which are counted, and delays no call.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from fnmatch import translate
from functools import cached_property
from heapq import nlargest
from secrets import token_hex
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.envelope import MCPResponseMeta, ResponseEnvelope
from opwire.model.operation import Handler, Interceptor, OperationSpec, OperationType, is_own
from opwire.observe.logs import CANCELLED, OK, TOOL_ERROR
from opwire.registry import OperationRegistry
from opwire.version import VERSION

STATISTICS = "opwire.statistics"
CALLS = "opwire.calls"
OBSERVE = "opwire:observe"
"""The scope that both operations require. The scope "*" includes it."""

MAX_RECORDS = 1_000
"""Records in the buffer of one watcher."""

MAX_WATCHERS = 32
"""Watchers of one server."""

MAX_TIMED = 20_000
"""The most operations of which a server keeps durations, if it keeps them."""

MAX_BUSIEST = 100
"""Operations in one answer of `opwire.statistics`."""

# A caller that gives up is not an error of the operation, and the error of a tool is its result.
_FAILURES = frozenset(code.value for code in ErrorCode)

OUTCOMES = _FAILURES | {OK, TOOL_ERROR, CANCELLED}
"""Every outcome of a call."""

_MIN_REFILL_SECONDS = 0.05  # before a watcher with a rate is asked again
_LOCAL_SURFACE = "local"
_MAX_ID_CHARACTERS = 1_000  # a caller chooses ids, also of operations that do not exist
_MAX_CALL_SECONDS = 100_000.0
_MAX_CALL_MICROSECONDS = 100_000_000_000

Pattern = Annotated[str, Meta(max_length=200)]
Timestamp = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]  # milliseconds, until the year 9999
Count = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]


class Statistics(Struct, rename="camel"):
    """Counters of one operation since its server started. Only the code of the last error is kept, not its text."""

    calls: Count = 0
    errors: Count = 0
    last_error: str | None = None
    seconds: Amount = 0.0
    """Total time spent in handlers."""


class OperationStatistics(Statistics, rename="camel", kw_only=True):
    """The counters of one operation, with its id."""

    id: str


class ServerStatistics(Struct, rename="camel", kw_only=True):
    """A server and its counters since it started; `started` is in epoch milliseconds.

    A hub also counts the calls between its spokes: `relayed` of the `calls`. `busiest` are the operations with the most
    calls here, at most 100.
    """

    id: str
    name: str
    version: str
    kind: str
    started: Timestamp
    status: Literal["serving", "draining"]
    in_flight: Count
    operations: Count
    calls: Count
    errors: Count
    seconds: Amount
    relayed: Count = 0
    spokes: Count | None = None
    watchers: Count = 0
    busiest: Annotated[list[OperationStatistics], Meta(max_length=10 * MAX_BUSIEST)] = []


class CallRecord(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A call that has ended. `time` is the end, in epoch milliseconds; `ms` is the duration.

    `outcome` is "OK", the code of the error, "TOOL_ERROR" or "CANCELLED", as in the access log. `caller` is the id of
    the identity, absent for anonymous callers. `via` is "call" (a hub, a broker or this process), "relay" (between two
    spokes), "http" or "mcp". Sizes are bytes of JSON; they are absent if unknown. `items` is the number of items of a
    subscription. `dropped` records before this one were lost, because the watcher was too slow. `parent_request_id` is
    the call that made this one. "local" in `via` is a call that no surface served: a nested one, or of this process.
    """

    time: Timestamp
    request_id: str
    operation_id: str
    outcome: str
    ms: float
    server: str
    via: str
    caller: str | None = None
    input_bytes: int | None = None
    output_bytes: int | None = None
    items: int | None = None
    dropped: int = 0
    parent_request_id: str | None = None


class OperationTimings(Struct):
    """How long the calls of one operation took, and how they ended, in at most 160 counters.

    A bucket is a quarter of a power of two of microseconds, so that a percentile is at most 25 % too high.
    """

    buckets: dict[int, int] = {}
    failures: dict[str, int] = {}
    """The outcomes beside "OK", which is not counted for each call: it is the rest."""

    def add(self, seconds: float, outcome: str) -> None:
        """Count a call: 0.3 µs."""
        microseconds = int(seconds * 1e6) if seconds < _MAX_CALL_SECONDS else _MAX_CALL_MICROSECONDS
        shift = microseconds.bit_length() - 3
        bucket = 4 * shift + (microseconds >> shift) if shift > 0 else microseconds
        buckets = self.buckets
        if bucket in buckets:
            buckets[bucket] += 1
        else:
            buckets[bucket] = 1
        if outcome != OK:
            self.failures[outcome] = self.failures.get(outcome, 0) + 1

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(self.buckets.values())

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of calls by outcome."""
        succeeded = self.calls - sum(self.failures.values())
        return ({OK: succeeded} if succeeded else {}) | self.failures

    def histogram(self) -> list[tuple[float, int]]:
        """Return the upper limits of the buckets in milliseconds, with the calls in each."""
        buckets: list[tuple[float, int]] = []
        for bucket, count in sorted(self.buckets.items()):
            shift = max(bucket // 4 - 1, 0)
            buckets.append((((bucket - 4 * shift + 1) << shift) / 1000, count))
        return buckets

    def percentiles(self, *shares: float) -> list[float]:
        """Return the milliseconds within which these shares of the calls ended."""
        total, limits = self.calls, list[float]()
        for share in shares:
            remaining_calls = share * total
            for upper, count in self.histogram():
                remaining_calls -= count
                if remaining_calls <= 0:
                    limits.append(upper)
                    break
        return limits


class CallWatcher:
    """One watcher of calls: its filter and its buffer.

    `selects` is a filter beside the others. With a `rate`, about that many calls per second have records: of the calls
    beyond it only errors have, and the others are counted, which takes 0.3 µs instead of 2 for each of them. Several
    watchers can share `news`.
    """

    def __init__(
        self,
        *,
        id: str | None = None,
        operation: str | None = None,
        outcome: str | None = None,
        caller: str | None = None,
        selects: Callable[[CallRecord], bool] | None = None,
        rate: float | None = None,
        news: asyncio.Event | None = None,
    ) -> None:
        self._id = id
        self._operation = None if operation is None else re.compile(translate(operation))
        self._outcome = None if outcome is None else outcome.upper()
        self._caller = caller
        self._filter = selects
        self.is_filtered = any(filter_value is not None for filter_value in (id, operation, outcome, caller, selects))
        self._records: deque[CallRecord | _LazyRecord] = deque()
        self._rate = rate
        self._allowed = 0.0 if rate is None else min(rate, MAX_RECORDS)  # records that are not errors
        self._refilled = time.monotonic()
        self.dropped = 0
        """Calls without a record, since the last one was read."""
        self.is_full = False
        """Whether a call needs no record, unless it is an error: it is `dropped`."""
        self.news = asyncio.Event() if news is None else news
        """Set when there are records; cleared by the consumer."""
        self._is_closed = False

    def put(self, record: CallRecord) -> None:
        """Buffer a record that the filter selects; if the buffer is full, drop the oldest."""
        if not self.is_filtered or self._selects(record):
            self._append(record, record.outcome)

    def put_lazy(self, outcome: str, record: "_LazyRecord") -> None:
        """Buffer a record that is created when it is read, as `put` does."""
        if self.is_filtered:
            self.put(_created(record))
        else:
            self._append(record, outcome)

    def _append(self, record: "CallRecord | _LazyRecord", outcome: str) -> None:
        if self._rate is not None and outcome == OK:
            if self.is_full:
                self.dropped += 1
                return
            self._allowed -= 1
            self.is_full = self._allowed < 1
        if len(self._records) == MAX_RECORDS:
            self._records.popleft()
            self.dropped += 1
        self._records.append(record)
        self.news.set()

    def close(self) -> None:
        """End the stream after the buffered records."""
        self._is_closed = True
        self.news.set()

    def take(self) -> tuple[list[CallRecord], int]:
        """Return the buffered records, and how many calls beside them have none."""
        records, dropped = list(map(_created, self._records)), self.dropped
        self._refill(at_least=1)  # otherwise no record would come, and nothing would call this again
        self._records.clear()
        self.dropped = 0
        return records, dropped

    def _refill(self, at_least: float = 0) -> None:
        """Allow records for the time that has passed."""
        if self._rate is not None:
            now = time.monotonic()
            gained = max(self._rate * (now - self._refilled), at_least)
            self._allowed, self._refilled = min(self._allowed + gained, MAX_RECORDS), now
            self.is_full = self._allowed < 1

    async def records(self) -> AsyncGenerator[CallRecord]:
        """Yield the records, as they arrive."""
        while True:
            while self._records:
                record = _created(self._records.popleft())
                self._refill()
                if self.dropped:
                    record, self.dropped = replace(record, dropped=self.dropped), 0
                yield record
            if self._is_closed:
                return
            self.news.clear()
            if self._rate is None or not self.is_full:
                await self.news.wait()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(max(1 / self._rate, _MIN_REFILL_SECONDS)):
                    await self.news.wait()
            self._refill()

    def _selects(self, record: CallRecord) -> bool:
        outcome_filter = self._outcome
        return (
            (self._id is None or record.request_id.startswith(self._id))
            and (self._operation is None or self._operation.match(record.operation_id) is not None)
            and (self._caller is None or record.caller == self._caller)
            and (self._filter is None or self._filter(record))
            and (
                outcome_filter is None
                or record.outcome == outcome_filter
                or (outcome_filter == "ERROR" and record.outcome != OK)
            )
        )


_LazyRecord = tuple[Callable[..., CallRecord], tuple[Any, ...]]  # a function and its arguments


def _created(record: CallRecord | _LazyRecord) -> CallRecord:
    return record if isinstance(record, CallRecord) else record[0](*record[1])


class CallMonitor:
    """Counts the calls of one server, and shows them to watchers.

        monitor = CallMonitor(registry, name="shop", kind="server")
        app = serve_http(registry, monitor=monitor, authenticate=…)

    `CallHandler` has one, which `Hub` and `Spoke` use. For other surfaces `interceptor` records the calls.
    `operations` is the registry with the two operations, for a `Dispatcher`.
    """

    def __init__(
        self, registry: OperationRegistry, *, name: str = "opwire", version: str = VERSION, kind: str = "server"
    ) -> None:
        self.id = token_hex(8)
        self.name = name
        self.version = version
        self.kind = kind
        self.started = round(time.time() * 1000)
        self.statistics: dict[str, Statistics] = {}
        self.status: Literal["serving", "draining"] = "serving"
        self.in_flight = 0
        self.amend: Callable[[ServerStatistics], ServerStatistics] = lambda statistics: statistics
        """Complete the answer of `opwire.statistics`: a hub adds its relayed calls."""
        self.on_watched: Callable[[bool], object] = lambda watched: None
        """Called when the first watcher comes and when the last one leaves, unless `timings` are kept."""
        self._registry = registry
        self._watchers: set[CallWatcher] = set()
        self.watched = False
        """Whether there is a watcher: otherwise records need not be created."""
        self.timings: dict[str, OperationTimings] | None = None
        """By operation, from `keep_timings` on."""
        self.remote: str | None = None
        """The URL of the server that it monitors, without a password, if that is another one."""
        self.problem: str | None = None
        """What is missing in the calls and figures, and why, as a sentence for people."""
        self.measured: float | None = None
        """The time of `snapshot` in epoch seconds, if that is not now."""
        self.on_values: Callable[[str, Any, Any], object] | None = None
        """Called by `show_values`."""

    def __repr__(self) -> str:
        calls = sum(statistics.calls for statistics in self.statistics.values())
        return f"<{type(self).__name__} {self.name!r}, {calls:,} calls>"

    @property
    def has_figures(self) -> bool:
        """Whether `snapshot` has figures; those of another server may be missing."""
        return True

    def count(self, operation_id: str, seconds: float, outcome: str) -> None:
        """Count a call of a registered operation; peers can invent any number of unknown ids."""
        statistics = self.statistics.get(operation_id)
        if statistics is None:
            if self._registry.get_spec(operation_id) is None:
                return
            statistics = self.statistics[operation_id] = Statistics()
        statistics.calls += 1
        statistics.seconds += seconds
        if outcome in _FAILURES:
            statistics.errors += 1
            statistics.last_error = outcome
        if self.timings is not None:
            self.time(operation_id, seconds, outcome)

    def time(self, operation_id: str, seconds: float, outcome: str) -> None:
        """Add a call to the timings of its operation, if they are kept."""
        timings = self.timings
        if timings is None:
            return
        operation_timings = timings.get(operation_id)
        if operation_timings is None:
            if len(timings) >= MAX_TIMED or self._registry.get_spec(operation_id) is None:
                return
            operation_timings = timings[operation_id] = OperationTimings()
        operation_timings.add(seconds, outcome)

    def keep_timings(self) -> None:
        """Keep the durations of calls from now on, of all operations."""
        if self.timings is None:
            self.timings = {}
            self.on_watched(True)

    def record(
        self, request_id: str | None, operation_id: str, outcome: str, seconds: float, via: str, **known: Any
    ) -> None:
        """Show a call that has ended to the watchers. `known` are other fields of `CallRecord`."""
        if not self._watchers or is_own(operation_id):
            return
        if parent := known.get("parent_request_id"):
            known["parent_request_id"] = parent[:_MAX_ID_CHARACTERS]
        record = CallRecord(
            time=round(time.time() * 1000),
            request_id=(request_id or "")[:_MAX_ID_CHARACTERS],
            operation_id=operation_id[:_MAX_ID_CHARACTERS],
            outcome=outcome,
            ms=round(seconds * 1000, 3),
            server=self.name,
            via=via,
            **known,
        )
        for watcher in self._watchers:
            watcher.put(record)

    def show(self, record: CallRecord) -> None:
        """Show a record of another server to the watchers."""
        for watcher in self._watchers:
            watcher.dropped += max(record.dropped, 0)
            watcher.put(replace(record, dropped=0) if record.dropped else record)

    def record_lazily(self, outcome: str, create: Callable[..., CallRecord], *arguments: Any) -> None:
        """Show a call, not of `opwire.*`. Its record is created only if a watcher reads it: 0.3 µs instead of 3."""
        for watcher in self._watchers:
            if watcher.is_full and outcome == OK and not watcher.is_filtered:  # most calls of a busy server: 0.3 µs
                watcher.dropped += 1
            else:
                watcher.put_lazy(outcome, (create, arguments))

    def show_values(self, request_id: str, input: Any, result: Any) -> None:
        """Show the input and the result or error of a call that ended in this process, if anything listens."""
        if self.on_values is not None:
            self.on_values(request_id, input, result)

    def close(self) -> None:
        """End the streams of all watchers, so that a server that drains does not wait for them."""
        for watcher in self._watchers:
            watcher.close()

    @contextmanager
    def watching(self, watcher: CallWatcher) -> Generator[None]:
        """Show calls to a watcher for the duration of the block.

        Raises:
            CallError: RATE_LIMITED, there are too many watchers.
        """
        self.watch(watcher)
        try:
            yield
        finally:
            self.unwatch(watcher)

    def watch(self, watcher: CallWatcher) -> None:
        """Show calls to a watcher, until `unwatch`.

        Raises:
            CallError: RATE_LIMITED, there are too many watchers.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise CallError(ErrorCode.RATE_LIMITED, f"{MAX_WATCHERS} clients watch the calls of this server already")
        self._watchers.add(watcher)
        if not self.watched:
            self.watched = True
            if self.timings is None:
                self.on_watched(True)

    def unwatch(self, watcher: CallWatcher) -> None:
        """Show no more calls to a watcher."""
        self._watchers.discard(watcher)
        if not self._watchers:
            self.watched = False
            if self.timings is None:
                self.on_watched(False)

    def inner_interceptor(self) -> Interceptor:
        """Return an interceptor for a registry that records the calls which no surface serves: nested and local ones.

        They are not counted: the figures of a server are those of the calls that it serves.
        """
        recorded = self.interceptor(_LOCAL_SURFACE)

        def intercept(spec: OperationSpec, handler: Handler) -> Handler:
            observed = recorded(spec, handler)
            return lambda input, context: (handler if context.is_served else observed)(input, context)

        return intercept

    def interceptor(self, via: str) -> Interceptor:
        """Return an interceptor that counts and records every call of a surface."""

        def intercept(spec: OperationSpec, handler: Handler) -> Handler:
            async def call(input: Any, context: Context) -> Any:
                with _Observed(self, spec, input, context, via) as observed:
                    observed.result = result = await handler(input, context)
                    return result

            async def stream(input: Any, context: Context) -> AsyncIterator[Any]:
                with _Observed(self, spec, input, context, via) as observed:
                    observed.items = 0
                    async for item in handler(input, context):
                        observed.items += 1
                        yield item

            return stream if spec.type is OperationType.SUBSCRIPTION else call

        return intercept

    # --- the two operations -------------------------------------------------------------------------------------------

    @cached_property
    def operations(self) -> OperationRegistry:
        """The two operations; created lazily, since reading the signatures takes 1 ms and fills caches."""
        registry, access = OperationRegistry(normalize="off"), AccessControl(required_scopes=(OBSERVE,))
        registry.query(STATISTICS, access=access)(self._statistics)
        registry.subscription(CALLS, access=access)(self._calls)
        return registry

    async def _statistics(self) -> ServerStatistics:
        """Return the figures of this server: health, version, number of operations, calls, errors and time."""
        return self.snapshot()

    def snapshot(self) -> ServerStatistics:
        """Return the figures of this server."""
        busiest = nlargest(MAX_BUSIEST, self.statistics.items(), key=lambda entry: entry[1].calls)
        counted = self.statistics.values()
        return self.amend(
            ServerStatistics(
                id=self.id,
                name=self.name,
                version=self.version,
                kind=self.kind,
                started=self.started,
                status=self.status,
                in_flight=self.in_flight,
                operations=len(self._registry),
                calls=sum(statistics.calls for statistics in counted),
                errors=sum(statistics.errors for statistics in counted),
                seconds=sum(statistics.seconds for statistics in counted),
                watchers=len(self._watchers),
                busiest=[
                    OperationStatistics(id=id, **msgspec.structs.asdict(statistics)) for id, statistics in busiest
                ],
            )
        )

    async def _calls(
        self,
        id: Pattern | None = None,
        operation: Pattern | None = None,
        outcome: Pattern | None = None,
        caller: Pattern | None = None,
        rate: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None,
    ) -> AsyncIterator[CallRecord]:
        """Stream a record of every call that ends here from now on, without input and output.

        `id` is the start of a request id, `operation` a pattern of operation ids such as `shop.*`, `outcome` is "OK",
        "ERROR" or an error code, and `caller` the id of an identity. `rate` is the number of records per second beside
        those of errors: other calls are counted in `dropped`.
        """
        watcher = CallWatcher(id=id, operation=operation, outcome=outcome, caller=caller, rate=rate)
        with self.watching(watcher):
            async for record in watcher.records():
                yield record


class _Observed(Struct):
    """A call of a surface, from its start to its end."""

    monitor: CallMonitor
    spec: OperationSpec
    input: Any
    context: Context
    via: str
    began: float = 0.0
    items: int | None = None
    result: Any = None

    def __enter__(self) -> "_Observed":
        self.began = time.perf_counter()
        self.monitor.in_flight += self.via != _LOCAL_SURFACE
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        monitor, context, is_counted = self.monitor, self.context, self.via != _LOCAL_SURFACE
        monitor.in_flight -= is_counted
        seconds, outcome = time.perf_counter() - self.began, outcome_of(self.result, error)
        (monitor.count if is_counted else monitor.time)(self.spec.id, seconds, outcome)
        if context.request_id is not None:
            monitor.show_values(context.request_id, self.input, self.result if error is None else error)
        if monitor.watched:
            monitor.record(
                context.request_id,
                self.spec.id,
                outcome,
                seconds,
                self.via,
                caller=context.identity and context.identity.id,
                input_bytes=json_size(self.input),
                output_bytes=None if self.result is None else json_size(getattr(self.result, "data", self.result)),
                items=self.items,
                parent_request_id=context.parent_request_id,
            )


def outcome_of(result: Any, error: BaseException | None) -> str:
    """Return the outcome of a call for its record, in the words of the access log."""
    if isinstance(error, CallError):
        return error.code.value
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return CANCELLED
    if error is not None:
        return ErrorCode.EXECUTION_ERROR.value
    meta = result.meta if isinstance(result, ResponseEnvelope) else None
    return TOOL_ERROR if isinstance(meta, MCPResponseMeta) and meta.is_error else OK


def json_size(value: Any) -> int | None:
    """Return the size of a value as JSON, or None if it has no JSON form."""
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return None
