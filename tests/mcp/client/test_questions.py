"""Questions of a server, asked of the caller of the operation."""

import asyncio
from typing import Any

import pytest

from opwire import Context, Identity, Question
from opwire.mcp.client.session import MCPSession
from opwire.model.questions import unanswerable
from tests.mcp.client.connections import connected, rogue

ASK = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}}


def person(name: str, asked: list[Question] | None = None) -> Context:
    async def answer(question: Question) -> dict[str, Any]:
        if asked is not None:
            asked.append(question)
        return {"action": "accept", "content": {"name": name}}

    return Context(on_question=answer, identity=Identity(id=name))


async def ask(session: MCPSession, context: Context) -> Any:
    return (await session.call("tools/call", {"name": "ask", "arguments": ASK}, context)).result


async def test_the_caller_is_asked_before_the_callbacks_which_answer_what_it_cannot() -> None:
    """Questions of a server reach the caller of the operation, and its callbacks otherwise."""

    def elicit(_: Any) -> Any:
        return {"action": "decline"}

    async def cannot(question: Question) -> dict[str, Any]:
        raise unanswerable(question)

    asked: list[Question] = []
    async with connected(rogue(), elicit=elicit) as session:
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
