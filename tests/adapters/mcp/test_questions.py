"""Questions of a server, asked of the caller of the operation."""

import asyncio
from typing import Any

import pytest

from opwire import Context, Identity, Question
from opwire.adapters.mcp.connection import resume
from opwire.adapters.mcp.servers import Callbacks
from opwire.adapters.mcp.session import MCPSession
from opwire.questions import unanswerable
from tests.adapters.mcp.connections import connected, rogue
from tests.requirements import requirement

ASK = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}}


def person(name: str, asked: list[Question] | None = None) -> Context:
    async def answer(question: Question) -> dict[str, Any]:
        if asked is not None:
            asked.append(question)
        return {"action": "accept", "content": {"name": name}}

    return Context(on_question=answer, identity=Identity(id=name))


async def ask(session: MCPSession, context: Context) -> Any:
    return (await session.call("tools/call", {"name": "ask", "arguments": ASK}, context)).result


@requirement("mcp.in.questions.caller")
async def test_the_caller_is_asked_before_the_callbacks_which_answer_what_it_cannot() -> None:
    def elicit(_: Any) -> Any:
        return {"action": "decline"}

    async def cannot(question: Question) -> dict[str, Any]:
        raise unanswerable(question)

    asked: list[Question] = []
    async with connected(rogue(), callbacks=Callbacks(elicit=elicit)) as session:
        answer = await ask(session, person("ada", asked))
        assert answer == {"answer": {"result": {"action": "accept", "content": {"name": "ada"}}}}
        assert asked == [Question("elicit", ASK["params"])]
        for context in (Context(), Context(on_question=cannot)):
            assert await ask(session, context) == {"answer": {"result": {"action": "decline"}}}


async def test_a_caller_that_cannot_answer_is_an_error_for_the_server() -> None:
    async def cannot(question: Question) -> dict[str, Any]:
        raise unanswerable(question)

    async with connected(rogue()) as session:
        answer = (await ask(session, Context(on_question=cannot)))["answer"]
    assert 'asks "Who?", which its caller cannot answer' in answer["error"]["message"]


@requirement("mcp.in.questions.owner")
async def test_a_question_that_could_belong_to_several_callers_reaches_none_of_them() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def slowly(_: Question) -> dict[str, Any]:
        begun.set()
        await release.wait()
        return {"action": "cancel"}

    asked: list[Question] = []
    async with connected(rogue()) as session:
        first = asyncio.create_task(ask(session, Context(on_question=slowly, identity=Identity(id="ada"))))
        await begun.wait()
        other = (await ask(session, person("eve", asked)))["answer"]
        assert "error" in other
        assert asked == []
        same = (await ask(session, person("ada", asked)))["answer"]
        assert same["result"]["content"] == {"name": "ada"}
        release.set()
        assert (await first)["answer"]["result"] == {"action": "cancel"}


@requirement("mcp.in.questions.caller")
async def test_a_cancelled_call_cancels_the_question_to_its_caller() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def never(_: Question) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    async with connected(rogue()) as session:
        calling = asyncio.create_task(ask(session, Context(on_question=never)))
        await begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(10):
            await cancelled.wait()


async def waiting_for(future: asyncio.Future[int], seen: list[object]) -> int:
    seen.append("waits")
    result = await future
    seen.append(asyncio.current_task())
    return result


async def test_a_caller_continues_where_its_response_is_received() -> None:
    loop, seen = asyncio.get_running_loop(), list[object]()
    future: asyncio.Future[int] = loop.create_future()
    task = asyncio.create_task(waiting_for(future, seen))

    def receive() -> None:  # a callback of the event loop, as for data that was received
        assert seen == ["waits"]
        resume(future, 3)
        assert seen == ["waits", task]
        assert task.done()

    settled = loop.create_future()
    loop.call_soon(lambda: settled.set_result(receive()))
    await settled
    assert await task == 3


async def test_a_response_that_a_task_receives_continues_its_caller_in_the_next_turn() -> None:
    seen = list[object]()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(waiting_for(future, seen))
    await asyncio.sleep(0)
    resume(future, 3)
    assert seen == ["waits"]
    assert await task == 3


async def test_a_response_without_a_waiting_caller_is_kept() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    loop.call_soon(resume, future, 3)
    await asyncio.sleep(0)
    assert future.done()
    assert await future == 3


async def test_a_response_to_a_cancelled_caller_is_ignored() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(waiting_for(future, []))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    resume(future, 3)
    assert future.cancelled()
