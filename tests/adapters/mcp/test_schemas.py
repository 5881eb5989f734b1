"""Tests of opwire.adapters.mcp.tools."""

from typing import Any

import pytest

from opwire.adapters.mcp import tools
from opwire.adapters.mcp.report import Findings
from opwire.adapters.mcp.tools import MAX_SCHEMA, input_schema, output_schema
from opwire.schema import UNKNOWN
from tests.requirements import requirement

RESULT = ("properties", "result")
NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}}}


@requirement("mcp.in.broken-schemas")
@pytest.mark.parametrize("declared", [NUMBERS, {"type": "object"}, {"properties": {}, "$schema": "x"}])
def test_schemas_that_can_be_used_are_used_as_they_are(declared: Any) -> None:
    findings = Findings("ns")
    assert input_schema(declared, "tool", findings).json == declared
    assert output_schema(declared, "tool", findings).json == declared
    assert findings.report().warnings == ()


@requirement("mcp.in.broken-schemas")
@pytest.mark.parametrize(
    "declared",
    ["text", 3, [], {"type": "nonsense"}, {"$ref": "#/nowhere"}, {"$ref": "https://elsewhere.example/schema.json"}],
)
def test_a_schema_that_cannot_be_used_is_unknown_with_a_warning(declared: Any) -> None:
    for read, field in ((input_schema, "inputSchema"), (output_schema, "outputSchema")):
        findings = Findings("ns")
        assert read(declared, "tool", findings) is UNKNOWN
        (warning,) = findings.report().warnings
        assert warning.startswith(f"ns: tool: its {field} is not used")


@requirement("mcp.in.broken-schemas")
def test_a_schema_that_is_nested_too_deeply_is_unknown_with_a_warning() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"properties": {"a": deep}}
    findings = Findings("ns")
    assert output_schema(deep, "tool", findings) is UNKNOWN
    assert output_schema({"properties": {"result": deep}}, "tool", findings, RESULT) is UNKNOWN
    assert len(findings.report().warnings) == 2


@requirement("mcp.in.broken-schemas")
def test_a_missing_input_schema_is_warned_of_and_a_missing_output_schema_is_not() -> None:
    findings = Findings("ns")
    assert output_schema(None, "tool", findings) is UNKNOWN
    assert findings.report().warnings == ()
    assert input_schema(None, "tool", findings) is UNKNOWN
    assert len(findings.report().warnings) == 1


@requirement("mcp.in.broken-schemas")
def test_an_input_schema_that_no_arguments_can_fit_is_unknown() -> None:
    findings = Findings("ns")
    assert input_schema({"type": "array"}, "tool", findings) is UNKNOWN
    assert "array" in findings.report().warnings[0]


@requirement("mcp.in.origin")
def test_a_schema_leaves_its_wrapper_with_its_definitions_and_references() -> None:
    wrapped = {
        "type": "object",
        "properties": {
            "result": {
                "anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "array", "items": {"$ref": "#/properties/result"}}],
                "default": {"$ref": "#/properties/result"},
            }
        },
        "required": ["result"],
        "$defs": {"Leaf": {"anyOf": [{"type": "integer"}, {"$ref": "#/properties/result/anyOf/1"}]}},
    }
    assert output_schema(wrapped, "tool", Findings("ns"), RESULT).json == {
        "anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "array", "items": {"$ref": "#"}}],
        "default": {"$ref": "#/properties/result"},
        "$defs": {"Leaf": {"anyOf": [{"type": "integer"}, {"$ref": "#/anyOf/1"}]}},
    }


@requirement("mcp.in.origin")
def test_a_schema_that_is_a_document_of_its_own_leaves_its_wrapper_untouched() -> None:
    inner = {"$id": "urn:list", "type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}
    assert output_schema({"properties": {"result": inner}}, "tool", Findings("ns"), RESULT).json == inner


@requirement("mcp.in.origin")
@pytest.mark.parametrize("wrapper", [{}, {"properties": []}, {"properties": {"other": {}}}, True])
def test_a_wrapper_with_nothing_inside_is_unknown_with_a_warning(wrapper: Any) -> None:
    findings = Findings("ns")
    assert output_schema(wrapper, "tool", findings, RESULT) is UNKNOWN
    assert len(findings.report().warnings) == 1


@requirement("mcp.in.origin")
def test_a_wrapped_schema_that_says_nothing_is_unknown() -> None:
    findings = Findings("ns")
    assert output_schema({"properties": {"result": {}}}, "tool", findings, RESULT) is UNKNOWN
    assert findings.report().warnings == ()


@requirement("mcp.in.limits", "mcp.in.broken-schemas")
def test_a_schema_above_the_limit_is_not_used() -> None:
    findings = Findings("ns")
    large = {"type": "object", "description": "x" * MAX_SCHEMA}
    assert input_schema(large, "tool", findings) is UNKNOWN
    assert output_schema(large, "tool", findings) is UNKNOWN
    assert findings.schema_bytes == 0
    assert all(f"the limit is {MAX_SCHEMA:,}" in each for each in findings.report().warnings)


@requirement("mcp.in.limits")
def test_so_many_schemas_are_compiled_when_they_are_listed_and_the_others_when_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(tools.Schema, "compile", lambda schema: compiled.append(schema.json) or schema)
    findings = Findings("ns")
    padded = {**NUMBERS, "description": "x" * 200_000}
    found = [input_schema(padded, "tool", findings) for _ in range(30)]
    assert all(each.json == padded for each in found)
    assert 0 < len(compiled) * 200_000 <= tools.EAGER < 30 * 200_000
