"""Calls in process: bare function, + validation, `execute`, through `build_env`, and the peers on the same work."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jsonschema_rs

from benchmarks.measure import Contender, Row, Table, ladder
from benchmarks.peers import PEERS, measure_peer
from benchmarks.work import BARE, EXECUTE, INPUT, SUM, add, data_of, registry
from opwire import OperationRegistry, Reshape, build_env


async def _env(n: int) -> Any:
    env = build_env(registry)
    result = None
    for _ in range(n):
        result = await env.math.add(a=1, b=2)
    return result


def _validated() -> Contender:
    spec = registry.get_spec("math.add")
    if spec is None or isinstance(spec.input_schema.json, bool) or isinstance(spec.output_schema.json, bool):
        raise LookupError("math.add has no schemas")
    is_input = jsonschema_rs.validator_for(spec.input_schema.json).is_valid
    is_output = jsonschema_rs.validator_for(spec.output_schema.json).is_valid

    async def run(n: int) -> Any:
        result = None
        for _ in range(n):
            if not is_input(INPUT):
                raise ValueError("input")
            result = await add(**INPUT)
            if not is_output(result):
                raise ValueError("output")
        return result

    return Contender(f"+ validation, jsonschema-rs {version('jsonschema-rs')}", run, SUM)


def _in_view(name: str, view: OperationRegistry, id: str, input: Any, limit: float | None) -> Contender:
    async def run(n: int) -> Any:
        result = None
        for _ in range(n):
            result = await view.execute(id, input)
        return result

    return Contender(name, run, SUM, data_of, limit=limit)


def tables() -> Iterator[Table]:
    """Two tables: opwire's own ladder with the peers, and views."""
    contenders = (BARE, _validated(), EXECUTE, Contender("through build_env", _env, SUM, data_of))
    rows = asyncio.run(ladder(contenders))
    for peer in PEERS:
        rows += _beside(peer)
    yield Table("a call of add(a, b) with input and output schema", "µs", "bare", rows)
    fixed = {"math.add": Reshape(fix={"b": INPUT["b"]})}
    renamed = {"math.add": Reshape(rename={"a": "x"})}
    computed = {"math.add": Reshape(from_context={"b": lambda _: INPUT["b"]})}
    one, other = {"a": INPUT["a"]}, {"x": INPUT["a"], "b": INPUT["b"]}
    views = (
        EXECUTE,
        _in_view("in a view", registry.view(), "math.add", INPUT, 1.1),
        _in_view("in a view that renames it", registry.view(rename={"math": "m"}), "m.add", INPUT, 1.1),
        _in_view("in a view that fixes a parameter", registry.view(reshape=fixed), "math.add", one, 1.1),
        _in_view("in a view that renames a parameter", registry.view(reshape=renamed), "math.add", other, None),
        _in_view("in a view that computes a parameter", registry.view(reshape=computed), "math.add", one, None),
    )
    yield Table("a call of add(a, b) through a view", "µs", "execute", asyncio.run(ladder(views)))


def _beside(peer: str) -> list[Row]:
    """A peer's rows: it ran in a process of its own, and so did the bare function and `execute` beside it."""
    measured = measure_peer(peer)
    bare, execute = measured.bare * 1e6, measured.execute * 1e6
    return [
        Row(
            f"{peer} {measured.version}: {name}",
            seconds * 1e6,
            seconds * 1e6 / bare,
            "execute ahead",
            execute < seconds * 1e6,
            f"(execute beside it: {execute:.3g} µs, {execute / bare:.2f} × bare)",
        )
        for name, seconds in measured.calls.items()
    ]
