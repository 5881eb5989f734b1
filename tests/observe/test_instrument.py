"""`instrument`: one line, and calls are spans, with the right parents, wherever they go."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import get_current_span

from opwire import CallError, Context, OperationRegistry, SyncClient, UsageError, build_env
from opwire.auth import Grant, allow_anonymous
from opwire.client import Client
from opwire.hub import Hub, Spoke
from opwire.observe.telemetry import instrument
from opwire.openapi.server import serve_http
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.observe.tape import Tape, is_child, trace_id
from tests.observe.ways import ME, Way, over_memory

ROOT = Path(__file__).parent.parent.parent


def shop(tape: Tape) -> OperationRegistry:
    """Operations that call each other."""
    registry = OperationRegistry()

    @registry.query("shop.price")
    async def price(article: str = "tea") -> float:
        return 3.5

    @registry.query("shop.total")
    async def total(context: Context) -> float:
        with tape.tracer.start_as_current_span("of the handler"), tape.tracer.start_as_current_span("deeper"):
            return (await context.env.shop.price()).data

    @registry.query("shop.in_a_thread")
    def in_a_thread() -> bool:
        return get_current_span().get_span_context().is_valid

    @registry.subscription("shop.prices")
    async def prices(context: Context) -> AsyncIterator[float]:
        for _ in range(2):
            yield (await context.env.shop.price()).data

    return registry


async def test_nested_calls_are_children_of_the_handler_that_makes_them(tape: Tape) -> None:
    registry = shop(tape)
    instrument(registry, **tape.providers)
    with tape.tracer.start_as_current_span("mine"):
        await registry.execute("shop.total")
    total, price = tape.span("shop.total"), tape.span("shop.price")
    assert is_child(total, tape.span("mine"))
    assert is_child(tape.span("of the handler"), total)
    assert is_child(price, tape.span("deeper"))
    assert {total.kind.name, price.kind.name} == {"INTERNAL"}


async def test_a_call_with_a_context_has_the_same_parents(tape: Tape) -> None:
    registry = shop(tape)
    instrument(registry, **tape.providers)
    await registry.execute("shop.total", None, Context(request_id="r1", identity=ME))
    total = tape.span("shop.total")
    assert total.parent is None
    assert total.kind.name == "SERVER"
    assert is_child(tape.span("shop.price"), tape.span("deeper"))
    assert tape.span("shop.price").kind.name == "INTERNAL"


async def test_a_call_over_anything_is_one_trace(way: Way, tape: Tape) -> None:
    """A call that crosses a transport, MCP or HTTP stays one trace."""
    registry = shop(tape)
    instrument(registry, **tape.providers)
    async with way(registry) as caller:
        end = instrument(caller, **tape.providers)
        with tape.tracer.start_as_current_span("mine") as mine:
            if isinstance(caller, OperationRegistry):
                await caller.execute("shop.total", {})
            else:
                await caller.call("shop.total", {})
        end()
    served = next(span for span in tape.spans if span.name == "shop.total")  # it ends before that of the caller
    asked = next(span for span in reversed(tape.spans) if span.name == "shop.total")
    assert is_child(asked, mine)
    assert is_child(served, asked)
    assert served.kind.name == "SERVER"
    assert is_child(tape.span("shop.price"), tape.span("deeper"))


async def test_a_stream_over_anything_is_one_trace_too(way: Way, tape: Tape) -> None:
    registry = shop(tape)
    instrument(registry, **tape.providers)
    async with way(registry) as caller:
        instrument(caller, **tape.providers)
        async for _ in caller.subscribe("shop.prices", {}):
            assert not get_current_span().get_span_context().is_valid  # the consumer runs outside of the span
    served, asked = (span for span in tape.spans if span.name == "shop.prices")
    assert is_child(served, asked)
    nested = [span for span in tape.spans if span.name == "shop.price"]
    assert [is_child(span, served) for span in nested] == [True, True]


async def test_from_spoke_to_hub_to_spoke(tape: Tape) -> None:
    hub_registry = OperationRegistry()
    auth = allow_anonymous(Grant(ME, announces=("*",)))
    async with Hub(hub_registry, "ws://127.0.0.1:0", authenticate=auth) as hub, Spoke(shop(tape), hub.url) as spoke:
        instrument(hub, spoke, **tape.providers)
        await hub_registry.execute("shop.price")
    served, passed_on, asked = tape.spans
    assert [span.kind.name for span in (served, passed_on, asked)] == ["SERVER", "CLIENT", "INTERNAL"]
    assert is_child(served, passed_on)
    assert is_child(passed_on, asked)


async def test_a_trusted_call_stays_trusted(tape: Tape) -> None:
    """Instrumenting does not change access control."""
    hub_registry = OperationRegistry()

    @hub_registry.query("hub.ask")
    async def ask(context: Context) -> float:
        return (await context.env.shop.price()).data  # of a spoke, which needs the caller

    auth = allow_anonymous(Grant(ME, announces=("*",)))
    async with Hub(hub_registry, "ws://127.0.0.1:0", authenticate=auth) as hub, Spoke(shop(tape), hub.url):
        plain = await hub_registry.execute("hub.ask")
        instrument(hub, **tape.providers)
        assert (await hub_registry.execute("hub.ask")).data == plain.data == 3.5


@asynccontextmanager
async def client_over_memory(registry: OperationRegistry) -> AsyncGenerator[Client]:
    bus = MemoryBus(codec=True)
    async with (
        PendingRequestMap(MemoryTransport(bus)) as serving,
        CallHandler(registry, serving),
        Client(MemoryTransport(bus)) as client,
    ):
        yield client


@asynccontextmanager
async def client_over_http(registry: OperationRegistry) -> AsyncGenerator[Client]:
    async with serve_http(registry, anonymous=ME).listening(drain_timeout=1) as address, Client(address) as client:
        yield client


@pytest.mark.parametrize("over", [client_over_memory, client_over_http])
async def test_the_calls_of_a_client_are_spans(over: Any, tape: Tape) -> None:
    registry = shop(tape)
    async with over(registry) as client:
        instrument(registry, client, **tape.providers)
        assert await client.call("shop.price", {"article": "tea"}) == 3.5
        assert [item async for item in client.subscribe("shop.prices")] == [3.5, 3.5]
    for name in ("shop.price", "shop.prices"):
        assert is_child(tape.span(name, "SERVER"), tape.span(name, "CLIENT"))


async def test_a_call_handler_is_instrumented_by_its_registry(tape: Tape) -> None:
    registry = shop(tape)
    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls:
        instrument(CallHandler(registry, calls), **tape.providers)
        await registry.execute("shop.price")
    assert [span.name for span in tape.spans] == ["shop.price"]


async def test_a_function_on_a_worker_thread_knows_its_span(tape: Tape) -> None:
    registry = shop(tape)
    instrument(registry, **tape.providers)
    assert (await registry.execute("shop.in_a_thread")).data is True
    assert (await build_env(registry).shop.in_a_thread()).data is True


async def test_concurrent_calls_do_not_mix(tape: Tape) -> None:
    registry = shop(tape)
    instrument(registry, **tape.providers)
    async with over_memory(registry) as caller:
        instrument(caller, **tape.providers)

        async def once() -> None:
            with tape.tracer.start_as_current_span("mine"):
                await caller.call("shop.total")  # pyright: ignore[reportAttributeAccessIssue]

        await asyncio.gather(*(once() for _ in range(20)))
    spans = tape.spans
    traces = set(map(trace_id, spans))
    assert len(traces) == 20
    for trace in traces:
        names = sorted(span.name for span in spans if trace_id(span) == trace)
        assert names == ["deeper", "mine", "of the handler", "shop.price", "shop.total", "shop.total"]


async def test_what_is_instrumented_twice_is_recorded_once_and_the_end_leaves_nothing_behind(tape: Tape) -> None:
    registry = shop(tape)
    before = dict(vars(registry))
    end = instrument(registry, registry, **tape.providers)
    end_of_nothing = instrument(registry, **tape.providers)
    await registry.execute("shop.price")
    end_of_nothing()
    await registry.execute("shop.price")
    assert len(tape.spans) == 2
    end()
    end()
    await registry.execute("shop.price")
    assert len(tape.spans) == 2
    assert vars(registry) == before


async def test_a_consumer_that_leaves_ends_the_handler_and_the_span(tape: Tape) -> None:
    registry, closed = OperationRegistry(), asyncio.Event()

    @registry.subscription("clock.ticks")
    async def ticks() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    instrument(registry, **tape.providers)
    async with aclosing(registry.subscribe("clock.ticks")) as items:
        async for _ in items:
            break
    assert closed.is_set()
    attributes = dict(tape.span("clock.ticks").attributes or {})
    assert (attributes["rpc.response.status_code"], attributes["opwire.items"]) == ("OK", 1)


async def test_types_and_errors_are_those_of_the_call_itself(tape: Tape) -> None:
    registry = shop(tape)
    instrument(registry, **tape.providers)
    assert (await registry.execute("shop.price", output_type=float)).data == 3.5
    assert [item.data async for item in registry.subscribe("shop.prices", output_type=float)] == [3.5, 3.5]
    with pytest.raises(CallError, match="did you mean"):
        await registry.execute("shop.pric")


@pytest.mark.parametrize("target", ["a registry", SyncClient(OperationRegistry())])
def test_what_makes_no_calls_of_its_own_cannot_be_instrumented(target: Any, tape: Tape) -> None:
    with pytest.raises(UsageError, match=f"not {type(target).__name__}"):
        instrument(target, **tape.providers)


def test_nothing_of_opentelemetry_is_loaded_unless_it_is_asked_for() -> None:
    code = "import sys, opwire, opwire.protocol, opwire.hub, opwire.client; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "False"


async def test_without_an_sdk_a_trace_still_goes_through() -> None:
    registry, seen = OperationRegistry(), list[Any]()
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}

    @registry.query("tell.trace")
    async def tell(context: Context) -> None:
        seen.append(dict(context.metadata))

    end = instrument(registry)
    await registry.execute("tell.trace", None, Context(metadata=trace))
    await registry.execute("tell.trace")
    end()
    assert seen == [trace, {}]
