"""A registry that is served over HTTP and read back with `from_openapi` gives the same operations and the same data."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opwire import Annotations, CallError, ErrorCode, OperationRegistry, OperationSpec, OperationType, Schema
from opwire.asgi.listener import listening
from opwire.mcp.client import from_mcp
from opwire.mcp.server import serve_mcp
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from tests.openapi.server.served import ME

on_one_loop = pytest.mark.asyncio(loop_scope="module")
bounded = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass
class Tree:
    """A tree."""

    value: int
    children: "list[Tree] | None" = None


@dataclass
class Cat:
    lives: int = 9


@dataclass
class Dog:
    name: str


def make_registry() -> OperationRegistry:
    registry = OperationRegistry()
    add_functions(registry)
    add_streams(registry)
    add_plain_ones(registry)
    return registry


def add_functions(registry: OperationRegistry) -> None:

    @registry.query(
        "types.tree", title="Tree", tags=["a", "b"], version="1.2", timeout=7, examples=[{"tree": {"value": 1}}]
    )
    async def tree(tree: Tree) -> Tree:
        """Gives it back."""
        return tree

    @registry.mutation(
        "types.pet",
        annotations=Annotations(destructive=False, extra={"x": 1}),
        icons=["https://x/i.png"],
        meta={"a/b": 1},
    )
    async def pet(pet: Cat | Dog, times: list[int] | None = None) -> dict[str, Cat | Dog]:
        return {str(number): pet for number in times or ()}

    @registry.query("types.bytes")
    async def some_bytes(size: int = 3) -> bytes:
        return bytes(range(size))

    @registry.query("types.none")
    async def none() -> None: ...


def add_streams(registry: OperationRegistry) -> None:
    @registry.subscription("types.ticks", idle_timeout=9)
    async def ticks(count: int = 3) -> AsyncIterator[Tree]:
        for number in range(count):
            yield Tree(number, [])

    @registry.subscription("types.words")
    async def words() -> AsyncIterator[str]:
        for word in ("one", '"two"', "[DONE]", "4"):
            yield word

    @registry.subscription("types.broken")
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise CallError("RATE_LIMITED", "once a minute")


def add_plain_ones(registry: OperationRegistry) -> None:
    integers = Schema({"type": "array", "items": {"type": "integer"}})
    numbers = OperationSpec(
        namespace="plain", name="sum", input_schema=integers, output_schema=Schema({"type": "integer"})
    )
    registry.register(numbers, lambda input, context: sum(input), inline=True)
    for name, type in (("echo", OperationType.MUTATION), ("echo/é ~", OperationType.QUERY)):
        registry.register(OperationSpec(namespace="any", name=name, type=type), lambda input, _: input, inline=True)
    registry.register(OperationSpec(namespace="any", name="items", type=OperationType.SUBSCRIPTION), _items)


async def _items(input: Any, context: Any) -> AsyncGenerator[Any]:
    for item in input:
        yield item


@asynccontextmanager
async def read_back(registry: OperationRegistry) -> AsyncGenerator[OperationRegistry]:
    """The registry as another program sees it over HTTP."""
    async with (
        serve_http(registry, anonymous=ME).listening(drain_timeout=1) as address,
        from_openapi(f"{address}/openapi.json", trust_annotations=True) as api,
    ):
        assert not api.report.skipped
        back = OperationRegistry()
        back.register_all(api)
        yield back


@asynccontextmanager
async def read_back_over_mcp(registry: OperationRegistry) -> AsyncGenerator[OperationRegistry]:
    app = serve_mcp(registry, name="served").asgi(anonymous=ME)
    async with (
        listening(app, on_drain=app.drain, drain_timeout=1) as address,
        from_mcp(f"{address}/mcp", trust_annotations=True) as tools,
    ):
        back = OperationRegistry()
        back.register_all(tools)
        yield back


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both() -> AsyncGenerator[tuple[OperationRegistry, OperationRegistry]]:
    """A registry, and itself read back through two servers."""
    registry = make_registry()
    async with read_back(registry) as once, read_back(once) as twice:
        yield registry, twice


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chained() -> AsyncGenerator[tuple[OperationRegistry, OperationRegistry]]:
    """A registry, and itself read back over HTTP, then over MCP, then over HTTP again."""
    registry = make_registry()
    async with read_back(registry) as first, read_back_over_mcp(first) as second, read_back(second) as third:
        yield registry, third


Both = tuple[OperationRegistry, OperationRegistry]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@on_one_loop
async def test_the_operations_are_the_same(both: Both) -> None:
    """Served over HTTP and read back, a registry gives the same operations and data."""
    registry, back = both
    assert {spec.id for spec in back.list()} == {spec.id for spec in registry.list()}
    for spec in registry.list():
        found = back.get_spec(spec.id)
        assert found is not None
        for field in ("type", "title", "description", "tags", "version", "timeout", "idle_timeout", "examples"):
            assert getattr(found, field) == getattr(spec, field), (spec.id, field)


@on_one_loop
async def test_schemas_mean_the_same(both: Both) -> None:
    registry, back = both
    samples: list[Any] = [
        {},
        {"tree": {"value": 1, "children": [{"value": 2}]}},
        {"tree": {"value": 1, "children": [{"value": "x"}]}},
        {"pet": {"name": "rex"}, "times": [1]},
        {"pet": 1},
        {"size": 1},
        {"size": "x"},
        [1, 2],
        ["x"],
        1,
        "x",
        None,
    ]
    for spec in registry.list():
        found = back.get_spec(spec.id)
        assert found is not None
        for sample in samples:
            assert found.input_schema.is_valid(sample) == spec.input_schema.is_valid(sample), (spec.id, sample)
            assert found.output_schema.is_valid(sample) == spec.output_schema.is_valid(sample), (spec.id, sample)


@on_one_loop
@pytest.mark.parametrize(
    ("id", "input"),
    [
        ("types.tree", {"tree": {"value": 1, "children": [{"value": 2, "children": None}]}}),
        ("types.pet", {"pet": {"name": "rex"}, "times": [1, 2]}),
        ("types.pet", {"pet": {"lives": 1}}),
        ("types.bytes", {"size": 200}),
        ("types.bytes", {}),
        ("types.bytes", None),
        ("types.none", {}),
        ("plain.sum", [1, 2]),
        ("plain.sum", []),
    ],
)
async def test_the_data_is_the_same(both: Both, id: str, input: Any) -> None:
    registry, back = both
    assert (await back.execute(id, input)).data == (await registry.execute(id, input)).data


@on_one_loop
@given(values)
@bounded
async def test_every_value_survives_there_and_back(both: Both, value: Any) -> None:
    registry, back = both
    for id in ("any.echo", "any.echo/é ~"):
        assert (await back.execute(id, value)).data == (await registry.execute(id, value)).data == value


@on_one_loop
@given(st.lists(values, max_size=4))
@bounded
async def test_every_item_of_a_stream_survives_there_and_back(both: Both, items: list[Any]) -> None:
    _, back = both
    assert [envelope.data async for envelope in back.subscribe("any.items", items)] == items


@on_one_loop
@pytest.mark.parametrize(("id", "input"), [("types.ticks", {"count": 2}), ("types.words", {})])
async def test_a_stream_is_the_same(both: Both, id: str, input: Any) -> None:
    registry, back = both
    given_back = [envelope.data async for envelope in back.subscribe(id, input)]
    assert given_back == [envelope.data async for envelope in registry.subscribe(id, input)]


@on_one_loop
async def test_a_stream_that_fails_fails_there_too(both: Both) -> None:
    _, back = both
    items = back.subscribe("types.broken", {})
    assert (await anext(items)).data == 1
    with pytest.raises(CallError) as raised:
        await anext(items)
    assert (raised.value.code, raised.value.retryable) == (ErrorCode.EXECUTION_ERROR, True)
    assert "once a minute" in str(raised.value.details)


@on_one_loop
@given(values)
@settings(bounded, max_examples=10)
async def test_a_chain_of_http_and_mcp_keeps_every_value(chained: Both, value: Any) -> None:
    _, back = chained
    assert (await back.execute("any.echo", value)).data == value


@on_one_loop
async def test_a_chain_of_http_and_mcp_keeps_operations_bytes_and_streams(chained: Both) -> None:
    registry, back = chained
    assert {(spec.id, spec.type) for spec in back.list()} == {(spec.id, spec.type) for spec in registry.list()}
    for id, input in (("types.bytes", {"size": 200}), ("types.none", {}), ("types.tree", {"tree": {"value": 1}})):
        assert (await back.execute(id, input)).data == (await registry.execute(id, input)).data
    found = [envelope.data async for envelope in back.subscribe("types.ticks", {"count": 2})]
    assert found == [envelope.data async for envelope in registry.subscribe("types.ticks", {"count": 2})]


names = st.text(min_size=1, max_size=12).filter(str.isprintable)


@given(st.lists(names, min_size=1, max_size=10, unique=True), names.filter(lambda name: "." not in name))
@settings(max_examples=3)
async def test_every_name_survives_there_and_back(given_names: list[str], namespace: str) -> None:
    registry = OperationRegistry()
    for name in given_names:
        spec = OperationSpec(namespace=namespace, name=name)
        registry.register(spec, lambda input, context, name=name: name, inline=True)
    async with read_back(registry) as back:
        for name in given_names:
            assert (await back.execute(f"{namespace}.{name}", {})).data == name


PETS = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "paths": {
        "/pets/{id}": {
            "get": {
                "operationId": "pet",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "readOnly": True}},
                    {"name": "owner", "in": "query", "schema": {"$ref": "#/components/schemas/Owner"}},
                    {"name": "since", "in": "query", "schema": {"type": "string", "format": "date-time"}},
                ],
                "responses": {
                    "200": {
                        "description": "",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                    }
                },
            }
        }
    },
    "components": {
        "schemas": {
            "Owner": {"type": "string", "readOnly": True},
            "Pet": {
                "type": "object",
                "required": ["kind"],
                "properties": {"kind": {"type": "string"}},
                "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/components/schemas/Cat"}},
            },
            "Cat": {
                "allOf": [{"$ref": "#/components/schemas/Pet"}],
                "properties": {"lives": {"type": "integer"}},
            },
        }
    },
}


async def test_read_only_parameters_loose_formats_and_variants_of_a_parent_survive() -> None:
    registry = OperationRegistry()
    async with from_openapi(PETS, base_url="http://127.0.0.1:9") as pets:
        registry.register_all(pets)
        async with read_back(registry) as once, read_back(once) as twice:
            spec = twice.get_spec("pets.pet")
    assert spec is not None
    found = spec.input_schema
    assert found.is_valid({"id": "rex", "owner": "ada", "since": "last week"})
    assert not found.is_valid({"owner": "ada"})
    assert not found.is_valid({"id": "rex", "owner": 1})
    output: Any = spec.output_schema.json
    assert output["discriminator"]["mapping"] == {"cat": "#/$defs/Cat"}
    assert output["$defs"]["Cat"]["properties"] == {"lives": {"type": "integer"}}
