"""Turn a handler's return value into an envelope: detect, wrap, normalize, validate.

`execute`, the call handler and each item of a subscription share this code. It never mutates the handler's object and
never raises because of a schema mismatch, which is logged instead. Results of operations without an output schema, MCP
results with `is_error`, and MCP results that return their content blocks as data are passed through.

Modes: `fit` fills declared defaults and strips undeclared properties, `cast` is TypeBox's `Value.Cast`, `check` only
logs a warning, `off` skips the step.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isasyncgen, iscoroutine, isgenerator
from threading import Lock
from time import time_ns
from typing import Any, cast

from msgspec.structs import replace

from opwire.errors import CallError, CastError, ConversionError, ErrorCode, NotPlainError, SchemaError
from opwire.model.envelope import (
    HTTPResponseMeta,
    Item,
    LocalResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    is_response_envelope,
    local_envelope,
    read_envelope,
    unwrap,
)
from opwire.model.operation import NormalizeMode, OperationSpec, ShapedResult
from opwire.runtime.limits import LimitedLog
from opwire.runtime.text import get_logger, shorten
from opwire.schema import Schema
from opwire.schema.effort import extent
from opwire.schema.fit import Repair
from opwire.schema.meter import ComplexityError
from opwire.typed.plain import MAX_DEPTH, SCALARS, replace_surrogates, survey, to_plain

logger = get_logger("opwire.registry")

_MAX_WARNINGS = 10
_MAX_WARNING = 200
_MAX_LOG_LINES_PER_SECOND = 100  # 200 bytes of gzip are 20,000 items of a stream, each with its warning
_BINARY_TYPES = (bytes, bytearray, memoryview)
_ENVELOPE_TYPES = (Mapping, ResponseEnvelope, Item, ShapedResult)
_MAX_RECORD_CLASSES = 16  # a handler may make one for each call
_LARGE_RESULT_BYTES = 16_384  # the slowest repair takes 2 µs for each byte
_LARGE_UNCHECKED_RESULT_BYTES = 1024 * 1024  # a survey takes 60 ms
_BYTES_PER_LOCATION = 16
_compiling = Lock()  # of threads: results that arrive together compile their schema once


class ResultPipeline:
    """Converts the results of one operation to envelopes."""

    __slots__ = (
        "__weakref__",
        "_for_schema",
        "_lines",
        "_others",
        "_records",
        "conforms",
        "kinds",
        "mode",
        "operation_id",
        "schema",
        "strip",
    )

    def __init__(
        self, spec: OperationSpec, *, normalize: NormalizeMode, strip: bool, schema: Schema | None = None
    ) -> None:
        self.operation_id = spec.id
        self.schema = spec.output_schema if schema is None else schema
        self._lines = LimitedLog(logger, per_second=_MAX_LOG_LINES_PER_SECOND)
        self._for_schema = partial(ResultPipeline, spec, normalize=normalize, strip=strip)
        self._others: dict[int, ResultPipeline] = {}  # by id() of the schema, which each pipeline keeps alive
        # A deferred schema is loaded lazily, with the first result: a large API has thousands and uses few.
        deferred = self.schema.is_deferred
        self.mode: NormalizeMode = spec.normalize or normalize
        if not deferred and self.schema.is_unknown:
            self.mode = "off"
        self.strip = strip if spec.strip is None else spec.strip
        self.kinds: frozenset[type] = SCALARS
        if self.mode != "off":
            self.kinds = frozenset() if deferred else self.schema.fitting_kinds()
        self.conforms: Callable[[Any], bool] = self._compile_and_test
        self._records: frozenset[type] = frozenset()  # classes, such as dataclasses, with instances that become objects

    def envelope(self, result: Any) -> ResponseEnvelope[Any]:
        """Return the envelope of one result.

        Raises:
            CallError: EXECUTION_ERROR, if the result has no JSON form.
        """
        if type(result) in self.kinds:  # saves 0.4 µs: most local functions return a valid scalar
            return ResponseEnvelope(result, LocalResponseMeta(self.operation_id, time_ns() // 1_000_000))
        if type(result) is ShapedResult:
            pipeline = self._for(result)
            return pipeline._normalized(result.value) if result.is_plain else pipeline.envelope(result.value)
        if type(result) in self._records:  # saves 4 µs
            data = self._plain(result)
            data = data if self.mode == "off" else self._normalize(data)
            return ResponseEnvelope(data, LocalResponseMeta(self.operation_id, time_ns() // 1_000_000))
        envelope = self._wrap(result)
        data = envelope.data
        data_survey = survey(data)
        if data_survey.deep or not data_survey.plain:
            if type(data) is Item:  # here, so that other results take no longer
                return self._with_cursor(cast("Item[Any]", data))
            data = self._plain(data)
            self._learn(result, data)
        if data_survey.deep:
            self._warn(f"the data is nested deeper than {MAX_DEPTH}: it is neither normalised nor validated")
        elif self.mode != "off" and not isinstance(data, bytes):
            meta = envelope.meta
            # An error, and content blocks, are not what the output schema describes.
            if not isinstance(meta, MCPResponseMeta) or not (meta.is_error or envelope.data == meta.content):
                data = self._normalize(data)
        return envelope if data is envelope.data else ResponseEnvelope(data, envelope.meta)

    def is_slow(self, result: Any) -> bool:
        """Return whether `envelope` of a result of a peer would block the event loop: use `envelope_in_thread`.

        The schema is not compiled yet, or the result is large: repairs of 600 kB take up to a second, and a schema with
        a thousand definitions half of one.
        """
        pipeline, value, size = self, result, None
        if type(result) is ShapedResult:
            pipeline, value, size = self._for(result), result.value, result.size
        if pipeline.mode == "off":
            return (size or 0) > _LARGE_UNCHECKED_RESULT_BYTES
        if pipeline.conforms == pipeline._compile_and_test:
            return True
        return (_size_of(value) if size is None else size) > _LARGE_RESULT_BYTES

    async def envelope_in_thread(self, result: Any) -> ResponseEnvelope[Any]:
        """Return the envelope of one result, as `envelope`, and keep the event loop free meanwhile."""

        def normalized() -> ResponseEnvelope[Any]:
            pipeline = self._for(result) if type(result) is ShapedResult else self
            if pipeline.mode != "off":
                with _compiling:
                    pipeline._compile()
            return self.envelope(result)

        return await asyncio.to_thread(normalized)

    def _for(self, result: ShapedResult) -> "ResultPipeline":
        schema = result.schema
        pipeline = self if schema is self.schema else self._others.get(id(schema))
        if pipeline is None:  # there are few schemas per operation
            pipeline = self._others[id(schema)] = self._for_schema(schema=schema)
        return pipeline

    def _learn(self, result: object, data: object) -> None:
        """Remember the class of a result, if its instances become objects, and can be nothing else."""
        if type(data) is dict and not isinstance(result, _ENVELOPE_TYPES) and len(self._records) < _MAX_RECORD_CLASSES:
            self._records |= {type(result)}

    def _with_cursor(self, item: Item[Any]) -> ResponseEnvelope[Any]:
        envelope = self.envelope(item.data)
        match envelope.meta:
            case LocalResponseMeta() as meta:
                return ResponseEnvelope(envelope.data, replace(meta, cursor=item.cursor))
            case HTTPResponseMeta() as meta:
                return ResponseEnvelope(envelope.data, replace(meta, last_event_id=item.cursor))
            case _:
                message = f"{self.operation_id}: the result of an MCP tool has no cursor; yield its data"
                raise CallError(ErrorCode.EXECUTION_ERROR, message)

    def _normalized(self, envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """Return the envelope of data known to be plain: the survey would add 20 µs to an HTTP call of 200."""
        data = envelope.data if self.mode == "off" else self._normalize(envelope.data)
        return envelope if data is envelope.data else ResponseEnvelope(data, envelope.meta)

    def _compile_and_test(self, data: Any) -> bool:
        """Compile the schema with the first result, and replace this method by the compiled check."""
        self._compile()
        return self.conforms(data)

    def _compile(self) -> None:
        if self.conforms != self._compile_and_test:
            return
        try:
            if self.mode == "fit":
                self.conforms = self.schema.conformity(strip=self.strip)
            elif self.mode == "cast":  # TypeBox's check differs from JSON Schema in details
                self.schema.compile()
                self.conforms = lambda _: False
            else:
                self.conforms = self.schema.compile().checker()
            self.schema.on_release(self._forget_compiled)
        except SchemaError as error:
            self._warn(f"the output schema is ignored, because it is invalid: {error}")
            self.mode = "off"
            self.conforms = always

    def _forget_compiled(self) -> None:
        self.conforms = self._compile_and_test

    def _wrap(self, result: Any) -> ResponseEnvelope[Any]:
        if isinstance(result, ResponseEnvelope):
            return cast("ResponseEnvelope[Any]", result)
        if is_response_envelope(result):
            try:
                return read_envelope(cast("Mapping[str, Any]", result))
            except ConversionError as error:
                self._warn(f"a result that only looks like an envelope is taken as data: {error}")
        return local_envelope(result, self.operation_id)

    def _plain(self, data: Any) -> Any:
        if isinstance(data, _BINARY_TYPES):
            return bytes(cast("bytes", data))
        try:
            return to_plain(data)
        except NotPlainError as error:
            if iscoroutine(data):
                data.close()
            message = f"{self.operation_id}: {error}"
            if isgenerator(data) or isasyncgen(data):
                message += "; a handler that yields is registered as a subscription"
            raise CallError(ErrorCode.EXECUTION_ERROR, message) from error

    def _normalize(self, data: Any) -> Any:
        try:
            if self.conforms(data):
                return data
        except ComplexityError as error:
            self._warn(f"{error}: it is neither normalised nor validated")
            return data
        except ValueError:
            self._warn("lone surrogates are replaced")
            data = replace_surrogates(data)
        match self.mode:
            case "fit":
                return self._fit(data)
            case "cast":
                return self._cast(data)
            case _:
                self._warn_problems(data)
                return data

    def _fit(self, data: Any) -> Any:
        def log(level: int, repairs: Sequence[Repair]) -> None:
            repair_texts = [f"{repair.kind} {repair.path or 'the data'}" for repair in repairs[:_MAX_WARNINGS]]
            self._log(level, repair_texts, len(repairs))

        fitted = self.schema.fit(data, strip=self.strip, is_plain=True)
        repairs, filled = fitted.repairs, [repair for repair in fitted.repairs if repair.kind == "filled"]
        if filled and self.schema.is_valid(data):  # optional properties: the peer did nothing wrong
            repairs = [repair for repair in repairs if repair.kind != "filled"]
            log(logging.DEBUG, filled)
        log(logging.WARNING, repairs)
        self._warn_problems(fitted.value)
        return fitted.value

    def _cast(self, data: Any) -> Any:
        try:
            cast = self.schema.cast(data)
        except CastError as error:
            self._warn(f"the data is kept as it is, because it cannot be cast: {error}")
            self._warn_problems(data)
            return data
        problems = self.schema.problems(data, is_plain=True)  # the cast has replaced parts of it, silently
        self._log(
            logging.WARNING,
            [f"cast {path or 'the data'}: {text}" for path, text in problems[:_MAX_WARNINGS]],
            len(problems),
        )
        self._warn_problems(cast)
        return cast

    def _warn_problems(self, data: Any) -> None:
        problems = self.schema.problems(data, is_plain=True)
        problem_texts = [f"{path or 'the data'}: {message}" for path, message in problems[:_MAX_WARNINGS]]
        self._log(logging.WARNING, problem_texts, len(problems))

    def _warn(self, warning: str) -> None:
        self._log(logging.WARNING, [warning], 1)

    def _log(self, level: int, messages: list[str], count: int) -> None:
        """Log the first of several messages, if there are any."""
        if messages:
            more = f"; and {count - len(messages)} more" if count > len(messages) else ""
            text = "; ".join(shorten(message, _MAX_WARNING) for message in messages)
            self._lines.write(level, "%s: %s%s", self.operation_id, text, more)


class _FinishedResults(ResultPipeline):
    """Passes on envelopes that another pipeline has returned: the survey of their data would add 1 µs."""

    __slots__ = ()

    def envelope(self, result: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
        """Return the envelope."""
        return result


FINISHED = _FinishedResults(OperationSpec(namespace="opwire", name="finished"), normalize="off", strip=False)
"""Of every operation with a handler that returns finished envelopes."""


def _size_of(result: Any) -> int:
    data = cast("ResponseEnvelope[Any]", result).data if type(result) is ResponseEnvelope else result
    return extent(data, _LARGE_RESULT_BYTES // _BYTES_PER_LOCATION)[0] * _BYTES_PER_LOCATION


def typed_envelope(envelope: ResponseEnvelope[Any], output_type: Any, operation_id: str) -> ResponseEnvelope[Any]:
    """Return the envelope with its data converted to a type.

    Raises:
        CallError: EXECUTION_ERROR, if the data does not fit the type.
    """
    try:
        return ResponseEnvelope(unwrap(envelope, output_type), envelope.meta)
    except ConversionError as error:
        name = getattr(output_type, "__name__", str(output_type))
        message = f"{operation_id}: the data does not fit {name}: {error}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message) from error


def always(_: Any) -> bool:
    """Accept every value."""
    return True
