"""Tests of opwire.mcp.client.tools."""

from typing import Any

import pytest

from opwire.mcp.client import tools
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.servers import StdioServer
from opwire.mcp.client.session import MCPSession
from opwire.mcp.client.tools import MAX_SCHEMA_BYTES, ToolReader
from opwire.registry.source import Report
from opwire.schema import UNKNOWN, Schema

RESULT = ("properties", "result")
NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}}}


class Reader(ToolReader):
    """A reader of single schemas, and its report."""

    def __init__(self) -> None:
        self.report = Report()
        super().__init__(MCPSession(StdioServer("none")), MCPOptions(), "ns", self.report)

    def input(self, declared: Any) -> Schema:
        return self.schema({"name": "tool", "inputSchema": declared}, "inputSchema")

    def output(self, declared: Any, path: tuple[str, ...] = ()) -> Schema:
        return self.schema({"name": "tool", "outputSchema": declared}, "outputSchema", path)


@pytest.mark.parametrize("declared", [NUMBERS, {"type": "object"}, {"properties": {}, "$schema": "x"}])
def test_schemas_that_can_be_used_are_used_as_they_are(declared: Any) -> None:
    reader = Reader()
    assert reader.input(declared).json == declared
    assert reader.output(declared).json == declared
    assert reader.report.warnings == []


@pytest.mark.parametrize(
    "declared",
    ["text", 3, [], {"type": "nonsense"}, {"$ref": "#/nowhere"}, {"$ref": "https://elsewhere.example/schema.json"}],
)
def test_a_schema_that_cannot_be_used_is_unknown_with_a_warning(declared: Any) -> None:
    for field in ("inputSchema", "outputSchema"):
        reader = Reader()
        assert reader.schema({"name": "tool", field: declared}, field) is UNKNOWN
        (warning,) = reader.report.warnings
        assert warning.startswith(f"ns.tool: its {field} is not used")


def test_a_schema_that_is_nested_too_deeply_is_unknown_with_a_warning() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"properties": {"a": deep}}
    for declared, path in ((deep, ()), ({"properties": {"result": deep}}, RESULT)):
        reader = Reader()
        assert reader.output(declared, path) is UNKNOWN
        assert len(reader.report.warnings) == 1


def test_a_missing_input_schema_is_warned_of_and_a_missing_output_schema_is_not() -> None:
    reader = Reader()
    assert reader.output(None) is UNKNOWN
    assert reader.report.warnings == []
    assert reader.input(None) is UNKNOWN
    assert len(reader.report.warnings) == 1


def test_an_input_schema_that_no_arguments_can_fit_is_unknown() -> None:
    reader = Reader()
    assert reader.input({"type": "array"}) is UNKNOWN
    assert "array" in reader.report.warnings[0]


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
    assert Reader().output(wrapped, RESULT).json == {
        "anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "array", "items": {"$ref": "#"}}],
        "default": {"$ref": "#/properties/result"},
        "$defs": {"Leaf": {"anyOf": [{"type": "integer"}, {"$ref": "#/anyOf/1"}]}},
    }


def test_a_schema_that_is_a_document_of_its_own_leaves_its_wrapper_untouched() -> None:
    inner = {"$id": "urn:list", "type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}
    assert Reader().output({"properties": {"result": inner}}, RESULT).json == inner


@pytest.mark.parametrize("wrapper", [{}, {"properties": []}, {"properties": {"other": {}}}, True])
def test_a_wrapper_with_nothing_inside_is_unknown_with_a_warning(wrapper: Any) -> None:
    reader = Reader()
    assert reader.output(wrapper, RESULT) is UNKNOWN
    assert len(reader.report.warnings) == 1


def test_a_wrapped_schema_that_says_nothing_is_unknown() -> None:
    reader = Reader()
    assert reader.output({"properties": {"result": {}}}, RESULT) is UNKNOWN
    assert reader.report.warnings == []


def test_a_schema_above_the_limit_is_not_used() -> None:
    reader = Reader()
    large = {"type": "object", "description": "x" * MAX_SCHEMA_BYTES}
    assert reader.input(large) is UNKNOWN
    assert reader.output(large) is UNKNOWN
    assert reader.schema_bytes == 0
    assert all(f"the limit is {MAX_SCHEMA_BYTES:,}" in each for each in reader.report.warnings)


def test_a_limited_number_of_schemas_is_compiled_when_listed_and_the_others_when_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(tools.Schema, "compile", lambda schema: compiled.append(schema.json) or schema)
    reader = Reader()
    padded = {**NUMBERS, "description": "x" * 200_000}
    found = [reader.input(padded) for _ in range(30)]
    assert all(each.json == padded for each in found)
    assert 0 < len(compiled) * 200_000 <= tools.EAGER < 30 * 200_000
