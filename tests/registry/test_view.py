"""Views of a registry."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import date
from itertools import product
from typing import Any, cast
from weakref import ref

import pytest
from msgspec import UNSET

from opwire import (
    AccessControl,
    CallError,
    Context,
    ErrorCode,
    Handler,
    Identity,
    OperationRegistry,
    OperationSpec,
    OperationType,
    Reshape,
    UsageError,
    mcp_envelope,
)
from opwire.registry.dispatch import Dispatcher


@dataclass
class Line:
    """A line of an order."""

    count: int


ADA = Identity(id="ada", scopes=("shop",))
AS_ADA = Context(identity=ADA)


@pytest.fixture
def registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.mutation("shop.order", tags=["sale"], access=AccessControl(required_scopes=("shop",)))
    async def order(lines: list[str], customer: str, currency: str = "USD", note: str = "") -> dict[str, Any]:
        """Order articles."""
        return {"total": len(lines), "customer": customer, "currency": currency, "note": note, "lines": lines}

    @registry.query("shop.articles", title="Articles")
    async def articles(count: int = 3) -> list[dict[str, Any]]:
        return [{"name": f"article {at}", "price": {"amount": at, "secret": "x"}} for at in range(count)]

    @registry.query("math.add")
    async def add(a: int, b: int) -> int:
        return a + b

    @registry.query("math.twice")
    async def twice(a: int, context: Context) -> int:
        return (await context.env.math.add(a=a, b=a)).data

    @registry.subscription("math.count")
    async def count(to: int, step: int = 1) -> AsyncIterator[int]:
        for number in range(0, to, step):
            yield number

    return registry


def ids(registry: OperationRegistry) -> list[str]:
    return [spec.id for spec in registry.list()]


async def failure(registry: OperationRegistry, id: str, input: Any, context: Context | None = None) -> CallError:
    with pytest.raises(CallError) as failed:
        await registry.execute(id, input, context)
    return failed.value


# --- selection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ["shop"]}, ["shop.order", "shop.articles"]),
        ({"include": ["*.a*"]}, ["shop.articles", "math.add"]),
        ({"include": ["sale"]}, ["shop.order"]),
        ({"include": ["tag:sale"]}, ["shop.order"]),
        ({"include": ["type:subscription"]}, ["math.count"]),
        ({"include": ["scope:shop"]}, ["shop.order"]),
        ({"include": [lambda spec: spec.name.startswith("t")]}, ["math.twice"]),
        ({"exclude": ["math.*", "shop.order"]}, ["shop.articles"]),
        ({"include": ["shop"], "exclude": ["type:mutation"]}, ["shop.articles"]),
        ({"identity": Identity(id="bob"), "include": ["shop"]}, ["shop.articles"]),
    ],
)
def test_a_view_selects_by_id_namespace_tag_type_scope_and_predicate(
    registry: OperationRegistry, options: Any, expected: list[str]
) -> None:
    view = registry.view(**options)
    assert ids(view) == expected
    assert len(registry) == 5
    assert view.problems == ()


async def test_what_is_not_selected_cannot_be_called_nor_is_it_suggested(registry: OperationRegistry) -> None:
    view = registry.view(include=["math"])
    error = await failure(view, "shop.order", {})
    assert error.code is ErrorCode.OPERATION_NOT_FOUND
    assert "shop" not in error.message.removeprefix("Operation not found: shop.order")


def test_patterns_that_match_nothing_are_reported(
    registry: OperationRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    view = registry.view(
        include=["shp.*", "math", "shop.ordr"],
        exclude=["type:nothing"],
        rename={"maths": "m"},
        reshape={"shop.artikles": Reshape(title="A")},
    )
    assert view.problems == (
        "include: 'shp.*' matches nothing; did you mean shop?",
        "include: 'shop.ordr' matches nothing; did you mean shop.order?",
        "exclude: 'type:nothing' matches nothing",
        "rename: 'maths' matches nothing; did you mean math?",
        "reshape: 'shop.artikles' matches nothing; did you mean shop.articles?",
    )
    assert "'shop.ordr' matches nothing" in caplog.text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (Reshape(fix={"custmer": "ada"}), "it has no parameter 'custmer'; did you mean customer?"),
        (Reshape(hide=["customer"]), "the hidden parameter 'customer' is required: give it a value with fix"),
        (Reshape(fix={"currency": 1}), 'the value of fix is invalid: /currency: the value is not of type "string"'),
        (Reshape(rename={"note": "lines"}), "rename gives two parameters one name: lines"),
    ],
)
def test_an_operation_with_a_rule_that_cannot_be_applied_is_left_out(
    registry: OperationRegistry, changes: Reshape, problem: str
) -> None:
    view = registry.view(include=["shop"], reshape={"shop.order": changes})
    assert ids(view) == ["shop.articles"]
    (found,) = view.problems
    assert found.startswith("shop.order is left out: ")
    assert found.endswith(problem)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "shop"}, r"include is a list of patterns: write \['shop'\]"),
        ({"rename": {"shop.*": "store"}}, "rename: 'shop.\\*' to 'store'"),
    ],
)
def test_invalid_options_are_rejected(registry: OperationRegistry, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        registry.view(**options)
    with pytest.raises(UsageError, match=r"view\(\) has no option 'exlude'; did you mean exclude"):
        OperationRegistry().view(**cast("Any", {"exlude": ["shop"]}))
    with pytest.raises(UsageError, match="keep is a list"):
        Reshape(keep="total")
    with pytest.raises(UsageError, match=r"from_context: 'identity\.name' is unknown"):
        Reshape(from_context={"a": "identity.name"})
    with pytest.raises(UsageError, match="max_chars"):
        Reshape(max_chars=0)


# --- names ------------------------------------------------------------------------------------------------------------


async def test_operations_and_namespaces_are_renamed(registry: OperationRegistry) -> None:
    """A view renames operations one by one, by pattern and by namespace, in results and errors too."""
    view = registry.view(
        rename={"shop.order": "store.buy", "shop.articles": "list", "math.*": "calc.number_*"},
        reshape={"math.add": Reshape(title="Sum", description="Add numbers.")},
    )
    assert ids(view) == ["store.buy", "shop.list", "calc.number_add", "calc.number_twice", "calc.number_count"]
    envelope = await view.execute("calc.number_add", {"a": 1, "b": 2})
    assert envelope.data == 3
    assert getattr(envelope.meta, "operation_id", None) == "calc.number_add"
    spec = view.get_spec("calc.number_add")
    assert spec is not None
    assert (spec.title, spec.description) == ("Sum", "Add numbers.")
    error = await failure(view, "calc.number_add", {"a": "x", "b": 2})
    assert error.message.startswith("calc.number_add: /a")
    assert (await failure(view, "math.add", {"a": 1, "b": 2})).code is ErrorCode.OPERATION_NOT_FOUND
    assert ids(registry.view(rename={"math": "m"}, include=["math.add"])) == ["m.add"]


def test_two_operations_with_one_name_are_reported_and_the_first_stays(registry: OperationRegistry) -> None:
    view = registry.view(include=["math.add", "math.twice"], rename={"math.twice": "math.add"})
    assert ids(view) == ["math.add"]
    assert view.problems == ("math.twice is left out: the view has another math.add",)


async def test_handlers_call_the_operations_of_the_viewed_registry(registry: OperationRegistry) -> None:
    view = registry.view(include=["math.twice"], rename={"math.twice": "n.double"})
    assert (await view.execute("n.double", {"a": 4})).data == 8
    assert (await view.execute("n.double", {"a": 4}, AS_ADA)).data == 8


# --- parameters -------------------------------------------------------------------------------------------------------

BUYING = Reshape(
    rename={"lines": "items"},
    fix={"currency": "EUR"},
    from_context={"customer": "identity.id"},
    hide=["note"],
    narrow={"lines": {"maxItems": 2}},
)


async def test_parameters_are_renamed_hidden_fixed_and_narrowed(registry: OperationRegistry) -> None:
    view = registry.view(reshape={"shop.order": BUYING})
    spec = view.get_spec("shop.order")
    assert spec is not None
    schema: Any = spec.input_schema.json
    assert schema["properties"] == {"items": {"type": "array", "items": {"type": "string"}, "maxItems": 2}}
    assert schema["required"] == ["items"]
    data = (await view.execute("shop.order", {"items": ["tea"]}, AS_ADA)).data
    assert data == {"total": 1, "customer": "ada", "currency": "EUR", "note": "", "lines": ["tea"]}


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ({"items": [], "customer": "eve"}, "shop.order: the input: unknown properties: customer"),
        ({"items": [], "currency": "USD"}, "shop.order: the input: unknown properties: currency"),
        ({"items": [], "note": "x"}, "shop.order: the input: unknown properties: note"),
        ({"lines": []}, "shop.order: the input: unknown properties: lines"),
        ({"items": ["a", "b", "c"]}, "shop.order: /items: "),
        ({"items": [1]}, 'shop.order: /items/0: the value is not of type "string"'),
        ([], 'shop.order: the input: the value is not of type "object"'),
    ],
)
async def test_a_caller_cannot_pass_what_is_hidden_and_errors_use_the_names_of_the_view(
    registry: OperationRegistry, input: Any, message: str
) -> None:
    view = registry.view(reshape={"shop.order": BUYING})
    error = await failure(view, "shop.order", input, AS_ADA)
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert error.message.startswith(message)


async def test_values_come_from_the_context_of_the_call(registry: OperationRegistry) -> None:
    def tenant(context: Context) -> str:
        return f"tenant {context.request_id}"

    view = registry.view(reshape={"shop.order": Reshape(from_context={"customer": "metadata.who", "note": tenant})})
    context = Context(metadata={"who": "bob"}, request_id="7")
    data = (await view.execute("shop.order", {"lines": []}, context)).data
    assert (data["customer"], data["note"]) == ("bob", "tenant 7")
    error = await failure(view, "shop.order", {"lines": []})
    assert error.message == "the context of the call has no metadata 'who'"
    view = registry.view(reshape={"shop.order": BUYING})
    assert (await failure(view, "shop.order", {"items": []})).code is ErrorCode.UNAUTHENTICATED


async def test_concurrent_callers_never_get_each_others_values(registry: OperationRegistry) -> None:
    view = registry.view(reshape={"shop.order": BUYING})

    async def order(name: str) -> str:
        context = Context(identity=Identity(id=name))
        return (await view.execute("shop.order", {"items": []}, context)).data["customer"]

    names = [f"caller {number}" for number in range(50)]
    assert await asyncio.gather(*map(order, names)) == names


async def test_the_input_of_a_subscription_is_reshaped(registry: OperationRegistry) -> None:
    view = registry.view(rename={"math": "m"}, reshape={"math.count": Reshape(fix={"step": 2}, rename={"to": "end"})})
    async with aclosing(view.subscribe("m.count", {"end": 5})) as items:
        found = [item async for item in items]
    assert [item.data for item in found] == [0, 2, 4]
    assert {getattr(item.meta, "operation_id", None) for item in found} == {"m.count"}
    with pytest.raises(CallError, match=r"m\.count: /end: "):
        async for _ in view.subscribe("m.count", {"end": "x"}):
            pass


# --- results ----------------------------------------------------------------------------------------------------------


async def test_fields_of_a_result_are_kept_in_lists_too(registry: OperationRegistry) -> None:
    view = registry.view(reshape={"shop.articles": Reshape(keep=["name", "price.amount"])})
    data = (await view.execute("shop.articles", {"count": 2})).data
    assert data == [{"name": "article 0", "price": {"amount": 0}}, {"name": "article 1", "price": {"amount": 1}}]


def test_the_output_schema_is_projected() -> None:
    registry = OperationRegistry()
    item = {
        "type": "object",
        "properties": {"id": {"$ref": "#/$defs/id"}, "user": {"$ref": "#/$defs/user"}, "secret": {"type": "string"}},
        "required": ["id", "secret"],
    }
    schema = {"type": "array", "items": item, "$defs": {"id": {"type": "integer"}, "user": {"type": "object"}}}
    registry.register(
        OperationSpec(namespace="a", name="b", output_schema=schema), lambda input, context: [{"id": 1, "secret": "x"}]
    )
    view = registry.view(reshape={"a.*": Reshape(keep=["id", "user.name"])})
    (spec,) = view.list()
    assert spec.output_schema.json == {
        "type": "array",
        "items": {"type": "object", "properties": {"id": {"$ref": "#/$defs/id"}, "user": {}}, "required": ["id"]},
        "$defs": schema["$defs"],
    }
    assert spec.output_schema.is_valid([{"id": 1}])


async def test_a_long_result_is_shortened_and_the_rest_can_be_fetched(registry: OperationRegistry) -> None:
    """A view keeps some fields of a result, and shortens long ones; the rest can be fetched by the same caller."""
    view = registry.view(reshape={"shop.articles": Reshape(max_chars=50)})
    whole = await view.execute("shop.articles", {"count": 0})
    assert whole.data == []
    page = (await view.execute("shop.articles", {"count": 40}, AS_ADA)).data
    assert len(page["text"]) == 50
    assert page["shortened"].startswith("50 of ")
    assert page["shortened"].endswith("(the tool results_more) returns the rest: pass it `next`")
    text, following = page["text"], page["next"]
    error = await failure(view, "results.more", following)
    assert error.message == "results.more: unknown or expired result: repeat the original call"
    rest = (await view.execute("results.more", {**following, "length": 100_000}, AS_ADA)).data
    assert "next" not in rest
    full = text + rest["text"]
    assert len(full) == page["characters"]
    assert full.startswith('[{"name":"article 0"')
    assert full.endswith("}]")
    outer = view.view(include=["shop.articles"])
    assert ids(outer) == ["shop.articles", "results.more"]
    page = (await outer.execute("shop.articles", {"count": 40})).data
    assert (await outer.execute("results.more", page["next"])).data["text"]


async def test_stored_results_are_bounded(registry: OperationRegistry) -> None:
    view = registry.view(reshape={"shop.articles": Reshape(max_chars=10)})
    first = (await view.execute("shop.articles")).data["next"]
    for _ in range(200):
        last = (await view.execute("shop.articles")).data["next"]
    assert (await view.execute("results.more", last)).data["text"]
    assert "expired" in (await failure(view, "results.more", first)).message


async def test_content_blocks_do_not_contain_what_was_dropped() -> None:
    registry = OperationRegistry()
    content = [{"type": "text", "text": '{"a": 1, "secret": 2}'}]
    results = iter(
        [
            mcp_envelope({"a": 1, "secret": 2}, content=content, is_error=False),
            mcp_envelope("no", content=[{"type": "text", "text": "no"}], is_error=True),
        ]
    )
    registry.register(OperationSpec(namespace="a", name="b"), lambda input, context: next(results))
    view = registry.view(reshape={"a.b": Reshape(keep=["a"])})
    envelope = await view.execute("a.b")
    assert envelope.data == {"a": 1}
    assert envelope.meta.source == "local"
    assert (await view.execute("a.b")).data == "no"


FLAT: list[Reshape] = [
    Reshape(fix={"b": "x"}),
    Reshape(fix={"a": 7}, rename={"b": "y"}),
    Reshape(rename={"a": "b", "b": "a"}),  # exchanged
    Reshape(hide=["c"]),
    Reshape(hide=["c"], rename={"a": "z"}),
    Reshape(from_context={"b": "identity.id"}),
    Reshape(from_context={"b": lambda _: 1}),  # of another type than the parameter
    Reshape(from_context={"a": lambda _: 5}, rename={"b": "y"}),
    Reshape(from_context={"a": lambda _: 5, "b": "identity.id"}),
    Reshape(from_context={"a": lambda _: 5}, fix={"c": True}),
    Reshape(from_context={"c": lambda _: UNSET}),  # not a value
    Reshape(rename={"c": "y"}),  # optional
    Reshape(narrow={"a": {"maximum": 5}}),
    Reshape(narrow={"b": {"pattern": "^x"}}, rename={"b": "y"}, fix={"c": True}),
]


@pytest.mark.parametrize("changes", FLAT)
async def test_flat_input_of_a_function_is_reshaped_as_that_of_any_other_operation(changes: Reshape) -> None:
    registry = OperationRegistry()

    @registry.query("flat.echo")
    async def echo(a: int, b: str, c: bool = False) -> list[Any]:
        return [a, b, c]

    spec = cast("OperationSpec", registry.get_spec("flat.echo"))
    other = OperationSpec(namespace="any", name="echo", input_schema=spec.input_schema)
    registry.register(other, lambda input, _: [input["a"], input["b"], input.get("c", False)], inline=True)
    view = registry.view(reshape={"*.echo": changes})
    given: list[Any] = [1, "x", "y", True, None, UNSET]
    seen = 0
    for a, b, c in product(given, repeat=3):
        names = [("a", a), ("b", b), ("c", c), ("y", b), ("z", a)]
        for chosen in (names[:3], names[:2], [names[3]], [names[0], names[3]], [names[1], names[4]], [names[2]], names):
            input = {name: value for name, value in chosen if value is not UNSET}
            outcomes: list[Any] = []
            for id in ("flat.echo", "any.echo"):
                try:
                    outcomes.append((await view.execute(id, input, AS_ADA)).data)
                except CallError as error:
                    outcomes.append((error.code, error.message.replace("flat", "any"), error.details))
            assert outcomes[0] == outcomes[1], input
            seen += isinstance(outcomes[0], list)
    assert seen or changes in (FLAT[6], FLAT[10])


async def test_a_view_leaves_defaults_to_the_function() -> None:
    registry, missing = OperationRegistry(), object()

    @registry.query("a.b", inline=True)
    def omitted(a: int, b: int = cast("int", missing), c: str = "c") -> list[Any]:
        return [a, b is missing, c]

    view = registry.view(reshape={"a.b": Reshape(rename={"a": "x"})})
    assert (await view.execute("a.b", {"x": 1})).data == [1, True, "c"]
    assert (await view.execute("a.b", {"x": 1, "b": 2})).data == [1, False, "c"]


async def test_objects_in_the_input_of_a_view_are_converted_before_they_are_checked() -> None:
    registry = OperationRegistry()

    @registry.query("a.b")
    async def total(line: Line, day: date) -> list[Any]:
        return [type(line).__name__, line.count, day]

    changes = Reshape(rename={"line": "row"}, narrow={"day": {"pattern": "^2026-"}})
    view = registry.view(reshape={"a.b": changes})
    input = {"row": Line(count=2), "day": date(2026, 2, 1)}
    with pytest.raises(CallError, match=r"a\.b: /row/count: "):
        await view.execute("a.b", {"row": {"count": "x"}, "day": "2026-02-01"})
    with pytest.raises(CallError, match=r"a\.b: /day: "):
        await view.execute("a.b", {**input, "day": date(2025, 2, 1)})
    other = registry.view(reshape={"a.b": Reshape(rename={"line": "row"})})
    for each in (view, other):
        envelope = await each.execute("a.b", input)
        assert envelope.data == (await registry.execute("a.b", {"line": Line(2), "day": date(2026, 2, 1)})).data


async def test_a_reshaping_view_runs_the_interceptors_of_its_registry_with_its_input(
    registry: OperationRegistry,
) -> None:
    seen: list[Any] = []

    def record(spec: OperationSpec, handler: Any) -> Any:
        async def call(input: Any, context: Context) -> Any:
            seen.append((spec.id, input))
            return await handler(input, context)

        return call

    view = registry.view(rename={"math": "m"}, reshape={"math.add": Reshape(fix={"b": 2})})
    outer = view.view(rename={"m": "o"}, reshape={"m.add": Reshape(rename={"a": "x"})})
    remove = registry.use(record)
    assert (await outer.execute("o.add", {"x": 1})).data == 3
    assert seen == [("math.add", {"a": 1, "b": 2})]
    view.use(record)
    assert (await outer.execute("o.add", {"x": 1})).data == 3
    assert seen[1:] == [("m.add", {"a": 1}), ("math.add", {"a": 1, "b": 2})]
    remove()
    assert (await outer.execute("o.add", {"x": 1})).data == 3
    assert seen[3:] == [("m.add", {"a": 1})]


# --- a registry -------------------------------------------------------------------------------------------------------


async def test_a_view_follows_the_changes_of_its_registry(registry: OperationRegistry) -> None:
    """A view follows its registry, can be followed and viewed again, and is not kept alive by it."""
    view = registry.view(include=["math"], rename={"math": "m"}, reshape={"math.late": Reshape(fix={"a": 1})})
    outer = view.view(exclude=["m.count"])
    seen: list[tuple[str, str]] = []
    outer.on_change(lambda change: seen.append((change.kind, change.spec.id)))
    registry.query("math.late")(lambda b: b)
    assert "m.late" not in view
    assert view.problems == ("math.late is left out: it has no parameter 'a'",)
    typed: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    late = OperationSpec(namespace="math", name="late", input_schema=typed)
    registry.register(late, lambda input, context: input["a"], replace=True)
    assert (await outer.execute("m.late")).data == 1
    registry.unregister("math.late")
    registry.unregister("math.count")
    registry.unregister("math.add")
    assert seen == [("added", "m.late"), ("removed", "m.late"), ("removed", "m.add")]
    assert ids(outer) == ["m.twice"]


def test_a_view_that_is_not_used_any_more_is_garbage(registry: OperationRegistry) -> None:
    view = ref(registry.view())
    gc.collect()
    assert view() is None
    registry.unregister("math.add")


async def test_a_view_can_be_followed(registry: OperationRegistry) -> None:
    view = registry.view(include=["math.add"], rename={"math": "m"}, reshape={"math.add": Reshape(fix={"b": 10})})
    other = OperationRegistry()
    stop = other.follow(view)
    assert (await other.execute("m.add", {"a": 1})).data == 11
    registry.unregister("math.add")
    assert ids(other) == []
    stop()


async def test_interceptors_of_the_registry_and_of_the_view_run(registry: OperationRegistry) -> None:
    calls: list[str] = []

    def tracing(label: str) -> Any:
        def interceptor(spec: OperationSpec, handler: Handler) -> Handler:
            async def call(input: Any, context: Context) -> Any:
                calls.append(f"{label} {spec.id} {sorted(input)}")
                return await handler(input, context)

            return handler if spec.type is OperationType.SUBSCRIPTION else call

        return interceptor

    view = registry.view(rename={"math": "m"}, reshape={"shop.order": BUYING})
    outer = view.view()
    remove = registry.use(tracing("registry"))
    assert (await outer.execute("m.add", {"a": 1, "b": 2})).data == 3
    await outer.execute("shop.order", {"items": []}, AS_ADA)
    assert calls == ["registry math.add ['a', 'b']", "registry shop.order ['currency', 'customer', 'lines']"]
    calls.clear()
    outer.use(tracing("view"))
    envelope = await outer.execute("m.add", {"a": 1, "b": 2})
    assert getattr(envelope.meta, "operation_id", None) == "m.add"
    await outer.execute("shop.order", {"items": []}, AS_ADA)
    assert calls == [
        "view m.add ['a', 'b']",
        "registry math.add ['a', 'b']",
        "view shop.order ['items']",
        "registry shop.order ['currency', 'customer', 'lines']",
    ]
    calls.clear()
    remove()
    await outer.execute("m.add", {"a": 1, "b": 2})
    assert calls == ["view m.add ['a', 'b']"]


async def test_a_view_can_require_scopes_and_belong_to_an_identity(registry: OperationRegistry) -> None:
    support = registry.view(scopes=["support"])
    dispatcher = Dispatcher(support)
    assert dispatcher.visible(ADA) == []
    both = Identity(id="both", scopes=("shop", "support"))
    assert len(dispatcher.visible(both)) == 5
    with pytest.raises(CallError) as denied:
        dispatcher.find("math.add", ADA)
    assert denied.value.code is ErrorCode.ACCESS_DENIED
    mine = registry.view(identity=ADA, reshape={"shop.order": Reshape(from_context={"customer": "identity.id"})})
    assert (await mine.execute("shop.order", {"lines": []})).data["customer"] == "ada"


async def test_a_view_is_searched_previewed_and_has_operations_of_its_own(registry: OperationRegistry) -> None:
    view = registry.view(rename={"shop": "store"}, reshape={"shop.order": BUYING})
    assert [spec.id for spec in view.search("order articles", limit=1)] == ["store.order"]
    preview = await view.preview("store.order", {"items": ["tea"]}, AS_ADA)
    assert preview.body == b'{"lines":["tea"],"currency":"EUR","customer":"ada"}'
    view.query("own.hello")(lambda: "hello")
    assert (await view.execute("own.hello")).data == "hello"
    assert "own.hello" not in registry


async def test_an_operation_without_a_handler_stays_one(registry: OperationRegistry) -> None:
    registry.register(OperationSpec(namespace="a", name="b"))
    view = registry.view(rename={"a": "c"}, reshape={"a.b": Reshape(keep=["x"])})
    assert "No handler registered" in (await failure(view, "c.b", None)).message
