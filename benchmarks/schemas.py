"""`check`, `fit` and `cast` against jsonschema-rs' `is_valid`, pydantic and a naive walk over the value."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from typing import Any

import jsonschema_rs
from pydantic import TypeAdapter

from benchmarks.measure import Contender, Row, Table, ladder
from benchmarks.samples import ISSUE, SMALL, THOUSAND, TREE, Sample, three_bad
from benchmarks.work import data_of
from opwire import OperationSpec, Schema
from opwire.model.operation import NormalizeMode
from opwire.registry.pipeline import ResultPipeline

_CHECK_LIMIT, _FIT_LIMIT = 1.3, 2.0  # times `is_valid`, for 1,000 conforming objects


def _repeated(function: Callable[[Any], Any], value: Any) -> Callable[[int], Awaitable[Any]]:
    async def run(n: int) -> Any:
        result = None
        for _ in range(n):
            result = function(value)
        return result

    return run


def _control(sample: Sample) -> Contender:
    is_valid = jsonschema_rs.validator_for(sample.schema).is_valid
    return Contender(f"jsonschema-rs {version('jsonschema-rs')} is_valid", _repeated(is_valid, sample.value), True)


def _pipeline(sample: Sample, mode: NormalizeMode) -> Callable[[Any], Any]:
    spec = OperationSpec(namespace="bench", name="sample", output_schema=Schema(sample.schema))
    return ResultPipeline(spec, normalize=mode, strip=True).envelope


async def _conforming(sample: Sample, *, limits: bool = False) -> list[Row]:
    value, schema = sample.value, Schema(sample.schema)
    check, fit = (_CHECK_LIMIT, _FIT_LIMIT) if limits else (None, None)
    adapter = TypeAdapter[Any](sample.model)
    contenders = [
        _control(sample),
        Contender("check: Schema.checker()", _repeated(schema.checker(), value), True, limit=check),
        Contender("check: Schema.is_valid", _repeated(schema.is_valid, value), True, limit=check),
        Contender("fit: Schema.conformity()", _repeated(schema.conformity(strip=True), value), True, limit=fit),
        Contender("fit: Schema.fit", _repeated(schema.fit, value), (value, ()), limit=fit),
        Contender("cast: Schema.cast", _repeated(schema.cast, value), value),
        *(
            Contender(f"pipeline, {mode}: result to envelope", run, value, data_of, limit=limit)
            for mode, run, limit in (
                ("check", _repeated(_pipeline(sample, "check"), value), check),
                ("fit", _repeated(_pipeline(sample, "fit"), value), fit),
            )
        ),
        Contender(
            f"pydantic {version('pydantic')} validate_python",
            _repeated(adapter.validate_python, value),
            value,
            adapter.dump_python,
        ),
        Contender("a naive walk in Python", _repeated(_walk(sample.schema), value), True),
    ]
    return await ladder(contenders, rounds=9)


async def _with_bad_items() -> list[Row]:
    """The control is still `is_valid` of the conforming value: on a bad one it stops at the first problem."""
    schema = Schema(THOUSAND.schema)
    given, fitted = three_bad()
    cast = schema.cast(given)
    problems = schema.problems(given)
    contenders = [
        _control(THOUSAND)._replace(name="jsonschema-rs is_valid of the conforming ones"),
        Contender("jsonschema-rs iter_errors: every problem", _repeated(_every_error(), given), 1),
        Contender("check: Schema.problems", _repeated(schema.problems, given), problems),
        Contender("fit: Schema.fit", _repeated(schema.fit, given), fitted, lambda result: result.value),
        Contender("cast: Schema.cast", _repeated(schema.cast, given), cast),
        Contender("pipeline, check", _repeated(_pipeline(THOUSAND, "check"), given), given, data_of),
        Contender("pipeline, fit", _repeated(_pipeline(THOUSAND, "fit"), given), fitted, data_of),
        Contender("pipeline, cast", _repeated(_pipeline(THOUSAND, "cast"), given), cast, data_of),
    ]
    return await ladder(contenders, rounds=9)


def _every_error() -> Callable[[Any], int]:
    iter_errors = jsonschema_rs.validator_for(THOUSAND.schema).iter_errors
    return lambda value: len(list(iter_errors(value)))


def tables() -> Iterator[Table]:
    """One table a sample."""
    logging.getLogger("opwire.registry").setLevel(logging.ERROR)  # the warnings are made, but not written
    for sample in (SMALL, ISSUE, TREE):
        yield Table(f"{sample.name}, conforming", "µs", "is_valid", asyncio.run(_conforming(sample)))
    rows = asyncio.run(_conforming(THOUSAND, limits=True))
    yield Table("1,000 objects, conforming", "µs", "is_valid", rows)
    yield Table("1,000 objects, 3 of them bad", "µs", "is_valid", asyncio.run(_with_bad_items()))


# --- the naive walk ---------------------------------------------------------------------------------------------------

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def _walk(root: dict[str, Any]) -> Callable[[Any], bool]:
    """What one would write by hand, for the keywords that the samples use."""

    def fits(schema: dict[str, Any], value: Any) -> bool:
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        if "anyOf" in schema:
            return any(fits(each, value) for each in schema["anyOf"])
        if "enum" in schema:
            return value in schema["enum"]
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(isinstance(value, _TYPES[kind]) for kind in kinds) or (value is True and "boolean" not in kinds):
            return False
        if isinstance(value, dict):
            properties, extras = schema.get("properties", {}), schema.get("additionalProperties", {})
            return all(name in value for name in schema.get("required", ())) and all(
                fits(properties.get(name, extras), item) for name, item in value.items()
            )
        if isinstance(value, list):
            return all(fits(schema["items"], item) for item in value)
        return not isinstance(value, int | float) or value >= schema.get("minimum", value)

    return lambda value: fits(root, value)
