"""Prompts of a registry, completions and log messages, with the SDK's client in both eras."""

import time
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import PromptReference, ResourceTemplateReference, TextContent

from opwire import Annotations, CallError, Context, Identity, MCPPresentation, OperationRegistry, OperationSpec
from opwire.mcp.server import serve_mcp
from opwire.schema import Schema
from tests.mcp.server.library import library
from tests.mcp.server.raw import call, raw, request
from tests.mcp.server.shop import ERAS, NEWEST, connected
from tests.mcp.server.test_app import Browser, browsing

READER = Identity(id="reader")
PROMPT = MCPPresentation(role="prompt")


def plain(model: Any) -> dict[str, Any]:
    """Return the fields of a content block."""
    return model.model_dump(mode="json")


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_are_listed_with_their_arguments_and_take_text(era: str) -> None:
    async with connected(serve_mcp(library(), stdio_identity=READER), era) as client:
        review, dialogue = (await client.list_prompts()).prompts
        assert (review.name, review.title, dialogue.name) == ("books_review", "Review", "books_dialogue")
        assert review.icons is not None
        assert review.arguments is not None
        described = [(each.name, each.description, each.required) for each in review.arguments]
        assert described[0] == ("title", "of a book", True)
        assert described[2] == ("stars", None, False)
        found = await client.get_prompt("books_review", {"title": "Dune", "stars": "3"})
        assert found.description == "Ask for a review."
        (message,) = found.messages
        assert isinstance(message.content, TextContent)
        assert (message.role, message.content.text) == ("user", "Write a kind review of Dune with 3 stars.")


async def test_an_argument_that_takes_long_to_decode_stays_text() -> None:
    registry = OperationRegistry()

    @registry.prompt("books.ratings")
    def ratings(values: list[Any]) -> str:
        return f"{len(values)} values"

    async def asked(browser: Browser, values: str) -> str:
        params = {"name": "books_ratings", "arguments": {"values": values}}
        async with browser.post(request("prompts/get", params, era=NEWEST), era=NEWEST) as response:
            return await response.text()

    async with browsing(registry, anonymous=READER) as browser:
        assert "3 values" in await asked(browser, "[[],[],[]]")
        assert "is not of type" in await asked(browser, f"[{','.join(['[]'] * 150_000)}]")


@pytest.mark.parametrize("era", ERAS)
async def test_a_prompt_has_several_messages_of_both_roles_and_any_content(era: str) -> None:
    async with connected(serve_mcp(library()), era) as client:
        messages = (await client.get_prompt("books_dialogue")).messages
        assert [(each.role, plain(each.content)["type"]) for each in messages] == [
            ("user", "text"),
            ("assistant", "text"),
            ("assistant", "image"),
        ]


@pytest.mark.parametrize("era", ERAS)
async def test_a_prompt_that_fails_is_an_error_that_says_why(era: str) -> None:
    registry = library()

    @registry.prompt("books.broken")
    def broken() -> Any:
        return {"role": "judge", "content": "x"}

    @registry.prompt("books.busy")
    def busy() -> str:
        raise CallError("RATE_LIMITED", "slow down")

    async with connected(serve_mcp(registry, stdio_identity=READER), era) as client:
        expected = {
            "unknown": (-32602, "Unknown prompt: unknown$"),
            "books_reviw": (-32602, "Unknown prompt: books_reviw; did you mean books_review"),
            "books_nobody": (-32003, "missing scope"),
            "books_review": (-32602, '"title" is a required property'),
            "books_broken": (-32000, "user or assistant"),
            "books_busy": (-32007, "slow down"),
        }
        for name, (code, text) in expected.items():
            with pytest.raises(MCPError, match=text) as failed:
                await client.get_prompt(name)
            assert failed.value.error.code == code


@pytest.mark.parametrize("era", ERAS)
async def test_arguments_are_completed_by_functions_or_by_what_their_schema_lists(era: str) -> None:
    prompt = PromptReference(name="books_review")
    async with connected(serve_mcp(library(), stdio_identity=READER), era) as client:
        found = await client.complete(prompt, {"name": "title", "value": "d"})
        assert (found.completion.values, found.completion.total) == (["dune"], 1)
        listed = await client.complete(prompt, {"name": "tone", "value": "H"})
        assert listed.completion.values == ["harsh"]
        many = await client.complete(prompt, {"name": "chapter", "value": ""}, context_arguments={"title": "emma"})
        assert (len(many.completion.values), many.completion.total) == (100, 150)
        assert many.completion.has_more
        assert many.completion.values[0] == "emma-0"
        template = ResourceTemplateReference(uri="book://{title}")
        assert (await client.complete(template, {"name": "title", "value": "e"})).completion.values == ["emma"]
        assert (await client.complete(template, {"name": "other", "value": ""})).completion.values == []
        with pytest.raises(MCPError, match="more than 1,000 characters"):
            await client.complete(prompt, {"name": "title", "value": "x" * 1001})
        with pytest.raises(MCPError, match="Unknown ref/prompt"):
            await client.complete(PromptReference(name="x"), {"name": "a", "value": ""})
        with pytest.raises(MCPError, match="missing scope"):
            await client.complete(PromptReference(name="books_nobody"), {"name": "a", "value": ""})


@pytest.mark.parametrize("era", ERAS)
async def test_tools_have_annotations_icons_and_meta(era: str) -> None:
    """Annotations, icons and `_meta` of operations are those of their tools; queries are read-only."""
    registry = library()

    @registry.query("books.count", annotations=Annotations(open_world=False))
    async def count() -> int:
        return 2

    async with connected(serve_mcp(registry), era) as client:
        counting, rewrite = (await client.list_tools()).tools
        assert rewrite.annotations is not None
        assert (rewrite.annotations.destructive_hint, rewrite.annotations.idempotent_hint) == (True, True)
        assert rewrite.annotations.read_only_hint is None
        assert rewrite.icons is not None
        assert rewrite.meta is not None
        assert rewrite.meta["acme/x"] == 1
        assert counting.annotations is not None
        assert (counting.annotations.read_only_hint, counting.annotations.open_world_hint) == (True, False)


# --- log messages -----------------------------------------------------------------------------------------------------


def _logging() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.mutation("work.log")
    def log(context: Context, count: int = 1) -> str:  # on a worker thread
        context.log("debug", "details")
        for number in range(count):
            context.log("warning", {"number": number}, logger="work")
        context.log("info", "x" * 100_000)
        context.log("error", object())
        return "done"

    return registry


async def test_handlers_log_to_the_client_at_the_level_that_it_has_set() -> None:
    async with raw(serve_mcp(_logging())) as client:
        await client.send(call("work_log"))
        first = await client.receive()
        assert first["method"] == "notifications/message"
        assert first["params"] == {"level": "warning", "data": {"number": 0}, "logger": "work"}
        second = (await client.receive())["params"]
        assert second["level"] == "info"
        assert len(second["data"]) < 70_000
        assert (await client.receive())["result"]["content"][0]["text"] == "done"
        assert (await client.ask(request("logging/setLevel", {"level": "warning"})))["result"] == {}
        await client.send(call("work_log"))
        assert (await client.receive())["params"]["level"] == "warning"
        assert "result" in await client.receive()
        assert (await client.ask(request("logging/setLevel", {"level": "loud"})))["error"]["code"] == -32602


async def test_in_the_newest_era_a_request_says_whether_it_wants_messages() -> None:
    async with raw(serve_mcp(_logging()), handshake=False) as client:
        assert "result" in await client.ask(call("work_log", era=NEWEST))
        level: Any = {"io.modelcontextprotocol/logLevel": "debug"}
        await client.send(call("work_log", era=NEWEST, **level))
        assert (await client.receive())["params"] == {"level": "debug", "data": "details"}
        assert (await client.receive())["params"]["level"] == "warning"
        assert (await client.receive())["params"]["level"] == "info"
        assert "result" in await client.receive()


async def test_only_the_prompts_of_a_page_are_written() -> None:
    registry, written = OperationRegistry(), list[int]()
    for number in range(100):

        def schema(number: int = number) -> Any:
            written.append(number)
            return {"type": "object", "properties": {"text": {"type": "string", "description": "x" * 300}}}

        spec = OperationSpec(
            namespace="a", name=f"p{number}", mcp=MCPPresentation(role="prompt"), input_schema=Schema.deferred(schema)
        )
        registry.register(spec, lambda *_: "text")
    async with raw(serve_mcp(registry, max_page=2000), handshake=False) as client:
        error = (await client.ask(request("prompts/get", {"name": "a_p"}, era=NEWEST)))["error"]
        assert "did you mean" in error["message"]
        assert written == []
        page = (await client.ask(request("prompts/list", era=NEWEST)))["result"]
        assert 1 <= len(page["prompts"]) < 10
        assert len(written) <= len(page["prompts"]) + 1


async def test_a_prompt_of_thousands_of_required_arguments_is_listed() -> None:
    names = [f"{number:x}" for number in range(20_000)]
    schema = Schema({"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names})
    registry = OperationRegistry()
    registry.register(
        OperationSpec(namespace="a", name="p", mcp=PROMPT, input_schema=schema),
        lambda *_: "text",
    )
    async with raw(serve_mcp(registry), handshake=False) as client:
        spent = time.thread_time()
        (prompt,) = (await client.ask(request("prompts/list", era=NEWEST)))["result"]["prompts"]
        assert time.thread_time() - spent < 1  # 2 s
    assert all(each["required"] for each in prompt["arguments"])
