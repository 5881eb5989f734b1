"""`instrument`: puts a recorder in front of the calls of one object, and takes it away again.

It replaces methods of the object and not of its class, so that whatever is not instrumented stays as fast as it was.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from inspect import iscoroutinefunction
from typing import Any, Protocol, cast, runtime_checkable

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from opwire.call import CallHandler, PendingRequestMap
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError
from opwire.operation import Context, OperationType
from opwire.registry import OperationRegistry, build_env
from opwire.telemetry.recording import RecordedCall, Recorder


@runtime_checkable
class BothSides(Protocol):
    """A `Hub` or a `Spoke`: it serves a registry, and calls what others serve."""

    calls: PendingRequestMap
    handler: CallHandler


@runtime_checkable
class Calling(Protocol):
    """A `Client`."""

    @property
    def call_envelope(self) -> Callable[..., Any]: ...
    @property
    def subscribe_envelopes(self) -> Callable[..., Any]: ...


Instrumentable = OperationRegistry | PendingRequestMap | CallHandler | BothSides | Calling

_Begin = Callable[[str, Context | None], AbstractContextManager[RecordedCall]]
_NOBODY = Context()


def instrument(
    *targets: Instrumentable,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    identity: bool = False,
) -> Callable[[], None]:
    """Record spans and metrics of calls; the function that is returned ends that.

        instrument(registry)  # what `execute` and `subscribe` do, whoever asks for it: a transport, MCP, HTTP
        instrument(client)  # the calls of a Client, a span for each, however often it is tried
        instrument(spoke)  # of a Spoke or a Hub, what it serves and what it calls

    Without providers, those of the process are used. `identity` shows the caller's id in spans. What is instrumented
    already stays as it is. Inputs, outputs and the messages of errors are never recorded.

    Raises:
        TypeError: one of them makes and serves no calls.
    """
    options: Any = {"tracer_provider": tracer_provider, "meter_provider": meter_provider, "identity": identity}
    server, client = Recorder("server", **options), Recorder("client", **options)
    undo: list[Callable[[], None]] = []
    for part in [part for target in targets for part in _parts(target)]:
        match part:
            case OperationRegistry():
                undo.append(_instrument_registry(part, server))
            case PendingRequestMap():
                undo.append(_instrument_calls(part, client, server))
            case _:
                undo.append(_instrument_client(part, client))

    def end() -> None:
        for each in undo:
            each()

    return end


def _parts(target: Instrumentable) -> Iterator[OperationRegistry | PendingRequestMap | Calling]:
    match target:
        case OperationRegistry() | PendingRequestMap():
            yield target
        case Calling() if iscoroutinefunction(target.call_envelope):  # that of a SyncClient is none
            yield target
        case CallHandler():
            yield target.registry
        case BothSides():
            yield target.handler.registry
            yield target.calls
        case _:
            what = "a registry, a PendingRequestMap, a CallHandler, a Client, a Hub or a Spoke"
            raise TypeError(f"{what} can be instrumented, not {type(target).__name__}")


def _instrument_registry(registry: OperationRegistry, recorder: Recorder) -> Callable[[], None]:
    # Of a call that comes without a context. What its handler calls comes without one, too, and is trusted as much.
    nobody = Context(bind_env=lambda _: build_env(registry))

    def begin(operation_id: str, context: Context | None) -> AbstractContextManager[RecordedCall]:
        spec = registry.get_spec(operation_id)
        type = None if spec is None else spec.type
        return recorder.call(operation_id, context or nobody, type=type, known=spec is not None)

    return _put(
        registry,
        execute=_recorded_call(registry.execute, begin),
        subscribe=_recorded_stream(registry.subscribe, begin),
    )


def _instrument_calls(calls: PendingRequestMap, client: Recorder, server: Recorder) -> Callable[[], None]:
    fail = calls.fail

    def recorded_fail(request_id: str, error: CallError, *, not_started: bool = False) -> bool:
        server.count_error(error)
        return fail(request_id, error, not_started=not_started)

    call, subscribe = _caller(calls.call, calls.subscribe, client)
    return _put(calls, call=call, subscribe=subscribe, fail=recorded_fail)


def _instrument_client(caller: Calling, recorder: Recorder) -> Callable[[], None]:
    call, subscribe = _caller(caller.call_envelope, caller.subscribe_envelopes, recorder)
    return _put(caller, call_envelope=call, subscribe_envelopes=subscribe)


def _caller(
    call: Callable[..., Any], subscribe: Callable[..., Any], recorder: Recorder
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def begin(operation_id: str, context: Context | None) -> AbstractContextManager[RecordedCall]:
        return recorder.call(operation_id, context or _NOBODY)

    def begin_stream(operation_id: str, context: Context | None) -> AbstractContextManager[RecordedCall]:
        return recorder.call(operation_id, context or _NOBODY, type=OperationType.SUBSCRIPTION)

    return _recorded_call(call, begin), _recorded_stream(subscribe, begin_stream)


def _put(target: Any, **methods: Callable[..., Any]) -> Callable[[], None]:
    """Put methods in the place of an object's own; the function that is returned takes them away."""
    own = cast("dict[str, Any]", vars(target))
    if not own.keys().isdisjoint(methods):  # it is instrumented already
        return lambda: None
    own.update(methods)

    def restore() -> None:
        for name in methods:
            own.pop(name, None)

    return restore


def _recorded_call(call: Callable[..., Any], begin: _Begin) -> Callable[..., Any]:
    async def recorded_call(
        operation_id: str, input: Any = None, context: Context | None = None, output_type: Any = None, **options: Any
    ) -> ResponseEnvelope[Any]:
        with begin(operation_id, context) as recorded, recorded.current():
            envelope = await call(operation_id, input, context=recorded.context, output_type=output_type, **options)
            recorded.answered(envelope)
            return envelope

    return recorded_call


def _recorded_stream(subscribe: Callable[..., Any], begin: _Begin) -> Callable[..., Any]:
    async def recorded_stream(
        operation_id: str, input: Any = None, context: Context | None = None, output_type: Any = None, **options: Any
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        if output_type is not None:  # `subscribe_envelopes` does not take it
            options["output_type"] = output_type
        with begin(operation_id, context) as recorded:
            items = subscribe(operation_id, input, context=recorded.context, **options)
            try:
                # The span is current while the producer runs, and not while the consumer does.
                while (item := await _next(items, recorded)) is not None:
                    recorded.answered(item)
                    yield item
            finally:
                with recorded.current():
                    await items.aclose()

    return recorded_stream


async def _next(items: AsyncGenerator[Any], recorded: RecordedCall) -> Any:
    with recorded.current():
        return await anext(items, None)
