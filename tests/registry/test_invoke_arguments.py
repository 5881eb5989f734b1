"""Input on its way to the handler: validated strictly, converted, never echoed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, OperationRegistry, OperationSpec, Schema

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "population": {"type": "integer", "minimum": 0},
        "mayor": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


class Calls:
    """A registry with one operation that keeps what it was given."""

    def __init__(self, schema: Any, *, unchecked_input: bool = False) -> None:
        self.seen: list[Any] = []
        self.registry = OperationRegistry()
        spec = OperationSpec(namespace="city", name="found", input_schema=schema, unchecked_input=unchecked_input)
        self.registry.register(spec, lambda input, context: self.seen.append(input), inline=True)

    async def refusal(self, input: Any) -> CallError:
        with pytest.raises(CallError) as caught:
            await self.registry.execute("city.found", input)
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert self.seen == [], "the handler ran on invalid input"
        return caught.value

    async def accepted(self, input: Any) -> Any:
        await self.registry.execute("city.found", input)
        return self.seen.pop()


@pytest.fixture
def calls() -> Calls:
    return Calls(CITY)


@pytest.mark.parametrize(
    "input",
    [
        {"name": "Rome", "population": "2800000"},
        {"name": "Rome", "population": True},
        {"name": 7},
        {"name": "Rome", "unknown": 1},
        {"population": 1},
        {"name": "Rome", "tags": "one"},
        {"name": "Rome", "mayor": None},
        {},
        [],
        "Rome",
        7,
        None,
    ],
    ids=repr,
)
async def test_invalid_input_is_refused_before_the_handler_runs_and_nothing_is_coerced(
    calls: Calls, input: Any
) -> None:
    error = await calls.refusal(input)
    assert error.details["problems"]
    assert not error.retryable


async def test_valid_input_reaches_the_handler_unchanged(calls: Calls) -> None:
    for input in ({"name": "Rome"}, {"name": "Rome", "mayor": {"age": 50, "extra": [1]}, "tags": ["a", "b"]}):
        assert await calls.accepted(input) is input


async def test_every_problem_is_listed_with_its_path_and_a_readable_message(calls: Calls) -> None:
    """Invalid input is VALIDATION_ERROR with every problem as a path and a message."""
    error = await calls.refusal(
        {"name": "R", "population": -1, "mayor": {"age": "old"}, "tags": ["a", 1, "b", None], "zip": 1}
    )
    problems = {each["path"]: each["message"] for each in error.details["problems"]}
    assert set(problems) == {"/name", "/population", "/mayor/age", "/tags/1", "/tags/3", ""}
    assert problems["/mayor/age"] == 'the value is not of type "integer"'
    assert "zip" in problems[""]
    assert all(each.keys() == {"path", "message"} for each in error.details["problems"])


async def test_the_message_names_the_operation_and_the_first_problems_and_counts_the_rest(calls: Calls) -> None:
    few = await calls.refusal({"name": "Rome", "population": -1})
    assert few.message == "city.found: /population: the value is less than the minimum of 0"
    many = await calls.refusal({"name": "Rome", "tags": [1, 2, 3, 4, 5]})
    assert many.message.endswith("; and 2 more")
    assert many.message.count("is not of type") == 3
    assert len(many.details["problems"]) == 5


@pytest.mark.parametrize(
    "input",
    [
        {"name": ["hunter2-secret"]},
        {"name": "Rome", "population": "hunter2-secret"},
        {"name": "Rome", "mayor": {"age": "hunter2-secret"}},
        {"name": "Rome", "tags": {"hunter2-secret": 1}},
        "hunter2-secret",
    ],
    ids=repr,
)
async def test_neither_message_nor_details_hold_the_value(calls: Calls, input: Any) -> None:
    error = await calls.refusal(input)
    assert "hunter2" not in f"{error} {error.details!r} {error!r}"


async def test_a_value_that_does_not_convert_is_not_echoed_either() -> None:
    @dataclass
    class Login:
        name: str
        password: str | int

    def login(login: Login, retries: int = 0) -> None: ...

    registry = OperationRegistry()
    registry.query("a.login")(login)
    with pytest.raises(CallError, match="VALIDATION_ERROR") as caught:
        await registry.execute("a.login", {"login": {"name": 1, "password": "hunter2"}})
    assert "hunter2" not in f"{caught.value} {caught.value.details}"


async def test_a_huge_value_makes_no_huge_error() -> None:
    names = {"type": "object", "additionalProperties": {"type": "integer"}}
    huge = "k" * 1_000_000
    for schema, input in (
        (names, {huge: "x"}),
        (CITY, {"name": "Rome", huge: 1}),
        (CITY, {"name": [huge]}),
        ({"type": "array", "items": {"type": "integer"}}, ["x"] * 10_000),
    ):
        error = await Calls(schema).refusal(input)
        assert len(f"{error} {error.details}") < 10_000


async def test_no_input_is_an_empty_object_where_an_object_is_awaited() -> None:
    assert await Calls({"type": "object"}).accepted(None) == {}
    assert await Calls({"type": ["object", "null"]}).accepted(None) is None
    assert await Calls({}).accepted(None) is None


def _cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


async def test_input_without_a_json_form_is_invalid_and_says_why() -> None:
    with Path(__file__).open(encoding="utf-8") as file:
        for input, reason in (
            ({"name": object()}, "objects of type 'object' cannot be sent as JSON"),
            ({"name": file}, "objects of type 'TextIOWrapper' cannot be sent as JSON"),
            (_cycle(), "the value is nested deeper than 200"),
            (_nested(201), "the value is nested deeper than 200"),
        ):
            [problem] = (await Calls({}).refusal(input)).details["problems"]
            assert problem["path"] == ""
            assert problem["message"].endswith(reason)


async def test_instances_in_the_input_are_made_plain_before_they_are_validated(calls: Calls) -> None:
    @dataclass
    class City:
        name: str
        population: int = 3

    assert await calls.accepted(City("Rome")) == {"name": "Rome", "population": 3}
    assert await calls.accepted({"name": "Rome", "tags": ("a", "b")}) == {"name": "Rome", "tags": ["a", "b"]}
    await calls.refusal(City("Rome", population=-1))


async def test_a_lone_surrogate_is_refused_where_the_schema_looks_at_it(calls: Calls) -> None:
    error = await calls.refusal({"name": "Rome", "\ud800": 1})
    assert "surrogates" in error.message


@pytest.mark.parametrize("number", [10**40, -(10**40), 2**64])
async def test_large_integers_keep_every_digit(number: int) -> None:
    def double(number: int) -> int:
        return 2 * number

    registry = OperationRegistry()
    registry.query("a.b")(double)
    assert (await registry.execute("a.b", {"number": number})).data == 2 * number
    assert await Calls({"properties": {"n": {"type": "integer"}}}).accepted({"n": number}) == {"n": number}


FOREIGN = Schema({"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}})


async def test_an_operation_with_an_input_schema_that_does_not_compile_is_not_called() -> None:
    calls = Calls(FOREIGN)
    for input in ({"a": 1, "b": [2]}, {}, None, 5):
        with pytest.raises(CallError, match=r"city.found: the input cannot be validated.*unchecked_input") as raised:
            await calls.registry.execute("city.found", input)
        assert raised.value.code == ErrorCode.EXECUTION_ERROR
    assert calls.seen == []


async def test_unchecked_input_is_allowed_by_the_operation_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls(FOREIGN, unchecked_input=True)
    assert caplog.text == ""
    for _ in range(3):
        assert await calls.accepted({"a": 1, "b": [2]}) == {"a": 1, "b": [2]}
    assert caplog.text.count("city.found: the input schema is ignored") == 1


async def test_unchecked_input_changes_nothing_for_a_schema_that_compiles() -> None:
    calls = Calls(Schema({"type": "object"}), unchecked_input=True)
    assert (await calls.refusal([])).code == ErrorCode.VALIDATION_ERROR


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=1),
    )
)
async def test_the_short_way_of_flat_input_accepts_exactly_what_the_schema_accepts(input: dict[str, Any]) -> None:
    def flat(a: int, b: str | None = None, c: bool = False) -> list[Any]:
        return [a, b, c]

    registry = OperationRegistry()
    registry.query("a.b", inline=True)(flat)
    spec = registry.get_spec("a.b")
    assert spec is not None
    if spec.input_schema.is_valid(input):
        assert (await registry.execute("a.b", input)).data == flat(**input)
    else:
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await registry.execute("a.b", input)


async def test_a_deferred_schema_is_not_asked_before_the_first_call() -> None:
    schema = Schema.deferred(lambda: {"type": "object", "properties": {"a": {"type": "integer"}}})
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="local", name="test", input_schema=schema), lambda input, _: input)
    assert schema.is_deferred
    assert (await registry.execute("local.test", None)).data == {}
    with pytest.raises(CallError, match="integer"):
        await registry.execute("local.test", {"a": "x"})
