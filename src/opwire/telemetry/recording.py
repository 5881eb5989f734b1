"""One call as a span and in the metrics, named as OpenTelemetry's conventions for RPC have it.

Nothing of what is said in a call is recorded: no input, no output, no message of an error, which may quote them.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from time import perf_counter
from typing import Any, Literal, cast

from msgspec.structs import replace
from opentelemetry.context import attach, detach
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import SpanKind, StatusCode, TracerProvider, get_tracer

from opwire.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from opwire.errors import ERROR_TABLE, CallError, ErrorCode
from opwire.operation import Context, OperationType, Trace
from opwire.telemetry.lineage import carried_trace, parent_of, serving, within

Side = Literal["server", "client"]
Attributes = dict[str, str | int | bool]

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)  # those of the conventions
_LONGEST = 200  # characters of what a peer may have written
_OTHER = "_OTHER"  # stands for operations that do not exist: callers could invent any number of names


class Recorder:
    """Spans and metrics of the calls that are served here, or of those that are made from here."""

    def __init__(
        self,
        side: Side,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        identity: bool = False,
    ) -> None:
        self.side: Side = side
        self.shows_identity = identity
        self.tracer = get_tracer("opwire", version("opwire"), tracer_provider)
        meter = get_meter("opwire", version("opwire"), meter_provider)
        self.durations = meter.create_histogram(
            f"rpc.{side}.call.duration",
            unit="s",
            description="How long calls took, by operation and outcome.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self.active = meter.create_up_down_counter(
            f"opwire.{side}.active_calls", unit="{call}", description="Calls that are under way."
        )
        self._errors = meter.create_counter(
            f"opwire.{side}.errors",
            unit="{error}",
            description="Requests over a transport that were answered with an error, those included that never ran.",
        )

    def count_error(self, error: CallError) -> None:
        """A request over a transport is answered with an error, whether it ran or not."""
        self._errors.add(1, {"rpc.system.name": "opwire", "error.type": error.code.value})

    @contextmanager
    def call(
        self, operation_id: str, context: Context, *, type: OperationType | None = None, known: bool = True
    ) -> Generator["RecordedCall"]:
        """Record a call, for as long as the block runs, with whatever ends it."""
        recorded = RecordedCall(self, operation_id, context, type=type, known=known)
        try:
            yield recorded
        except GeneratorExit:  # the consumer of a stream has seen enough
            raise
        except BaseException as error:
            recorded.failed(error)
            raise
        finally:
            recorded.end()


class RecordedCall:
    """A call under way. `context` is the one to make it with: whatever it leads to belongs to the same trace."""

    __slots__ = ("_active", "_began", "_items", "_measured", "_recorder", "_span", "_surroundings", "context")

    def __init__(
        self, recorder: Recorder, operation_id: str, context: Context, *, type: OperationType | None, known: bool
    ) -> None:
        self._recorder = recorder
        self._measured: Attributes = {"rpc.system.name": "opwire", "rpc.method": operation_id if known else _OTHER}
        if type is not None:
            self._measured["opwire.operation.type"] = type.value
        self._active = dict(self._measured)
        parent = parent_of(context.metadata)
        self._span = recorder.tracer.start_span(
            operation_id if known else _OTHER,
            parent.surroundings,
            kind=_kind(recorder.side, context, is_nested=parent.is_here),
            attributes=self._measured | _said(operation_id, context, known=known, identity=recorder.shows_identity),
        )
        self._surroundings = within(self._span, parent)
        trace = carried_trace(self._surroundings)
        if recorder.side == "server":
            self._surroundings = serving(trace, self._surroundings)
        self.context = replace(context, metadata=_with_trace(context.metadata, trace))
        self._items = 0
        self._began = perf_counter()
        recorder.active.add(1, self._active)

    @contextmanager
    def current(self) -> Generator[None]:
        """What happens in the block, happens within the span."""
        token = attach(self._surroundings)
        try:
            yield
        finally:
            detach(token)

    def answered(self, envelope: ResponseEnvelope[Any]) -> None:
        """There is an answer, or one more item."""
        self._items += 1
        meta = envelope.meta
        self._measured["opwire.source"] = meta.source
        if isinstance(meta, HTTPResponseMeta):
            if 0 <= meta.status_code < 1000:  # any number on the wire, and 64 bits in a span
                self._measured["http.response.status_code"] = int(meta.status_code)
        elif isinstance(meta, MCPResponseMeta) and meta.is_error:
            self._measured["error.type"] = "tool_error"  # an answer, and no failure of the call

    def failed(self, error: BaseException) -> None:
        """The call failed. In the span of a server that is an error if it was the server's fault."""
        code = error.code if isinstance(error, CallError) else ErrorCode.INTERNAL
        gave_up = isinstance(error, asyncio.CancelledError)
        if gave_up:
            code = ErrorCode.ABORTED
        self._measured["rpc.response.status_code"] = self._measured["error.type"] = code.value
        if ERROR_TABLE[code].http_status >= 500 or (self._recorder.side == "client" and not gave_up):
            self._span.set_status(StatusCode.ERROR)
        error_id = _error_id(error)
        if error_id is not None:
            self._span.set_attribute("opwire.error_id", error_id)

    def end(self) -> None:
        """The call is over."""
        seconds = perf_counter() - self._began
        self._measured.setdefault("rpc.response.status_code", "OK")
        self._span.set_attributes(self._measured)
        if self._measured.get("opwire.operation.type") == OperationType.SUBSCRIPTION:
            self._span.set_attribute("opwire.items", self._items)
        self._span.end()
        self._recorder.active.add(-1, self._active)
        self._recorder.durations.record(seconds, self._measured, self._surroundings)


def _kind(side: Side, context: Context, *, is_nested: bool) -> SpanKind:
    if side == "client":
        return SpanKind.CLIENT
    # What came from outside has a request id; what this process does on its own behalf has none.
    return SpanKind.INTERNAL if is_nested or context.request_id is None else SpanKind.SERVER


def _said(operation_id: str, context: Context, *, known: bool, identity: bool) -> Attributes:
    """What only the span says: it would be too much for metrics."""
    said: Attributes = {}
    if not known:
        said["rpc.method_original"] = operation_id[:_LONGEST]
    if context.request_id is not None:
        said["opwire.request_id"] = context.request_id[:_LONGEST]
    if identity and context.identity is not None:
        said["enduser.id"] = context.identity.id
    return said


def _with_trace(metadata: Mapping[str, Any], trace: Trace) -> Mapping[str, Any]:
    if not trace:
        return metadata
    return {name: value for name, value in metadata.items() if name != "tracestate"} | trace


def _error_id(error: BaseException) -> str | None:
    """Under which id the log knows more of an unforeseen error."""
    details = error.details if isinstance(error, CallError) else None
    id = cast("dict[str, Any]", details).get("errorId") if isinstance(details, dict) else None
    return id if isinstance(id, str) else None
