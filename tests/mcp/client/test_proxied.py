"""What `from_mcp` keeps for those that serve it: completions, instructions, annotations, unknown fields."""

from pathlib import Path
from typing import Any

import pytest

from opwire import Annotations, Completion, CompletionRequest, Context, OperationRegistry
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.mcp.client import from_mcp
from opwire.mcp.client.tools import result_envelope
from opwire.mcp.messages import RPCError
from opwire.mcp.revisions import REQUEST_META
from opwire.model.context import Inbound
from opwire.model.origin import FIELDS_META
from tests.mcp.client.connections import SDK_SERVER, connected, rogue
from tests.mcp.client.listed_server import Stage, answer, following, mcp_meta, tool

ICON = {"src": "https://x/i.png", "sizes": ["1x1"], "new": 1}


async def test_annotations_icons_and_meta_of_tools_and_prompts_are_kept(tmp_path: Path) -> None:
    given = {"readOnlyHint": True, "destructiveHint": False, "title": "T", "new": 1}
    described = {"annotations": given, "icons": [ICON, {"no": "src"}, 3], "_meta": {"a/b": 1}}
    prompts = [{"name": "p", "icons": [ICON], "_meta": {"c": 2}}]
    stage = Stage(tmp_path, tools=[tool("a", **described)], capabilities={"prompts": {}}, prompts=prompts)
    async with following(stage, namespace="ns") as registry:
        spec, prompt = registry.get_spec("ns.a"), registry.get_spec("ns.prompts/p")
    assert spec is not None
    assert spec.mcp.annotations == Annotations(read_only=True, destructive=False, extra={"title": "T", "new": 1})
    assert (spec.mcp.icons, spec.mcp.meta, spec.lenient_input) == ((ICON,), {"a/b": 1}, True)
    assert prompt is not None
    assert (prompt.mcp.icons, prompt.mcp.meta, prompt.mcp.role) == ((ICON,), {"c": 2}, "prompt")


async def test_arguments_are_completed_by_the_server(tmp_path: Path) -> None:
    values = {"values": ["a", 3, *["x"] * 200], "total": 7, "hasMore": True}
    stage = Stage(
        tmp_path,
        tools=[tool("play")],
        capabilities={"prompts": {}, "resources": {}, "completions": {}},
        prompts=[{"name": "p", "arguments": [{"name": "title"}]}],
        resourceTemplates=[{"uriTemplate": "a:{n}", "name": "a"}],
        answers={"completion/complete": {"completion": values}},
    )
    request = CompletionRequest(argument="title", value="a", arguments={"b": "c"}, uri="a:{n}")
    async with following(stage, namespace="ns") as registry:
        found = await registry.complete("ns.prompts/p", request)
        assert found == Completion(values=("a", *["x"] * 98), total=7, has_more=True)
        await registry.complete("ns.resources/templates", request)
        received = (await answer(registry, "received", "ns.play")).data
        asked = [each["params"] for each in received if each["method"] == "completion/complete"]
        assert [each["ref"] for each in asked] == [
            {"type": "ref/prompt", "name": "p"},
            {"type": "ref/resource", "uri": "a:{n}"},
        ]
        assert asked[0]["argument"] == {"name": "title", "value": "a"}
        assert asked[0]["context"] == {"arguments": {"b": "c"}}
    stage.set(capabilities={"prompts": {}})
    async with following(stage, namespace="ns") as registry:
        assert (await registry.complete("ns.prompts/p", request)).values == ()


async def test_instructions_are_those_of_the_registry_as_long_as_it_follows_the_server() -> None:
    registry = OperationRegistry()
    async with from_mcp(SDK_SERVER, namespace="ns") as source:
        end = registry.follow(source)
        text = source.instructions["ns"]
        assert registry.instructions == {"ns": text}
        assert registry.view(rename={"ns": "new"}).instructions == {"new": text}
        assert registry.view(include=["other"]).instructions == {}
        outer = OperationRegistry()
        outer.follow(registry)
        assert outer.instructions == {"ns": text}
        end()
        assert registry.instructions == {}


async def test_one_revision_is_spoken_and_no_other(sdk_address: str) -> None:
    """A source can be limited to one revision of the protocol."""
    for revision in ("2025-06-18", "2026-07-28"):
        async with from_mcp(f"{sdk_address}/mcp", revision=revision) as source:
            assert [info.protocol for info in source.servers.values()] == [revision]
    async with connected(rogue("ancient"), revision="2025-11-25") as session:
        with pytest.raises(CallError, match="the source allows 2025-11-25 only") as refused:
            await session.start()
        assert refused.value.code is ErrorCode.PROTOCOL_ERROR
    async with connected(rogue("ancient"), revision="2026-07-28") as session:
        with pytest.raises(CallError, match="does not speak revision 2026-07-28"):
            await session.start()
    with pytest.raises(UsageError, match="unknown revision '2020-01-01'; known are 2024-11-05"):
        from_mcp("https://x.example/mcp", revision="2020-01-01")


def test_unknown_fields_of_a_result_are_kept_in_its_meta() -> None:
    result = {"content": [], "structuredContent": {"n": 1}, "ttlMs": 5, "_meta": {"a": 1}, "resultType": "complete"}
    envelope = result_envelope(result, "a.b", declared=True)
    assert mcp_meta(envelope)._meta == {"a": 1, FIELDS_META: {"ttlMs": 5}}
    forged = {FIELDS_META: {"resultType": "input_required"}, "a": 1}
    assert mcp_meta(result_envelope({"content": [], "_meta": forged}, "a.b", declared=False))._meta == {"a": 1}


def test_a_result_without_the_structured_content_that_is_declared_is_kept_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    content: list[Any] = [{"type": "text", "text": "plain"}]
    assert result_envelope({"content": content}, "a.b", declared=True).data == content
    assert "a.b: the result lacks the structured content" in caplog.text
    caplog.clear()
    result_envelope({"content": content, "isError": True}, "a.b", declared=True)
    result_envelope({"content": content}, "a.b", declared=False)
    assert caplog.text == ""


async def test_the_meta_of_a_served_request_is_passed_on_and_not_that_of_nested_calls(tmp_path: Path) -> None:
    context = Context(request_id="r", metadata={REQUEST_META: {"user": "ada"}}, inbound=Inbound("r"))
    async with following(Stage(tmp_path, tools=[tool("play")])) as registry:
        for each in (context, context.child()):
            await registry.execute("misbehaving.play", {"result": {"content": []}}, each)
        received = (await answer(registry, "received")).data
        calls = [each["params"] for each in received if each["method"] == "tools/call"]
        assert [each.get("_meta") for each in calls[:2]] == [{"user": "ada"}, None]
        with pytest.raises(CallError) as failed:
            await registry.execute("misbehaving.play", {"error": {"code": -32050, "message": "no"}}, context)
    cause = failed.value.__cause__
    assert isinstance(cause, RPCError)
    assert (cause.code, cause.request_id) == (-32050, "r")
