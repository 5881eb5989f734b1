"""Questions of a server, answered or refused."""

import asyncio
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.questions import MAX_QUESTIONS, Callbacks
from opwire.mcp.messages import RPCError


def test_only_what_there_is_a_callback_for_is_announced() -> None:
    def answer(*_: Any) -> Any: ...

    assert Callbacks().capabilities == {}
    assert Callbacks(log=answer).capabilities == {}
    assert Callbacks(elicit=answer, sample=answer, roots=answer).capabilities == {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {},
    }


async def test_sampling_is_asked_of_the_callback() -> None:
    result = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
    asked: list[Any] = []

    async def sample(params: dict[str, Any]) -> Any:
        asked.append(params)
        return result

    assert await Callbacks(sample=sample).answer("sampling/createMessage", {"messages": []}) == result
    assert asked == [{"messages": []}]


async def test_roots_may_be_texts_or_objects_and_come_later() -> None:
    async def roots() -> Any:
        return ["file:///a", {"uri": "file:///b", "name": "b"}]

    answer = await Callbacks(roots=roots).answer("roots/list", None)
    assert answer == {"roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "b"}]}


@pytest.mark.parametrize("answer", [None, "yes", {"action": "maybe"}, {}, ValueError("mine"), KeyError("mine")])
async def test_a_callback_that_fails_or_gives_nonsense_is_an_error_for_the_server_without_its_details(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def elicit(_: dict[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(RPCError, match=r"^the callback for elicitation/create failed$") as failure:
        await Callbacks(elicit=elicit).answer("elicitation/create", {})
    assert failure.value.code == -32603
    assert "the callback for elicitation/create raised, or returned an invalid result" in caplog.text


async def test_a_call_error_of_a_callback_is_said_to_the_server() -> None:
    def elicit(_: dict[str, Any]) -> Any:
        raise CallError("UNAVAILABLE", "nobody is at the keyboard")

    with pytest.raises(RPCError, match="nobody is at the keyboard"):
        await Callbacks(elicit=elicit).answer("elicitation/create", {})


async def test_a_callback_can_be_cancelled() -> None:
    async def elicit(_: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    asking = asyncio.create_task(Callbacks(elicit=elicit).answer("elicitation/create", {}))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_result_with_too_many_questions_is_an_error_before_anything_is_asked() -> None:
    asked: list[Any] = []
    callbacks = Callbacks(elicit=lambda params: asked.append(params) or {"action": "decline"})
    questions = {f"q{n}": {"method": "elicitation/create", "params": {}} for n in range(MAX_QUESTIONS + 1)}
    with pytest.raises(CallError, match="101 at once, and at most 100 are answered") as caught:
        await callbacks.answer_all(questions, "the server asked")
    assert (caught.value.code, asked) == (ErrorCode.PROTOCOL_ERROR, [])
    del questions["q0"]
    assert len(await callbacks.answer_all(questions, "the server asked")) == MAX_QUESTIONS
