"""Search mode: three operations in place of many."""

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

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
    Schema,
)
from opwire.agents import anthropic_tools, openai_tools
from opwire.agents.code_mode import code_mode
from opwire.agents.search_mode import fits_budget, search_mode, signature, token_cost
from opwire.asgi.listener import listening
from opwire.mcp.client import from_mcp
from opwire.mcp.server import serve_mcp
from opwire.model.context import Inbound
from opwire.model.identity import LOCAL_IDENTITY
from opwire.registry.dispatch import Dispatcher
from opwire.typed.plain import as_dict

ADA = Context(identity=Identity(id="ada", scopes=("shop",)))
BOB = Context(identity=Identity(id="bob"))
ANONYMOUS = Context(inbound=Inbound("1"))


@pytest.fixture
def registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.mutation("shop.order", access=AccessControl(required_scopes=("shop",)))
    async def order(lines: list[str], currency: Literal["EUR", "USD"] = "EUR", note: str | None = None) -> str:
        """Order articles for a customer.

        More about orders.
        """
        return f"{len(lines)} in {currency}"

    @registry.query("shop.hours", access=AccessControl(public=True))
    async def hours() -> str:
        """Return the opening hours."""
        return "9 to 5"

    @registry.subscription("clock.ticks")
    async def ticks(count: int) -> AsyncIterator[int]:
        """Count the ticks of the clock."""
        for number in range(count):
            yield number

    double = OperationSpec(namespace="math", name="double", title="Double a number", input_schema={"type": "integer"})
    registry.register(double, lambda input, context: 2 * input)
    registry.register(OperationSpec(namespace="shop", name="planned", title="Order without a handler"))
    return registry


def ids(registry: OperationRegistry) -> list[str]:
    return [spec.id for spec in registry.list()]


async def call(mode: OperationRegistry, operation: str, input: Any, context: Context | None = None) -> Any:
    given = {"operation": operation, "input": input}
    return (await mode.execute("tools.call", given, context)).data


async def test_a_model_searches_describes_and_calls(registry: OperationRegistry) -> None:
    mode = search_mode(registry, pinned=["shop.hours"])
    assert ids(mode) == ["shop.hours", "tools.search", "tools.describe", "tools.call"]
    found = (await mode.execute("tools.search", {"query": "purchase something", "limit": 1})).data
    assert found == ("shop.order(lines: list[str], currency?: 'EUR'|'USD', note?: str)  Order articles for a customer.")
    (described,) = (await mode.execute("tools.describe", {"operations": ["shop.order"]})).data
    assert (described["id"], described["type"]) == ("shop.order", "mutation")
    assert described["description"].endswith("More about orders.")
    assert described["input"]["required"] == ["lines"]
    assert await call(mode, "shop.order", {"lines": ["tea"]}) == "1 in EUR"
    assert await call(mode, "clock.ticks", {"count": 3}) == [0, 1, 2]
    assert len(await call(mode, "clock.ticks", {"count": 1_000})) == 100
    assert (await mode.execute("tools.search", {"query": "xylophone"})).data.startswith("Nothing was found")


async def test_an_input_that_is_not_an_object_is_wrapped_like_its_description(registry: OperationRegistry) -> None:
    mode = search_mode(registry)
    (described,) = (await mode.execute("tools.describe", {"operations": ["math.double"]})).data
    assert described["input"]["properties"] == {"input": {"type": "integer"}}
    assert await call(mode, "math.double", {"input": 4}) == 8


async def test_errors_of_the_operation_reach_the_model(registry: OperationRegistry) -> None:
    mode = search_mode(registry)
    with pytest.raises(CallError, match=r'shop\.order: the input: "lines" is a required property'):
        await call(mode, "shop.order", {})
    with pytest.raises(CallError, match=r"Operation not found: shop\.ordr; did you mean shop\.order"):
        await call(mode, "shop.ordr", {})
    with pytest.raises(CallError, match="/limit"):
        await mode.execute("tools.search", {"query": "order", "limit": 1_000_000})


async def test_an_error_about_the_input_tells_the_parameters_of_the_operation(registry: OperationRegistry) -> None:
    tools = anthropic_tools(search_mode(registry), identity=ADA.identity)
    for operation, input, told in (
        ("shop.order", {"line": ["tea"]}, "Its parameters: shop.order(lines: list[str], currency?: 'EUR'|'USD'"),
        ("clock.ticks", {}, "Its parameters: clock.ticks(count: int)"),
    ):
        given = {"operation": operation, "input": input}
        assert told in str(await tools.handle({"id": "1", "name": "tools_call", "input": given})).replace("\\'", "'")
    nowhere = await tools.handle({"id": "1", "name": "tools_describe", "input": {"operations": ["xylophone"]}})
    assert "tools_search returns the ids of operations." in str(nowhere)
    unknown = await tools.handle({"id": "1", "name": "shop_order", "input": {}})
    assert "the tools are tools_search, tools_describe, tools_call" in str(unknown)


async def test_parameters_beside_the_input_are_told_where_they_belong(registry: OperationRegistry) -> None:
    tools = anthropic_tools(search_mode(registry), identity=ADA.identity)
    beside = {"operation": "clock.ticks", "count": 3, "x" * 10_000: 1, "c": 1, "d": 1, "e": 1}
    text = (await tools.handle({"id": "1", "name": "tools_call", "input": beside}))["content"][0]["text"]
    first, second = text.splitlines()
    assert first.startswith("VALIDATION_ERROR: the parameters of clock.ticks belong in `input`: move count, xx")
    assert second.startswith("Its parameters: clock.ticks(count: int)")
    assert len(text) < 300


async def test_an_error_about_the_input_writes_out_the_fields_of_objects() -> None:
    line = {"properties": {"article": {"type": "string"}, "kind": {"const": "tea"}}, "required": ["article"]}
    tree = {"properties": {"left": {"$ref": "#/$defs/Tree"}, "right": {"$ref": "#/$defs/Tree"}}}  # itself
    wide = {"properties": {f"field{number}": {"type": "integer"} for number in range(9)}}
    schema = {
        "type": "object",
        "properties": {
            "lines": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Line"}, {"type": "null"}]}},
            "tree": {"$ref": "#/$defs/Tree"},
            "wide": wide,
        },
        "required": ["lines"],
        "$defs": {"Line": line, "Tree": tree},
    }
    registry = OperationRegistry()
    spec = OperationSpec(namespace="shop", name="order", type=OperationType.MUTATION, input_schema=schema)
    registry.register(spec, lambda input, context: None)
    with pytest.raises(CallError) as caught:
        await call(search_mode(registry), "shop.order", {})
    hint = as_dict(caught.value.details)["hint"]
    assert hint.startswith(
        "Its parameters: shop.order(lines: list[{article: str, kind?: 'tea'}], tree?: {left?: {left?: {left?: "
    )
    assert "field7?: int, …}" in hint
    assert len(hint) < 1_500
    found = (await search_mode(registry).execute("tools.search", {"query": "order"})).data
    assert found == "shop.order(lines: list[any], tree?: any, wide?: any)"


async def test_an_error_about_the_input_names_all_optional_parameters() -> None:
    registry = OperationRegistry()

    @registry.mutation("pay.refund")
    def refund(a: int = 0, b: int = 0, c: int = 0, d: int = 0, reason: str = "", note: str = "") -> None: ...

    with pytest.raises(CallError) as caught:
        await call(search_mode(registry), "pay.refund", {"why": "x"})
    shown = "pay.refund(a?: int, b?: int, c?: int, d?: int, "
    assert as_dict(caught.value.details)["hint"] == f"Its parameters: {shown}reason?, note?)"
    found = (await search_mode(registry).execute("tools.search", {"query": "refund"})).data
    assert found == f"{shown}…)"


async def test_a_caller_finds_and_calls_only_what_it_may(registry: OperationRegistry) -> None:
    mode = search_mode(registry)
    dispatcher = Dispatcher(mode)
    assert len(dispatcher.visible(None)) == 3  # an anonymous caller may search for public operations
    for context, expected in ((ADA, "shop.order("), (BOB, "clock.ticks("), (ANONYMOUS, "shop.hours()")):
        found = (await mode.execute("tools.search", {"query": "order hours clock", "limit": 50}, context)).data
        assert expected in found
        assert ("shop.order(" in found) is (context is ADA)
        assert ("clock.ticks(" in found) is (context is not ANONYMOUS)
        assert "planned" not in found
    assert await call(mode, "shop.order", {"lines": []}, ADA) == "0 in EUR"
    assert await call(mode, "shop.hours", {}, ANONYMOUS) == "9 to 5"
    for context, code in ((BOB, ErrorCode.ACCESS_DENIED), (ANONYMOUS, ErrorCode.UNAUTHENTICATED)):
        with pytest.raises(CallError) as failed:
            await call(mode, "shop.order", {"lines": []}, context)
        assert failed.value.code is code
        with pytest.raises(CallError):
            await mode.execute("tools.describe", {"operations": ["shop.order"]}, context)


async def test_views_and_interceptors_apply_to_what_is_found(registry: OperationRegistry) -> None:
    called: list[str] = []

    def audit(spec: OperationSpec, handler: Handler) -> Handler:
        async def audited(input: Any, context: Context) -> Any:
            called.append(spec.id)
            return await handler(input, context)

        return audited

    registry.use(audit)
    changes = {"shop.order": Reshape(fix={"currency": "USD"})}
    mode = search_mode(registry.view(include=["shop.order"], rename={"shop": "store"}, reshape=changes))
    found = (await mode.execute("tools.search", {"query": "order"})).data
    assert found == "store.order(lines: list[str], note?: str)  Order articles for a customer."
    assert await call(mode, "store.order", {"lines": []}) == "0 in USD"
    assert called == ["shop.order"]
    with pytest.raises(CallError, match="Operation not found"):
        await call(mode, "shop.hours", {})


def test_below_a_budget_the_registry_stays_unchanged(registry: OperationRegistry) -> None:
    total = sum(map(token_cost, registry.list()))
    assert search_mode(registry, token_budget=total) is registry
    assert "tools.search" in search_mode(registry, token_budget=total - 1)
    assert sum(map(token_cost, search_mode(registry).list())) < 400


def test_schemas_beyond_the_budget_are_not_built() -> None:
    from opwire import Schema

    def build() -> Any:
        raise AssertionError("built")

    first = OperationSpec(namespace="a", name="b", description="x" * 100)
    second = OperationSpec(namespace="a", name="c", input_schema=Schema.deferred(build))
    assert not fits_budget([first, second], 10)


def test_a_signature_stays_short() -> None:
    """A search returns a short line for each operation: its id, parameters and summary."""
    properties: dict[str, Any] = {f"optional_{number}": {"type": "string"} for number in range(100)}
    properties |= {
        "which": {"$ref": "#/$defs/loop"},
        "one": {"enum": [f"choice {number}" for number in range(50)]},
        "some": {"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "array", "items": {"type": "number"}}]},
        "odd": True,
        "both": {"type": ["boolean", "null"]},
        "many": {"type": ["array", "null"], "items": {"type": "string"}},
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["which", "one", "some", "odd", "both", "many"],
        "$defs": {"loop": {"type": "array", "items": {"$ref": "#/$defs/loop"}}},
    }
    text = signature(OperationSpec(namespace="a", name="b", description="long " * 500, input_schema=schema))
    assert text.startswith(
        "a.b(which: list[list[any]], one: 'choice 0'|'choice 1'|'choice 2'|'choice…, some: int|list[float]"
    )
    assert "odd: any, both: bool, many: list[str], optional_0?: str" in text
    marked = OperationSpec(namespace="a", name="b", description='<p>Refund a <a href="/x">charge</a> of <id>.</p>')
    assert signature(marked).endswith("  Refund a charge of <id>.")
    assert "optional_3?: str, …)  long long" in text
    assert len(text) < 400


async def test_tools_of_a_model_provider_take_search_mode(registry: OperationRegistry) -> None:
    tools = openai_tools(search_mode(registry))
    assert len(tools.tools) == 3
    name = next(tool.name for tool in tools.tools if tool.spec.id == "tools.call")
    outcome = await tools.run(name, {"operation": "shop.order", "input": {"lines": ["a", "b"]}})
    assert "2 in EUR" in json.dumps(outcome.parts, default=str)


@pytest.mark.parametrize("mode", [search_mode, code_mode])
async def test_a_model_reads_only_names_that_it_can_call(
    registry: OperationRegistry, mode: Callable[..., OperationRegistry]
) -> None:
    """Descriptions and results of search mode and code mode name only what a model can call."""
    view = registry.view(reshape={"shop.hours": Reshape(max_chars=5)})
    tools = anthropic_tools(mode(view, namespace="any"))
    names = {tool["name"] for tool in tools.definitions}
    app = serve_mcp(mode(view, namespace="any")).asgi(anonymous=LOCAL_IDENTITY)
    async with listening(app) as address, from_mcp(f"{address}/mcp", namespace="x") as served:
        listed = {each.spec.name: each.spec.description for each in served}
    assert names == listed.keys()
    texts = [tool["description"] for tool in tools.definitions] + [*listed.values()]

    async def call(name: str, **input: Any) -> str:
        message = await tools.handle({"id": "1", "name": name, "input": input})
        texts.append(message["content"][0]["text"])
        return texts[-1]

    hours = next(line for line in (await call("any_search", query="opening hours")).splitlines() if "hours" in line)
    function = hours.partition("(")[0]
    if mode is search_mode:
        page = json.loads(await call("any_call", operation=function))
        assert page == json.loads(await call("any_call", operation="shop_hours")) | {"next": page["next"]}
        assert "shop.hours" in await call("any_describe", operations=["shop_hours"])
        assert "did you mean shop.hours" in await call("any_call", operation="shop.hour")
        await call("any_call", operation=1)
    else:
        page = json.loads(await call("any_run", code=f"await {function}()"))
        assert "Did you mean shop_hours?" in await call("any_run", code="await shop.hours()")
        assert "Did you mean shop_hours" in await call("any_run", code="await shop_hour()")
        assert "any_search returns" in await call("any_run", code="await xylophone()")
        assert "any_search returns" in await call("any_run", code="await shop_hours(1)")
        await call("any_run", code="await shop_hours(x=1)")
    assert "results_more" in page["shortened"]
    assert (await call("results_more", **page["next"])).startswith('{"text"')
    for text in texts:
        assert not re.search(r"\bany\.\w", text), text
        assert set(re.findall(r"\b(?:any|results)_\w+", text)) <= names, text


async def test_a_name_does_not_tell_that_an_operation_exists(registry: OperationRegistry) -> None:
    mode = search_mode(registry)
    eve = Context(identity=Identity(id="eve"))
    for operation in ("shop_order", "shop_absent"):
        with pytest.raises(CallError) as failure:
            await mode.execute("tools.call", {"operation": operation}, eve)
        assert failure.value.code is ErrorCode.OPERATION_NOT_FOUND
        assert "shop.order" not in failure.value.message


@pytest.mark.parametrize(
    "broken",
    [
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": "no"},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": []},
        {"properties": "no"},
        {"properties": {"a": 5, "b": []}, "required": 7},
    ],
)
async def test_an_invalid_schema_of_one_tool_hides_no_other(
    registry: OperationRegistry, broken: dict[str, Any]
) -> None:
    spec = OperationSpec(namespace="shop", name="spoiler", input_schema=Schema({"type": "object", **broken}))
    registry.register(spec, lambda _input, _context: None)
    found = await search_mode(registry).execute("tools.search", {"query": "shop", "limit": 20})
    assert "shop.spoiler(" in found.data
    assert found.data.count("\n") > 1
