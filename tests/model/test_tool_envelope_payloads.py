"""The typed payloads, and an error's text for people."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opwire.errors import ERROR_TABLE, ConversionError
from opwire.model.tool_envelope import (
    MCP_ERROR_CATEGORIES,
    Artifact,
    MatrixRow,
    McpErrorPayload,
    Model,
    Recommendation,
    Step,
    ToolChainStep,
    WorkflowEnvelopePayload,
    encode,
    error_blocks,
    error_text,
    parse,
    payload_as,
)

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "tool-envelope-vectors.json").read_text("utf-8"))

WORKFLOW: dict[str, Any] = {
    "displayName": "System Design",
    "instructionId": "system-design",
    "model": {"id": "m", "label": "M"},
    "steps": [{"kind": "design", "label": "L", "summary": "S"}],
    "recommendations": [
        {
            "title": "T",
            "detail": "D",
            "modelClass": "strong",
            "groundingScope": "request",
            "evidenceAnchors": ["a"],
            "sourceRefs": ["r"],
            "problem": "P",
            "suggestedAction": "A",
        },
        {"title": "T2", "detail": "D2", "modelClass": "free"},
    ],
    "artifacts": [
        {"kind": "worked-example", "title": "A", "input": None, "expectedOutput": {"x": [1]}},
        {"kind": "output-template", "title": "B", "description": "why", "template": "# {t}", "fields": ["t"]},
        {"kind": "eval-criteria", "title": "C", "criteria": ["c"]},
        {"kind": "comparison-matrix", "title": "D", "headers": ["h"], "rows": [{"label": "r", "values": ["v", 2]}]},
        {"kind": "tool-chain", "title": "E", "steps": [{"tool": "t"}, {"tool": "u", "description": "d"}]},
    ],
}


def error(**fields: Any) -> McpErrorPayload:
    return McpErrorPayload(**{"category": "validation", "code": "C", "message": "M", "recoverable": False} | fields)


def test_a_workflow_payload_is_read_as_its_type() -> None:
    payload = payload_as(parse(encode(WORKFLOW, tool="t")), WorkflowEnvelopePayload)
    assert (payload.display_name, payload.instruction_id) == ("System Design", "system-design")
    assert payload.model == Model("m", "M")
    assert payload.steps == [Step("design", "L", "S")]
    assert payload.recommendations[0] == Recommendation(
        title="T",
        detail="D",
        model_class="strong",
        grounding_scope="request",
        evidence_anchors=["a"],
        source_refs=["r"],
        problem="P",
        suggested_action="A",
    )
    example, template, criteria, matrix, chain = payload.artifacts
    assert example == Artifact(kind="worked-example", title="A", input=None, expected_output={"x": [1]})
    assert (template.template, template.fields, template.description) == ("# {t}", ["t"], "why")
    assert criteria.criteria == ["c"]
    assert (matrix.headers, matrix.rows) == (["h"], [MatrixRow("r", ["v", 2])])
    assert chain.steps == [ToolChainStep("t"), ToolChainStep("u", "d")]


def test_a_workflow_payload_is_written_with_the_names_of_the_wire_and_without_what_is_absent() -> None:
    payload = msgspec.convert(WORKFLOW, WorkflowEnvelopePayload)
    assert parse(encode(payload, tool="t")).payload == WORKFLOW


def test_the_lists_of_a_workflow_are_written_when_empty_and_may_be_missing() -> None:
    bare = {key: WORKFLOW[key] for key in ("displayName", "instructionId", "model")}
    payload = msgspec.convert(bare, WorkflowEnvelopePayload)
    assert parse(encode(payload, tool="t")).payload == {**bare, "steps": [], "recommendations": [], "artifacts": []}


def test_fields_kinds_and_categories_of_a_newer_producer_are_tolerated() -> None:
    newer = {**WORKFLOW, "request": "r", "artifacts": [{"kind": "poem", "title": "A", "verses": 4}]}
    envelope = parse(encode(newer, tool="t"))
    assert payload_as(envelope, WorkflowEnvelopePayload).artifacts == [Artifact(kind="poem", title="A")]
    assert envelope.payload == newer
    quota = {"category": "quota", "code": "C", "message": "M", "recoverable": True, "resetsAt": 5}
    assert payload_as(parse(encode(quota, tool="t")), McpErrorPayload) == error(category="quota", recoverable=True)


def test_a_payload_of_another_shape_is_refused_as_a_type_and_kept_as_data() -> None:
    envelope = parse(encode({"rows": [1]}, tool="t"))
    with pytest.raises(ConversionError, match=r"the payload is no WorkflowEnvelopePayload: .*displayName"):
        payload_as(envelope, WorkflowEnvelopePayload)
    assert envelope.payload == {"rows": [1]}


def test_the_categories_are_those_of_the_specification_and_the_table_of_errors_uses_no_other() -> None:
    assert MCP_ERROR_CATEGORIES == (
        "validation",
        "execution",
        "timeout",
        "model",
        "network",
        "authorization",
        "rate_limit",
        "not_found",
        "internal",
    )
    assert {row.category for row in ERROR_TABLE.values()} <= set(MCP_ERROR_CATEGORIES)


@pytest.mark.parametrize("vector", [vector for vector in VECTORS["errors"] if "category" in vector])
def test_an_error_reads_as_the_public_implementation_shows_its_category(vector: dict[str, Any]) -> None:
    assert error_text(error(category=vector["category"])) == vector["text"]


@pytest.mark.parametrize(
    ("category", "label"),
    [
        ("execution", "\u26a0\ufe0f  Execution error"),
        ("model", "\U0001f916 Model error"),
        ("authorization", "\U0001f512 Authorization error"),
        ("rate_limit", "\U0001f6a6 Rate limit exceeded"),
        ("not_found", "\U0001f50d Not found"),
        ("quota_used_up", "\u274c Quota used up"),
        ("", "\u274c Error"),
    ],
)
def test_every_other_category_has_a_label_too(category: str, label: str) -> None:
    assert error_text(error(category=category)) == f"{label} [C]: M"


def test_what_is_known_of_an_error_follows_line_by_line() -> None:
    (vector,) = (vector for vector in VECTORS["errors"] if "full" in vector)
    full = error(details="D", suggested_action="S", next_tool="N", recoverable=True)
    assert error_text(full) == vector["full"]
    assert error_text(error(details="", suggested_action="", next_tool="")) == "❌ Validation error [C]: M"


def test_an_error_is_two_text_blocks_of_the_tool_mcp() -> None:
    """An error's first block reads `<icon> <Label> [<code>]: <message>`, then lines for details, suggestion, next
    tool and recoverable."""
    (vector,) = (vector["built"] for vector in VECTORS["errors"] if "built" in vector)
    blocks = error_blocks(error(category="timeout", recoverable=True))
    envelope = parse(blocks[1]["text"])
    assert [block["type"] for block in blocks] == vector["types"]
    assert blocks[0]["text"].startswith("⏱  Timeout [C]: M\n")
    assert (envelope.payload, envelope.meta.tool) == (vector["env"], vector["tool"])
    assert list(envelope.payload) == list(vector["env"])
    assert parse(error_blocks(error(), tool="t", ts="x")[1]["text"]).meta.ts == "x"
