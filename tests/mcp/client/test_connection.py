"""Requests and answers over one connection."""

import asyncio
import logging
import time
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import stdio
from opwire.mcp.client.connection import MCPConnection
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.messages import read_message
from opwire.mcp.revisions import argument_headers
from tests.mcp.client.connections import PATIENCE, at, call, connected, rogue, until
from tests.servers.leaks import Leaks

WHO = {"who": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}}}


async def cancellations(session: Any) -> list[Any]:
    return (await call(session, "cancelled"))["cancelled"]


async def test_cancelling_the_caller_tells_the_server() -> None:
    async with connected(rogue()) as session:
        hanging = asyncio.create_task(call(session, "hang", within=None))
        await call(session, "echo")
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        async with asyncio.timeout(PATIENCE):
            while not await cancellations(session):
                pass


async def test_a_deadline_ends_the_call_and_tells_the_server() -> None:
    async with connected(rogue()) as session:
        await session.start()
        with pytest.raises(CallError, match="did not answer tools/call within") as failure:
            await call(session, "hang", within=0.05)
        assert failure.value.code is ErrorCode.TIMEOUT
        async with asyncio.timeout(PATIENCE):
            while not await cancellations(session):
                pass


async def test_a_deadline_that_has_passed_sends_nothing() -> None:
    async with connected(rogue()) as session:
        await session.start()
        with pytest.raises(CallError) as failure:
            await call(session, "crash", within=-1)
        assert failure.value.code is ErrorCode.TIMEOUT
        assert await call(session, "echo") == {"arguments": {}}


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_real_server_stops_abandoned_calls(kind: Any, sdk_address: str) -> None:
    server = at(sdk_address) if kind == "http" else at(sdk_address, kind="sse", path="/sse")
    begun = asyncio.Event()
    async with connected(server) as session:
        params = {"name": "wait", "arguments": {"name": kind}}
        waiting = asyncio.create_task(session.request("tools/call", params, on_progress=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        waiting.cancel()
        async with asyncio.timeout(PATIENCE):
            while kind not in (await call(session, "cancellations"))["structuredContent"]["result"]:
                pass


async def test_an_error_of_the_server_is_raised_with_what_it_said() -> None:
    async with connected(rogue()) as session:
        with pytest.raises(CallError, match="python answered tools/call with an error: out of paper") as failure:
            await call(session, "refuse", code=-32000, message="out of paper", data={"tray": 2})
        assert failure.value.code is ErrorCode.EXECUTION_ERROR
        assert failure.value.details == {"code": -32000, "data": {"tray": 2}}
        with pytest.raises(CallError) as failure:
            await session.request("no/such/method", {})
        assert failure.value.code is ErrorCode.OPERATION_NOT_FOUND


async def test_what_has_no_json_form_is_refused_and_costs_only_that_call() -> None:
    async with connected(rogue()) as session:
        for value in ({1, 2}.__iter__(), "\ud800", 5j):
            with pytest.raises(CallError, match="has no JSON form") as failure:
                await call(session, "echo", value=value)
            assert failure.value.code is ErrorCode.VALIDATION_ERROR
        assert await call(session, "echo", value=float("nan")) == {"arguments": {"value": None}}


@pytest.mark.parametrize("as_coroutine", [True, False])
async def test_what_a_server_asks_in_the_middle_of_a_call_is_answered_by_the_callbacks(as_coroutine: bool) -> None:
    asked: list[Any] = []

    def elicit(params: dict[str, Any]) -> Any:
        asked.append(params)
        return {"action": "accept", "content": {"name": "Ann"}}

    async def elicit_later(params: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return elicit(params)

    answers = {"elicit": elicit_later if as_coroutine else elicit, "roots": lambda: ["file:///a"]}
    async with connected(rogue(), **answers) as session:
        question = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        answer = await call(session, "ask", method="elicitation/create", params=question)
        assert answer == {"answer": {"result": {"action": "accept", "content": {"name": "Ann"}}}}
        assert asked == [question]
        roots = await call(session, "ask", method="roots/list")
        assert roots == {"answer": {"result": {"roots": [{"uri": "file:///a"}]}}}
        assert await call(session, "ask", method="ping") == {"answer": {"result": {}}}


@pytest.mark.parametrize("place", ["/mcp", "/sse"])
async def test_a_real_server_may_ask_and_tell_by_itself_in_the_middle_of_a_call_over_http(
    place: str, sdk_address: str
) -> None:
    told: list[str] = []
    connection = MCPConnection(
        at(sdk_address, place, kind="sse" if place == "/sse" else "http"),
        MCPOptions(elicit=lambda _: {"action": "accept", "content": {"name": "Ann"}}, max_message=100_000),
        lambda method, _: told.append(method),
        discover=False,
    )
    async with Leaks():
        await connection.open(PATIENCE)
        assert connection.info.protocol == "2025-11-25"
        response = await connection.request("tools/call", {"name": "ask_now"}, time.monotonic() + PATIENCE, None)
        assert response.result["structuredContent"] == {"result": "Ann"}
        await until(lambda: "notifications/tools/list_changed" in told)
        await connection.close()


async def test_a_request_without_a_callback_is_rejected_and_the_call_goes_on() -> None:
    async with connected(rogue()) as session:
        for method in ("elicitation/create", "sampling/createMessage", "roots/list", "no/such"):
            error = (await call(session, "ask", method=method))["answer"]["error"]
            assert error["code"] == -32601
            assert error["message"] == f"this client does not answer {method}"


async def test_a_real_server_that_answers_with_questions_gets_the_answers(sdk_address: str) -> None:
    roots = [{"uri": "file:///a", "name": "a"}]
    async with connected(at(sdk_address), elicit=lambda _: {"action": "decline"}, roots=lambda: roots) as session:
        text = (await call(session, "ask"))["content"][0]["text"]
    assert text == "opaque ✓ {'who': {'action': 'decline'}, 'where': {'roots': [{'uri': 'file:///a', 'name': 'a'}]}}"


async def test_questions_may_come_in_several_rounds_or_just_ask_for_patience() -> None:
    async with connected(rogue("modern"), elicit=lambda _: {"action": "cancel"}) as session:
        asked = await call(session, "quiz", rounds=3, questions=WHO)
        assert asked == {"said": {"who": {"action": "cancel"}}, "state": "3"}
        assert await call(session, "quiz", rounds=2, questions=None) == {"said": None, "state": "2"}


@pytest.mark.parametrize(
    ("questions", "code", "words"),
    [
        (
            {"where": {"method": "roots/list"}},
            ErrorCode.EXECUTION_ERROR,
            "with questions, and this client does not answer roots",
        ),
        ({"a": 5}, ErrorCode.PROTOCOL_ERROR, "with questions that are invalid"),
        (WHO, ErrorCode.PROTOCOL_ERROR, "with questions 10 times"),
    ],
    ids=["refused", "unreadable", "endless"],
)
async def test_questions_that_cannot_be_answered_end_the_call_clearly(
    questions: dict[str, Any], code: ErrorCode, words: str
) -> None:
    async with connected(rogue("modern"), elicit=lambda _: {"action": "decline"}) as session:
        with pytest.raises(CallError, match=words) as failure:
            await call(session, "quiz", rounds=99, questions=questions)
        assert failure.value.code is code


async def test_a_callback_that_takes_for_ever_ends_with_its_call_and_with_its_connection() -> None:
    async def never(_: dict[str, Any]) -> Any:
        entered.append(True)
        try:
            await asyncio.Event().wait()
        finally:
            entered.pop()

    entered: list[bool] = []
    async with connected(rogue("modern"), elicit=never) as session:
        with pytest.raises(CallError) as late:
            await call(session, "quiz", within=0.3, rounds=1, questions=WHO)
        assert late.value.code is ErrorCode.TIMEOUT
        await until(lambda: not entered)
        waiting = asyncio.create_task(call(session, "quiz", rounds=1, questions=WHO))
        await until(lambda: entered)
        with pytest.raises(CallError):
            await call(session, "crash")
        with pytest.raises(CallError, match="ended with status 3"):
            await asyncio.wait_for(waiting, PATIENCE)
        await until(lambda: not entered)


async def test_log_messages_go_to_the_callback_or_to_our_log(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    async def log(params: dict[str, Any]) -> None:
        seen.append(params)

    message = {"method": "notifications/message", "params": {"level": "warning", "data": {"disk": "full"}}}
    async with connected(rogue(), log=log) as session:
        await call(session, "announce", **message)
        await until(lambda: seen)
    assert seen == [{"level": "warning", "data": {"disk": "full"}}]
    assert "full" not in caplog.text
    async with connected(rogue()) as session:
        await call(session, "announce", **message)
    assert ("opwire.mcp.client", logging.WARNING, 'python: {"disk":"full"}') in caplog.record_tuples


async def test_arguments_travel_as_headers_where_the_tool_says_so(sdk_address: str) -> None:
    declared = argument_headers({"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}})
    async with connected(at(sdk_address, headers={"X-Ours": "1"})) as session:
        await session.start()
        session.send_headers({"headers": declared})
        seen = (await call(session, "headers", region="eu"))["structuredContent"]
    assert seen["mcp-param-region"] == "eu"
    assert seen["x-ours"] == "1"
    assert (seen["mcp-method"], seen["mcp-name"]) == ("tools/call", "headers")


async def test_a_call_that_ends_leaves_at_once_also_where_the_clock_is_far() -> None:
    async with connected(rogue()) as session:
        begun = time.monotonic()
        await call(session, "echo", within=3600)
        assert time.monotonic() - begun < PATIENCE


async def test_a_connection_that_broke_is_lost_at_once_although_its_server_takes_long_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(raw: bytes) -> Any:
        if b"boom" in raw:
            raise RuntimeError("unforeseen")
        return read_message(raw)

    monkeypatch.setattr(stdio, "read_message", read)
    async with connected(rogue("stubborn", stop_timeout=0.5)) as session:
        with pytest.raises(CallError, match="is closed"):
            await call(session, "echo", text="boom")
        assert await call(session, "echo", text="fine") == {"arguments": {"text": "fine"}}
