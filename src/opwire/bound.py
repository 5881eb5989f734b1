"""An operation bound to its handler: input to arguments, handler to result, result to envelope."""

import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ConversionError, ErrorCode, NotPlainError, SchemaError
from opwire.invoke import Open, Run
from opwire.operation import Handler, OperationSpec
from opwire.pipeline import ResultPipeline
from opwire.schema import Problem
from opwire.typed.plain import MAX_DEPTH, SCALARS, survey, to_plain

logger = logging.getLogger("opwire.registry")

_SHOWN = 3  # problems in the message; all of them are in the details
_UNUSABLE = (
    "{}: its input schema cannot be used, so that no input can be validated: {}; correct the schema, or allow the call "
    "with unchecked_input=True"
)


class BoundOperation:
    """What the registry keeps of an operation."""

    __slots__ = (
        "accepts",
        "convert",
        "exact",
        "flat",
        "handler",
        "open",
        "pipeline",
        "prepare",
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
        self.prepare: Callable[[Any], Any] | None = None  # objects that are not plain -> plain input
        self.convert: Callable[[Any], Any] | None = None  # valid input -> arguments, where a function has types
        self.exact: frozenset[type] = SCALARS  # valid flat input of these types is passed on as it is
        self.flat: type[Struct] | None = None  # input that converts to this is valid, and passed on as it is
        self.accepts: Callable[[Any], bool] = self._compile_and_test

    def arguments(self, input: Any) -> Any:
        """The input, validated and converted to what the handler awaits.

        Raises:
            CallError: VALIDATION_ERROR, with the problems in its details; EXECUTION_ERROR, if the input schema itself
                cannot be used.
        """
        # Nearly all input is a flat object that fits: it leaves by one of these two doors, in 0.2 or 0.4 µs. The
        # survey and the conversion behind `_arguments` take 2 µs and more.
        try:
            if self.flat is not None:
                msgspec.convert(input, self.flat)
                return input
            if self._is_exact(input) and self.accepts(input):
                return input
        except ValueError:  # it does not fit, or is not JSON at all
            pass
        return self._arguments(input)

    def _takes_object(self) -> bool:
        schema = self.spec.input_schema.json
        return isinstance(schema, dict) and schema.get("type") == "object"

    def _is_exact(self, input: Any) -> bool:
        return type(input) is dict and self.exact.issuperset(map(type, cast("dict[str, Any]", input).values()))

    def _arguments(self, input: Any) -> Any:
        if input is None and self._takes_object():
            input = {}
        found = survey(input)
        if found.deep:
            raise self._invalid([Problem("", f"the value is nested deeper than {MAX_DEPTH}")])
        if not found.plain:
            input = self._plain(input)
        if not self._is_accepted(input):
            raise self._invalid(self.spec.input_schema.problems(input))
        try:
            return input if self.convert is None else self.convert(input)
        except ConversionError as error:
            raise self._invalid([Problem("", str(error))]) from error

    def _plain(self, input: Any) -> Any:
        try:
            return to_plain(input if self.prepare is None else self.prepare(input))
        except NotPlainError as error:
            raise self._invalid([Problem("", str(error))]) from error

    def _is_accepted(self, input: Any) -> bool:
        try:
            return self.accepts(input)
        except ValueError:
            return False

    def _compile_and_test(self, input: Any) -> bool:
        """Compile the schema at the first call, and leave the test to it from then on."""
        try:
            self.accepts = self.spec.input_schema.compile().checker()
        except SchemaError as error:
            if not self.spec.unchecked_input:
                raise CallError(ErrorCode.EXECUTION_ERROR, _UNUSABLE.format(self.spec.id, error)) from error
            logger.warning("%s: its input schema is not used: %s", self.spec.id, error)
            self.accepts = _always
        return self.accepts(input)

    def _invalid(self, problems: list[Problem]) -> CallError:
        shown = "; ".join(f"{path or 'the input'}: {message}" for path, message in problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        details = {"problems": [problem._asdict() for problem in problems]}
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self.spec.id}: {shown}{more}", details)


def _always(_: Any) -> bool:
    return True
