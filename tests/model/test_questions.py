"""Questions of handlers to their callers, in one process."""

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from opwire import CallError, Context, ErrorCode, OperationRegistry, Question, UsageError
from opwire.model.questions import Form, Root


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Order(Struct):
    size: Literal["S", "M"]
    colour: Colour
    count: Annotated[int, Meta(ge=1, description="how many")] = 1
    note: str | None = None


def shop() -> OperationRegistry:
    registry = OperationRegistry(namespace="shop")

    @registry.mutation
    async def delete(context: Context, count: int = 3) -> str:
        answer = await context.elicit(bool, f"Delete {count} orders?")
        return "deleted" if answer else f"kept: {answer.action}"

    @registry.mutation
    async def order(context: Context) -> dict[str, Any]:
        wanted = (await context.elicit(Order, "What do you want?")).unwrap()
        return {"size": wanted.size, "colour": wanted.colour.value, "count": wanted.count}

    @registry.mutation
    async def nested(context: Context) -> Any:
        return (await context.env.shop.delete(count=5)).data

    @registry.query
    async def summary(context: Context) -> str:
        return (await context.sample("Summarise", max_tokens=5, system_prompt="short")).text

    @registry.query
    async def roots(context: Context) -> list[str]:
        return [root.uri for root in await context.roots()]

    @registry.subscription
    async def steps(context: Context) -> AsyncGenerator[str]:
        yield "first"
        yield "second" if await context.elicit(bool, "More?") else "end"

    return registry


async def ask(id: str, answer: Any, input: Any = None) -> Any:
    async def on_question(question: Question) -> dict[str, Any]:
        reply: Any = answer(question) if callable(answer) else answer
        return reply

    return (await shop().execute(id, input, Context(on_question=on_question))).data


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"action": "accept", "content": {"value": True}}, "deleted"),
        ({"action": "accept", "content": {"value": False}}, "kept: accept"),
        ({"action": "decline"}, "kept: decline"),
        ({"action": "cancel", "content": None}, "kept: cancel"),
    ],
)
async def test_a_confirmation_is_true_only_if_it_was_given_and_tells_the_other_outcomes_apart(
    answer: dict[str, Any], outcome: str
) -> None:
    assert await ask("shop.delete", answer) == outcome


async def test_a_class_is_a_flat_form_and_its_answer_an_instance() -> None:
    """A handler asks its caller by a typed form, and accept, decline and cancel are distinguished."""
    asked: list[Question] = []

    def answer(question: Question) -> dict[str, Any]:
        asked.append(question)
        return {"action": "accept", "content": {"size": "M", "colour": "blue", "count": 2}}

    assert await ask("shop.order", answer) == {"size": "M", "colour": "blue", "count": 2}
    assert asked[0].kind == "elicit"
    assert asked[0].params["message"] == "What do you want?"
    form = asked[0].params["requestedSchema"]
    assert form["required"] == ["size", "colour"]
    assert form["properties"] == {
        "size": {"type": "string", "enum": ["S", "M"]},
        "colour": {"type": "string", "enum": ["red", "blue"], "title": "Colour"},
        "count": {"type": "integer", "minimum": 1, "description": "how many", "default": 1},
        "note": {"type": "string"},
    }


async def test_a_schema_is_a_form_as_well_and_checks_its_answer() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answers = iter([{"n": 1}, {"n": "x"}, {}])

    async def answer(_: Question) -> dict[str, Any]:
        return {"action": "accept", "content": next(answers)}

    context = Context(on_question=answer)
    assert (await context.elicit(schema, "n?")).data == {"n": 1}
    for _ in range(2):
        with pytest.raises(CallError, match="the answer is invalid") as failure:
            await context.elicit(schema, "n?")
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "wanted", [dict[str, int], list[Order], {"type": "object", "properties": {"a": {}}}, list[int]]
)
async def test_a_form_that_clients_cannot_show_is_rejected_where_it_is_asked(wanted: Any) -> None:
    with pytest.raises(UsageError, match=r"not flat|named fields"):
        Form(wanted)


async def test_several_choices_are_a_list() -> None:
    assert Form(list[Colour]).schema["properties"]["value"]["items"] == {"type": "string", "enum": ["red", "blue"]}


async def test_without_a_callback_the_error_says_what_was_asked_and_how_to_answer() -> None:
    with pytest.raises(CallError, match=r'asks "Delete 3 orders\?", which its caller cannot answer') as failure:
        await shop().execute("shop.delete")
    assert failure.value.code is ErrorCode.ABORTED
    assert not failure.value.retryable
    assert failure.value.details["question"]["method"] == "elicitation/create"
    assert failure.value.details["question"]["params"]["message"] == "Delete 3 orders?"
    assert "on_question" in failure.value.details["hint"]


@pytest.mark.parametrize("answer", [None, {}, {"action": "maybe"}, {"action": "accept", "content": {"value": "yes"}}])
async def test_an_invalid_answer_is_an_error_and_never_a_confirmation(answer: Any) -> None:
    with pytest.raises(CallError, match="the answer is invalid") as failure:
        await ask("shop.delete", answer)
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR


async def test_unwrap_ends_the_call_if_the_form_was_not_accepted() -> None:
    with pytest.raises(CallError, match=r'"What do you want\?" was declined') as failure:
        await ask("shop.order", {"action": "decline"})
    assert failure.value.code is ErrorCode.ABORTED


async def test_an_unanswered_question_ends_with_its_timeout_or_the_deadline_of_the_call() -> None:
    async def never(_: Question) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    context = Context(on_question=never)
    for asked in (
        context.elicit(bool, "?", timeout=0.01),
        context.within(0.01).elicit(bool, "?"),
        context.within(-1).roots(),
    ):
        with pytest.raises(CallError, match="was not answered within") as failure:
            await asked
        assert failure.value.code is ErrorCode.TIMEOUT


async def test_a_timeout_of_the_callback_itself_is_not_taken_for_the_deadline() -> None:
    async def fails(_: Question) -> dict[str, Any]:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await Context(on_question=fails).roots()


async def test_a_nested_call_asks_the_caller_of_the_outer_one() -> None:
    texts: list[str] = []

    def answer(question: Question) -> dict[str, Any]:
        texts.append(question.params["message"])
        return {"action": "accept", "content": {"value": True}}

    assert await ask("shop.nested", answer) == "deleted"
    assert texts == ["Delete 5 orders?"]
    assert Context(on_question=lambda _: asyncio.sleep(0, {})).detached().on_question is None


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
async def test_a_person_is_asked_to_open_an_address(action: str) -> None:
    asked: list[Question] = []

    async def answer(question: Question) -> dict[str, Any]:
        asked.append(question)
        return {"action": action}

    outcome = await Context(on_question=answer).elicit_url("https://pay.example/1", "Pay 3 EUR")
    assert (outcome.action, bool(outcome)) == (action, action == "accept")
    assert asked[0].params.pop("elicitationId")
    assert asked[0].params == {"mode": "url", "message": "Pay 3 EUR", "url": "https://pay.example/1"}


async def test_a_completion_is_asked_of_the_callers_model() -> None:
    def answer(question: Question) -> dict[str, Any]:
        assert question.params == {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Summarise"}}],
            "maxTokens": 5,
            "systemPrompt": "short",
        }
        return {"role": "assistant", "content": [{"type": "text", "text": "ok"}], "model": "m", "stopReason": "endTurn"}

    assert await ask("shop.summary", answer) == "ok"
    with pytest.raises(CallError, match="for a completion by a model; the answer is invalid"):
        await ask("shop.summary", {"role": "system"})


async def test_roots_are_bounded_and_typed() -> None:
    assert await ask("shop.roots", {"roots": [{"uri": "file:///a", "name": "a"}]}) == ["file:///a"]
    for invalid in ({}, {"roots": [{"uri": f"file:///{n}"} for n in range(1001)]}):
        with pytest.raises(CallError, match="for the roots of its caller; the answer is invalid"):
            await ask("shop.roots", invalid)
    assert Root("file:///a").name is None


async def test_a_subscription_asks_between_two_items() -> None:
    async def answer(_: Question) -> dict[str, Any]:
        return {"action": "accept", "content": {"value": True}}

    items = shop().subscribe("shop.steps", None, Context(on_question=answer))
    assert [item.data async for item in items] == ["first", "second"]
