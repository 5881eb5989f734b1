"""What a span and the metrics say of a call, and what they never say."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from opwire import (
    AccessControl,
    CallError,
    Context,
    ErrorCode,
    Identity,
    OperationRegistry,
    http_envelope,
    mcp_envelope,
)
from opwire.hub import Spoke
from opwire.observe.telemetry import Recorder, instrument
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.observe.tape import Tape

DURATION = "rpc.server.call.duration"


def failing() -> OperationRegistry:
    """Operations that fail, each in its own way."""
    registry = OperationRegistry()

    @registry.query("fail.with")
    async def with_code(code: str, secret: str = "") -> None:
        raise CallError(code, f"the secret is {secret}", {"secret": secret})

    @registry.query("fail.by_mistake")
    async def by_mistake(secret: str) -> None:
        raise ValueError(f"the secret is {secret}")

    @registry.query("fail.never")
    async def never() -> None:
        await asyncio.Event().wait()

    @registry.subscription("fail.later")
    async def later() -> AsyncIterator[int]:
        yield 1
        raise CallError("UNAVAILABLE", "no more")

    return registry


async def test_a_span_says_which_operation_it_was_and_what_came_of_it(tape: Tape) -> None:
    registry = OperationRegistry()

    @registry.mutation("math.add")
    async def add(a: int) -> int:
        return a

    instrument(registry, **tape.providers)
    await registry.execute("math.add", {"a": 1}, Context(request_id="r1", identity=Identity(id="ann")))
    assert dict(tape.span("math.add").attributes or {}) == {
        "rpc.system.name": "opwire",
        "rpc.method": "math.add",
        "rpc.response.status_code": "OK",
        "opwire.operation.type": "mutation",
        "opwire.source": "local",
        "opwire.request_id": "r1",
    }


async def test_the_source_of_an_answer_is_shown(tape: Tape) -> None:
    registry = OperationRegistry()

    @registry.query("far.http")
    async def http() -> Any:
        return http_envelope(1, status_code=201, headers={"x-secret": "swordfish"}, content_type="application/json")

    @registry.query("far.mcp")
    async def mcp() -> Any:
        return mcp_envelope(1, is_error=True, content=[])

    instrument(registry, **tape.providers)
    await registry.execute("far.http")
    await registry.execute("far.mcp")
    http_span, mcp_span = (dict(span.attributes or {}) for span in tape.spans)
    assert (http_span["opwire.source"], http_span["http.response.status_code"]) == ("http", 201)
    assert (mcp_span["opwire.source"], mcp_span["error.type"]) == ("mcp", "tool_error")
    assert mcp_span["rpc.response.status_code"] == "OK"
    assert "swordfish" not in str(http_span)


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_errors_are_counted_by_code_and_as_errors_of_the_server_if_it_caused_them(
    code: ErrorCode, tape: Tape
) -> None:
    """Errors are reported by code; a server's span is an error only if it was its fault."""
    registry = failing()
    instrument(registry, **tape.providers)
    with pytest.raises(CallError):
        await registry.execute("fail.with", {"code": code.value})
    span = tape.span("fail.with")
    attributes = dict(span.attributes or {})
    assert (attributes["rpc.response.status_code"], attributes["error.type"]) == (code.value, code.value)
    ours = {"EXECUTION_ERROR", "TIMEOUT", "UNAVAILABLE", "INTERNAL"}
    assert span.status.status_code.name == ("ERROR" if code.value in ours else "UNSET")
    ((labels, count),) = tape.points(DURATION)
    assert (labels["error.type"], count) == (code.value, 1)


async def test_every_error_is_one_to_the_caller_but_giving_up_is_not(tape: Tape) -> None:
    recorder = Recorder("client", **tape.providers)
    for error in (CallError("VALIDATION_ERROR"), asyncio.CancelledError(), KeyError("odd")):
        with suppress(type(error)), recorder.call(type(error).__name__, Context()):
            raise error
    spans = [(span.status.status_code.name, (span.attributes or {})["error.type"]) for span in tape.spans]
    assert spans == [("ERROR", "VALIDATION_ERROR"), ("UNSET", "ABORTED"), ("ERROR", "INTERNAL")]
    assert {span.kind.name for span in tape.spans} == {"CLIENT"}


async def test_a_call_that_is_cancelled_is_aborted(tape: Tape) -> None:
    registry = failing()
    instrument(registry, **tape.providers)
    task = asyncio.create_task(registry.execute("fail.never"))
    async with asyncio.timeout(5):
        while not tape.points("opwire.server.active_calls"):
            await asyncio.sleep(0)
    assert [count for _, count in tape.points("opwire.server.active_calls")] == [1]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tape.span("fail.never").attributes or {})["error.type"] == "ABORTED"
    assert [count for _, count in tape.points("opwire.server.active_calls")] == [0]


async def test_a_stream_that_fails_says_how_far_it_came(tape: Tape) -> None:
    registry = failing()
    instrument(registry, **tape.providers)
    with pytest.raises(CallError):
        _ = [item async for item in registry.subscribe("fail.later")]
    attributes = dict(tape.span("fail.later").attributes or {})
    assert (attributes["error.type"], attributes["opwire.items"]) == ("UNAVAILABLE", 1)


async def test_neither_data_nor_messages_nor_identities_are_recorded(
    tape: Tape, caplog: pytest.LogCaptureFixture
) -> None:
    registry = failing()
    instrument(registry, **tape.providers)
    context = Context(identity=Identity(id="swordfish"), metadata={"password": "swordfish"})
    with pytest.raises(CallError):
        await registry.execute("fail.with", {"code": "EXECUTION_ERROR", "secret": "swordfish"}, context)
    with pytest.raises(CallError):
        await registry.execute("fail.with", {"code": "swordfish", "more": "swordfish"}, context)
    with pytest.raises(CallError) as unforeseen, caplog.at_level(logging.CRITICAL, "opwire"):
        await registry.execute("fail.by_mistake", {"secret": "swordfish"}, context)
    assert len(tape.spans) == 3
    for span in tape.spans:
        assert "swordfish" not in span.to_json()
        assert not span.events
    assert "swordfish" not in str(tape.points(DURATION))
    assert (tape.spans[-1].attributes or {})["opwire.error_id"] == unforeseen.value.details["errorId"]


async def test_the_id_of_the_caller_is_shown_where_that_was_asked_for(tape: Tape) -> None:
    registry = failing()
    instrument(registry, identity=True, **tape.providers)
    with pytest.raises(CallError):
        await registry.execute("fail.with", {"code": "TIMEOUT"}, Context(identity=Identity(id="ann")))
    assert (tape.span("fail.with").attributes or {})["enduser.id"] == "ann"
    ((labels, _),) = tape.points(DURATION)
    assert "enduser.id" not in labels


async def test_names_that_callers_invent_do_not_become_metrics(tape: Tape) -> None:
    registry = failing()
    instrument(registry, **tape.providers)
    for number in range(3):
        with pytest.raises(CallError):
            await registry.execute(f"no.such-{number}")
    ((labels, count),) = tape.points(DURATION)
    assert (labels["rpc.method"], labels["error.type"], count) == ("_OTHER", "OPERATION_NOT_FOUND", 3)
    with pytest.raises(CallError):
        await registry.execute("x" * 10_000, None, Context(request_id="y" * 10_000))
    assert len(tape.spans[-1].to_json()) < 3_000
    originals = [(span.name, (span.attributes or {})["rpc.method_original"]) for span in tape.spans[:3]]
    assert originals == [("_OTHER", f"no.such-{number}") for number in range(3)]


async def test_durations_are_counted_by_operation_and_outcome(tape: Tape) -> None:
    registry = failing()

    @registry.query("math.one")
    async def one() -> int:
        return 1

    instrument(registry, **tape.providers)
    for _ in range(2):
        await registry.execute("math.one")
    with pytest.raises(CallError):
        await registry.execute("math.one", {"odd": 1})
    counts = {(labels["rpc.method"], labels["rpc.response.status_code"]): n for labels, n in tape.points(DURATION)}
    assert counts == {("math.one", "OK"): 2, ("math.one", "VALIDATION_ERROR"): 1}
    assert [count for _, count in tape.points("opwire.server.active_calls")] == [0]


async def test_requests_that_are_refused_before_they_run_are_counted_by_code(tape: Tape) -> None:
    registry, bus = failing(), MemoryBus(codec=True)

    @registry.query("shop.secret", access=AccessControl(required_scopes=("admin",)))
    async def secret() -> int:
        return 42

    guest = Identity(id="guest")
    async with (
        Spoke(registry, MemoryTransport(bus), anonymous=guest) as server,
        Spoke(None, MemoryTransport(bus)) as caller,
    ):
        instrument(server, **tape.providers)
        for operation_id in ("shop.secret", "no.such", "fail.with"):
            with pytest.raises(CallError):
                await caller.call(operation_id)
    counts = {labels["error.type"]: count for labels, count in tape.points("opwire.server.errors")}
    assert counts == {"ACCESS_DENIED": 1, "OPERATION_NOT_FOUND": 1, "VALIDATION_ERROR": 1}
    assert [span.name for span in tape.spans] == ["fail.with"]
