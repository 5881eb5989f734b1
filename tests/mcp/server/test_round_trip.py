"""A registry that is served and read back gives the same operations and the same data."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from opwire import CallError, Context, Identity, OperationRegistry, OperationSpec, OperationType
from opwire.asgi.listener import listening
from opwire.asgi.request import App
from opwire.mcp.client import HTTPServer, MCPSource, StdioServer, from_mcp
from opwire.mcp.server import serve_mcp
from opwire.model.access import AccessControl
from opwire.schema import UNKNOWN, Schema
from tests.mcp.server.operations import shop
from tests.mcp.server.shop import ERAS, NEWEST, PATIENCE

NODE: dict[str, Any] = {
    "anyOf": [{"type": "null"}, {"$ref": "#/$defs/Node"}],
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}},
}

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_objects = st.dictionaries(st.text(), _json, max_size=3)
_nodes = st.recursive(st.none(), lambda inner: st.fixed_dictionaries({"next": inner}), max_leaves=3)

_OWN_ID = {"$id": "urn:opwire:test", "items": {"$ref": "#/$defs/I"}, "$defs": {"I": {"type": "integer"}}}
_kinds: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (True, _json),
    ({"type": "object", "additionalProperties": True}, _objects),
    ({"type": "array"}, st.lists(_json, max_size=3)),
    ({"type": "integer"}, st.integers()),
    ({"type": "string"}, st.text()),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "null"}, st.none()),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "object"}]}, st.none() | st.integers() | _objects),
    ({"type": ["object", "null"]}, st.none() | _objects),
    (NODE, _nodes),
    ({"type": "array", **_OWN_ID}, st.lists(st.integers(), max_size=3)),
]
_outputs = [*_kinds, ({"type": "string", "contentEncoding": "base64"}, st.binary()), (True, st.binary())]

_ODD = "ab_- /é日\"'%{}"


def _names(letters: str) -> st.SearchStrategy[str]:
    return st.text(letters, min_size=1, max_size=8) | st.text(letters, min_size=40, max_size=80)


class Case(Struct):
    """An operation, and calls of it: what goes in, what comes out."""

    spec: OperationSpec
    input: Any
    outputs: list[Any]


@st.composite
def cases(draw: Any) -> Case:
    takes, inputs = draw(st.sampled_from(_kinds))
    gives, outputs = draw(st.sampled_from(_outputs))
    type = draw(st.sampled_from(OperationType))
    spec = OperationSpec(
        namespace=draw(_names(_ODD)),
        name=draw(_names(_ODD + ".")),
        type=type,
        title=draw(st.sampled_from(["", "A title"])),
        description=draw(st.sampled_from(["", "What it does.\n\nAnd how."])),
        tags=draw(st.sampled_from([(), ("a", "b")])),
        version=draw(st.sampled_from(["", "1.2"])),
        examples=draw(st.sampled_from([(), ({"a": None},)])),
        timeout=draw(st.sampled_from([None, 20.0])),
        idle_timeout=draw(st.sampled_from([None, 10.0])),
        input_schema=Schema(takes),
        output_schema=Schema(gives),
    )
    streams = type is OperationType.SUBSCRIPTION
    return Case(spec, draw(inputs), draw(st.lists(outputs, max_size=3)) if streams else [draw(outputs)])


def _registry(several: list[Case]) -> OperationRegistry:
    registry = OperationRegistry()
    for case in several:
        registry.register(case.spec, _handler(case), replace=True)
    return registry


def _handler(case: Case) -> Any:
    async def answer(input: Any, context: Context) -> Any:
        assert input == case.input
        return case.outputs[0]

    async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
        assert input == case.input
        for item in case.outputs:
            yield item

    return stream if case.spec.type is OperationType.SUBSCRIPTION else answer


def _as_older(app: App) -> App:
    """The app as a server of the handshake era: it does not know the newest revision."""

    async def older(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"mcp-protocol-version", NEWEST.encode()) in scope["headers"]:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"Bad Request: Unsupported protocol version"})
        else:
            await app(scope, receive, send)

    return older


@asynccontextmanager
async def read_back(registry: OperationRegistry, era: str) -> AsyncGenerator[tuple[MCPSource, OperationRegistry]]:
    """What another opwire reads of a registry that is served over HTTP."""
    app = serve_mcp(registry, name="served").asgi(anonymous=Identity(id="guest"))
    served = app if era == NEWEST else _as_older(app)
    async with (
        listening(served, on_drain=app.drain) as address,
        from_mcp(HTTPServer(f"{address}/mcp"), trust_annotations=True) as source,
    ):
        protocol = next(iter(source.servers.values())).protocol
        assert protocol == (NEWEST if era == NEWEST else "2025-11-25")
        other = OperationRegistry()
        other.follow(source)
        yield source, other


def _comparable(spec: OperationSpec) -> OperationSpec:
    """A specification without what is its registry's own affair."""
    unknown = {field: UNKNOWN for field in ("input_schema", "output_schema") if getattr(spec, field).is_unknown}
    return replace(spec, access=None, normalize=None, strip=None, **unknown)


async def _outcome(registry: OperationRegistry, case: Case) -> list[Any]:
    if case.spec.type is OperationType.SUBSCRIPTION:
        return [envelope.data async for envelope in registry.subscribe(case.spec.id, case.input)]
    return [(await registry.execute(case.spec.id, case.input)).data]


@pytest.mark.parametrize("era", ERAS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(several=st.lists(cases(), min_size=6, max_size=12, unique_by=lambda case: case.spec.id))
async def test_what_is_served_and_read_back_is_the_same(era: str, several: list[Case]) -> None:
    """A registry served over MCP and read back gives the same operations and data."""
    registry = _registry(several)
    async with asyncio.timeout(3 * PATIENCE), read_back(registry, era) as (source, other):
        assert not source.report.skipped
        served = {spec.id: _comparable(spec) for spec in registry.list()}
        assert {spec.id: _comparable(spec) for spec in other.list()} == served
        for case in several:
            assert await _outcome(other, case) == await _outcome(registry, case) == case.outputs


@pytest.mark.parametrize("era", ERAS)
async def test_errors_and_changes_come_through(era: str) -> None:
    registry = shop()

    @registry.subscription("bad.feed", access=AccessControl(public=True))
    async def feed() -> AsyncGenerator[int]:
        yield 1
        raise CallError("RATE_LIMITED", "slow down", {"limit": 5}, retry_after=2)

    async with read_back(registry, era) as (_, other):
        items = other.subscribe("bad.feed")
        assert (await anext(items)).data == 1
        with pytest.raises(CallError) as failed:
            await anext(items)
        error = failed.value
        assert (error.code, error.message, error.details, error.retry_after) == (
            "RATE_LIMITED",
            "slow down",
            {"limit": 5},
            2,
        )
        changed = asyncio.Event()
        other.on_change(lambda _: changed.set())
        registry.unregister("math.add")
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        assert "math.add" not in other


async def test_it_comes_through_standard_input_and_output() -> None:
    process = StdioServer(sys.executable, ("-m", "tests.mcp.server.process"), cwd=str(Path.cwd()))
    async with from_mcp(process, trust_annotations=True) as source:
        other = OperationRegistry()
        other.follow(source)
        assert {spec.id for spec in shop().list()} < {spec.id for spec in other.list()}
        assert (await other.execute("math.add", {"a": 1, "b": 2})).data == 3
        assert (await other.execute("data.bytes")).data == b"\x00\xff"
        assert (await other.execute("data.none")).data is None
        assert [envelope.data async for envelope in other.subscribe("feed.count", {"n": 4})] == [0, 1, 2, 3]
