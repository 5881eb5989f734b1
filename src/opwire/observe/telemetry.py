"""OpenTelemetry spans and metrics of calls. Needs `pip install 'opwire[otel]'`, and an SDK that exports them.

    instrument(registry)  # the calls that are executed here, from every surface
    instrument(spoke)  # the calls that a spoke or a hub serves, and those that it makes

Names follow OpenTelemetry's conventions for RPC. Inputs, outputs and error messages, which may quote them, are never
recorded. A call that crosses a network stays one trace: the `traceparent` of W3C Trace Context is propagated over every
transport, in the `_meta` of MCP and in the headers of HTTP, with or without this module.

`instrument` installs an interceptor, inside those that are installed already. Objects without one stay as fast as
before. `serve_metrics` shows the metrics to Prometheus.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from inspect import iscoroutinefunction
from socket import SHUT_RDWR
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable
from weakref import WeakSet

from msgspec.structs import replace

from opwire.errors import ERROR_TABLE, CallError, ErrorCode, UsageError, needs_extra, system_message
from opwire.http.hosts import LOOPBACK, HostNames
from opwire.model.context import Context
from opwire.model.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from opwire.model.operation import Handler, Interceptor, OperationSpec, OperationType
from opwire.model.trace import Trace, trace_of
from opwire.registry import OperationRegistry, build_env
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict

with needs_extra("otel"):
    from opentelemetry.context import Context as Surroundings
    from opentelemetry.context import attach, create_key, detach, get_current, get_value, set_value
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
    from opentelemetry.trace import (
        Span,
        SpanKind,
        StatusCode,
        TracerProvider,
        format_span_id,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

logger = get_logger("opwire.observe")

_w3c = TraceContextTextMapPropagator()
_SCRAPE_TIMEOUT = 10  # seconds; each connection holds a thread
_MAX_SCRAPE_CONNECTIONS = 32  # a new one replaces the oldest
_SERVED_TRACE = create_key("opwire-served")  # the traceparent of the call that is served here


class Parent(NamedTuple):
    """The parent of a call's span. `is_here`: it runs in this process."""

    surroundings: Surroundings
    is_here: bool


def parent_of(metadata: Mapping[str, Any]) -> Parent:
    """Return the parent of a call with this metadata.

    The trace of the metadata is often that of a call served in this process; its handler, or an instrumentation of
    the web server, may have opened spans since. The current span is nearer then. Otherwise the metadata is right: the
    task that reads from a socket runs in the context of the task that opened it.
    """
    here = get_current()
    trace = trace_of(metadata)
    if "traceparent" not in trace:
        return Parent(here, get_current_span(here).get_span_context().is_valid)
    said = trace["traceparent"]
    parent = getattr(get_current_span(here), "parent", None)  # a span of the SDK has its parent
    is_child = parent is not None and format_span_id(parent.span_id) == said.split("-")[2]
    if is_child or get_value(_SERVED_TRACE, here) == said:
        return Parent(here, is_here=True)
    return Parent(_w3c.extract(trace, here), is_here=False)


def within(span: Span, parent: Parent) -> Surroundings:
    """Return a context in which the span is the current one."""
    return set_span_in_context(span, parent.surroundings)


def serving(trace: Trace, surroundings: Surroundings) -> Surroundings:
    """Return the context of a handler with this trace, so that its calls are recognized as nested."""
    return set_value(_SERVED_TRACE, trace.get("traceparent"), surroundings)


def carried_trace(surroundings: Surroundings) -> Trace:
    """Return the current span as metadata; empty without a tracer."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, surroundings)
    return trace_of(carrier)


Side = Literal["server", "client"]
Attributes = dict[str, str | int | bool]

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)  # those of the conventions
_MAX_ATTRIBUTE_CHARACTERS = 200
_UNKNOWN_OPERATION = "_OTHER"  # callers could invent any number of names


class Recorder:
    """Records the spans and metrics of calls served here, or of calls made from here."""

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
        """Count a request over a transport that failed, whether it ran or not."""
        self._errors.add(1, {"rpc.system.name": "opwire", "error.type": error.code.value})

    def around(self, spec: OperationSpec, handler: Handler) -> Handler:
        """Record the calls of an operation; an `Interceptor`. A caller knows of the type only whether it streams."""
        streams = spec.type is OperationType.SUBSCRIPTION
        type = spec.type if streams or self.side == "server" else None

        async def call(input: Any, context: Context) -> Any:
            with self.call(spec.id, context, type=type) as recorded, recorded.current():
                result: Any = await handler(input, recorded.context)
                recorded.answered(result)
                return result

        async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
            with self.call(spec.id, context, type=type) as recorded:
                items: Any = handler(input, recorded.context)
                try:
                    # The span is current while the producer runs, not while the consumer does.
                    while True:
                        with recorded.current():
                            item = await anext(items, None)
                        if item is None:
                            break
                        recorded.answered(item)
                        yield item
                finally:
                    with recorded.current():
                        await items.aclose()

        return stream if streams else call

    @contextmanager
    def call(
        self, operation_id: str, context: Context, *, type: OperationType | None = None
    ) -> Generator["RecordedCall"]:
        """Record a call while the block runs, with its result or exception."""
        recorded = RecordedCall(self, operation_id, context, type=type)
        try:
            yield recorded
        except GeneratorExit:  # the consumer closed the stream
            raise
        except BaseException as error:
            recorded.failed(error)
            raise
        finally:
            recorded.end()


class RecordedCall:
    """A call in flight. Make it with `context`, so that nested calls belong to the same trace."""

    __slots__ = ("_active", "_began", "_items", "_measured", "_recorder", "_span", "_surroundings", "context")

    def __init__(
        self, recorder: Recorder, operation_id: str, context: Context, *, type: OperationType | None, known: bool = True
    ) -> None:
        self._recorder = recorder
        method = operation_id if known else _UNKNOWN_OPERATION
        self._measured: Attributes = {"rpc.system.name": "opwire", "rpc.method": method}
        if type is not None:
            self._measured["opwire.operation.type"] = type.value
        self._active = dict(self._measured)
        parent = parent_of(context.metadata)
        # A call from outside has a request id; a call of this process itself has not.
        is_internal = parent.is_here or context.request_id is None
        kind = SpanKind.CLIENT if recorder.side == "client" else SpanKind.INTERNAL if is_internal else SpanKind.SERVER
        said = dict(self._measured)  # and what is for the span only: metrics would have too many values
        if not known:
            said["rpc.method_original"] = operation_id[:_MAX_ATTRIBUTE_CHARACTERS]
        if context.request_id is not None:
            said["opwire.request_id"] = context.request_id[:_MAX_ATTRIBUTE_CHARACTERS]
        if recorder.shows_identity and context.identity is not None:
            said["enduser.id"] = context.identity.id
        self._span = recorder.tracer.start_span(method, parent.surroundings, kind=kind, attributes=said)
        self._surroundings = within(self._span, parent)
        trace = carried_trace(self._surroundings)
        if recorder.side == "server":
            self._surroundings = serving(trace, self._surroundings)
        metadata = context.metadata
        if trace:
            metadata = {name: value for name, value in metadata.items() if name != "tracestate"} | trace
        self.context = replace(context, metadata=metadata)
        self._items = 0
        self._began = perf_counter()
        recorder.active.add(1, self._active)

    @contextmanager
    def current(self) -> Generator[None]:
        """Make the span the current one in the block."""
        token = attach(self._surroundings)
        try:
            yield
        finally:
            detach(token)

    def answered(self, envelope: Any) -> None:
        """Record a result, or one more item of a stream; an interceptor may return data without an envelope."""
        self._items += 1
        if not isinstance(envelope, ResponseEnvelope):
            return
        meta = cast("ResponseEnvelope[Any]", envelope).meta
        self._measured["opwire.source"] = meta.source
        if isinstance(meta, HTTPResponseMeta):
            if 0 <= meta.status_code < 1000:  # decoded from any JSON number; a span takes 64 bits
                self._measured["http.response.status_code"] = int(meta.status_code)
        elif isinstance(meta, MCPResponseMeta) and meta.is_error:
            self._measured["error.type"] = "tool_error"  # a result, not a failed call

    def failed(self, error: BaseException) -> None:
        """Record a failed call. In the span of a server it is an error only if the server caused it."""
        gave_up = isinstance(error, asyncio.CancelledError)
        unexpected = ErrorCode.ABORTED if gave_up else ErrorCode.INTERNAL
        code = error.code if isinstance(error, CallError) else unexpected
        self._measured["rpc.response.status_code"] = self._measured["error.type"] = code.value
        if ERROR_TABLE[code].http_status >= 500 or (self._recorder.side == "client" and not gave_up):
            self._span.set_status(StatusCode.ERROR)
        # The id under which an unexpected error was logged.
        error_id = as_dict(error.details).get("errorId") if isinstance(error, CallError) else None
        if isinstance(error_id, str):
            self._span.set_attribute("opwire.error_id", error_id)

    def end(self) -> None:
        """End the span and record the duration."""
        seconds = perf_counter() - self._began
        self._measured.setdefault("rpc.response.status_code", "OK")
        self._span.set_attributes(self._measured)
        if self._measured.get("opwire.operation.type") == OperationType.SUBSCRIPTION:
            self._span.set_attribute("opwire.items", self._items)
        self._span.end()
        self._recorder.active.add(-1, self._active)
        self._recorder.durations.record(seconds, self._measured, self._surroundings)


class Calling(Protocol):
    """A `Client`: makes calls."""

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call; the returned function removes it."""
        ...


@runtime_checkable
class Connected(Calling, Protocol):
    """A `PendingRequestMap`: makes calls over a transport, and answers requests that arrive there."""

    def on_failed(self, listener: Callable[[CallError], None]) -> Callable[[], None]:
        """Call the listener with the error of each request that fails here; the returned function removes it."""
        ...


@runtime_checkable
class Serving(Protocol):
    """A `CallHandler`: serves a registry over a transport."""

    registry: OperationRegistry

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call that is served; the returned function removes it."""
        ...


class BothSides(Protocol):
    """A `Hub` or a `Spoke`: serves a registry, and calls other servers."""

    @property
    def calls(self) -> Connected:
        """The calls that it makes."""
        ...

    @property
    def handler(self) -> Serving:
        """What serves its registry."""
        ...


Instrumentable = OperationRegistry | Connected | Serving | BothSides | Calling

_instrumented: WeakSet[Any] = WeakSet()


def instrument(
    *targets: Instrumentable,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    identity: bool = False,
) -> Callable[[], None]:
    """Record spans and metrics of calls; the returned function stops that.

        instrument(registry)  # `execute` and `subscribe`, called by a transport, MCP or HTTP
        instrument(client)  # the calls of a Client, one span per call, retries included
        instrument(spoke)  # the calls that a Spoke or a Hub serves and makes

    The default providers are those of the process. `identity` adds the caller's id to spans. Targets that are
    instrumented already are ignored.

    Raises:
        UsageError: a target neither makes nor serves calls.
    """
    options: Any = {"tracer_provider": tracer_provider, "meter_provider": meter_provider, "identity": identity}
    server, client = Recorder("server", **options), Recorder("client", **options)
    undo: list[Callable[[], None]] = []
    for target in targets:
        transport = getattr(target, "transport", None)
        if hasattr(transport, "relayed") and target not in _instrumented:
            _instrumented.add(target)
            undo += [
                partial(_instrumented.discard, target),
                _observe_relay(transport, meter_provider),
            ]
    for part in [part for target in targets for part in _parts(target)]:
        if part in _instrumented:
            continue
        _instrumented.add(part)
        undo.append(partial(_instrumented.discard, part))
        match part:
            case OperationRegistry():
                undo += [
                    part.use(_keeping_trust(part, server.around)),
                    part.on_rejected(partial(_record_rejected, part, server)),
                ]
            case Connected():
                undo += [part.use(client.around), part.on_failed(server.count_error)]
            case _:
                undo.append(part.use(client.around))

    def end() -> None:
        while undo:
            undo.pop()()

    return end


def _observe_relay(transport: Any, meter_provider: MeterProvider | None) -> Callable[[], None]:
    """Report the calls that a hub relays and its peers; they pass no interceptor. Return a function that stops that."""
    relays = [transport]  # instruments cannot be removed, so that they report nothing in the end

    def calls(_: CallbackOptions) -> Iterator[Observation]:
        for relay in relays:
            ended_calls, failed, _ = relay.relayed  # and those that are open
            yield Observation(ended_calls - failed, {"outcome": "ok"})
            yield Observation(failed, {"outcome": "error"})

    def active(_: CallbackOptions) -> Iterator[Observation]:
        return (Observation(relay.relayed[2]) for relay in relays)

    def peers(_: CallbackOptions) -> Iterator[Observation]:
        return (Observation(len(relay.peers)) for relay in relays)

    meter = get_meter("opwire", version("opwire"), meter_provider)
    meter.create_observable_counter("opwire.relay.calls", [calls], "{call}", "Calls between peers of the hub.")
    meter.create_observable_up_down_counter("opwire.relay.active_calls", [active], "{call}", "Those under way.")
    meter.create_observable_up_down_counter("opwire.relay.peers", [peers], "{peer}", "Peers that are connected.")
    return relays.clear


@contextmanager
def serve_metrics(*targets: Instrumentable, host: str = "127.0.0.1", port: int = 9464) -> Generator[str]:
    """Instrument the targets, and serve their metrics for Prometheus; yield the URL. Needs `opwire[prometheus]`.

        with serve_metrics(registry):
            ...

    The server runs on a thread of its own, has no authentication, and shows no data of calls: operations, outcomes,
    durations and numbers. Port 0 selects a free one.

    Raises:
        MissingExtraError: `opwire[prometheus]` is not installed.
        CallError: UNAVAILABLE, the address cannot be listened on.
    """
    with needs_extra("prometheus"):
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider as ExportedMeters
        from prometheus_client import start_http_server
    try:
        server, thread = start_http_server(port, host)
    except OSError as error:
        message = f"cannot listen on {host}:{port} for metrics: {system_message(error)}"
        raise CallError(ErrorCode.UNAVAILABLE, message) from error
    server.RequestHandlerClass = _scrape_handler(server.RequestHandlerClass, host)
    _bound_scrapes(server)
    meters = ExportedMeters([PrometheusMetricReader()])
    end = instrument(*targets, meter_provider=meters)
    try:
        shown_host = f"[{host}]" if ":" in host else host
        yield f"http://{shown_host}:{server.server_port}/metrics"
    finally:
        end()
        meters.shutdown()
        server.shutdown()
        server.server_close()
        thread.join()


def _scrape_handler(base: Any, host: str) -> Any:
    """Return the class that answers scrapes: on a loopback address to loopback names alone, as surfaces do."""
    names = HostNames(LOOPBACK if host in (*LOOPBACK, "::1") else ("*",))

    def parse_request(self: Any) -> bool:
        if not base.parse_request(self):
            return False
        is_accepted = names.include((self.headers.get("host") or "").lower())
        if not is_accepted:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        return is_accepted

    return type("_Scrape", (base,), {"timeout": _SCRAPE_TIMEOUT, "parse_request": parse_request})


def _bound_scrapes(server: Any) -> None:
    """Limit the connections, of which each holds a thread. One that breaks is logged at level DEBUG."""
    scrapes: dict[Any, None] = {}  # sockets; those of ended connections are removed by their threads
    begin, end = server.process_request, server.shutdown_request

    def process_request(connection: Any, client: Any) -> None:
        for oldest in list(scrapes)[: max(0, len(scrapes) - _MAX_SCRAPE_CONNECTIONS + 1)]:
            scrapes.pop(oldest, None)
            with suppress(OSError):  # it has ended
                oldest.shutdown(SHUT_RDWR)
        scrapes[connection] = None
        begin(connection, client)

    def shutdown_request(connection: Any) -> None:
        scrapes.pop(connection, None)
        end(connection)

    def handle_error(_: Any, client: Any) -> None:  # by default a traceback on stderr
        logger.debug("a connection for metrics from %s failed", client, exc_info=True)

    server.process_request, server.shutdown_request = process_request, shutdown_request
    server.handle_error = handle_error


def _parts(target: Instrumentable) -> Iterator[OperationRegistry | Connected | Calling]:
    match target:
        case OperationRegistry() | Connected():
            yield target
        case _ if isinstance(handler := getattr(target, "handler", None), Serving):  # a Spoke is a Client as well
            yield handler.registry
            yield cast("BothSides", target).calls
        case Serving():
            yield target.registry
        case _ if iscoroutinefunction(getattr(target, "call_envelope", None)):  # that of a SyncClient is not one
            yield cast("Calling", target)
        case _:
            what = "a registry, a PendingRequestMap, a CallHandler, a Client, a Hub or a Spoke"
            raise UsageError(f"{what} can be instrumented, not {type(target).__name__}")


def _keeping_trust(registry: OperationRegistry, interceptor: Interceptor) -> Interceptor:
    """Wrap an interceptor so that calls without a context stay trusted: their nested calls have no context either."""
    default, trusted = Context(bind_env=registry.bind_env), Context(bind_env=lambda _: build_env(registry))

    def around(spec: OperationSpec, handler: Handler) -> Handler:
        wrapped = interceptor(spec, handler)
        return lambda input, context: wrapped(input, trusted if context == default else context)

    return around


def _record_rejected(
    registry: OperationRegistry, recorder: Recorder, operation_id: str, context: Context, error: CallError
) -> None:
    """Record a call without an operation to run: no interceptor sees it."""
    spec = registry.get_spec(operation_id)
    is_known, type = spec is not None, None if spec is None else spec.type
    recorded = RecordedCall(recorder, operation_id, context, type=type, known=is_known)
    recorded.failed(error)
    recorded.end()


__all__ = ["Instrumentable", "instrument", "serve_metrics"]
