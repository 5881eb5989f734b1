"""Tests of opwire.mcp.client.tools, against a separate server process that misbehaves."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context, Progress
from opwire.model.operation import OperationType
from opwire.model.tool_envelope import encode_blocks
from opwire.registry import OperationRegistry
from opwire.typed.plain import MAX_DEPTH
from tests.mcp.client.listed_server import MODERN, Stage, answer, following, mcp_meta, opwire_tool, tool

COUNT = {"type": "object", "properties": {"n": {"type": "integer"}, "unit": {"default": "m"}}, "required": ["n"]}
PLAY = [tool("play"), tool("count", outputSchema=COUNT)]
TEXT = {"type": "text", "text": "three"}


# --- what a tool becomes ----------------------------------------------------------------------------------------------


async def test_a_tool_is_a_mutation_with_what_the_server_says_of_it(tmp_path: Path) -> None:
    """A tool is a mutation, or a query by `readOnlyHint` of a trusted server, with the server's title,
    description and schemas."""
    described = tool("add", title="Add", description="Adds.", outputSchema=COUNT, annotations={"readOnlyHint": True})
    async with following(Stage(tmp_path, tools=[described]), namespace="math", tool_timeout=7) as registry:
        spec = registry.get_spec("math.add")
    assert spec is not None
    assert (spec.type, spec.title, spec.description) == (OperationType.MUTATION, "Add", "Adds.")
    assert spec.timeout == 7
    assert spec.output_schema.json == COUNT


@pytest.mark.parametrize("hint", [True, False, "yes", None])
async def test_a_trusted_server_says_which_tools_only_read(tmp_path: Path, hint: Any) -> None:
    stage = Stage(tmp_path, tools=[tool("look", annotations={"readOnlyHint": hint, "title": "Look"}), tool("act")])
    async with following(stage, trust_annotations=True) as registry:
        types = {spec.name: spec.type for spec in registry.list()}
        assert types == {"look": OperationType.QUERY if hint is True else OperationType.MUTATION, "act": "mutation"}
        assert registry.list()[0].title == "Look"


@pytest.mark.parametrize("name", ["with space", "dots.in.it", "a/b:c", "日本語", "x" * 200, "__class__", "'quoted\""])
async def test_odd_names_work(tmp_path: Path, name: str) -> None:
    async with following(Stage(tmp_path, tools=[tool(name)]), namespace="odd") as registry:
        envelope = await registry.execute(f"odd.{name}", {"a": 1})
    assert envelope.data == {"a": 1}


async def test_a_trusted_opwire_is_believed_what_it_says_of_an_operation(tmp_path: Path) -> None:
    """An operation of another opwire is unwrapped, and restored with its id, type, tags and timeouts where the
    server is trusted."""
    said = opwire_tool(
        "math_add",
        input={"type": "object", "properties": {"input": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}
        | {"$defs": {"N": {"type": "integer"}}},
        output={"type": "object", "properties": {"result": {"type": "integer"}}},
        id="math.add",
        type="query",
        version="2",
        tags=["a"],
        examples=[[1]],
        timeout=3,
        wrapsInput=True,
        wrapsOutput=True,
    )
    async with following(Stage(tmp_path, tools=[said]), trust_annotations=True) as registry:
        spec = registry.get_spec("math.add")
        assert spec is not None
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await registry.execute("math.add", ["one"])
    assert (spec.type, spec.version, spec.tags, spec.timeout) == (OperationType.QUERY, "2", ("a",), 3)
    assert spec.examples == ([1],)
    assert spec.input_schema.json == {
        "type": "array",
        "items": {"$ref": "#/$defs/N"},
        "$defs": {"N": {"type": "integer"}},
    }
    assert spec.output_schema.json == {"type": "integer"}


async def test_any_other_opwire_is_believed_only_in_what_it_wrapped(tmp_path: Path) -> None:
    wrapper = {"type": "object", "properties": {"input": True, "result": {"type": "array"}}}
    said = opwire_tool(
        "m_a", input=wrapper, output=wrapper, id="m.a", type="query", tags=["t"], wrapsInput=True, wrapsOutput=True
    )
    async with following(Stage(tmp_path, tools=[said])) as registry:
        spec = registry.get_spec("misbehaving.m_a")
        assert spec is not None
        result = {"content": [], "structuredContent": {"result": [1]}, "_meta": {"opwire/result": {"wrapped": True}}}
        envelope = await registry.execute(spec.id, {"result": result})
    assert (spec.type, spec.tags) == (OperationType.MUTATION, ())
    assert spec.output_schema.json == {"type": "array"}
    assert envelope.data == [1]


@pytest.mark.parametrize("said", [{"id": "nodot"}, {"id": "a.\n"}, {"timeout": -1}])
async def test_what_no_operation_can_be_is_left_out(tmp_path: Path, said: dict[str, Any]) -> None:
    tools = [opwire_tool("bad", **{"id": "a.b", "type": "query", **said}), tool("play")]
    async with following(Stage(tmp_path, tools=tools), trust_annotations=True) as registry:
        assert [spec.id for spec in registry.list()] == ["misbehaving.play"]


async def test_with_a_namespace_of_ones_own_a_trusted_opwire_does_not_choose_ids(tmp_path: Path) -> None:
    tools = [opwire_tool("math_add", id="math.add", type="query")]
    async with following(Stage(tmp_path, tools=tools), trust_annotations=True, namespace="far") as registry:
        assert [spec.id for spec in registry.list()] == ["far.math_add"]


# --- results, through the whole pipeline ------------------------------------------------------------------------------


async def test_structured_content_that_violates_its_schema_is_kept_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        envelope = await answer(registry, {"content": [], "structuredContent": {"n": "many"}}, "misbehaving.count")
    assert envelope.data == {"n": "many", "unit": "m"}
    assert mcp_meta(envelope).structured_content == {"n": "many"}
    assert "misbehaving.count" in caplog.text


async def test_structured_content_is_normalised(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        structured = {"n": 3.0, "surplus": True}
        envelope = await answer(registry, {"content": [], "structuredContent": structured}, "misbehaving.count")
    assert envelope.data == {"n": 3, "unit": "m"}


async def test_a_declared_output_that_does_not_come_leaves_the_blocks(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        envelope = await answer(registry, {"content": [TEXT]}, "misbehaving.count")
    assert envelope.data == [TEXT]


async def test_json_text_is_normalised_by_the_declared_schema(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        text = {"type": "text", "text": json.dumps({"n": 3.0, "surplus": 1})}
        envelope = await answer(registry, {"content": [text]}, "misbehaving.count")
    assert envelope.data == {"n": 3, "unit": "m"}
    assert mcp_meta(envelope).structured_content is UNSET


async def test_an_error_of_a_tool_is_left_alone(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        envelope = await answer(
            registry, {"content": [TEXT], "structuredContent": {"x": 1}, "isError": True}, "misbehaving.count"
        )
    assert envelope.data == {"x": 1}
    assert mcp_meta(envelope).is_error is True


@pytest.mark.parametrize("answers", [{}, MODERN], ids=["2025-11-25", "2026-07-28"])
async def test_structured_content_of_any_kind_arrives(tmp_path: Path, answers: Any) -> None:
    async with following(Stage(tmp_path, tools=PLAY, answers=answers)) as registry:
        for value in ([1, {"a": None}], "text", 0, None, False, 2**70):
            envelope = await answer(registry, {"content": [], "structuredContent": value})
            assert (envelope.data, type(envelope.data)) == (value, type(value))


async def test_tool_envelopes_arrive_whichever_version_they_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        valid = encode_blocks("# Sum", {"sum": 3}, tool="add")
        assert (await answer(registry, {"content": valid})).data == {"sum": 3}
        newer = [{"type": "text", "text": valid[1]["text"].replace("V1", "V2")}]
        assert (await answer(registry, {"content": newer})).data == newer
        broken = [{"type": "text", "text": valid[1]["text"][:25]}]
        assert (await answer(registry, {"content": broken})).data == broken
    assert caplog.text.count("an invalid ToolEnvelope") == 2


async def test_the_depth_of_a_payload_is_not_that_of_its_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    payload: Any = {"n": 1}
    for _ in range(MAX_DEPTH):
        payload = [payload]
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        hidden = {"content": encode_blocks("# Deep", payload, tool="count")}  # in base64, without a bracket
        assert (await answer(registry, hidden, "misbehaving.count")).data == payload
    assert f"nested deeper than {MAX_DEPTH}" in caplog.text


@pytest.mark.parametrize(
    ("result", "data"),
    [
        ({}, []),
        ({"content": None}, []),
        ({"content": "text"}, [{"type": "text", "text": "text"}]),
        ({"content": [{"type": "new", "x": 1}]}, [{"type": "text", "text": '{"type":"new","x":1}'}]),
        ({"content": [{**TEXT, "new": 1}], "isError": None}, [{**TEXT, "new": 1}]),
    ],
)
async def test_results_that_the_protocol_does_not_know_arrive(tmp_path: Path, result: Any, data: Any) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        assert (await answer(registry, result)).data == data


# --- calls that fail --------------------------------------------------------------------------------------------------


async def test_the_server_judges_the_arguments_and_a_warning_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(Stage(tmp_path, tools=[tool("count", inputSchema=COUNT), tool("play")])) as registry:
        await registry.execute("misbehaving.count", {"n": "5", "result": {"content": []}})
        received = (await answer(registry, "received")).data
    calls = [each["params"] for each in received if each["method"] == "tools/call"]
    assert calls[0]["arguments"]["n"] == "5"
    assert 'misbehaving.count: /n: the value is not of type "integer"' in caplog.text


async def test_strict_input_is_checked_before_the_server_sees_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[tool("count", inputSchema=COUNT), tool("play")])
    async with following(stage, strict_input=True) as registry:
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await registry.execute("misbehaving.count", {"n": "one"})
        received = (await answer(registry, "received")).data
    assert [each["params"]["name"] for each in received if each["method"] == "tools/call"] == ["play"]


async def test_a_tool_with_an_empty_schema_still_takes_only_objects(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=[{"name": "any"}])) as registry:
        assert (await registry.execute("misbehaving.any")).data == {}
        with pytest.raises(CallError, match="a tool takes an object, not list") as why:
            await registry.execute("misbehaving.any", [1])
    assert why.value.details == {"problems": [{"path": "", "message": "a tool takes an object, not list"}]}


async def test_a_failure_of_the_protocol_is_raised(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        with pytest.raises(CallError) as why:
            await registry.execute("misbehaving.play", {"error": {"code": -32050, "message": "out of order"}})
        assert why.value.code is ErrorCode.EXECUTION_ERROR
        with pytest.raises(CallError) as why:
            await registry.execute("misbehaving.play", {"crash": True})
        assert why.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("result", [5, [1], None, "text", True])
async def test_a_result_that_is_not_an_object_is_a_protocol_error_at_once(tmp_path: Path, result: Any) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        async with asyncio.timeout(5):
            with pytest.raises(CallError, match="PROTOCOL_ERROR"):
                await answer(registry, result)
            assert (await answer(registry, {})).data == []


async def test_a_deadline_ends_the_call_at_the_server_too(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        with pytest.raises(CallError) as why:
            await registry.execute("misbehaving.play", {"hold": True}, Context(deadline=time.monotonic() + 0.2))
        assert why.value.code is ErrorCode.TIMEOUT
        assert "notifications/cancelled" in await _received(registry)


async def test_a_caller_that_leaves_ends_the_call_at_the_server_too(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        call = asyncio.create_task(registry.execute("misbehaving.play", {"hold": True}))
        while "tools/call" not in (await _received(registry))[:-1]:
            pass
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert "notifications/cancelled" in await _received(registry)


async def test_progress_reaches_its_listeners(tmp_path: Path) -> None:
    seen: list[Progress] = []
    async with following(Stage(tmp_path, tools=PLAY)) as registry:
        script = {"progress": [{"progress": 1, "total": 2, "message": "half"}, {"progress": 2}]}
        await registry.execute("misbehaving.play", script, Context(on_progress=seen.append))
    assert seen == [Progress(1, 2, "half"), Progress(2)]


async def _received(registry: OperationRegistry) -> list[str]:
    return [each.get("method") for each in (await answer(registry, "received")).data]
