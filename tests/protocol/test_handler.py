"""The serving side: look up, check access, validate, run, publish; and stop abandoned calls."""

import ast
import asyncio
import gc
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import opwire
from opwire import (
    AccessControl,
    CallError,
    Context,
    ErrorCode,
    Identity,
    OperationRegistry,
    OperationSpec,
    http_envelope,
    local_envelope,
    mcp_envelope,
)
from opwire.model.context import Inbound
from opwire.protocol import (
    LOCAL_IDENTITY,
    CallAborted,
    CallCompleted,
    CallCredit,
    CallFailed,
    CallHandler,
    CallRequested,
    CallResponded,
    Overflow,
    PendingRequestMap,
)
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.loop_lag import LoopLag
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.properties import examples
from tests.protocol.harness import SHORT, call_error, connected_ends, peer, settled, until, within
from tests.turns import counted_turns

ANN = Identity(id="ann", scopes=("read",))
BOB = Identity(id="bob", scopes=("read", "write"))


class Untrusted(MemoryTransport):
    """A transport with remote peers."""

    local = trusted = False  # type: ignore[assignment]


class Handlers:
    """A registry with handlers that record what happens to them."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.log: list[str] = []
        self.contexts: list[Context] = []
        self.produced = 0
        self.release = asyncio.Event()
        query, subscription = self.registry.query, self.registry.subscription
        query("math.add")(self.add)
        query("is.open", access=AccessControl(public=True))(self.context)
        query("is.guarded", access=AccessControl(required_scopes=("write",)))(self.context)
        query("is.anybody")(self.context)
        query("is.hanging")(self.hanging)
        subscription("is.counting")(self.counting)
        subscription("is.endless")(self.endless)

    async def add(self, a: int, b: int) -> int:
        self.log.append("add")
        return a + b

    async def context(self, context: Context) -> str:
        self.contexts.append(context)
        return "yes"

    async def hanging(self) -> str:
        self.log.append("began")
        try:
            await self.release.wait()
        except asyncio.CancelledError as error:
            self.log.append(f"cancelled: {error}")
            raise
        return "released"

    async def counting(self, n: int) -> AsyncIterator[int]:
        try:
            for each in range(n):
                self.produced += 1
                yield each
        finally:
            self.log.append("closed")

    async def endless(self) -> AsyncIterator[int]:
        self.log.append("began")
        try:
            while True:
                self.produced += 1
                yield self.produced
        finally:
            self.log.append("closed")


@pytest.fixture
async def handlers() -> Handlers:
    return Handlers()


async def exhausted(stream: Any) -> None:
    async for _ in stream:
        pass


def code_of(events: list[Any]) -> list[str]:
    return [event.code for event in events if isinstance(event, CallFailed)]


# --- look up, access, input -------------------------------------------------------------------------------------------


async def test_an_operation_that_is_not_known_is_not_found(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        error = await call_error(here.client.call("math.ad"))
        assert error.code is ErrorCode.OPERATION_NOT_FOUND
        assert "math.add" in error.message


async def test_an_operation_without_a_handler_is_not_found_and_the_error_says_why(handlers: Handlers) -> None:
    handlers.registry.register(OperationSpec(namespace="known", name="only"))
    async with connected_ends(handlers.registry) as here:
        error = await call_error(here.client.call("known.only"))
        assert error.code is ErrorCode.OPERATION_NOT_FOUND
        assert error.message == "No handler registered for operation: known.only"


@pytest.mark.parametrize(
    ("operation", "identity", "outcome"),
    [
        ("is.open", None, "yes"),
        ("is.open", ANN, "yes"),
        ("is.anybody", ANN, "yes"),
        ("is.anybody", None, ErrorCode.UNAUTHENTICATED),
        ("is.guarded", None, ErrorCode.UNAUTHENTICATED),
        ("is.guarded", ANN, ErrorCode.ACCESS_DENIED),
        ("is.guarded", BOB, "yes"),
    ],
)
async def test_access_is_checked_where_a_call_arrives(
    handlers: Handlers, operation: str, identity: Identity | None, outcome: Any
) -> None:
    async with connected_ends(handlers.registry, transport=Untrusted, anonymous=identity) as here:
        if isinstance(outcome, ErrorCode):
            assert (await call_error(here.client.call(operation))).code is outcome
            assert handlers.contexts == []
        else:
            assert await here.call(operation) == outcome
            assert handlers.contexts[0].identity == identity


async def test_access_is_checked_before_the_input_is_validated(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, transport=Untrusted) as here:
        assert (await call_error(here.client.call("math.add", "nonsense"))).code is ErrorCode.UNAUTHENTICATED
        stream = here.client.subscribe("is.counting", "nonsense")
        assert (await call_error(anext(stream))).code is ErrorCode.UNAUTHENTICATED


async def test_input_is_validated_before_the_handler_runs(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True)) as here:
        error = await call_error(here.client.call("math.add", {"a": "one"}))
        assert error.code is ErrorCode.VALIDATION_ERROR
        assert {problem["path"] for problem in error.details["problems"]} == {"", "/a"}
        assert (await call_error(anext(here.client.subscribe("is.counting", {"n": "x"})))).code is error.code
    assert handlers.log == []


# --- identity ---------------------------------------------------------------------------------------------------------


async def test_on_a_trusted_transport_a_caller_has_the_identity_that_it_claims_or_the_local_one(
    handlers: Handlers,
) -> None:
    async with connected_ends(handlers.registry) as here:
        await here.call("is.anybody", context=Context(identity=ANN))
        await here.call("is.anybody")
        assert [each.identity for each in handlers.contexts] == [ANN, LOCAL_IDENTITY]
        error = await call_error(here.client.call("is.guarded", context=Context(identity=ANN)))
        assert error.code is ErrorCode.ACCESS_DENIED
        assert await here.call("is.guarded") == "yes", "the local identity may do everything"


async def test_callers_without_an_identity_count_as_the_one_that_was_configured(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, anonymous=BOB) as here:
        await here.call("is.guarded")
        await here.call("is.guarded", context=Context(identity=Identity(id="eve", scopes=("write",))))
        assert [each.identity and each.identity.id for each in handlers.contexts] == ["bob", "eve"]


async def test_an_identity_that_an_untrusted_peer_states_is_ignored(handlers: Handlers) -> None:
    root = Context(identity=Identity(id="root", scopes=("*",)))
    async with connected_ends(handlers.registry, transport=Untrusted) as here:
        assert (await call_error(here.client.call("is.guarded", context=root))).code is ErrorCode.UNAUTHENTICATED
        assert await here.call("is.open", context=root) == "yes"
    async with connected_ends(handlers.registry, transport=Untrusted, anonymous=ANN) as here:
        assert (await call_error(here.client.call("is.guarded", context=root))).code is ErrorCode.ACCESS_DENIED
        assert await here.call("is.anybody", context=root) == "yes"
    assert [each.identity for each in handlers.contexts] == [None, ANN]


async def test_request_id_parent_identity_and_deadline_reach_the_handler(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True)) as here:
        given = Context(request_id="r-1", parent_request_id="r-0", identity=ANN).within(7)
        await here.call("is.anybody", context=given)
        (seen,) = handlers.contexts
        assert (seen.request_id, seen.parent_request_id, seen.identity) == ("r-1", "r-0", ANN)
        assert seen.remaining is not None
        assert 6 < seen.remaining <= 7
        assert given.deadline is not None
        assert seen.deadline == pytest.approx(given.deadline, abs=0.5)


# --- results ----------------------------------------------------------------------------------------------------------


def test_nothing_but_the_call_handler_publishes_answers() -> None:
    """The CallHandler is the only publisher of call.responded."""
    package = Path(opwire.__file__).parent
    callers: set[str] = set()
    makers: set[str] = set()
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "respond" not in source and "CallResponded" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(func=ast.Attribute(attr="respond")):
                    callers.add(path.relative_to(package).as_posix())
                case ast.Call(func=ast.Name(id="CallResponded")):
                    makers.add(path.relative_to(package).as_posix())
    other = (
        "testing/",
        "asgi/",
        "console/",
        "mcp/",
        "openapi/",
    )  # what adapters and surfaces respond to is another protocol
    assert {each for each in callers if not each.startswith(other)} == {"protocol/handler.py"}
    # A durable attempt writes its response into a journal, and the call table measures one: neither publishes.
    shipped = {each for each in makers if not each.startswith(("testing/", "durable/"))}
    assert shipped == {"protocol/pending.py", "protocol/events.py", "protocol/call_table.py"}


@pytest.mark.parametrize("codec", [False, True])
async def test_a_result_goes_through_the_same_pipeline_as_that_of_execute(handlers: Handlers, codec: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"default": 7}}}

    @handlers.registry.query("raw.dict", output_schema=schema)
    async def raw() -> Any:
        return {"a": 5.0, "extra": True}

    @handlers.registry.subscription("raw.dicts", output_schema=schema)
    async def raws() -> AsyncIterator[Any]:
        yield {"a": 5.0, "extra": True}

    direct = await handlers.registry.execute("raw.dict")
    async with connected_ends(handlers.registry, bus=MemoryBus(codec=codec)) as here:
        assert await here.call("raw.dict") == direct.data == {"a": 5, "b": 7}
        assert await here.items("raw.dicts") == [direct.data]


async def test_an_envelope_that_a_handler_made_passes_with_its_meta(handlers: Handlers) -> None:
    made = http_envelope("ok", status_code=201, headers={"X": "y"}, content_type="text/plain")

    @handlers.registry.query("http.like")
    async def like() -> Any:
        return made

    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True)) as here:
        assert await within(here.client.call("http.like")) == made


async def test_a_result_with_is_error_is_an_answer_and_not_an_error(handlers: Handlers) -> None:
    """A result with `isError` is a success on the wire."""
    made = mcp_envelope("no", is_error=True, content=[{"type": "text", "text": "no such file"}])

    @handlers.registry.query("tool.fails")
    async def fails() -> Any:
        return made

    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True)) as here:
        kinds: list[str] = []
        here.client.observe(lambda event: kinds.append(type(event).__name__))
        assert await within(here.client.call("tool.fails")) == made
        await settled()
        assert kinds == ["CallRequested", "CallResponded"]


async def test_a_call_error_of_a_handler_reaches_the_caller_unchanged(handlers: Handlers) -> None:
    @handlers.registry.query("will.fail")
    async def fail() -> None:
        raise CallError("RATE_LIMITED", "slowly", [1], retryable=False, retry_after=3)

    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True)) as here:
        error = await call_error(here.client.call("will.fail"))
        assert (error.code, error.message, error.details) == (ErrorCode.RATE_LIMITED, "slowly", [1])
        assert (error.retryable, error.retry_after) == (False, 3)


@pytest.mark.parametrize("raised", [ValueError("password=hunter2"), SystemExit(3), StopAsyncIteration("hunter2")])
async def test_an_unforeseen_failure_tells_the_caller_an_error_id_and_no_secret(
    handlers: Handlers, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    @handlers.registry.query("will.fail")
    async def fail() -> None:
        raise raised

    @handlers.registry.subscription("will.fail_later")
    async def fail_later() -> AsyncIterator[int]:
        yield 1
        raise raised

    async with connected_ends(handlers.registry) as here:
        stream = here.client.subscribe("will.fail_later")
        assert (await within(anext(stream))).data == 1
        for attempt in (here.client.call("will.fail"), anext(stream)):
            error = await call_error(attempt)
            assert error.code is ErrorCode.EXECUTION_ERROR
            assert error.details["errorId"] in error.message
            assert error.details["errorId"] in caplog.text
            assert "hunter2" not in f"{error} {error.details}"


async def test_a_fault_of_the_server_itself_still_ends_the_call(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("hunter2")

    async with connected_ends(handlers.registry) as here:
        monkeypatch.setattr(Dispatcher, "find", broken)
        error = await call_error(here.client.call("math.add"))
        assert error.code is ErrorCode.EXECUTION_ERROR
        assert "hunter2" not in error.message
        assert error.details["errorId"] in caplog.text


async def test_dispatch_is_by_the_type_of_the_operation(handlers: Handlers) -> None:
    @handlers.registry.mutation("will.write")
    async def write() -> str:
        return "written"

    async with connected_ends(handlers.registry) as here:
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        assert await here.call("will.write") == "written"
        assert await here.items("is.counting", {"n": 3}) == [0, 1, 2]


@pytest.mark.parametrize("codec", [False, True])
async def test_call_of_a_subscription_is_a_clear_error_and_stops_it(handlers: Handlers, codec: bool) -> None:
    """`call()` of a subscription and `subscribe()` of a query are clear errors: neither hangs nor leaves anything
    running."""
    async with connected_ends(handlers.registry, bus=MemoryBus(codec=codec)) as here:
        error = await call_error(here.client.call("is.endless"))
        assert error.code is ErrorCode.VALIDATION_ERROR
        assert "subscribe()" in error.message
        await until(lambda: handlers.log == ["began", "closed"])
        await until(lambda: here.at_rest)


@pytest.mark.parametrize("overflow", ["block", "error", "drop_oldest", "drop_newest", "latest"])
async def test_subscribe_of_a_query_is_a_clear_error_and_does_not_run_it(
    handlers: Handlers, overflow: Overflow
) -> None:
    async with connected_ends(handlers.registry) as here:
        error = await call_error(anext(here.client.subscribe("math.add", {"a": 1, "b": 2}, overflow=overflow)))
        assert error.code is ErrorCode.VALIDATION_ERROR
        assert "math.add is a query: use call()" in error.message
    assert handlers.log == []


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [False, True])
async def test_an_error_in_the_middle_of_a_stream_comes_after_the_items_before_it(
    handlers: Handlers, codec: bool
) -> None:
    @handlers.registry.subscription("will.break")
    async def breaks() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise CallError("UNAVAILABLE", "the source dried up")

    async with connected_ends(handlers.registry, bus=MemoryBus(codec=codec)) as here:
        found: list[int] = []

        async def consume() -> None:
            async for envelope in here.client.subscribe("will.break"):
                found.append(envelope.data)

        error = await call_error(consume())
        assert (error.code, error.message, found) == (ErrorCode.UNAVAILABLE, "the source dried up", [1, 2])


async def test_items_are_numbered_from_one_and_the_end_says_how_many_there_were(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        caller.request(CallRequested(request_id="r", operation_id="is.counting", input={"n": 3}))
        await until(lambda: len(seen.events) == 4)
        assert [event.seq for event in seen.events] == [1, 2, 3, 3]
        assert isinstance(seen.events[-1], CallCompleted)


@pytest.mark.parametrize("window", [1, 2, 7, 64])
async def test_no_more_items_are_produced_than_the_consumer_has_room_for(handlers: Handlers, window: int) -> None:
    """A producer is never advanced beyond the credits that its consumer gave."""
    async with connected_ends(handlers.registry, window=window) as here:
        async with aclosing(here.client.subscribe("is.endless")) as stream:
            for consumed in range(3 * window):
                assert (await within(anext(stream))).data == consumed + 1
                await settled()
                assert handlers.produced <= consumed + window
            assert handlers.produced >= 3 * window
        await until(lambda: handlers.log == ["began", "closed"])


async def test_credits_of_one_caller_are_not_granted_by_another(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        stranger, _ = await peer(here.bus)
        address = caller.request(CallRequested(request_id="r", operation_id="is.endless", credits=2))
        await until(lambda: len(seen.events) == 2)
        stranger.send(CallCredit(request_id="r", n=100), address)
        caller.send(CallCredit(request_id="unknown", n=100), address)
        await settled()
        assert (len(seen.events), handlers.produced) == (2, 2)
        caller.send(CallCredit(request_id="r", n=3), address)
        await until(lambda: len(seen.events) == 5)
        await settled()
        assert (len(seen.events), handlers.produced) == (5, 5)


async def test_a_stream_without_credits_leaves_the_loop_to_others_too(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        caller.request(CallRequested(request_id="r", operation_id="is.endless"))
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        async with aclosing(here.client.subscribe("is.endless", overflow="latest")) as stream:
            await within(anext(stream))
            assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        await caller.close()
        assert len(seen.events) > 10


async def test_a_slow_consumer_slows_down_only_itself(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, window=8) as here, AsyncExitStack() as stack:
        stalled = [
            await stack.enter_async_context(aclosing(here.client.subscribe("is.counting", {"n": 1_000})))
            for _ in range(20)
        ]
        for stream in stalled:
            await within(anext(stream))
        await settled()
        assert handlers.produced <= 20 * 8
        before = handlers.produced
        fast = await within(asyncio.gather(*(here.items("is.counting", {"n": 1_000}) for _ in range(5))))
        assert [len(items) for items in fast] == [1_000] * 5
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        assert handlers.produced == before + 5_000, "those that stall produced nothing meanwhile"


@pytest.mark.parametrize("overflow", ["latest", "drop_oldest", "drop_newest"])
async def test_a_broadcast_to_a_consumer_that_stalls_goes_on_for_the_others(
    handlers: Handlers, overflow: Overflow
) -> None:
    async with connected_ends(handlers.registry, window=8) as here:
        async with aclosing(here.client.subscribe("is.counting", {"n": 500}, overflow=overflow)) as slow:
            first = (await within(anext(slow))).data
            assert await here.items("is.counting", {"n": 500}) == list(range(500))
            await until(lambda: handlers.produced == 1_000)
            await until(lambda: len(here.handler) == 0)
            rest = [each.data async for each in slow]
        kept = 1 + len(rest)
        assert [first, *rest] == sorted({first, *rest}), "what is left is in order"
        assert kept + here.client.dropped_items == 500
        assert len(rest) <= (1 if overflow == "latest" else 8)


async def test_thousands_of_subscriptions_at_once_hold_and_leave_nothing_behind(handlers: Handlers) -> None:
    count = int(os.environ.get("SUBSCRIPTIONS", "1000"))  # `make soak` runs this test with 10,000

    @handlers.registry.subscription("room.messages")
    async def messages(n: int) -> AsyncIterator[int]:
        yield n
        await handlers.release.wait()
        yield -n

    before = asyncio.all_tasks()
    async with connected_ends(handlers.registry) as here:
        streams = [here.client.subscribe("room.messages", {"n": n}) for n in range(count)]
        assert [(await within(anext(stream))).data for stream in streams] == list(range(count))
        assert len(here.handler) == count
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        handlers.release.set()
        half = streams[: count // 2]
        assert [(await within(anext(stream))).data for stream in half] == [-n for n in range(count // 2)]
        assert [await anext(stream, None) for stream in half] == [None] * len(half)
        for stream in streams[count // 2 :]:
            await stream.aclose()
        await until(lambda: here.at_rest)
        assert asyncio.all_tasks() == before
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3


async def test_closing_the_channel_ends_thousands_of_subscriptions_at_once(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, window=2) as here:
        streams = [here.client.subscribe("is.endless") for _ in range(2_000)]
        for stream in streams:
            await within(anext(stream))
        await within(here.client.close())
        await until(lambda: len(here.handler) == 0)
        assert Counter(handlers.log) == {"began": 2_000, "closed": 2_000}
        for stream in streams:
            await within(anext(stream))  # what was buffered is still consumed
            assert (await call_error(anext(stream))).code is ErrorCode.UNAVAILABLE


# --- cancellation -----------------------------------------------------------------------------------------------------


async def test_a_caller_that_is_cancelled_cancels_the_handler(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True)) as here:
        call = asyncio.ensure_future(here.client.call("is.hanging"))
        await until(lambda: handlers.log == ["began"])
        call.cancel()
        await until(lambda: handlers.log == ["began", "cancelled: the caller gave up"])
        with pytest.raises(asyncio.CancelledError):
            await within(call)
        await until(lambda: here.at_rest)


async def test_a_request_that_is_given_up_before_its_handler_began_never_begins(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, max_calls_per_identity=5) as here:
        caller, seen = await peer(here.bus)
        address = caller.request(CallRequested(request_id="r", operation_id="is.endless", credits=5))
        caller.send(CallAborted(request_id="r"), address)
        await settled()
        assert (handlers.log, seen.events) == ([], [])
        assert here.at_rest


async def test_a_handler_is_cancelled_if_its_caller_leaves_during_its_first_step(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:

        @handlers.registry.query("is.left")
        async def leave() -> str:
            await here.client.close()
            return await handlers.hanging()

        await until(lambda: "is.left" in here.bus.operations())
        assert (await call_error(here.client.call("is.left"))).code is ErrorCode.UNAVAILABLE
        await until(lambda: here.at_rest)
        assert handlers.log == ["began", "cancelled: the caller is gone"]


@pytest.mark.parametrize("codec", [False, True])
async def test_a_handler_that_aborts_its_own_request_in_its_first_step_is_cancelled(
    handlers: Handlers, codec: bool
) -> None:
    async with connected_ends(handlers.registry, bus=MemoryBus(codec=codec)) as here:

        @handlers.registry.query("is.aborting")
        async def abort(context: Context) -> str:
            here.client.abort(context.request_id or "", "enough")
            return await handlers.hanging()

        await until(lambda: "is.aborting" in here.bus.operations())
        assert (await call_error(here.client.call("is.aborting"))).code is ErrorCode.ABORTED
        await until(lambda: here.at_rest)
        assert handlers.log == ["began", "cancelled: enough"]


async def test_calls_that_end_at_once_let_other_tasks_run(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        async with counted_turns() as turns:
            for each in range(500):
                assert await here.call("math.add", {"a": each, "b": 1}) == each + 1
        assert turns.count >= 7


async def test_calls_that_call_each_other_do_not_exhaust_the_stack(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:

        @handlers.registry.query("is.deep")
        async def deep(levels: int) -> int:
            return 1 + await here.call("is.deep", {"levels": levels - 1}) if levels else 0

        await until(lambda: "is.deep" in here.bus.operations())
        assert await here.call("is.deep", {"levels": 300}) == 300


@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
async def test_cancellation_travels_through_nested_calls_and_through_a_second_bus(handlers: Handlers, how: str) -> None:
    async with connected_ends(handlers.registry) as far:
        near = OperationRegistry()

        @near.query("relay.far")
        async def relay(context: Context) -> Any:
            return (await far.client.call("is.hanging", context=context.child())).data

        @near.query("relay.twice")
        async def twice(context: Context) -> Any:
            return (await context.env.relay.far()).data

        @near.query("relay.thrice")
        async def thrice(context: Context) -> Any:
            return (await context.env.relay.twice()).data

        async with connected_ends(near) as here:
            timeout = 1.0 if how == "deadline" else None  # enough to begin on a busy machine
            call = asyncio.ensure_future(here.client.call("relay.thrice", timeout=timeout))
            if how != "deadline":
                await until(lambda: handlers.log == ["began"])
            if how == "cancel":
                call.cancel()
            elif how == "close":
                await within(here.client.close())
            await until(lambda: len(handlers.log) == 2)
            assert handlers.log[1].startswith("cancelled")
            await within(asyncio.wait([call]))
            if how == "cancel":
                assert call.cancelled()
            else:
                expected = ErrorCode.TIMEOUT if how == "deadline" else ErrorCode.UNAVAILABLE
                assert (await call_error(call)).code is expected
            await until(lambda: here.at_rest and far.at_rest)


async def test_deadlines_parents_and_identity_are_carried_on_through_a_second_bus(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True)) as far:
        near = OperationRegistry()
        seen: list[Context] = []

        @near.query("relay.far")
        async def relay(context: Context) -> Any:
            seen.append(context)
            return (await far.client.call("is.anybody", context=context.child(), timeout=60)).data

        async with connected_ends(near, bus=MemoryBus(codec=True)) as here:
            context = Context(request_id="root", identity=BOB).within(5)
            assert await here.call("relay.far", context=context) == "yes"
        (near_side,), (far_side,) = seen, handlers.contexts
        assert near_side.request_id == far_side.parent_request_id == "root"
        assert far_side.identity == BOB
        assert near_side.remaining is not None
        assert far_side.remaining is not None
        assert far_side.remaining <= near_side.remaining + 5 <= 10  # not its own timeout of 60 s


async def test_leaving_a_nested_subscription_closes_every_generator_behind_it(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, window=4) as far:
        near = OperationRegistry()
        log: list[str] = []

        @near.subscription("relay.items")
        async def relay(context: Context) -> AsyncIterator[int]:
            try:
                async with aclosing(far.client.subscribe("is.endless", context=context.child())) as stream:
                    async for envelope in stream:
                        yield envelope.data
            finally:
                log.append("relay closed")

        async with connected_ends(near, window=4) as here:
            async with aclosing(here.client.subscribe("relay.items")) as stream:
                assert [(await within(anext(stream))).data for _ in range(20)] == list(range(1, 21))
            await until(lambda: log == ["relay closed"])
            await until(lambda: handlers.log == ["began", "closed"])
            assert handlers.produced <= 20 + 2 * 4 + 1
            await until(lambda: here.at_rest and far.at_rest)


async def test_the_handlers_of_a_caller_that_is_gone_are_cancelled_and_no_others(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        async with PendingRequestMap(MemoryTransport(here.bus)) as leaving:
            lost = asyncio.ensure_future(leaving.call("is.hanging"))
            kept = asyncio.ensure_future(here.client.call("is.hanging"))
            await until(lambda: len(handlers.log) == 2)
        assert (await call_error(lost)).code is ErrorCode.UNAVAILABLE
        await until(lambda: len(here.handler) == 1)
        assert handlers.log[2:] == ["cancelled: the caller is gone"]
        handlers.release.set()
        assert (await within(kept)).data == "released"


async def test_a_handler_that_cleans_up_is_not_cancelled_a_second_time(handlers: Handlers) -> None:
    cleaned = asyncio.Event()

    @handlers.registry.query("will.clean")
    async def clean() -> None:
        try:
            handlers.log.append("began")
            await asyncio.Event().wait()
        finally:
            handlers.log.append("cleaning")
            await handlers.release.wait()
            cleaned.set()

    async with connected_ends(handlers.registry) as here:
        async with PendingRequestMap(MemoryTransport(here.bus)) as leaving:
            call = asyncio.ensure_future(leaving.call("will.clean"))
            await until(lambda: handlers.log == ["began"])
            call.cancel()
            await until(lambda: handlers.log == ["began", "cleaning"])
        await settled()
        handlers.release.set()
        await within(cleaned.wait())


@pytest.mark.parametrize("kind", ["query", "limited", "subscription"])
@pytest.mark.parametrize("patient", [False, True], ids=["both sides watch", "the server watches alone"])
async def test_a_handler_past_its_deadline_cleans_up_undisturbed(handlers: Handlers, kind: str, patient: bool) -> None:
    began = asyncio.Event()

    async def clean() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            handlers.log.append("cleaning")
            await handlers.release.wait()
            handlers.log.append("cleaned")

    async def clean_stream() -> AsyncIterator[int]:
        await clean()
        yield 1

    handlers.registry.query("will.query")(clean)
    handlers.registry.query("will.limited", timeout=60)(clean)
    handlers.registry.subscription("will.subscription")(clean_stream)
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        attempt: Any = here.items if kind == "subscription" else here.client.call
        attempts = 0
        while not began.is_set():  # on a busy machine, a deadline may pass before the handler has begun
            attempts += 1
            if patient:
                request_id = f"r{attempts}"
                timeout = SHORT * attempts * 1000
                caller.request(CallRequested(request_id=request_id, operation_id=f"will.{kind}", timeout_ms=timeout))
                await until(lambda count=attempts: code_of(seen.events) == ["TIMEOUT"] * count)
            else:
                error = await call_error(attempt(f"will.{kind}", timeout=SHORT * attempts))
                assert error.code is ErrorCode.TIMEOUT
        await until(lambda: handlers.log == ["cleaning"])
        passed = asyncio.Event()  # every timer of the same moment
        asyncio.get_running_loop().call_later(SHORT, passed.set)
        await within(passed.wait())
        assert handlers.log == ["cleaning"]
        handlers.release.set()
        await until(lambda: handlers.log == ["cleaning", "cleaned"])


async def test_the_registry_leaves_a_deadline_to_the_server_that_watches_it(handlers: Handlers) -> None:
    handlers.registry.query("is.limited", timeout=60)(handlers.hanging)
    late = Context(deadline=time.monotonic() - 1, watched=True)
    items = [each.data async for each in handlers.registry.subscribe("is.counting", {"n": 2}, late)]
    assert items == [0, 1]
    soon = Context(deadline=time.monotonic() + SHORT, watched=True)
    call = asyncio.ensure_future(handlers.registry.execute("is.limited", None, soon))
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * SHORT, passed.set)
    await within(passed.wait())
    handlers.release.set()
    assert (await within(call)).data == "released"
    far = Context(deadline=time.monotonic() + 60, watched=True)
    assert far.within(90).watched
    assert not far.within(30).watched, "nobody watches a deadline that is new"


# --- the close --------------------------------------------------------------------------------------------------------


async def test_a_server_that_closes_ends_the_calls_in_flight_at_once_and_takes_no_more(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        calls = [asyncio.ensure_future(here.client.call("is.hanging")) for _ in range(10)]
        stream = here.client.subscribe("is.endless")
        await within(anext(stream))
        await until(lambda: handlers.log.count("began") == 11)
        await within(here.handler.close())
        errors = await within(asyncio.gather(*calls, return_exceptions=True))
        assert {(error.code, error.message) for error in errors} == {(ErrorCode.ABORTED, "the server is closing")}
        assert Counter(handlers.log) == {"began": 11, "cancelled: the server is closing": 10, "closed": 1}
        assert (await call_error(here.client.call("math.add"))).code is ErrorCode.UNAVAILABLE
        assert (await call_error(exhausted(stream))).message == "the server is closing"
        await within(here.handler.close())


async def test_closing_the_servers_channel_ends_its_callers_at_once(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        call = asyncio.ensure_future(here.client.call("is.hanging"))
        await until(lambda: handlers.log == ["began"])
        await within(here.server.close())
        assert (await call_error(call)).code is ErrorCode.UNAVAILABLE
        await until(lambda: handlers.log[1:] == ["cancelled: the caller is gone"])


async def test_a_handler_that_ignores_its_cancellation_blocks_neither_the_close_nor_its_caller(
    handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    @handlers.registry.query("is.stubborn")
    async def stubborn() -> str:
        handlers.log.append("began")
        try:
            await handlers.release.wait()
        except asyncio.CancelledError:
            handlers.log.append("ignored")
        await handlers.release.wait()
        return "at last"

    async with connected_ends(handlers.registry) as here:
        call = asyncio.ensure_future(here.client.call("is.stubborn"))
        await until(lambda: handlers.log == ["began"])
        closing = asyncio.ensure_future(here.handler.close(grace=SHORT))
        assert (await call_error(call)).code is ErrorCode.ABORTED
        await within(closing)
        assert handlers.log == ["began", "ignored"]
        assert "1 handlers ignored their cancellation" in caplog.text
        handlers.release.set()
        await until(lambda: here.at_rest)
        assert here.client.dropped_events == {}, "what it answers in the end is not even sent"


# --- draining ---------------------------------------------------------------------------------------------------------


async def test_what_reaches_a_draining_server_is_handed_on_even_if_it_has_no_room_anyway(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, max_calls=1) as here:
        caller, seen = await peer(here.bus)
        address = caller.request(CallRequested(request_id="first", operation_id="is.hanging"))
        await until(lambda: handlers.log == ["began"])
        caller.send(CallRequested(request_id="above", operation_id="math.add"), address)
        draining = asyncio.ensure_future(here.handler.drain())
        await settled()
        caller.send(CallRequested(request_id="late", operation_id="math.add"), address)
        refusals = [(event.request_id, event.code, event.not_started) for event in seen.events]
        assert refusals == [("above", "RATE_LIMITED", None), ("late", "UNAVAILABLE", True)]
        handlers.release.set()
        assert await within(draining)
        assert handlers.log == ["began"]


async def test_two_drains_of_the_same_server_both_end_when_it_is_done(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        call = asyncio.ensure_future(here.call("is.hanging"))
        await until(lambda: handlers.log == ["began"])
        drains = [asyncio.ensure_future(here.handler.drain(600)) for _ in range(2)]
        await settled()
        handlers.release.set()
        assert await within(asyncio.gather(*drains)) == [True, True]
        assert await call == "released"


async def test_a_draining_server_still_identifies_itself(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        (address,) = await here.client.transport.servers()
        call = asyncio.ensure_future(here.call("is.hanging"))
        await until(lambda: handlers.log == ["began"])
        draining = asyncio.ensure_future(here.handler.drain())
        await settled()
        about = await within(here.client.call("opwire.about", to=address))
        assert (about.data["status"], about.data["inFlight"]) == ("draining", 2)
        handlers.release.set()
        assert await within(draining)
        await call


async def test_a_stream_that_outlasts_the_draining_is_stopped_by_the_close(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        stream = here.client.subscribe("is.endless")
        await within(anext(stream))
        assert not await within(here.handler.drain(SHORT))
        assert handlers.log == ["began"]
        await within(here.handler.close())
        assert (await call_error(exhausted(stream))).code is ErrorCode.ABORTED
        assert handlers.log == ["began", "closed"]


async def test_what_is_registered_while_a_server_drains_is_announced_when_it_serves_again(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        assert await within(here.handler.drain())
        handlers.registry.query("late.comer")(handlers.context)
        await settled()
        assert here.bus.operations() == []
        await within(here.handler.start())
        assert await here.call("late.comer") == "yes"
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3


# --- deadlines --------------------------------------------------------------------------------------------------------


async def test_a_call_that_has_ended_leaves_no_deadline_behind(handlers: Handlers) -> None:
    def pending_deadlines() -> int:
        return sum(len(found) for found in gc.get_objects() if isinstance(found, Deadlines))

    gc.collect()
    before = pending_deadlines()
    async with connected_ends(handlers.registry) as here:
        await here.call("math.add", {"a": 1, "b": 2}, timeout=60)
        await here.items("is.counting", {"n": 3}, timeout=60)
        await call_error(here.client.call("math.add", timeout=60))
        assert pending_deadlines() == before
        hanging = asyncio.ensure_future(here.client.call("is.hanging", timeout=60))
        await until(lambda: pending_deadlines() == before + 2)  # one at each peer
        hanging.cancel()
        await until(lambda: here.at_rest)
        assert pending_deadlines() == before


@pytest.mark.parametrize("fields", [{"timeout_ms": 0}, {"timeout_ms": -5}, {"deadline": 1_000}], ids=str)
async def test_a_request_past_its_deadline_on_arrival_is_not_started(
    handlers: Handlers, fields: dict[str, Any]
) -> None:
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        for operation in ("is.hanging", "is.endless"):
            caller.request(CallRequested(request_id=operation, operation_id=operation, **fields))
        await until(lambda: code_of(seen.events) == ["TIMEOUT", "TIMEOUT"])
        assert handlers.log == []


async def test_a_caller_with_a_wrong_wall_clock_is_not_late(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        wrong = (time.time() - 86_400) * 1000
        caller.request(
            CallRequested(
                request_id="r", operation_id="math.add", input={"a": 1, "b": 2}, deadline=wrong, timeout_ms=5_000
            )
        )
        await until(lambda: len(seen.events) == 1)
        assert seen.events[0].output.data == 3


@pytest.mark.parametrize("operation", ["is.hanging", "is.endless"])
async def test_the_server_enforces_the_deadline_of_a_caller_that_does_not(handlers: Handlers, operation: str) -> None:
    """Both sides enforce the deadline: the caller gets TIMEOUT, the handler is cancelled."""
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        caller.request(CallRequested(request_id="r", operation_id=operation, timeout_ms=SHORT * 1000, credits=None))
        await until(lambda: code_of(seen.events) == ["TIMEOUT"])
        await until(lambda: len(handlers.log) == 2)
        assert handlers.log[1].startswith(("cancelled", "closed"))
        await until(lambda: here.at_rest)


async def test_a_call_without_a_deadline_has_that_of_the_server_and_a_stream_none(handlers: Handlers) -> None:
    bus = MemoryBus()
    async with (
        PendingRequestMap(MemoryTransport(bus)) as calls,
        CallHandler(handlers.registry, calls, timeout=SHORT) as server,
    ):
        caller, seen = await peer(bus)
        caller.request(CallRequested(request_id="stream", operation_id="is.endless", credits=1))
        caller.request(CallRequested(request_id="call", operation_id="is.hanging"))
        await until(lambda: code_of(seen.events) == ["TIMEOUT"])
        assert [event.request_id for event in seen.events] == ["stream", "call"]
        await until(lambda: len(server) == 1)


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_calls_above_the_bound_are_refused_at_once_until_one_has_ended(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry, max_calls=3) as here:
        calls = [asyncio.ensure_future(here.client.call("is.hanging")) for _ in range(3)]
        await until(lambda: len(handlers.log) == 3)
        error = await call_error(here.client.call("math.add", {"a": 1, "b": 2}))
        assert error.code is ErrorCode.RATE_LIMITED
        assert error.retryable
        calls.pop().cancel()
        await until(lambda: len(here.handler) == 2)
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        handlers.release.set()
        await within(asyncio.gather(*calls))


async def test_one_identity_cannot_take_the_place_of_others(handlers: Handlers) -> None:
    """One identity cannot have more calls in flight than its limit."""
    async with connected_ends(handlers.registry, max_calls_per_identity=2) as here:
        ann, bob = Context(identity=ANN), Context(identity=BOB)
        calls = [asyncio.ensure_future(here.client.call("is.hanging", context=ann)) for _ in range(2)]
        await until(lambda: len(handlers.log) == 2)
        error = await call_error(here.client.call("is.hanging", context=ann))
        assert error.code is ErrorCode.RATE_LIMITED
        assert "2 calls" in error.message
        calls.append(asyncio.ensure_future(here.client.call("is.hanging", context=bob)))
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        handlers.release.set()
        await within(asyncio.gather(*calls))
        assert await here.call("is.hanging", context=ann) == "released"
        assert here.at_rest


async def test_a_message_above_the_limit_fails_its_own_call_in_either_direction(handlers: Handlers) -> None:
    @handlers.registry.query("echo.text")
    async def text(text: str, times: int) -> str:
        return text * times

    @handlers.registry.subscription("echo.texts")
    async def texts() -> AsyncIterator[str]:
        yield "short"
        yield "x" * 10_000
        yield "never"

    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True, max_message=5_000)) as here:
        waiting = asyncio.ensure_future(here.client.call("is.hanging"))
        out = await call_error(here.client.call("echo.text", {"text": "x" * 6_000, "times": 1}))
        back = await call_error(here.client.call("echo.text", {"text": "x" * 3_000, "times": 2}))
        assert out.code is back.code is ErrorCode.PAYLOAD_TOO_LARGE
        stream = here.client.subscribe("echo.texts")
        assert (await within(anext(stream))).data == "short"
        assert (await call_error(anext(stream))).code is ErrorCode.PAYLOAD_TOO_LARGE
        assert len(await here.call("echo.text", {"text": "x" * 2_000, "times": 2})) == 4_000
        assert not waiting.done()
        handlers.release.set()
        assert (await within(waiting)).data == "released"
        assert here.at_rest


async def test_an_error_with_huge_details_still_reaches_its_caller(handlers: Handlers) -> None:
    @handlers.registry.query("will.fail")
    async def fail() -> None:
        raise CallError("UNAVAILABLE", "gone", ["x" * 10_000])

    async with connected_ends(handlers.registry, bus=MemoryBus(codec=True, max_message=5_000)) as here:
        error = await call_error(here.client.call("will.fail"))
        assert (error.code, error.message, error.details) == (ErrorCode.UNAVAILABLE, "gone", None)


@pytest.mark.parametrize("codec", [False, True])
async def test_values_nested_too_deeply_fail_their_own_call_in_either_direction(
    handlers: Handlers, codec: bool
) -> None:
    deep: Any = 0
    for _ in range(300):
        deep = [deep]

    @handlers.registry.query("echo.deep")
    async def deeply() -> Any:
        return deep

    @handlers.registry.query("echo.length")
    async def length(it: list[Any]) -> int:
        return len(it)

    async with connected_ends(handlers.registry, bus=MemoryBus(codec=codec)) as here:
        error = await call_error(here.client.call("echo.length", {"it": deep}))
        assert error.code is (ErrorCode.PROTOCOL_ERROR if codec else ErrorCode.VALIDATION_ERROR)
        if codec:
            assert (await call_error(here.client.call("echo.deep"))).code is ErrorCode.PROTOCOL_ERROR
        else:
            assert await here.call("echo.deep") is deep, "nothing is encoded, so nothing is too deep"
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        assert here.at_rest


# --- repetitions ------------------------------------------------------------------------------------------------------


async def test_a_request_that_comes_again_is_not_run_twice(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        deadline = (time.time() + 60) * 1000
        request = CallRequested(request_id="r", operation_id="math.add", input={"a": 1, "b": 2}, deadline=deadline)
        caller.request(request)
        caller.request(request)
        await until(lambda: len(seen.events) == 1)
        caller.request(request)  # the very same: a medium may deliver it twice
        await settled()
        assert len(seen.events) == 1
        caller.request(replace(request, deadline=deadline + 1))
        await until(lambda: len(seen.events) == 2)
        assert handlers.log == ["add"]
        assert isinstance(seen.events[0], CallResponded)
        assert isinstance(seen.events[1], CallFailed), "silence would leave a caller waiting for its deadline"
        assert (seen.events[1].code, "used before" in seen.events[1].message) == ("PROTOCOL_ERROR", True)
        assert here.at_rest


async def test_a_request_that_was_rejected_is_rejected_again_after_a_restart(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        (server,) = await caller.servers()
        request = CallRequested(request_id="r", operation_id="math.add", input={"a": 1, "b": 2})
        await here.handler.drain(5)
        caller.send(request, server)
        await until(lambda: len(seen.events) == 1)
        await here.handler.start()
        caller.send(request, server)  # a repetition: the caller has sent it to another server by now
        await until(lambda: len(seen.events) == 2)
        assert [isinstance(each, CallFailed) and each.not_started for each in seen.events] == [True, True]
        assert handlers.log == []


async def test_the_same_id_of_another_caller_is_another_request(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        for _ in range(3):
            caller, seen = await peer(here.bus)
            caller.request(CallRequested(request_id="1", operation_id="math.add", input={"a": 1, "b": 2}))
            await until(lambda seen=seen: len(seen.events) == 1)
            assert isinstance(seen.events[0], CallResponded)
        assert handlers.log == ["add"] * 3


async def test_the_id_of_a_call_that_is_still_ending_is_rejected_and_no_caller_gets_the_wrong_response(
    handlers: Handlers,
) -> None:
    @handlers.registry.query("will.clean")
    async def clean() -> None:
        try:
            handlers.log.append("began")
            await asyncio.Event().wait()
        finally:
            await handlers.release.wait()

    async with connected_ends(handlers.registry) as here:
        first, heard = await peer(here.bus)
        second, answers = await peer(here.bus)
        address = first.request(CallRequested(request_id="r", operation_id="will.clean"))
        await until(lambda: handlers.log == ["began"])
        first.send(CallAborted(request_id="r"), address)
        second.request(CallRequested(request_id="r", operation_id="math.add", input={"a": 1, "b": 2}))
        await settled()
        assert code_of(answers.events) == ["PROTOCOL_ERROR"]
        handlers.release.set()
        await until(lambda: len(here.handler) == 0)
        second.request(CallRequested(request_id="r", operation_id="math.add", input={"a": 1, "b": 2}))
        await until(lambda: len(answers.events) == 2)
        assert answers.events[1].output.data == 3
        assert heard.events == []


async def test_the_memory_for_answered_requests_is_bounded(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwire.protocol.handler.MIN_REMEMBERED_IDS", 10)
    async with connected_ends(handlers.registry) as here:
        caller, answers = await peer(here.bus)

        async def answer_to(number: int) -> Any:
            count = len(answers.events)
            caller.request(CallRequested(request_id=f"r{number}", operation_id="math.add", input={"a": 1, "b": 2}))
            await until(lambda: len(answers.events) > count)
            return answers.events[-1]

        for number in range(35):
            assert isinstance(await answer_to(number), CallResponded)
        for number in range(25, 35):
            assert isinstance(await answer_to(number), CallFailed), "it is remembered"
        for number in range(10):
            assert isinstance(await answer_to(number), CallResponded), "it is forgotten"


# --- any arrival ------------------------------------------------------------------------------------------------------

ids = st.sampled_from(["r1", "r2", "r3"])
ARRIVALS = st.one_of(
    st.builds(
        CallRequested,
        request_id=ids,
        operation_id=st.sampled_from(["math.add", "is.hanging", "is.endless", "is.counting", "is.guarded", "no.such"]),
        input=st.sampled_from([None, {"a": 1, "b": 2}, {"n": 3}]),
        identity=st.sampled_from([None, ANN]),
        timeout_ms=st.sampled_from([None, 0, 60_000]),
        credits=st.sampled_from([None, 0, 2]),
    ),
    st.builds(CallCredit, request_id=ids, n=st.integers(1, 3)),
    st.builds(CallAborted, request_id=ids),
    st.builds(CallCompleted, request_id=ids),
    st.builds(CallFailed, request_id=ids, code=st.just("TIMEOUT"), message=st.just("")),
    st.builds(CallResponded, request_id=ids, output=st.just(local_envelope(1, "a.b"))),
)
TURN = None  # of the event loop


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.just(TURN) | ARRIVALS), max_size=30))
def test_events_of_peers_in_any_order_raise_nothing_and_are_never_answered_twice(
    arrivals: list[tuple[int, Any]],
) -> None:
    async def play() -> None:
        handlers = Handlers()
        async with connected_ends(handlers.registry, max_calls=4, max_calls_per_identity=3) as here:
            ends = [await peer(here.bus), await peer(here.bus)]
            server = here.bus.route("math.add")
            asked: Counter[tuple[int, str]] = Counter()
            for who, event in arrivals:
                if event is TURN:
                    await asyncio.sleep(0)
                    continue
                asked[who, event.request_id] += isinstance(event, CallRequested)
                ends[who][0].send(event, server)
            await settled()
            for who, (end, seen) in enumerate(ends):
                answers = Counter((who, event.request_id) for event in seen.events if is_final(event))
                assert answers <= asked
                await end.close()
            await until(lambda: here.at_rest)
            assert await here.call("math.add", {"a": 1, "b": 2}) == 3

    asyncio.run(play())


def is_final(event: Any) -> bool:
    return not isinstance(event, CallResponded) or event.seq is None


# --- announcements ----------------------------------------------------------------------------------------------------


async def test_operations_that_come_and_go_are_announced_and_withdrawn(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:

        @handlers.registry.query("late.comer")
        async def comer() -> str:
            return "here"

        await until(lambda: "late.comer" in here.bus.operations())
        assert await here.call("late.comer") == "here"
        handlers.registry.unregister("late.comer")
        await until(lambda: "late.comer" not in here.bus.operations())
        assert (await call_error(here.client.call("late.comer"))).code is ErrorCode.OPERATION_NOT_FOUND


async def test_a_server_that_has_closed_serves_nothing_not_even_what_was_just_registered(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        handlers.registry.register(OperationSpec(namespace="just", name="now"))
        await within(here.handler.close())
        await settled()
        assert here.bus.operations() == []
        handlers.registry.register(OperationSpec(namespace="after", name="wards"))
        await settled()
        assert here.bus.operations() == []


async def test_a_change_that_cannot_be_announced_is_reported_and_affects_no_other_peer(
    handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected_ends(handlers.registry) as here:
        await here.server.transport.close()
        handlers.registry.register(OperationSpec(namespace="just", name="now"))
        await until(lambda: "could not be announced" in caplog.text)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


# --- what is served, and for which caller -----------------------------------------------------------------------------


async def test_what_is_not_served_cannot_be_called_by_addressing_the_server(handlers: Handlers) -> None:
    @handlers.registry.query("internal.dump")
    async def dump() -> str:
        return "internal"

    async with connected_ends(handlers.registry, serves=lambda spec: spec.namespace == "math") as here:
        (address,) = await here.client.transport.servers()
        for to in (None, address):
            error = await call_error(here.client.call("internal.dump", to=to))
            assert error.code is ErrorCode.OPERATION_NOT_FOUND
        assert await here.call("math.add", {"a": 1, "b": 2}, to=address) == 3


async def test_a_call_on_behalf_of_an_anonymous_caller_is_not_one_of_the_program(handlers: Handlers) -> None:
    async with connected_ends(handlers.registry) as here:
        anonymous = Context(request_id="r", inbound=Inbound("r"))
        error = await call_error(here.client.call("math.add", {"a": 1, "b": 2}, context=anonymous))
        assert error.code is ErrorCode.UNAUTHENTICATED
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3


async def test_a_handler_that_passes_its_context_on_calls_as_its_caller() -> None:
    registry, seen, other = OperationRegistry(), dict[str, Context](), list[PendingRequestMap]()

    @registry.query("outer.ask")
    async def outer(context: Context) -> None:
        seen["outer"] = context
        await other[0].call("inner.ask", None, context=context)

    @registry.query("inner.ask")
    async def inner(context: Context) -> None:
        seen["inner"] = context

    bus = MemoryBus(codec=True)
    async with connected_ends(registry, bus=bus) as here, PendingRequestMap(MemoryTransport(bus)) as second:
        other.append(second)
        await here.call("outer.ask", None, context=Context(identity=ANN, deadline=time.monotonic() + 5))
    assert seen["inner"].identity == ANN
    assert seen["inner"].parent_request_id == seen["outer"].request_id
    assert seen["inner"].request_id != seen["outer"].request_id
    assert (seen["inner"].deadline or 0) <= time.monotonic() + 5


async def test_a_stream_ends_on_both_sides_if_its_consumer_keeps_missing_an_item(handlers: Handlers) -> None:
    closed = asyncio.Event()

    @handlers.registry.subscription("will.stay")
    async def stay() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with connected_ends(handlers.registry) as here:
        caller, seen = await peer(here.bus)
        caller.request(CallRequested(request_id="r", operation_id="will.stay", credits=10))
        await until(lambda: len(seen.events) == 2)
        for _ in range(3):
            caller.send(CallCredit(request_id="r", n=0, total=10, received=1), seen.senders[0])
        await within(closed.wait())
        failed = seen.events[2]
        assert isinstance(failed, CallFailed)
        assert (failed.code, "item 2" in failed.message) == ("UNAVAILABLE", True)


# --- late requests ----------------------------------------------------------------------------------------------------


async def test_a_request_that_waited_while_the_loop_was_blocked_is_not_started(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopLag, "start", lambda self: setattr(self, "calm_until", 0.0))
    monkeypatch.setattr(LoopLag, "recent", lambda self, now: 7.0)
    async with connected_ends(handlers.registry, transport=Untrusted, anonymous=ANN) as here:
        caller, seen = await peer(here.bus)
        sent = time.time() - 6
        for number, timeout in enumerate((1, 60)):
            caller.request(
                CallRequested(
                    request_id=str(number),
                    operation_id="math.add",
                    input={"a": 1, "b": 2},
                    deadline=(sent + timeout) * 1000,
                    timeout_ms=timeout * 1000,
                )
            )
        await until(lambda: len(seen.events) == 2)
        events = {event.request_id: event for event in seen.events}
        assert isinstance(events["0"], CallFailed)
        assert events["0"].code == "TIMEOUT"
        assert isinstance(events["1"], CallResponded)
        assert handlers.log == ["add"]


async def test_what_changes_together_is_announced_together(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected_ends(handlers.registry) as here:
        transport, told = here.server.transport, list[tuple[str, list[str]]]()
        for name in ("announce", "withdraw"):
            real: Any = getattr(transport, name)

            async def tell(operation_ids: Iterable[str], name: str = name, real: Any = real) -> None:
                told.append((name, list(operation_ids)))
                await real(operation_ids)

            monkeypatch.setattr(transport, name, tell)
        for number in range(1_000):
            handlers.registry.register(OperationSpec(namespace="many", name=f"op{number}"))
        handlers.registry.unregister("many.op7")
        await until(lambda: "many.op999" in here.bus.operations())
        assert told == [
            ("withdraw", ["many.op7"]),
            ("announce", [f"many.op{number}" for number in range(1_000) if number != 7]),
        ]
