"""W3C's Trace Context goes along with every call, over everything, recorded or not."""

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import Context, OperationRegistry, Schema
from opwire.model.trace import trace_of
from opwire.openapi.client import from_openapi
from opwire.protocol.events import CALL_EVENT_SCHEMAS, CallRequested, decode_event, encode_event
from tests.observe.ways import Caller, Way, over_memory
from tests.openapi.client.echo import EchoServer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "rojo=00f067aa0ba902b7,congo@us=t61rcWkgMzE"
TRACE = {"traceparent": PARENT, "tracestate": STATE}
MALFORMED = [
    "",
    "x",
    PARENT.upper(),
    PARENT[:-1],
    PARENT + "-more",  # only later versions may say more
    PARENT + "\r\nx: y",
    "ff" + PARENT[2:],
    "00-" + "0" * 32 + "-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    "0" * 100_000,
]


def telling() -> tuple[OperationRegistry, list[dict[str, Any]]]:
    """Operations that note the metadata of their context."""
    registry, seen = OperationRegistry(), list[dict[str, Any]]()

    @registry.query("tell.once")
    async def once(context: Context) -> int:
        seen.append(dict(context.metadata))
        return 1

    @registry.subscription("tell.often")
    async def often(context: Context) -> AsyncIterator[int]:
        seen.append(dict(context.metadata))
        yield 1

    @registry.query("tell.nested")
    async def nested(context: Context) -> int:
        return (await context.env.tell.once()).data

    return registry, seen


async def call(caller: Caller, operation_id: str, context: Context | None = None) -> Any:
    ask = caller.execute if isinstance(caller, OperationRegistry) else caller.call
    return (await ask(operation_id, {}, context=context)).data


async def test_the_handler_sees_the_trace_of_the_caller_and_nothing_else_of_its_metadata(way: Way) -> None:
    registry, seen = telling()
    context = Context(metadata=TRACE | {"secret": "of the caller"})
    async with way(registry) as caller:
        assert await call(caller, "tell.once", context) == 1
        assert [item.data async for item in caller.subscribe("tell.often", {}, context=context)] == [1]
        assert await call(caller, "tell.nested", context) == 1
        assert await call(caller, "tell.once") == 1
        assert await call(caller, "tell.once", Context(metadata={"traceparent": PARENT, "tracestate": "no"})) == 1
    assert seen == [TRACE, TRACE, TRACE, {}, {"traceparent": PARENT}]


async def test_a_handler_passes_the_trace_on_to_the_calls_that_it_makes(way: Way) -> None:
    last, seen = telling()
    middle = OperationRegistry()
    async with way(last) as onward:

        @middle.query("middle.forward")
        async def forward(context: Context) -> Any:
            return await call(onward, "tell.once", context.child())

        async with over_memory(middle) as caller:
            assert await call(caller, "middle.forward", Context(metadata=TRACE)) == 1
    assert seen == [TRACE]


@pytest.mark.parametrize("malformed", MALFORMED, ids=range(len(MALFORMED)))
async def test_a_malformed_trace_is_neither_sent_nor_believed(malformed: str) -> None:
    registry, seen = telling()
    async with over_memory(registry) as caller:
        await call(caller, "tell.once", Context(metadata={"traceparent": malformed, "tracestate": STATE}))
    assert seen == [{}]
    arrived = decode_event(encode_event(CallRequested(request_id="1", operation_id="a.b", traceparent=malformed)))
    assert isinstance(arrived, CallRequested)
    assert arrived.trace == {}


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("a=1", True),
        ("a=1, b=2 ,,c=3", True),
        ("tenant@vendor=x y", True),
        ("", False),
        ("a", False),
        ("A=1", False),
        ("a=1\r\nx: y", False),
        ("a=é", False),
        ("a=" + "x" * 511, False),
        (5, False),
    ],
)
def test_the_state_of_a_trace_is_kept_if_it_is_one(state: Any, kept: bool) -> None:
    expected = {"traceparent": PARENT, "tracestate": state} if kept else {"traceparent": PARENT}
    assert trace_of({"traceparent": PARENT, "tracestate": state, "other": 1}) == expected
    assert trace_of({"tracestate": state}) == {}


def test_a_later_version_may_say_more() -> None:
    later = "01" + PARENT[2:] + "-more"
    assert trace_of({"traceparent": later}) == {"traceparent": later}


@given(
    st.one_of(st.none(), st.integers(), st.text(), st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"))
)
def test_what_is_carried_is_safe_in_any_header(value: Any) -> None:
    for text in trace_of({"traceparent": value, "tracestate": value}).values():
        assert isinstance(text, str)
        assert text.isascii()
        assert text.isprintable()


def test_a_request_without_a_trace_is_written_as_it_always_was() -> None:
    bare = CallRequested(request_id="1", operation_id="a.b")
    assert msgspec.json.decode(encode_event(bare)) == {
        "type": "call.requested",
        "requestId": "1",
        "operationId": "a.b",
        "input": None,
    }
    traced = CallRequested(request_id="1", operation_id="a.b", traceparent=PARENT, tracestate=STATE)
    written = msgspec.json.decode(encode_event(traced))
    assert (written["traceparent"], written["tracestate"]) == (PARENT, STATE)
    assert Schema(CALL_EVENT_SCHEMAS["call.requested"]).problems(written) == []
    assert decode_event(encode_event(traced)) == traced


def test_without_opentelemetry_the_trace_goes_along_all_the_same() -> None:
    code = f"""
import asyncio, sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from opwire import Context, OperationRegistry
from opwire.hub import Spoke
from opwire.transports.memory import MemoryBus, MemoryTransport

registry, bus = OperationRegistry(), MemoryBus(codec=True)

@registry.query("a.b")
async def b(context: Context) -> dict[str, str]:
    return dict(context.metadata)

async def main():
    async with Spoke(registry, MemoryTransport(bus)), Spoke(None, MemoryTransport(bus)) as caller:
        print((await caller.call("a.b", context=Context(metadata={{"traceparent": "{PARENT}"}})))["traceparent"])

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == PARENT


async def test_a_trace_among_the_parameters_of_an_api_goes_before_that_of_the_call() -> None:
    header = {"name": "traceparent", "in": "header", "schema": {"type": "string"}}
    paths = {"/": {"get": {"operationId": "get", "parameters": [header], "responses": {"200": {"description": "ok"}}}}}
    document = {"openapi": "3.1.0", "info": {"title": "echo", "version": "1"}, "paths": paths}
    async with EchoServer() as server, from_openapi({**document, "servers": [{"url": server.url}]}) as api:
        registry = OperationRegistry()
        registry.follow(api)
        (spec,) = registry.list()
        given = "00-11111111111111111111111111111111-2222222222222222-00"
        await registry.execute(spec.id, {"traceparent": given}, Context(metadata=TRACE))
        await registry.execute(spec.id, {}, Context(metadata=TRACE))
    sent = [[(name, value) for name, value in request.headers if name.lower() in TRACE] for request in server.arrived]
    assert sent == [[("traceparent", given)], list(TRACE.items())]
