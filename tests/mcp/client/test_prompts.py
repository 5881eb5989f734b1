"""Tests of opwire.mcp.client.source."""

from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError
from opwire.model.operation import OperationType
from tests.mcp.client.listed_server import Stage, following, mcp_meta

CAPABILITIES = {"prompts": {"listChanged": True}}
REVIEW = {
    "name": "review",
    "title": "Review",
    "description": "Asks for a review.",
    "arguments": [{"name": "title", "required": True, "description": "Of what"}, {"name": "mood"}],
}
MESSAGE = {"role": "user", "content": {"type": "text", "text": "Write."}}


async def test_a_prompt_is_a_query_that_takes_its_arguments(tmp_path: Path) -> None:
    answers = {"prompts/get": {"description": "d", "messages": [MESSAGE], "_meta": {"v": 1}}}
    stage = Stage(tmp_path, capabilities=CAPABILITIES, prompts=[REVIEW], answers=answers)
    async with following(stage, namespace="lib", strict_input=True) as registry:
        spec = registry.get_spec("lib.prompts/review")
        assert spec is not None
        envelope = await registry.execute(spec.id, {"title": "Dune"})
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await registry.execute(spec.id, {"mood": "kind"})
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await registry.execute(spec.id, {"title": 3})
    assert (spec.type, spec.mcp.role, spec.title) == (OperationType.QUERY, "prompt", "Review")
    assert spec.description == "Asks for a review."
    assert spec.input_schema.json == {
        "type": "object",
        "properties": {"title": {"type": "string", "description": "Of what"}, "mood": {"type": "string"}},
        "required": ["title"],
    }
    assert envelope.data == {"description": "d", "messages": [MESSAGE]}
    assert mcp_meta(envelope).content == [MESSAGE["content"]]
    assert mcp_meta(envelope)._meta == {"v": 1}


async def test_prompts_are_listed(tmp_path: Path) -> None:
    prompts = [{**REVIEW, "name": f"p{n}"} for n in range(7)]
    async with following(Stage(tmp_path, capabilities=CAPABILITIES, prompts=prompts), namespace="lib") as registry:
        assert (await registry.execute("lib.prompts/list")).data == {"prompts": prompts}


@pytest.mark.parametrize("messages", [None, "text", [3], [{"role": "user"}], [{"content": [MESSAGE["content"]]}]])
async def test_any_result_of_a_prompt_is_the_data(tmp_path: Path, messages: Any) -> None:
    stage = Stage(
        tmp_path, capabilities=CAPABILITIES, prompts=[{"name": "p"}], answers={"prompts/get": {"messages": messages}}
    )
    async with following(stage, namespace="lib") as registry:
        assert (await registry.execute("lib.prompts/p")).data == {"messages": messages}


async def test_prompts_that_cannot_be_used_affect_no_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prompts = [{"name": "a\tb"}, {}, {**REVIEW, "arguments": [3, {"name": "ok"}]}, REVIEW]
    async with following(Stage(tmp_path, capabilities=CAPABILITIES, prompts=prompts), namespace="lib") as registry:
        assert [spec.name for spec in registry.list()] == ["prompts/list", "prompts/review"]
    assert "an argument without a name is ignored" in caplog.text
    assert "skipped operation lib.prompts/review: the id is a duplicate" in caplog.text
