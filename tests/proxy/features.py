"""The rows of the table: what a client in front of a proxy must get from the server behind it.

Each check takes a `Front` and fails if the feature is lost. Names of tools and prompts may have a prefix.
"""

import asyncio
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as t
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.proxy import behind

PATIENCE = 15.0  # seconds, on a machine that has much to do
MODES = {behind.HANDSHAKE: "legacy", behind.STATELESS: "auto"}

Feature = Callable[["Front"], Awaitable[None]]
FEATURES: dict[str, Feature] = {}


def feature(name: str) -> Callable[[Feature], Feature]:
    """Add a check to the table."""

    def add(check: Feature) -> Feature:
        FEATURES[name] = check
        return check

    return add


class Front:
    """The SDK's client, and what it was told and asked."""

    def __init__(self, transport: Any, era: str) -> None:
        self.is_stateless = era == behind.STATELESS
        self.logs: list[Any] = []
        self.asked: list[Any] = []
        self.notifications: asyncio.Queue[str] = asyncio.Queue()
        self.client = Client(
            transport,
            mode=MODES[era],
            elicitation_callback=self._elicit,
            sampling_callback=self._sample,
            list_roots_callback=self._roots,
            logging_callback=self._log,
            message_handler=self._receive,
            log_level="debug" if self.is_stateless else None,
            cache=None,
        )

    async def _elicit(self, context: Any, params: Any) -> t.ElicitResult:
        self.asked.append((params.message, params.requested_schema))
        return t.ElicitResult(action="accept", content={"name": "Ada"})

    async def _sample(self, context: Any, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
        self.asked.append((params.messages[0].content, params.max_tokens))
        content = t.TextContent(type="text", text="Hello")
        return t.CreateMessageResult(role="assistant", content=content, model="m", stop_reason="endTurn")

    async def _roots(self, context: Any) -> t.ListRootsResult:
        return t.ListRootsResult.model_validate({"roots": [{"uri": "file:///project", "name": "project"}]})

    async def _log(self, params: t.LoggingMessageNotificationParams) -> None:
        self.logs.append((params.level, params.logger, params.data))

    async def _receive(self, message: Any) -> None:
        if not isinstance(message, Exception):
            self.notifications.put_nowait(message.method)

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> t.CallToolResult:
        """Call a tool by its name at the server behind."""
        return await self.client.call_tool((await self.tool(name)).name, arguments, **options)

    async def tool(self, name: str) -> t.Tool:
        """Return the definition of a tool."""
        return named((await self.client.list_tools()).tools, name)

    async def prompt(self) -> t.Prompt:
        """Return the definition of the prompt."""
        return named((await self.client.list_prompts()).prompts, "review")

    @asynccontextmanager
    async def told(self, method: str, **wanted: Any) -> AsyncGenerator[None]:
        """Do the block, and expect a notification after it; `wanted` is what a client of 2026-07-28 listens for."""
        async with AsyncExitStack() as stack:
            if self.is_stateless:
                await stack.enter_async_context(self.client.listen(**wanted))
            yield
            async with asyncio.timeout(PATIENCE):
                while await self.notifications.get() != method:
                    pass


def named(entries: Iterable[Any], name: str) -> Any:
    """Return the entry with a name that is, or ends in, this one."""
    entries = list(entries)
    found = [each for each in entries if each.name == name or each.name.endswith((f"_{name}", f"-{name}", f"/{name}"))]
    assert found, f"{name} is not listed, but {[each.name for each in entries]}"
    return min(found, key=lambda each: len(each.name))


def plain(model: Any) -> Any:
    """Return the fields that were sent."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def assert_has(fields: Any, expected: Any) -> None:
    """Compare the fields that are expected; the proxy may add others, and prefix the name."""
    shown = {key: fields.get(key) for key in expected}
    assert shown == expected


# --- tools ------------------------------------------------------------------------------------------------------------


@feature("tools: definition, arguments, structured result")
async def tools(front: Front) -> None:
    definition = plain(await front.tool("add"))
    assert_has(definition, {key: behind.TOOLS["add"][key] for key in ("title", "description")})
    assert set(definition["inputSchema"]["properties"]) == {"a", "b"}
    assert definition["outputSchema"]["properties"]["sum"]["type"] == "integer"
    assert (await front.call("add", {"a": 2, "b": 3})).structured_content == {"sum": 5}


@feature("tools: content blocks with annotations")
async def content(front: Front) -> None:
    result = await front.call("blocks")
    assert [plain(block) for block in result.content] == behind.CONTENT


@feature("tools: results with `isError`")
async def errors(front: Front) -> None:
    result = await front.call("fail")
    assert result.is_error
    assert [block.text for block in result.content if block.type == "text"] == ["the tool failed"]


@feature("tools: annotations")
async def annotations(front: Front) -> None:
    assert_has(plain(await front.tool("add"))["annotations"], behind.TOOLS["add"]["annotations"])


@feature("tools: `_meta`")
async def tool_meta(front: Front) -> None:
    assert_has(plain(await front.tool("add")).get("_meta", {}), behind.TOOLS["add"]["_meta"])


@feature("icons of tools, resources and prompts")
async def icons(front: Front) -> None:
    (resource,) = [each for each in (await front.client.list_resources()).resources if each.uri == behind.DOCUMENT]
    for each in (await front.tool("add"), resource, await front.prompt()):
        assert plain(each).get("icons") == [behind.ICON]


# --- calls ------------------------------------------------------------------------------------------------------------


@feature("progress")
async def progress(front: Front) -> None:
    told: list[Any] = []

    async def on_progress(*given: Any) -> None:
        told.append(given)

    await front.call("count", progress_callback=on_progress)
    assert told[-1] == (3, 3, "step 3")


@feature("cancellation")
async def cancellation(front: Front) -> None:
    async def count() -> int:
        return ((await front.call("cancelled")).structured_content or {})["count"]

    before, began = await count(), asyncio.Event()

    async def on_progress(*_: Any) -> None:
        began.set()

    calling = asyncio.create_task(front.call("wait", progress_callback=on_progress))
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        calling.cancel()
        while await count() == before:
            await asyncio.sleep(0.01)


@feature("logging")
async def logging(front: Front) -> None:
    if not front.is_stateless:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await front.client.set_logging_level("debug")
    await front.call("log")
    async with asyncio.timeout(PATIENCE):
        while not front.logs:
            await asyncio.sleep(0.01)
    level, logger, data = front.logs[0]
    assert (level, data) == ("warning", {"heat": 90})
    assert logger.endswith("engine")


@feature("`_meta` of requests")
async def request_meta(front: Front) -> None:
    meta: Any = {"test.example/user": "ada"}
    assert (await front.call("echo_meta", meta=meta)).structured_content == meta


@feature("`_meta` of results")
async def result_meta(front: Front) -> None:
    assert_has((await front.call("blocks")).meta, {"test.example/took": 3})


@feature("JSON-RPC errors: code, message and data")
async def error_codes(front: Front) -> None:
    with pytest.raises(MCPError, match="not on Sundays") as refused:
        await front.call("refuse")
    assert (refused.value.code, refused.value.data) == (behind.ODD_CODE, {"day": "Sunday"})


# --- questions --------------------------------------------------------------------------------------------------------


def _check_answers(given: t.CallToolResult, *kinds: str) -> None:
    answers = {
        "ask": {"action": "accept", "content": {"name": "Ada"}},
        "sample": {"role": "assistant", "content": {"type": "text", "text": "Hello"}, "model": "m"},
        "roots": {"roots": [{"uri": "file:///project", "name": "project"}]},
    }
    assert given.structured_content is not None, given
    assert set(given.structured_content) == set(kinds)
    for kind in kinds:
        expected, given_one = answers[kind], _without_nulls(given.structured_content[kind])
        assert_has(given_one, expected)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


@feature("elicitation")
async def elicitation(front: Front) -> None:
    _check_answers(await front.call("ask"), "ask")
    ((message, schema),) = front.asked
    assert (message, schema["properties"]) == ("Who are you?", behind.NAME["properties"])


@feature("sampling")
async def sampling(front: Front) -> None:
    _check_answers(await front.call("sample"), "sample")
    ((content, max_tokens),) = front.asked
    assert (content.text, max_tokens) == ("Hi", 5)


@feature("roots")
async def roots(front: Front) -> None:
    _check_answers(await front.call("roots"), "roots")


@feature("several questions in one call, with request state (MRTR)")
async def questions(front: Front) -> None:
    _check_answers(await front.call("interview"), "ask", "sample", "roots")


# --- resources and prompts --------------------------------------------------------------------------------------------


@feature("resources: list and read")
async def resources(front: Front) -> None:
    listed = (await front.client.list_resources()).resources
    (found,) = [plain(each) for each in listed if each.uri == behind.DOCUMENT]
    assert_has(found, {key: behind.RESOURCE[key] for key in ("title", "description", "mimeType")})
    contents = [plain(each) for each in (await front.client.read_resource(behind.DOCUMENT)).contents]
    assert_has(contents[0], {"uri": behind.DOCUMENT, "mimeType": "text/plain", "text": "the text of page://one"})
    assert_has(contents[1], {"mimeType": "image/png", "blob": "iVBORw0KGgo="})


@feature("resources: annotations and `_meta`")
async def resource_annotations(front: Front) -> None:
    (found,) = [each for each in (await front.client.list_resources()).resources if each.uri == behind.DOCUMENT]
    assert_has(plain(found)["annotations"], behind.RESOURCE["annotations"])
    assert_has(plain(found)["_meta"], behind.RESOURCE["_meta"])


@feature("resources: templates")
async def templates(front: Front) -> None:
    (found,) = (await front.client.list_resource_templates()).resource_templates
    assert_has(plain(found), {key: behind.TEMPLATE[key] for key in ("uriTemplate", "title", "description", "mimeType")})
    first = plain((await front.client.read_resource("page://12")).contents[0])
    assert first["text"] == "the text of page://12"


@feature("resources: the error of an unknown one")
async def unknown_resource(front: Front) -> None:
    with pytest.raises(MCPError, match="not found") as unknown:
        await front.client.read_resource("other://one")
    assert unknown.value.code in (-32602, -32002)  # the code of each era
    assert unknown.value.data == {"uri": "other://one"}


@feature("resources: subscriptions")
async def subscriptions(front: Front) -> None:
    await front.client.list_resources()
    if not front.is_stateless:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await front.client.subscribe_resource(behind.DOCUMENT)
    async with front.told("notifications/resources/updated", resource_subscriptions=[behind.DOCUMENT]):
        await front.call("touch")


@feature("prompts: list and get")
async def prompts(front: Front) -> None:
    found = await front.prompt()
    assert_has(plain(found), {key: behind.PROMPT[key] for key in ("title", "description")})
    given = [(each.name, each.required or False) for each in found.arguments or ()]
    assert given == [("title", True), ("mood", False)]
    result = await front.client.get_prompt(found.name, {"title": "Dune"})
    assert result.description == "A review"
    assert [each.role for each in result.messages] == ["user", "assistant"]
    assert [plain(each.content)["type"] for each in result.messages] == ["text", "resource"]
    assert plain(result.messages[0].content)["text"] == "Review Dune, kindly."


@feature("prompts: `_meta`")
async def prompt_meta(front: Front) -> None:
    assert_has(plain(await front.prompt()).get("_meta", {}), behind.PROMPT["_meta"])


@feature("completion of arguments")
async def completions(front: Front) -> None:
    prompt = t.PromptReference(type="ref/prompt", name=(await front.prompt()).name)
    template = t.ResourceTemplateReference(type="ref/resource", uri=behind.TEMPLATE["uriTemplate"])
    for reference, argument in ((prompt, "title"), (template, "number")):
        completion = (await front.client.complete(reference, {"name": argument, "value": "du"})).completion
        assert completion.values == [f"{reference.type} {argument} dux", f"{reference.type} {argument} duy"]
        assert (completion.total, completion.has_more) == (7, True)


# --- server -----------------------------------------------------------------------------------------------------------


@feature("instructions")
async def instructions(front: Front) -> None:
    assert "Call add." in (front.client.instructions or "")


@feature("`list_changed` of tools")
async def tools_changed(front: Front) -> None:
    await front.client.list_tools()
    async with front.told("notifications/tools/list_changed", tools_list_changed=True):
        new = ((await front.call("grow_tools")).structured_content or {})["new"]
    await front.tool(f"new_{new - 1}")


@feature("`list_changed` of resources")
async def resources_changed(front: Front) -> None:
    await front.client.list_resources()
    async with front.told("notifications/resources/list_changed", resources_list_changed=True):
        new = ((await front.call("grow_resources")).structured_content or {})["new"]
    assert f"page://new{new - 1}" in {each.uri for each in (await front.client.list_resources()).resources}


@feature("`list_changed` of prompts")
async def prompts_changed(front: Front) -> None:
    await front.client.list_prompts()
    async with front.told("notifications/prompts/list_changed", prompts_list_changed=True):
        new = ((await front.call("grow_prompts")).structured_content or {})["new"]
    named((await front.client.list_prompts()).prompts, f"new_{new - 1}")
