"""Calls in process: bare function, + validation, `execute`, through `build_env`, and the peers on the same work."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, TypedDict

import jsonschema_rs

from benchmarks.measure import Contender, Row, Table, ladder
from benchmarks.peers import PEERS, measure_peer
from benchmarks.work import BARE, EXECUTE, INPUT, SUM, add, data_of, registry
from opwire import Context, OperationRegistry, Reshape, build_env


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


_LINES = [{"sku": f"sku-{i}", "count": i} for i in range(10)]
_ORDER = {"tenant": "north", "total": 45, "currency": "EUR", "note": ""}


class _Line(TypedDict):
    sku: str
    count: int


class _Order(TypedDict):
    tenant: str
    total: int
    currency: str
    note: str


@registry.query("shop.order")
async def _order(lines: list[_Line], tenant: str) -> _Order:
    return {**_ORDER, "tenant": tenant, "total": sum(line["count"] for line in lines)}  # pyright: ignore[reportReturnType]


def _two(_: Context) -> int:
    return INPUT["b"]


async def _with_function(n: int) -> Any:
    context, result = Context(), None
    for _ in range(n):
        _two(context)
        result = await registry.execute("math.add", INPUT)
    return result


def _calls(name: str, called: OperationRegistry, id: str, input: Any, expected: Any, limit: float | None) -> Contender:
    async def run(n: int) -> Any:
        result = None
        for _ in range(n):
            result = await called.execute(id, input)
        return result

    return Contender(name, run, expected, data_of, limit=limit)


def _views() -> Iterator[Table]:
    """Views of a function of 0.1 µs, of one with a computed parameter, and of one with objects in and out."""

    def add(name: str, changes: Reshape, input: Any, limit: float = 1.1) -> Contender:
        view = registry.view(reshape={"math.add": changes})
        return _calls(f"in a view that {name}", view, "math.add", input, SUM, limit)

    def order(name: str, changes: Reshape, input: Any, expected: Any = _ORDER, limit: float | None = 1.1) -> Contender:
        view = registry.view(reshape={"shop.order": changes})
        return _calls(f"in a view that {name}", view, "shop.order", input, expected, limit)

    one = {"a": INPUT["a"]}
    views = (
        EXECUTE,
        _calls("in a view", registry.view(), "math.add", INPUT, SUM, 1.1),
        _calls("in a view that renames it", registry.view(rename={"math": "m"}), "m.add", INPUT, SUM, 1.1),
        add("fixes a parameter", Reshape(fix={"b": INPUT["b"]}), one),
        add("renames a parameter", Reshape(rename={"a": "x"}), {"x": INPUT["a"], "b": INPUT["b"]}, 1.15),
    )
    yield Table("a call of add(a, b) through a view", "µs", "execute", asyncio.run(ladder(views)))
    computed = add("computes a parameter by it", Reshape(from_context={"b": _two}), one)
    base = Contender("execute, and a call of a function", _with_function, SUM, data_of)
    yield Table("a call with a computed parameter", "µs", "both calls", asyncio.run(ladder((base, computed))))
    whole = {"lines": _LINES, "tenant": "north"}
    total = {"total": _ORDER["total"]}
    orders = (
        _calls("execute", registry, "shop.order", whole, _ORDER, None),
        order("fixes a parameter", Reshape(fix={"tenant": "north"}), {"lines": _LINES}),
        order("renames a parameter", Reshape(rename={"lines": "items"}), {"items": _LINES, "tenant": "north"}),
        order("keeps a field of the result", Reshape(keep=["total"]), whole, total, None),
    )
    yield Table("a call with ten objects through a view", "µs", "execute", asyncio.run(ladder(orders)))


def tables() -> Iterator[Table]:
    """The ladder of opwire with the peers, and views."""
    contenders = (BARE, _validated(), EXECUTE, Contender("through build_env", _env, SUM, data_of))
    rows = asyncio.run(ladder(contenders))
    for peer in PEERS:
        rows += _beside(peer)
    yield Table("a call of add(a, b) with input and output schema", "µs", "bare", rows)
    yield from _views()


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
