"""One contract over the APIs of all providers: what a model is given, and what it reads."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opwire.agents import openai_tools
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.envelope import mcp_envelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec
from opwire.registry import OperationRegistry
from opwire.schema import Schema
from tests.agents.forms import FORMS, Form

PNG = b"\x89PNG\r\n\x1a\n..."
every_form = pytest.mark.parametrize("form", FORMS, ids=str)


async def _ticks(last: int = 3) -> AsyncIterator[int]:
    for n in range(last):
        yield n
    if last > 3:
        await asyncio.Event().wait()


async def _total(input: Any, context: Context) -> int:
    return sum(input)


def shop() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.price")
    async def price(article: str, size: int = 1) -> float:
        """Return the price of an article."""
        if article == "gold":
            raise CallError(ErrorCode.EXECUTION_ERROR, "HTTP 422: no", {"status": 422, "body": {"reason": "sold out"}})
        return 2.5 * size

    @registry.query("shop.picture")
    async def picture() -> bytes:
        return PNG

    @registry.query("shop.text")
    async def text(length: int = 0) -> str:
        return "x" * length

    @registry.query("shop.blocks")
    async def blocks() -> Any:
        content: Any = [
            {"type": "text", "text": "two"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": " parts"}},
        ]
        return mcp_envelope({"n": 2}, is_error=True, content=content)

    registry.subscription("shop.ticks")(_ticks)
    numbers = Schema({"type": "array", "items": {"type": "integer"}})
    registry.register(OperationSpec(namespace="shop", name="total", input_schema=numbers), _total)

    @registry.query("shop.whoami", access=AccessControl(required_scopes=("staff",)))
    async def whoami(context: Context) -> str:
        return context.identity.id if context.identity else "program"

    return registry


async def handled(form: Form, name: str, arguments: Any, **options: Any) -> tuple[str, list[str], bool | None]:
    return form.read(await form.make(shop(), **options).handle(form.call(name, arguments)))


@every_form
def test_every_operation_is_a_tool_with_its_name_description_and_schema(form: Form) -> None:
    """Every operation is a tool of OpenAI, Anthropic and Gemini with a name that they accept, its description and
    its input schema; the list follows the registry."""
    definitions = {each["name"]: each for each in form.definitions(form.make(shop()))}
    assert list(definitions) == [
        "shop_price", "shop_picture", "shop_text", "shop_blocks", "shop_ticks", "shop_total", "shop_whoami",
    ]  # fmt: skip
    price = definitions["shop_price"]
    assert price["description"] == "Return the price of an article."
    (schema,) = (
        value for key, value in price.items() if key in ("parameters", "input_schema", "parameters_json_schema")
    )
    assert (schema["type"], list(schema["properties"])) == ("object", ["article", "size"])
    assert "article" in schema["required"]


@every_form
async def test_a_call_is_run_and_its_result_is_text(form: Form) -> None:
    text, kinds, is_error = await handled(form, "shop_price", {"article": "tea", "size": 2})
    assert (text, len(kinds), bool(is_error)) == ("5.0", 1, False)
    assert (await handled(form, "shop_price", {"article": "tea"}))[0] == "2.5"
    assert (await handled(form, "shop_total", {"input": [1, 2, 3]}))[0] == "6"
    assert (await handled(form, "shop_text", {}))[0] in ("", "(no content)")


@every_form
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("shop_price", {"article": 5}, "Correct the arguments"),
        ("shop_price", {}, "article"),
        ("shop_price", [1], "object"),
        ("shop_price", {"article": "gold"}, 'Response body: {"reason":"sold out"}'),
        ("shop_prize", {}, "there is no tool 'shop_prize'; did you mean shop_price"),
        ("x" * 10_000, {}, "there is no tool"),
        ("shop_blocks", {}, "two\n parts"),
    ],
)
async def test_a_failure_is_a_message_by_which_a_model_corrects_itself(
    form: Form, name: str, arguments: Any, told: str
) -> None:
    """A tool call is answered by the message of its provider, also if it fails: the model reads why."""
    text, _, is_error = await handled(form, name, arguments)
    assert told in text
    assert is_error in (None, True)
    assert len(text) < 1_000


@every_form
async def test_an_image_is_shown_where_the_api_shows_images(form: Form) -> None:
    text, kinds, _ = await handled(form, "shop_picture", {})
    shown = {"responses": ["input_image"], "chat": ["text"], "anthropic": ["image"], "gemini": ["text", "inline_data"]}
    assert kinds == shown[form.name]
    assert form.name not in ("chat", "gemini") or text == "[image/png, 11 bytes]"


@every_form
async def test_long_results_are_truncated(form: Form) -> None:
    """What a model reads of one call is bounded."""
    text, _, _ = await handled(form, "shop_text", {"length": 100_000})
    assert len(text) < 50_100
    assert text.endswith("… (50,000 more characters: ask for less)")
    assert (await handled(form, "shop_text", {"length": 30}, max_chars=10))[0].startswith(f"{'x' * 10}… (20 more ")


@every_form
async def test_a_subscription_is_collected_until_its_end_or_a_limit(form: Form) -> None:
    assert (await handled(form, "shop_ticks", {}))[0] == '{"items":[0,1,2],"complete":true}'
    assert (await handled(form, "shop_ticks", {"last": 5}, max_items=2))[0] == '{"items":[0,1],"complete":false}'
    assert (await handled(form, "shop_ticks", {"last": 4}, max_seconds=0.1))[
        0
    ] == '{"items":[0,1,2,3],"complete":false}'


@every_form
async def test_a_model_sees_and_calls_only_what_its_identity_may(form: Form) -> None:
    ann, eve = Identity(id="ann", scopes=("staff",)), Identity(id="eve")
    names = {who.id: [each["name"] for each in form.definitions(form.make(shop(), identity=who))] for who in (ann, eve)}
    assert ("shop_whoami" in names["ann"], "shop_whoami" in names["eve"]) == (True, False)
    assert (await handled(form, "shop_whoami", {}, identity=ann))[0] == "ann"
    assert "there is no tool" in (await handled(form, "shop_whoami", {}, identity=eve))[0]
    assert (await handled(form, "shop_whoami", {}))[0] == "program"


@every_form
async def test_tools_follow_the_registry(form: Form) -> None:
    registry = shop()
    tools = form.make(registry)
    before = len(form.definitions(tools))
    registry.unregister("shop.price")
    assert len(form.definitions(tools)) == before - 1
    assert "there is no tool" in form.read(await tools.handle(form.call("shop_price", {"article": "tea"})))[0]

    @registry.query("shop.weather")
    def weather() -> str:
        return "fine"

    assert form.read(await tools.handle(form.call("shop_weather", {})))[0] == "fine"


async def test_objects_of_a_providers_package_are_accepted() -> None:
    call = SimpleNamespace(call_id="c1", name="shop_price", arguments='{"article": "tea", "size": null}')
    message = await openai_tools(shop()).handle(call)
    assert message == {"type": "function_call_output", "call_id": "c1", "output": "2.5"}


@pytest.mark.parametrize("arguments", ["{", "[" * 5_000, "nul", "5", '"a"'])
async def test_arguments_that_are_not_an_object_are_a_message(arguments: str) -> None:
    call = {"call_id": "c1", "name": "shop_price", "arguments": arguments}
    assert "the arguments are an object" in (await openai_tools(shop()).handle(call))["output"]


def test_an_option_that_is_wrong_is_refused() -> None:
    for options in ({"api": "assistants"}, {"timeout": 0}, {"max_chars": 0}, {"max_items": 0}, {"max_seconds": -1}):
        with pytest.raises(UsageError):
            openai_tools(shop(), **cast("Any", options))
