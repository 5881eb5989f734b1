"""Schemas that multiply are refused; those of the real world are far from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from opwire import OperationRegistry, OperationSpec, Schema, SchemaError
from opwire.schema.cost import Costs
from tests.requirements import requirement


def doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """Definitions that each name the one below twice."""
    definitions: dict[str, Any] = {
        f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "object"}}}


@requirement("schema.cost")
@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_definitions_that_multiply_are_refused_before_they_are_compiled(keyword: str) -> None:
    with pytest.raises(SchemaError, match="multiply"):
        Schema(doubling(40, keyword)).compile()
    with pytest.raises(SchemaError, match="multiply"):
        Schema({"items": doubling(40, keyword)["$defs"]["d0"], **doubling(40, keyword)}).is_valid([{}])


@requirement("schema.cost")
async def test_a_result_is_kept_and_a_warning_says_why_it_was_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()
    spec = OperationSpec(namespace="a", name="b", output_schema=Schema.deferred(lambda: doubling(40)))
    registry.register(spec, lambda input, context: {"kept": True}, inline=True)
    assert (await registry.execute("a.b")).data == {"kept": True}
    assert "multiply" in caplog.text


CHAIN = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(1_000)}
HARMLESS: dict[str, Any] = {
    "anything": True,
    "a little doubling": doubling(8),
    "itself": {"allOf": [{"$ref": "#"}]},
    "a tree": {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "anyOf": [{}, {"$ref": "#"}]},
    "many branches": {"anyOf": [{"const": number} for number in range(5_000)]},
    "a long chain": {"$ref": "#/$defs/d0", "$defs": CHAIN},
    "elsewhere": {"$ref": "https://elsewhere.example/schema"},
    "no schema": {"allOf": "no list", "not": 5, "$ref": 5, "dependentSchemas": []},
}


@requirement("schema.cost")
@pytest.mark.parametrize("schema", HARMLESS.values(), ids=HARMLESS)
def test_branches_recursion_and_long_chains_are_no_multiplication(schema: Any) -> None:
    Costs(schema)


@requirement("schema.cost")
@pytest.mark.parametrize("document", ["github_api.json", "stripe_spec3.json", "kubernetes_swagger.json"])
def test_no_schema_of_a_large_api_is_refused(document: str, shared: Path) -> None:
    Costs(json.loads((shared / "openapi" / document).read_bytes()))
