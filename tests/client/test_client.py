"""The contract of the client: the same calls return the same over every backend."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from inspect import signature
from typing import Any, assert_type

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from opwire import CallError, Context, ErrorCode, Identity, OperationRegistry, OperationType, SyncClient
from opwire.asgi.listener import listening
from opwire.client import Client, Retries
from opwire.client.client import ClientParameters, ConnectionOptions
from opwire.errors import UsageError
from opwire.http.client import ClientOptions
from opwire.hub import Spoke
from opwire.model.envelope import LocalResponseMeta, MCPResponseMeta
from opwire.protocol import PendingRequestMap
from opwire.transports.connect import TransportOptions
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.chaos.virtual_time import run_virtually
from tests.client.samples import ME, Point, Samples, Way

QUICK = Retries(back_off=0.001, max_back_off=0.002)


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 5)


async def test_a_call_gives_the_data(way: Way, samples: Samples) -> None:
    """The same calls give the same over a registry, a transport, a hub, a broker and served HTTP. `call` gives
    the data; with `output_type` it really is of that type."""
    async with way(samples.registry) as client:
        assert await client.call("math.add", {"a": 1, "b": 2}) == 3
        assert await client.call("math.add", {"a": 1}, timeout=5) == 3
        assert await client.call("odd.point") == {"x": 1, "y": 2}
        assert assert_type(await client.call("odd.point", output_type=Point), Point) == Point(1, 2)
        with pytest.raises(CallError) as caught:
            await client.call("odd.point", output_type=int)
        assert caught.value.code is ErrorCode.EXECUTION_ERROR


async def test_an_envelope_says_where_the_data_came_from(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        envelope = await client.call_envelope("math.add", {"a": 1})
        typed = await client.call_envelope("odd.point", output_type=Point)
    assert envelope.data == 3
    assert isinstance(envelope.meta, LocalResponseMeta)
    assert envelope.meta.operation_id == "math.add"
    assert typed.data == Point(1, 2)


async def test_data_arrives_unchanged_under_any_name(way: Way, samples: Samples) -> None:
    values = (None, "é 😀", 2**70, [], {"a": {"b": [None, 1.5]}})
    async with way(samples.registry) as client:
        assert await client.call("odd.bytes") == b"\x00\xff"
        for value in values:
            assert await client.call("odd.a/b ~2F é..", {"value": value}) == value


async def test_an_error_arrives_with_all_its_fields(way: Way, samples: Samples) -> None:
    """Errors arrive with equal code, message, details, retryable and retry_after on every way."""
    async with way(samples.registry) as client:
        with pytest.raises(CallError) as caught:
            await client.call("fail.always")
        error = caught.value
        assert (error.code, error.message) == (ErrorCode.RATE_LIMITED, "once a minute")
        assert error.details == {"limit": [1, "é"]}
        assert (error.retryable, error.retry_after) == (False, 59.5)
        with pytest.raises(CallError, match="error id") as caught:
            await client.call("fail.by_mistake")
        assert caught.value.code is ErrorCode.EXECUTION_ERROR
        assert "swordfish" not in str(caught.value)


async def test_what_cannot_be_called_gets_the_same_error(way: Way, samples: Samples) -> None:
    async with way(samples.registry, retries=None) as client:
        with pytest.raises(CallError) as caught:
            await client.call("math.add", {"a": "one"})
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert caught.value.details == {"problems": [{"path": "/a", "message": 'the value is not of type "integer"'}]}
        with pytest.raises(CallError) as caught:
            await client.call("shop.secret")
        assert caught.value.code is ErrorCode.ACCESS_DENIED
        with pytest.raises(CallError) as caught:
            await client.call("math.ad", timeout=2)
        assert caught.value.code in (ErrorCode.OPERATION_NOT_FOUND, ErrorCode.UNAVAILABLE)
        with pytest.raises(CallError) as caught:
            await client.call("clock.ticks")
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        with pytest.raises(CallError) as caught:
            await anext(client.subscribe("math.add", {"a": 1}))
        assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_a_deadline_ends_the_call_on_both_sides(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        with pytest.raises(CallError) as caught:
            await client.call("slow.wait", timeout=0.2)
        assert caught.value.code is ErrorCode.TIMEOUT
        await soon(samples.stopped)
        left = await client.call("slow.left", timeout=7)
        assert 5 < left <= 7
        assert 25 < await client.call("slow.left") <= 30
        assert 2 < await client.call("slow.left", context=Context().within(4)) <= 4


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 100_000])
async def test_a_call_may_have_more_time_than_a_server_counts(way: Way, samples: Samples, timeout: float) -> None:
    async with way(samples.registry) as client:
        assert await client.call("math.add", {"a": 1}, timeout=timeout) == 3
        assert await client.call("math.add", {"a": 1}, context=Context(deadline=timeout)) == 3
        assert [item async for item in client.subscribe("clock.ticks", timeout=timeout)] == [0, 1, 2]
        assert [item async for item in client.subscribe("clock.ticks", idle_timeout=timeout)] == [0, 1, 2]
        assert await client.operations(timeout=timeout)


async def test_a_caller_that_gives_up_stops_the_handler(way: Way, samples: Samples) -> None:
    """Cancelling a call stops its handler."""
    async with way(samples.registry) as client:
        call = asyncio.create_task(client.call("slow.wait"))
        await soon(samples.began)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await soon(samples.stopped)


async def test_a_subscription_gives_the_data_of_each_item(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        assert [item async for item in client.subscribe("clock.ticks", {"count": 200})] == list(range(200))
        envelopes = [item async for item in client.subscribe_envelopes("clock.ticks")]
        texts = [item async for item in client.subscribe("clock.ticks", output_type=int)]
    assert [envelope.data for envelope in envelopes] == texts == [0, 1, 2]
    assert {envelope.meta.source for envelope in envelopes} == {"local"}


async def test_leaving_a_subscription_stops_its_producer(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        async for item in client.subscribe("clock.ticks", {"count": 10**9}):
            if item == 3:
                break
        await soon(samples.stopped)


async def test_an_error_within_a_subscription_arrives_after_its_items(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        items = client.subscribe("clock.fails")
        assert await anext(items) == 1
        with pytest.raises(CallError) as caught:
            await anext(items)
    assert (caught.value.code, caught.value.message) == (ErrorCode.UNAVAILABLE, "no more")
    assert (caught.value.details, caught.value.retry_after) == ({"after": 1}, 2.5)


async def test_a_quiet_subscription_ends_at_its_limit(way: Way, samples: Samples) -> None:
    async def until_it_ends(items: AsyncGenerator[int]) -> None:
        async with aclosing(items):
            assert await anext(items) == 1
            with pytest.raises(CallError) as caught:
                await anext(items)
            assert caught.value.code is ErrorCode.TIMEOUT

    async with way(samples.registry) as client:
        await asyncio.gather(
            until_it_ends(client.subscribe("clock.quiet", timeout=0.3)),
            until_it_ends(client.subscribe("clock.quiet", idle_timeout=0.3)),
        )
        await soon(samples.stopped)


async def test_a_query_is_repeated_after_a_retryable_error(way: Way, samples: Samples) -> None:
    async with way(samples.registry, retries=QUICK) as client:
        samples.failures["fail.at_first"] = 2
        assert await client.call("fail.at_first") == "done"
        assert len(samples.calls) == 3
        samples.failures["fail.at_first"] = 3
        with pytest.raises(CallError, match="not yet"):
            await client.call("fail.at_first")
        assert len(samples.calls) == 6


async def test_a_mutation_is_never_repeated(way: Way, samples: Samples) -> None:
    async with way(samples.registry, retries=QUICK) as client:
        samples.failures["fail.writing"] = 1
        with pytest.raises(CallError, match="not yet"):
            await client.call("fail.writing")
        assert samples.calls == ["fail.writing"]


async def test_a_tool_that_failed_raises_unless_its_envelope_is_asked_for(way: Way, samples: Samples) -> None:
    """A tool's isError raises or is returned, by policy; an envelope is always returned unchanged."""
    async with way(samples.registry) as client:
        with pytest.raises(CallError) as caught:
            await client.call("far.tool")
        envelope = await client.call_envelope("far.tool")
        fine = await client.call("far.tool", {"fails": False})
    assert (caught.value.code, caught.value.message) == (ErrorCode.EXECUTION_ERROR, "no such\ncity")
    assert caught.value.details == {"content": envelope.data}
    assert isinstance(envelope.meta, MCPResponseMeta)
    assert envelope.meta.is_error
    assert fine == envelope.data
    async with way(samples.registry, is_error="return") as client:
        assert await client.call("far.tool") == envelope.data


async def test_pages_are_followed(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        assert [item async for item in client.paginate("far.page")] == [1, 2, 3]
        assert [item async for item in client.paginate("far.page", {"page": 2}, output_type=int)] == [2, 3]
        assert [item async for item in client.paginate("far.page", max_items=2)] == [1, 2]
        assert [item async for item in client.paginate("far.page", max_items=0)] == []


async def test_all_that_can_be_called_is_shown(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        specs = await client.operations()
    ids = [spec.id for spec in specs]
    assert ids == sorted(spec.id for spec in samples.registry.list() if spec.id != "shop.secret")
    add = next(spec for spec in specs if spec.id == "math.add")
    known = samples.registry.get_spec("math.add")
    assert known is not None
    assert (add.type, add.title, add.tags) == (OperationType.QUERY, "Add", ("numbers",))
    assert add.description == "Add two integers."
    assert add.input_schema.json == known.input_schema.json
    assert add.output_schema.json == known.output_schema.json


async def test_a_client_that_is_not_open_refuses(way: Way, samples: Samples) -> None:
    async with way(samples.registry) as client:
        await client.close()
        for refused in (client.call("math.add", {"a": 1}), anext(client.subscribe("clock.ticks")), client.operations()):
            with pytest.raises(CallError) as caught:
                await refused
            assert caught.value.code is ErrorCode.UNAVAILABLE
            assert not caught.value.retryable


# --- what is not the same everywhere ----------------------------------------------------------------------------------


async def test_over_a_registry_the_caller_is_trusted_unless_an_identity_is_given() -> None:
    samples = Samples()
    async with Client(samples.registry) as client:
        assert await client.call("shop.secret") == 42
        assert await client.call("who.calls") == "local"
        assert await client.call("who.calls", context=Context(identity=ME)) == "me"
        assert "shop.secret" in [spec.id for spec in await client.operations()]
    async with Client(samples.registry, act_as=ME) as client:
        boss = Context(identity=Identity(id="boss", scopes=("*",)))
        with pytest.raises(CallError, match="admin"):
            await client.call("shop.secret", context=boss)
        with pytest.raises(CallError, match="Operation not found"):
            await client.call("shop.none")
        assert await client.call("who.calls") == "me"


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1", "http://127.0.0.1:1", ["ws://127.0.0.1:1"]])
async def test_over_a_network_a_caller_cannot_claim_an_identity(url: str | list[str]) -> None:
    with pytest.raises(UsageError, match="token"):
        Client(url, act_as=ME)


async def test_a_map_of_pending_requests_is_used_unchanged_and_stays_open() -> None:
    bus, samples = MemoryBus(), Samples()
    async with Spoke(samples.registry, MemoryTransport(bus)), PendingRequestMap(MemoryTransport(bus)) as calls:
        async with Client(calls) as client:
            assert await client.call("math.add", {"a": 1}) == 3
        assert (await calls.call("math.add", {"a": 1})).data == 3


async def test_a_target_that_cannot_be_reached_is_reported() -> None:
    with pytest.raises(UsageError, match="unknown URL scheme 'gopher'"):
        Client("gopher://127.0.0.1")
    for target in (OperationRegistry(), MemoryTransport(MemoryBus())):
        with pytest.raises(UsageError, match=r"unknown options for .*: token"):
            Client(target, token="unused")
    with pytest.raises(CallError) as caught:
        await Client("ws://127.0.0.1:1", retries=None).start()
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_source_that_does_not_list_its_operations_in_time_is_reported() -> None:
    asked_in_vain = asyncio.Event()

    async def silent(_: Any) -> Response:
        await asked_in_vain.wait()
        return Response()

    app = Starlette(routes=[Route("/openapi.json", silent)])
    async with listening(app, "127.0.0.1", 0) as address, Client(address) as client:
        with pytest.raises(CallError) as caught:
            await client.operations(timeout=0.1)
        asked_in_vain.set()
    assert caught.value.code is ErrorCode.TIMEOUT


def test_all_attempts_of_a_call_share_one_deadline() -> None:
    registry, left = OperationRegistry(), list[float]()

    @registry.query("a.b")
    async def fails(context: Context) -> None:
        left.append(context.remaining or 0)
        raise CallError("UNAVAILABLE", "not yet", retry_after=0.15)

    async def call() -> None:
        async with Client(registry, retries=Retries(max_attempts=10, back_off=0)) as client:
            await client.call("a.b", timeout=0.7)

    with pytest.raises(CallError, match="UNAVAILABLE"):
        run_virtually(call())
    assert left == pytest.approx([0.7, 0.55, 0.4, 0.25, 0.1])


async def test_the_budget_of_retries_is_one_for_all_calls() -> None:
    registry, calls = OperationRegistry(), list[int]()

    @registry.query("a.b")
    async def fails() -> None:
        calls.append(1)
        raise CallError("UNAVAILABLE")

    policy = Retries(max_attempts=3, back_off=0, share=0.1, reserve=10)
    async with Client(registry, retries=policy) as client:
        for _ in range(100):
            with pytest.raises(CallError):
                await client.call("a.b")
    assert 100 + 10 <= len(calls) <= 100 + 10 + 10  # what was saved up, and a tenth of the calls


async def test_a_query_is_repeated_even_if_it_was_not_known_to_be_one_at_first() -> None:
    """The only server is away when the first call fails, and only it knows the operation."""
    bus, samples = MemoryBus(), Samples()
    patient = Retries(max_attempts=100, back_off=0.05, max_back_off=0.05, reserve=100)
    async with Client(MemoryTransport(bus), retries=patient) as client:
        call = asyncio.create_task(client.call("math.add", {"a": 1}))
        await asyncio.sleep(0)
        async with Spoke(samples.registry, MemoryTransport(bus)):
            assert await asyncio.wait_for(call, 5) == 3


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "3", None])
def test_a_timeout_that_means_nothing_is_refused(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout must be a number above zero"):
        Client(OperationRegistry(), timeout=timeout)


def test_the_options_are_those_of_the_transports_and_of_http() -> None:
    http = {"trust_annotations", *ClientOptions.__struct_fields__} - {"timeout"}
    assert ConnectionOptions.__annotations__.keys() == (TransportOptions.__annotations__.keys() | http) - {"token"}
    of_client = {name for name, each in signature(Client).parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert ClientParameters.__annotations__.keys() - ConnectionOptions.__annotations__.keys() == of_client


@pytest.mark.parametrize("kind", [Client, SyncClient])
@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("redis://robot:secret@host:6379/2", "redis://host:6379/2"),
        ("unix://robot:secret@/run/redis?db=2", "unix:///run/redis"),
        ("https://robot:secret@api.example/v1", "https://api.example/v1"),
        (["ws://a:8700", "ws://b:8700"], "ws://a:8700, ws://b:8700"),
        (OperationRegistry(), "<OperationRegistry of 0 operations>"),
    ],
)
async def test_the_repr_names_the_target_without_credentials(kind: Any, target: Any, shown: str) -> None:
    client = kind(target)
    assert repr(client) == f"<{kind.__name__} of {shown}, not open>"
    if kind is Client and isinstance(target, OperationRegistry):
        async with client:
            assert repr(client) == f"<Client of {shown}>"
