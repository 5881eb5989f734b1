"""Functions as operations: schemas from annotations, arguments from the input."""

import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from opwire import (
    UNKNOWN,
    CallError,
    Context,
    HintError,
    Item,
    OperationRegistry,
    OperationSpec,
    OperationType,
    RegistrationError,
    ResponseEnvelope,
    Schema,
)
from opwire.registry.signature import read_signature
from tests import future_annotations

Register = Callable[[Callable[..., Any]], OperationRegistry]


@dataclass
class Line:
    article: str
    quantity: int = 1
    tags: list[str] = field(default_factory=list[str])


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


ORIGIN = Point(1.0)


class Model(pydantic.BaseModel):
    when: datetime
    amount: Decimal = Decimal("1.5")


@attrs.define
class Parcel:
    weight: float
    label: str = "none"


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    deep: bool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def registered(function: Callable[..., Any], **options: Any) -> OperationRegistry:
    registry = OperationRegistry()
    registry.query("test.it", **options)(function)
    return registry


def input_schema(function: Callable[..., Any]) -> Any:
    return read_signature(function, streams=False).input_schema.json


def output_schema(function: Callable[..., Any], *, streams: bool = False) -> Any:
    return read_signature(function, streams=streams).output_schema.json


async def received(function: Callable[..., Any], input: Any) -> list[Any]:
    """What the function was called with, seen from inside: it appends its arguments to a list."""
    seen: list[Any] = []

    @functools.wraps(function)
    def spy(*args: Any, **kwargs: Any) -> None:
        seen.extend([*args, *kwargs.values()])

    spy.__annotations__ = function.__annotations__  # since Python 3.14, `wraps` copies what evaluates them instead
    await registered(spy).execute("test.it", input)
    return seen


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_each_parameter_is_a_property_and_required_unless_it_has_a_default() -> None:
    def order(article: str, quantity: int = 1, *, gift: bool = False) -> None: ...

    assert input_schema(order) == {
        "type": "object",
        "properties": {
            "article": {"type": "string"},
            "quantity": {"type": "integer", "default": 1},
            "gift": {"type": "boolean", "default": False},
        },
        "required": ["article"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    schema = read_signature(lambda: None, streams=False).input_schema
    assert schema.is_valid({})
    assert not schema.is_valid({"a": 1})
    assert not schema.is_valid([])


def test_annotated_descriptions_and_constraints_are_in_the_schema() -> None:
    def search(text: Annotated[str, msgspec.Meta(description="What to look for", min_length=2)]) -> None: ...

    assert input_schema(search)["properties"] == {
        "text": {"type": "string", "description": "What to look for", "minLength": 2}
    }


def test_a_default_that_has_a_json_form_is_declared_in_it() -> None:
    def plan(start: date = date(2026, 5, 1), colour: Colour = Colour.RED, at: Point = ORIGIN) -> None: ...

    properties = input_schema(plan)["properties"]
    assert properties["start"]["default"] == "2026-05-01"
    assert properties["colour"]["default"] == "red"
    assert properties["at"]["default"] == {"x": 1.0, "y": 0.0}


async def test_a_default_without_a_json_form_makes_the_parameter_optional_and_is_used() -> None:
    missing = object()

    def read(key: str, fallback: Any = missing) -> bool:
        return fallback is missing

    assert "default" not in input_schema(read)["properties"]["fallback"]
    registry = registered(read)
    assert (await registry.execute("test.it", {"key": "a"})).data is True
    assert (await registry.execute("test.it", {"key": "a", "fallback": 1})).data is False


async def test_parameters_without_annotations_take_anything() -> None:
    def echo(value, other=None):  # type: ignore[no-untyped-def]
        return [value, other]

    assert (await registered(echo).execute("test.it", {"value": {"a": [1]}})).data == [{"a": [1]}, None]


async def test_extra_properties_go_to_the_parameter_with_two_stars_and_are_checked_by_its_type() -> None:
    def total(base: int, **extra: int) -> int:
        return base + sum(extra.values())

    assert input_schema(total)["additionalProperties"] == {"type": "integer"}
    registry = registered(total)
    assert (await registry.execute("test.it", {"base": 1, "x": 2, "y": 3})).data == 6
    with pytest.raises(CallError, match="VALIDATION_ERROR"):
        await registry.execute("test.it", {"base": 1, "x": "two"})


async def test_extra_properties_cannot_have_the_names_of_injected_parameters() -> None:
    def names(base: int, context: Context, **extra: int) -> list[str]:
        return [type(context).__name__, *extra]

    def positional(context: Context, /, **extra: int) -> list[str]:
        return [type(context).__name__, *extra]

    given = {"base": 1, "context": 2, "x": 3}
    assert (await registered(names).execute("test.it", given)).data == ["Context", "x"]
    assert (await registered(positional).execute("test.it", given)).data == ["Context", "base", "context", "x"]


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int, {"type": "integer"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (ResponseEnvelope[int], {"type": "integer"}),
        (ResponseEnvelope, True),
        (ResponseEnvelope[Any], True),
        (Any, True),
        (None, {"type": "null"}),
    ],
)
def test_the_output_schema_is_that_of_the_returned_data(hint: Any, expected: Any) -> None:
    """Input and output schemas are taken from a function's signature, or given in their place."""

    def it() -> Any: ...

    it.__annotations__["return"] = hint
    assert output_schema(it) == expected


def test_a_function_without_a_return_annotation_has_an_unknown_output() -> None:
    def it():  # type: ignore[no-untyped-def]
        ...

    assert read_signature(it, streams=False).output_schema is UNKNOWN


def test_the_output_schema_of_a_subscription_is_that_of_its_items() -> None:
    async def ticks() -> AsyncIterator[int]:
        yield 1

    def lines() -> Iterator[ResponseEnvelope[str]]:
        yield from ()

    assert output_schema(ticks, streams=True) == {"type": "integer"}
    assert output_schema(lines, streams=True) == {"type": "string"}


async def test_given_schemas_replace_the_derived_ones() -> None:
    def it(n: int) -> int:
        return n

    given = Schema({"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}})
    registry = registered(it, input_schema=given, output_schema={"type": "number"})
    spec = registry.get_spec("test.it")
    assert spec is not None
    assert spec.input_schema is given
    assert spec.output_schema.json == {"type": "number"}
    assert (await registry.execute("test.it", {"n": 3})).data == 3
    with pytest.raises(CallError, match="VALIDATION_ERROR"):
        await registry.execute("test.it", {"n": 4})


def test_an_annotation_that_needs_no_schema_because_one_is_given_is_not_read() -> None:
    class Unreadable:
        pass

    def it(n: int) -> Unreadable:
        return Unreadable()

    registry = registered(it, output_schema={"type": "integer"})
    spec = registry.get_spec("test.it")
    assert spec is not None
    assert spec.output_schema.json == {"type": "integer"}


# --- conversion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (Line, {"article": "tea"}, Line("tea")),
        (list[Line], [{"article": "tea", "quantity": 2, "tags": ["x"]}], [Line("tea", 2, ["x"])]),
        (dict[str, Line], {"a": {"article": "tea"}}, {"a": Line("tea")}),
        (Point, {"x": 1}, Point(1.0, 0.0)),
        (Model, {"when": "2026-05-01T10:00:00Z"}, Model.model_validate({"when": "2026-05-01T10:00:00Z"})),
        (Parcel, {"weight": 2.5}, Parcel(2.5)),
        (Pair, [1, "b"], Pair(1, "b")),
        (Options, {"deep": True}, {"deep": True}),
        (Colour, "blue", Colour.BLUE),
        (date, "2026-05-01", date(2026, 5, 1)),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        (Decimal, "1.10", Decimal("1.10")),
        (bytes, "aGk=", b"hi"),
        (set[int], [1, 2], {1, 2}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Literal["a", 1], "a", "a"),
        (Line | None, None, None),
        (Line | str, {"article": "tea"}, Line("tea")),
    ],
    ids=str,
)
async def test_an_argument_arrives_as_its_annotated_type(hint: Any, given: Any, expected: Any) -> None:
    def it(value: Any) -> None: ...

    it.__annotations__["value"] = hint
    [value] = await received(it, {"value": given})
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(("hint", "given"), [(int, 5.0), (float, 5), (int | None, 5.0)])
async def test_a_number_arrives_as_the_kind_that_is_asked_for(hint: Any, given: Any) -> None:
    def it(value: Any, other: str = "") -> None: ...

    it.__annotations__["value"] = hint
    [value] = await received(it, {"value": given})
    assert value == 5
    assert type(value) is (int if hint == int | None else hint)


async def test_numbers_are_converted_for_each_parameter_on_its_own() -> None:
    def it(whole: int, real: float, any_of: int | float) -> None: ...

    values = await received(it, {"whole": 1.0, "real": 2, "any_of": 3})
    assert [(value, type(value)) for value in values] == [(1, int), (2.0, float), (3, int)]


@pytest.mark.parametrize("given", [True, "1", 1.5, None, [1]])
async def test_what_is_not_an_integer_is_not_made_one(given: Any) -> None:
    def it(value: int) -> None: ...

    with pytest.raises(CallError, match="VALIDATION_ERROR"):
        await received(it, {"value": given})


async def test_typed_instances_are_taken_as_input_as_well() -> None:
    def it(lines: list[Line], when: date) -> None: ...

    assert await received(it, {"lines": [Line("tea")], "when": date(2026, 5, 1)}) == [[Line("tea")], date(2026, 5, 1)]


async def test_data_that_is_valid_but_does_not_make_the_type_is_invalid_input() -> None:
    @dataclass
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("odd")

    def it(even: Even) -> int:
        return even.number

    registry = registered(it)
    assert (await registry.execute("test.it", {"even": {"number": 2}})).data == 2
    with pytest.raises(CallError, match=r"VALIDATION_ERROR: .*odd"):
        await registry.execute("test.it", {"even": {"number": 3}})


async def test_an_unforeseen_exception_of_an_arguments_own_class_is_an_execution_error() -> None:
    @dataclass
    class Broken:
        number: int

        def __post_init__(self) -> None:
            raise KeyError("hunter2")

    def it(broken: Broken) -> None: ...

    def items(broken: Broken) -> Iterator[int]:
        yield 1

    registry = registered(it)
    registry.subscription("test.items")(items)
    input = {"broken": {"number": 1}}
    for call in (registry.execute("test.it", input), anext(registry.subscribe("test.items", input))):
        with pytest.raises(CallError, match="EXECUTION_ERROR") as caught:
            await call
        assert isinstance(caught.value.__cause__, KeyError)
        assert "hunter2" not in f"{caught.value} {caught.value.details}"


# --- the whole input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (Line, {"article": "tea"}, Line("tea")),
        (list[int], [1, 2], [1, 2]),
        (int, 5.0, 5),
        (str, "text", "text"),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Any, {"a": [None]}, {"a": [None]}),
        (int | None, None, None),
    ],
    ids=str,
)
async def test_a_positional_only_parameter_receives_the_whole_input(hint: Any, given: Any, expected: Any) -> None:
    def it(value: Any, /) -> None: ...

    it.__annotations__["value"] = hint
    [value] = await received(it, given)
    assert value == expected
    assert type(value) is type(expected)


async def test_the_whole_input_and_the_context_come_in_any_order_and_kind() -> None:
    def after(value: int, context: Context) -> bool:
        return value == 5 and isinstance(context, Context)

    def whole(value: int, /, context: Context) -> bool:
        return after(value, context)

    def both_by_position(value: int, context: Context, /) -> bool:
        return after(value, context)

    def context_first(context: Context, value: int, /) -> bool:
        return after(value, context)

    def keyword(value: int, /, *, context: Context) -> bool:
        return after(value, context)

    for function in (whole, both_by_position, context_first, keyword):
        assert (await registered(function).execute("test.it", 5)).data is True, function.__name__


# --- the context ------------------------------------------------------------------------------------------------------


async def test_a_parameter_of_any_name_annotated_context_receives_it() -> None:
    def it(a: int, ctx: Context) -> Any:
        return [a, ctx.request_id]

    registry = registered(it)
    assert input_schema(it)["properties"].keys() == {"a"}
    assert (await registry.execute("test.it", {"a": 1}, Context(request_id="r1"))).data == [1, "r1"]


async def test_a_context_parameter_may_be_optional_positional_only_or_keyword_only() -> None:
    def optional(a: int, context: Context | None = None) -> Any:
        return [a, context.request_id if context else "none"]

    def positional(context: Context, /, a: int) -> Any:
        return optional(a, context)

    def keyword(a: int, *, context: Context) -> Any:
        return optional(a, context)

    for function in (optional, positional, keyword):
        envelope = await registered(function).execute("test.it", {"a": 1}, Context(request_id="r1"))
        assert envelope.data == [1, "r1"], function.__name__
    assert optional(1) == [1, "none"]


async def test_a_property_of_the_contexts_name_cannot_be_smuggled_in() -> None:
    def it(a: int, context: Context) -> int:
        return a

    with pytest.raises(CallError, match="VALIDATION_ERROR"):
        await registered(it).execute("test.it", {"a": 1, "context": {}})


def test_two_context_parameters_are_refused() -> None:
    def it(one: Context, two: Context) -> None: ...

    def whole(value: int, /, one: Context, two: Context) -> None: ...

    for function in (it, whole):
        with pytest.raises(RegistrationError, match="only one parameter can receive the context, not one and two"):
            registered(function)


# --- kinds of callables -----------------------------------------------------------------------------------------------


def scale(factor: int, number: int) -> int:
    """Multiply."""
    return factor * number


class Scaler:
    """Multiplies by what it was made with."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: int) -> int:
        return self.factor * number

    def method(self, number: int) -> int:
        return self.factor * number

    async def async_method(self, number: int) -> int:
        return self.factor * number

    @staticmethod
    def static(number: int) -> int:
        return 3 * number

    @classmethod
    def of_class(cls, number: int) -> int:
        return cls(3).method(number)


class AsyncScaler:
    async def __call__(self, number: int) -> int:
        return 3 * number


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def logged_async(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(scale, 3),
        functools.partial(functools.partial(scale), factor=3),
        functools.partial(Scaler(3)),
        Scaler(3),
        Scaler(3).method,
        Scaler(3).async_method,
        Scaler.static,
        Scaler.of_class,
        AsyncScaler(),
        functools.partial(Scaler(3).async_method),
        logged(Scaler(3).method),
        logged(Scaler(3).async_method),
        logged_async(Scaler(3).async_method),
    ],
    ids=[
        "partial",
        "partial by keyword",
        "partial of an object",
        "object",
        "method",
        "async method",
        "static method",
        "class method",
        "async object",
        "partial of an async method",
        "wrapped method",
        "wrapped async method",
        "async wrapper",
    ],
)
async def test_any_callable_with_a_signature_can_be_a_handler(function: Callable[..., Any]) -> None:
    """Partials, callable objects, bound and static methods, wrapped functions can be handlers."""
    registry = registered(function)
    assert (await registry.execute("test.it", {"number": 4})).data == 12
    with pytest.raises(CallError, match="VALIDATION_ERROR"):
        await registry.execute("test.it", {"number": "four"})


async def test_a_wrapped_generator_function_can_be_a_subscription() -> None:
    def count(to: int) -> Iterator[int]:
        yield from range(to)

    async def async_count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    class Counter:
        def __call__(self, to: int) -> Iterator[int]:
            yield from range(to)

    for function in (logged(count), logged(async_count), functools.partial(count), Counter()):
        registry = OperationRegistry()
        registry.subscription("test.it")(function)
        assert [envelope.data async for envelope in registry.subscribe("test.it", {"to": 3})] == [0, 1, 2]


async def test_a_builtin_that_takes_one_value_can_be_a_handler() -> None:
    assert (await registered(len).execute("test.it", [1, 2])).data == 2


async def test_a_mock_can_be_a_handler() -> None:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="test", name="sync"), Mock(return_value=1))
    registry.register(OperationSpec(namespace="test", name="async"), AsyncMock(return_value=2))
    assert [(await registry.execute(f"test.{name}")).data for name in ("sync", "async")] == [1, 2]


async def test_a_decorated_function_is_the_function_itself() -> None:
    """A decorated function stays the ordinary function that it was."""
    registry = OperationRegistry(namespace="math")

    async def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert registry.query(add) is add
    assert registry.query("math.plus")(add) is add
    assert registry.mutation("math.increment", timeout=1)(add) is add
    assert await add(1, b=2) == 3
    assert {spec.id for spec in registry.list()} == {"math.add", "math.plus", "math.increment"}


def test_each_decorator_makes_an_operation_of_its_type() -> None:
    """The decorators register functions as queries, mutations and subscriptions."""
    registry = OperationRegistry()

    @registry.query("a.read")
    def read() -> None: ...

    @registry.mutation("a.write")
    def write() -> None: ...

    @registry.subscription("a.watch")
    def watch() -> Iterator[int]:
        yield 1

    assert [(spec.id, spec.type) for spec in registry.list()] == [
        ("a.read", OperationType.QUERY),
        ("a.write", OperationType.MUTATION),
        ("a.watch", OperationType.SUBSCRIPTION),
    ]


def test_the_docstring_is_the_description_unless_one_is_given() -> None:
    registry = OperationRegistry()
    registry.query("a.one")(scale)
    registry.query("a.two", description="Other.", title="Two", tags=["x"], version="2")(scale)
    registry.query("a.three")(Scaler(2))
    one, two, three = registry.list()
    assert (one.description, two.description, three.description) == ("Multiply.", "Other.", "")
    assert (two.title, two.tags, two.version) == ("Two", ("x",), "2")


def test_an_id_without_a_dot_lies_in_the_registrys_namespace() -> None:
    registry = OperationRegistry(namespace="mine")
    registry.query("times")(scale)
    registry.query("other.v1.times")(scale)
    assert [spec.id for spec in registry.list()] == ["mine.times", "other.v1.times"]


# --- annotations as strings, and what is refused ----------------------------------------------------------------------


async def test_annotations_that_are_strings_are_resolved() -> None:
    registry = OperationRegistry()
    future_annotations.register(registry)
    assert (await registry.execute("future.total", {"items": [{"price": 2}, {"price": 3.5}]})).data == 5.5
    nearby = await registry.execute("future.nearby", {"item": {"price": 2}}, Context(request_id="r1"))
    assert nearby.data == {"price": 2.0, "request": "r1"}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are lazy since Python 3.14")
async def test_lazy_annotations_are_resolved_and_a_missing_name_is_refused() -> None:
    from tests import lazy_annotations as lazy

    registry = OperationRegistry()
    lazy.register(registry)
    node = {"value": 1, "next": {"value": 2}}
    called = await registry.execute("lazy.depth", {"node": node}, Context(request_id="r1"))
    assert called.data == {"depth": 2, "last": 2, "request": "r1"}
    with pytest.raises(HintError, match=r"unseen_parameter: an annotation cannot be resolved: .*Unseen"):
        registered(lazy.unseen_parameter)
    for cls in (lazy.UnseenField, lazy.UnseenKey):
        with pytest.raises(HintError, match=rf"an annotation of {cls.__name__} cannot be resolved: .*Unseen"):
            Schema.from_type(cls)


def test_an_annotation_that_cannot_be_resolved_is_refused_and_named() -> None:
    def it(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(HintError, match=r"it: an annotation cannot be resolved: .*Nowhere"):
        registered(it)


def test_a_type_without_a_json_form_is_refused_and_the_parameter_named() -> None:
    def takes(a: int, handle: Callable[[], int]) -> None: ...

    def gives() -> Callable[[], int]: ...

    with pytest.raises(HintError, match=r"parameter 'handle' of .*takes"):
        registered(takes)
    with pytest.raises(HintError, match=r"the result of .*gives"):
        registered(gives)


def test_parameters_that_cannot_be_filled_by_name_are_refused() -> None:
    def several(*numbers: int) -> None: ...

    def two(a: int, b: int, /) -> None: ...

    def mixed(a: int, /, b: int) -> None: ...

    for function in (several, two, mixed):
        with pytest.raises(RegistrationError, match="input arrives by name"):
            registered(function)


def test_a_subscription_has_to_say_what_it_yields() -> None:
    async def it() -> int:
        return 1

    with pytest.raises(HintError, match=r"the result of .*it: int does not say what is yielded"):
        OperationRegistry().subscription("a.b")(it)


def test_a_generator_function_is_not_a_query_and_nothing_is_registered() -> None:
    def count() -> Iterator[int]:
        yield 1

    async def async_count() -> AsyncIterator[int]:
        yield 1

    registry = OperationRegistry()
    for function in (count, async_count, functools.partial(count)):
        with pytest.raises(RegistrationError, match=r"a\.b yields, so it is a subscription and not a query"):
            registry.query("a.b")(function)
    assert len(registry) == 0


async def test_what_extra_receives_is_converted_too_and_none_of_it_is_lost() -> None:
    registry = OperationRegistry()

    @registry.query("a.b")
    async def days(names: list[str], **extra: date) -> object:
        assert all(type(day) is date for day in extra.values())
        return [names, sorted(extra)]

    given = {"names": ["x"], "extra": "2026-01-01", "other": "2026-01-02"}
    assert (await registry.execute("a.b", given)).data == [["x"], ["extra", "other"]]
    with pytest.raises(CallError, match="VALIDATION_ERROR"):
        await registry.execute("a.b", {"names": ["x"], "extra": 5})


def test_a_function_may_refer_to_a_variable_that_is_assigned_later() -> None:
    async def ask(question: str) -> str:
        return await client(question)

    assert input_schema(ask)["properties"] == {"question": {"type": "string"}}

    async def client(question: str) -> str:
        return question


# --- cursors ----------------------------------------------------------------------------------------------------------


async def test_a_stream_that_takes_the_cursor_can_be_resumed_and_its_input_does_not_have_it() -> None:
    registry = OperationRegistry()

    @registry.subscription("log.named")
    async def named(context: Context, first: int = 1, resume_from: str | None = None) -> AsyncIterator[Item[str]]:
        yield Item(f"{first} {resume_from} {context.resume_from}", cursor="1")

    @registry.subscription("log.whole")
    def whole(input: int, /, resume_from: str | None = None) -> Iterator[Item[Any]]:
        yield Item([input, resume_from], cursor="1")

    @registry.subscription("log.context", resumable=True)
    async def by_context(context: Context) -> AsyncIterator[Item[str | None]]:
        yield Item(context.resume_from, cursor="1")

    async def first(id: str, input: Any = None) -> Any:
        items = registry.subscribe(id, input, Context(resume_from="7"))
        return (await anext(items)).data

    spec = registry.get_spec("log.named")
    assert spec is not None
    assert spec.input_schema.json["properties"].keys() == {"first"}  # pyright: ignore
    assert spec.output_schema.json == {"type": "string"}
    assert [each.resumable for each in registry.list()] == [True, True, True]
    assert await first("log.named", {"first": 2}) == "2 7 7"
    assert await first("log.whole", 3) == [3, "7"]
    assert await first("log.context") == "7"
    assert [each.data async for each in registry.subscribe("log.whole", 3)] == [[3, None]]


def test_a_cursor_is_a_text_or_none_and_a_parameter_of_subscriptions_only() -> None:
    def wrong(resume_from: int) -> Iterator[int]: ...
    def unfilled(resume_from: str | None, /) -> Iterator[int]: ...

    for function in (wrong, unfilled):
        with pytest.raises(RegistrationError, match=r"expected resume_from: str \| None, the cursor of the last item"):
            read_signature(function, streams=True)
    assert "resume_from" in input_schema(lambda resume_from: None)["properties"]
