"""Questions over the call protocol: from a handler to a caller that accepts them."""

import asyncio
from typing import Any

import pytest

from opwire import CallError, Context, ErrorCode, OperationRegistry, Question
from opwire.protocol import CallAnswer, CallHandler, CallQuestion, CallRequested, PendingRequestMap
from opwire.protocol.call_table import CallTable
from opwire.protocol.caller_callbacks import MAX_QUESTIONS
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.protocol.harness import connected_ends, peer, until


def asking() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.mutation("a.delete")
    async def delete(context: Context, count: int = 3) -> str:
        answer = await context.elicit(bool, f"Delete {count} orders?", key="sure")
        return "deleted" if answer else f"kept: {answer.action}"

    @registry.mutation("a.nested")
    async def nested(context: Context) -> Any:
        return (await context.env.a.delete(count=5)).data

    @registry.query("a.many")
    async def many(context: Context) -> int:
        asked = (context.elicit(bool, str(n)) for n in range(MAX_QUESTIONS + 10))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        return sum(isinstance(each, Exception) for each in outcomes)

    return registry


async def yes(_: Question) -> dict[str, Any]:
    return {"action": "accept", "content": {"value": True}}


async def test_a_question_reaches_the_caller_and_its_answer_the_handler() -> None:
    """A handler asks the caller over every transport; the answer or an error comes back."""
    asked: list[Question] = []

    async def answer(question: Question) -> dict[str, Any]:
        asked.append(question)
        return await yes(question)

    async with connected_ends(asking(), bus=MemoryBus(codec=True)) as ends:
        assert await ends.call("a.delete", {"count": 4}, context=Context(on_question=answer)) == "deleted"
        assert await ends.call("a.nested", context=Context(on_question=answer)) == "deleted"
    assert [(each.kind, each.params["message"], each.key) for each in asked] == [
        ("elicit", "Delete 4 orders?", "sure"),
        ("elicit", "Delete 5 orders?", "sure"),
    ]


async def test_a_caller_that_does_not_accept_questions_gets_an_error_with_the_question() -> None:
    async with connected_ends(asking(), bus=MemoryBus(codec=True)) as ends:
        with pytest.raises(CallError, match=r'asks "Delete 3 orders\?"') as failure:
            await ends.call("a.delete")
    assert failure.value.code is ErrorCode.ABORTED
    assert failure.value.details["question"]["params"]["message"] == "Delete 3 orders?"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (CallError("UNAVAILABLE", "not at the keyboard"), "not at the keyboard"),
        (ValueError("a secret"), "the callback for questions failed"),
        ({"action": "accept", "content": object()}, "the answer cannot be sent"),
        ("yes", "an answer is a dict"),
    ],
)
async def test_a_caller_that_cannot_answer_ends_the_call_with_its_reason(answer: Any, reason: str) -> None:
    async def cannot(_: Question) -> dict[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with connected_ends(asking(), bus=MemoryBus(codec=True)) as ends:
        with pytest.raises(CallError, match=reason) as failure:
            await ends.call("a.delete", context=Context(on_question=cannot))
    assert failure.value.code is ErrorCode.ABORTED
    assert "a secret" not in str(failure.value)


async def test_the_end_of_a_call_cancels_its_question() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def never(_: Question) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with connected_ends(asking(), bus=MemoryBus(codec=True)) as ends:
        calling = asyncio.create_task(ends.call("a.delete", context=Context(on_question=never)))
        await begun.wait()
        calling.cancel()
        async with asyncio.timeout(10):
            await cancelled.wait()


async def test_a_call_has_a_bounded_number_of_open_questions() -> None:
    async with connected_ends(asking(), bus=MemoryBus(codec=True)) as ends:
        assert await ends.call("a.many", context=Context(on_question=yes)) == 10


async def test_answers_of_others_and_repeated_answers_are_ignored() -> None:
    bus = MemoryBus(codec=True)
    async with PendingRequestMap(MemoryTransport(bus)) as calls, CallHandler(asking(), calls):
        caller, seen = await peer(bus)
        other, _ = await peer(bus)
        server = caller.request(CallRequested(request_id="r", operation_id="a.delete", questions=True))
        await until(lambda: any(isinstance(event, CallQuestion) for event in seen.events))
        accept = {"action": "accept", "content": {"value": True}}
        other.send(CallAnswer(request_id="r", id=1, answer=accept), server)
        caller.send(CallAnswer(request_id="r", id=2, answer=accept), server)
        caller.send(CallAnswer(request_id="r", id=1, answer={"action": "decline"}), server)
        caller.send(CallAnswer(request_id="r", id=1, answer=accept), server)
        await until(lambda: len(seen.events) == 2)
    assert seen.events[-1].output.data == "kept: decline"


def test_only_the_server_of_a_call_may_ask() -> None:
    table: CallTable[str] = CallTable()
    table.open(CallRequested(request_id="r", operation_id="a.b"), "sink", streams=False, on_question=yes)
    event = CallQuestion(request_id="r", id=1, kind="roots")
    assert table.questioned(event, "server") is yes
    assert table.questioned(event, "stranger") is None
    assert table.questioned(CallQuestion(request_id="other", id=1, kind="roots"), "server") is None
    assert (table.dropped["foreign"], table.dropped["unknown"]) == (1, 1)
