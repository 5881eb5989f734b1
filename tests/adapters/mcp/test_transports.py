"""All transports behave alike, against the SDK's own server, and bound what a server asks."""

import asyncio
from typing import Any, cast

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from opwire.adapters.mcp import connection
from opwire.adapters.mcp.connection import ServerRequests, TransportStreams
from opwire.adapters.mcp.process import MessageStream
from opwire.adapters.mcp.servers import Callbacks
from opwire.errors import CallError, ErrorCode
from opwire.operation import Progress
from tests.adapters.mcp.connections import SDK_SERVER, at, call, connected, rogue
from tests.requirements import requirement


@requirement("mcp.in.transports")
@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_the_same_calls_give_the_same_results_over_every_transport(transport: str, sdk_address: str) -> None:
    places = {"stdio": SDK_SERVER, "http": at(sdk_address), "sse": at(sdk_address, "/sse", kind="sse")}
    steps: list[Progress] = []
    async with connected(places[transport]) as session:
        info = await session.start()
        assert (info.name, info.protocol) == ("judge", "2026-07-28")
        assert (await call(session, "add", a=1, b=2))["structuredContent"] == {"result": 3}
        params: dict[str, Any] = {"name": "count", "arguments": {"to": 3}}
        await session.request("tools/call", params, on_progress=steps.append)
        assert steps == [Progress(number, 3, f"step {number}") for number in range(3)]
        assert len((await call(session, "large", size=1_500_000))["structuredContent"]["result"]) == 1_500_000
        assert (await call(session, "nothing"))["isError"] is True


class Line(MessageStream):
    """What a server sends, and what it is sent; one that is stuck takes nothing."""

    def __init__(self, *messages: Any) -> None:
        self.incoming = [SessionMessage(each) for each in messages]
        self.outgoing: list[Any] = []
        self.stuck = False

    async def send(self, item: SessionMessage, /) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.outgoing.append(item.message)

    async def receive(self) -> SessionMessage:
        if not self.incoming:
            raise anyio.EndOfStream
        return self.incoming.pop(0)


def question(id: int, method: str = "sampling/createMessage") -> JSONRPCRequest:
    return JSONRPCRequest(jsonrpc="2.0", id=id, method=method)


def bounded(*messages: Any) -> tuple[ServerRequests, Line]:
    line = Line(*messages)
    return ServerRequests(TransportStreams(line, line, lambda: None), "judge"), line


@requirement("mcp.in.question-limits")
async def test_questions_above_the_limit_are_refused_until_others_are_answered() -> None:
    count = connection.MAX_OPEN_REQUESTS
    questions, line = bounded(*map(question, range(count + 3)))
    seen = [cast("JSONRPCRequest", each.message).id async for each in questions]
    assert seen == list(range(count))
    assert [(each.id, each.error.code) for each in line.outgoing] == [(count + n, -32600) for n in range(3)]
    for _ in range(count):
        questions.answered()
    await questions.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=0, result={})))
    line.incoming += map(SessionMessage, map(question, range(count)))
    assert len([each async for each in questions]) == count


@requirement("mcp.in.question-limits")
async def test_an_answer_that_the_server_does_not_read_counts_as_open() -> None:
    questions, line = bounded()
    line.stuck = True
    answer = SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=0, result={}))
    sending = [asyncio.create_task(questions.send(answer)) for _ in range(connection.MAX_OPEN_REQUESTS)]
    await asyncio.sleep(0)
    line.stuck = False
    line.incoming.append(SessionMessage(question(5)))
    assert [each async for each in questions] == []
    assert isinstance(line.outgoing[0], JSONRPCError)
    for each in sending:
        each.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    line.incoming.append(SessionMessage(question(6)))
    assert [cast("JSONRPCRequest", each.message).id async for each in questions] == [6]


@requirement("mcp.in.question-limits")
async def test_there_are_so_many_questions_for_each_request_and_pings_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REQUESTS", 3)
    questions, line = bounded()

    async def ask(*messages: Any) -> list[Any]:
        line.incoming = [SessionMessage(each) for each in messages]
        seen = [each.message async for each in questions]
        for each in seen:
            if isinstance(each, JSONRPCRequest):
                questions.answered()
        return seen

    await questions.send(SessionMessage(question(1, "tools/call")))
    told = JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
    assert len(await ask(question(1), question(2, "ping"), told, question(3), question(4), question(5))) == 5
    assert "more than 3 requests came for one" in line.outgoing[-1].error.message
    await questions.send(SessionMessage(question(2, "tools/call")))
    assert len(await ask(question(6))) == 1


@requirement("mcp.in.question-limits")
async def test_a_server_that_floods_and_does_not_read_is_disconnected_and_the_next_call_connects_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_PATIENCE", 0.1)
    async with connected(rogue(stop_timeout=0.1)) as session:
        with pytest.raises(CallError, match="asks without reading the answers") as caught:
            await call(session, "flood", within=60, count=20_000)
        assert caught.value.code is ErrorCode.PROTOCOL_ERROR
        assert await call(session, "echo", within=60, n=1) == {"arguments": {"n": 1}}


@requirement("mcp.in.question-limits")
async def test_a_call_in_which_a_server_asks_too_often_goes_on_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REQUESTS", 50)
    asked: list[Any] = []

    async def elicit(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return {"action": "decline"}

    async with connected(rogue(), callbacks=Callbacks(elicit=elicit)) as session:
        await session.start()
        told = await call(session, "interview", within=60, count=60, method="elicitation/create")
        assert (told["refused"], len(asked)) == (10, 50)
        assert (await call(session, "interview", within=60, count=50, method="elicitation/create"))["refused"] == 0
