"""Operations as the registry stores them: a spec, its handler, and what validates input and normalises results."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ConversionError, ErrorCode, NotPlainError, SchemaError, resume_error
from opwire.model.context import Context
from opwire.model.envelope import is_cursor
from opwire.model.operation import Completer, Handler, OperationSpec, PreparedRequest, input_error
from opwire.registry.interceptors import InterceptedCall
from opwire.registry.invoke import Run
from opwire.registry.pipeline import FINISHED, ResultPipeline, always
from opwire.registry.reshape import Reshaping
from opwire.registry.signature import Dependency, injecting, injecting_stream
from opwire.registry.streams import Open
from opwire.runtime.text import get_logger
from opwire.schema import Problem
from opwire.schema.meter import ComplexityError
from opwire.typed.plain import MAX_DEPTH, SCALARS, as_dict, survey, to_plain

logger = get_logger("opwire.registry")

_UNUSABLE_SCHEMA = (
    "{}: the input cannot be validated, because the input schema is invalid: {}; correct the schema, or allow the call "
    "with unchecked_input=True"
)


class BoundOperation:
    """An operation with its handler, as the registry stores it."""

    __slots__ = (
        "__weakref__",
        "accepts",
        "complete",
        "convert",
        "exact",
        "flat",
        "handler",
        "intercepted",
        "open",
        "pipeline",
        "prepare",
        "preview",
        "run",
        "spec",
        "timeout",
    )

    def __init__(self, spec: OperationSpec, handler: Handler | None, pipeline: ResultPipeline) -> None:
        self.spec = spec
        self.handler = handler
        self.pipeline = pipeline
        self.timeout = spec.timeout
        self.run: Run | None = None  # of a query or mutation that has a handler
        self.open: Open | None = None  # of a subscription that has a handler
        self.intercepted: InterceptedCall | None = None  # where the registry has interceptors
        self.prepare: Callable[[Any], Any] | None = None  # objects of a local caller -> plain input
        self.preview: Callable[[Any, Context, bool], Awaitable[PreparedRequest]] | None = None  # of an adapter
        self.complete: Completer | None = None
        self.convert: Callable[[Any], Any] | None = None  # valid input -> typed arguments
        self.exact: frozenset[type] = SCALARS  # valid flat input of these types needs no conversion
        self.flat: type[Struct] | None = None  # input that msgspec converts to this is valid and needs no conversion
        self.accepts: Callable[[Any], bool] = self._compile_and_test

    def inject(self, dependencies: Sequence[Dependency]) -> None:
        """Fill parameters of the handler for each call."""
        if self.run is not None:
            self.run = injecting(self.run, dependencies)
        if self.open is not None:
            self.open = injecting_stream(self.open, dependencies)

    def under(self, spec: OperationSpec, pipeline: ResultPipeline) -> "BoundOperation":
        """Return the same operation, with the same input and results, under another spec."""
        bound = BoundOperation(spec, self.handler, pipeline)
        for name in ("complete", "convert", "exact", "flat", "open", "prepare", "preview", "run"):
            setattr(bound, name, getattr(self, name))
        return bound

    def check_cursor(self, cursor: str) -> None:
        """Check that the subscription can be resumed from a cursor, as far as that can be known.

        Raises:
            CallError: VALIDATION_ERROR, with RESUME in its details.
        """
        if not self.spec.resumable:
            raise resume_error(f"{self.spec.id} cannot be resumed: subscribe without a cursor to start over")
        if not is_cursor(cursor):
            raise resume_error(f"{self.spec.id}: resume_from is not a cursor of this operation")

    def arguments(self, input: Any, context: Context) -> Any:
        """Validate the input and convert it to the handler's arguments, for the call of a context.

        Raises:
            CallError: VALIDATION_ERROR, with the problems in its details; EXECUTION_ERROR, if the input schema is
                invalid.
        """
        # Nearly all input is a valid flat object and returns on one of these two fast paths, in 0.2 or 0.4 µs. The
        # survey and the conversion of `_arguments` take 2 µs and more.
        try:
            if self.flat is not None:
                msgspec.convert(input, self.flat)
                return input
            if type(input) is dict:
                values = cast("dict[str, Any]", input)
                if self.exact.issuperset(map(type, values.values())) and self.accepts(values):
                    return values
        except ValueError:  # invalid, or not JSON
            pass
        return self._arguments(input)

    def _arguments(self, input: Any) -> Any:
        if input is None and as_dict(self.spec.input_schema.json).get("type") == "object":
            input = {}
        shape = survey(input)
        if shape.deep:
            raise input_error(self.spec.id, [Problem("", f"the value is nested deeper than {MAX_DEPTH}")])
        if not shape.plain:
            try:
                input = to_plain(input if self.prepare is None else self.prepare(input))
            except NotPlainError as error:
                raise input_error(self.spec.id, [Problem("", str(error))]) from error
        problems: list[Problem] | None = None
        try:
            is_accepted = self.accepts(input)
        except ComplexityError as error:  # not measured again: it takes 0.2 s for 3 MB
            is_accepted, problems = False, [Problem("", str(error))]
        except ValueError:  # a lone surrogate
            is_accepted = False
        if not is_accepted:
            invalid = input_error(self.spec.id, problems or self.spec.input_schema.problems(input, is_plain=True))
            if not self.spec.lenient_input:
                raise invalid
            logger.warning("the input does not match its schema, and is passed on: %s", invalid.message)
        try:
            return input if self.convert is None else self.convert(input)
        except ConversionError as error:
            raise input_error(self.spec.id, [Problem("", str(error))]) from error

    def _compile_and_test(self, input: Any) -> bool:
        """Compile the schema with the first call, and replace this method by the compiled check."""
        try:
            self.accepts = self.spec.input_schema.compile().checker()
            self.spec.input_schema.on_release(self._forget_compiled)
        except SchemaError as error:
            if not self.spec.unchecked_input:
                raise CallError(ErrorCode.EXECUTION_ERROR, _UNUSABLE_SCHEMA.format(self.spec.id, error)) from error
            logger.warning("%s: the input schema is ignored, because it is invalid: %s", self.spec.id, error)
            self.accepts = always
        return self.accepts(input)

    def _forget_compiled(self) -> None:
        self.accepts = self._compile_and_test


class SourceOperation(BoundOperation):
    """An operation of a source. Its results come from a peer: the event loop stays free while they are normalised."""

    __slots__ = ("_inner",)

    def __init__(self, inner: BoundOperation) -> None:
        super().__init__(inner.spec, inner.handler, FINISHED)
        self._inner = inner
        self.complete, self.prepare, self.preview = inner.complete, inner.prepare, inner.preview
        if inner.run is not None:
            self.run = self._run
        if inner.open is not None:
            self.open = self._open

    def under(self, spec: OperationSpec, pipeline: ResultPipeline) -> BoundOperation:
        """Return the same operation under another spec."""
        return SourceOperation(self._inner.under(spec, pipeline))

    async def _run(self, arguments: Any, context: Context) -> Any:
        run, pipeline = cast("Run", self._inner.run), self._inner.pipeline
        result = await run(arguments, context)
        return await pipeline.envelope_in_thread(result) if pipeline.is_slow(result) else pipeline.envelope(result)

    async def _open(self, arguments: Any, context: Context) -> AsyncGenerator[Any]:
        pipeline = self._inner.pipeline
        async with aclosing(cast("Open", self._inner.open)(arguments, context)) as items:
            async for item in items:
                yield await pipeline.envelope_in_thread(item) if pipeline.is_slow(item) else pipeline.envelope(item)


class ReshapedOperation(BoundOperation):
    """An operation of a view that runs the handler of another one, with its input and results reshaped."""

    __slots__ = ("_reshaping", "_source", "_to_arguments")

    def __init__(
        self, source: BoundOperation, spec: OperationSpec, reshaping: Reshaping, pipeline: ResultPipeline
    ) -> None:
        super().__init__(spec, source.handler, pipeline)
        self._source = source
        self._reshaping = reshaping
        self.accepts, self.prepare, self.preview = always, source.prepare, source.preview  # the source validates
        self.run, self.open = source.run, source.open
        if (complete := source.complete) is not None:
            self.complete = lambda request, context: complete(reshaping.asked(request), context)
        if not reshaping.keeps_results:
            self._reshape_results(source)
        self._to_arguments = self._reshaped if source.flat is None else reshaping.compile(source.flat, self._reshaped)

    def under(self, spec: OperationSpec, pipeline: ResultPipeline) -> BoundOperation:
        """Return the same operation under another spec."""
        return ReshapedOperation(self._source, spec, self._reshaping, pipeline)

    def arguments(self, input: Any, context: Context) -> Any:
        """Validate the input of the view's operation and convert it to the arguments of the source's handler."""
        return self._to_arguments(input, context)

    def _reshaped(self, input: Any, context: Context) -> Any:
        if type(input) is not dict or self._reshaping.narrows:  # values of a dict are converted by the source, once
            input = super().arguments(input, context)
        try:
            return self._source.arguments(self._reshaping.inward(input, context), context)
        except CallError as error:
            self._reshaping.reraise(error)

    def _reshape_results(self, source: BoundOperation) -> None:
        outward, pipeline = self._reshaping.outward, source.pipeline
        self.pipeline = FINISHED

        async def run(arguments: Any, context: Context) -> Any:
            result = await cast("Run", source.run)(arguments, context)
            return outward(pipeline.envelope(result), context)

        async def open(arguments: Any, context: Context) -> AsyncGenerator[Any]:
            async with aclosing(cast("Open", source.open)(arguments, context)) as items:
                async for item in items:
                    yield outward(pipeline.envelope(item), context)

        if source.open is None:
            self.run = run
        else:
            self.open = open
