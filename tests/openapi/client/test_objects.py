"""Object schemas that can be taken apart."""

from typing import Any

import pytest

from opwire.openapi.client.document import DocumentSet
from opwire.openapi.client.request_bodies import PlainObject, plain_object
from opwire.openapi.client.schemas import SchemaRewriter
from opwire.registry.source import Report
from tests.openapi.client.documents import document

SCHEMAS = {
    "Base": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    "Many": {"allOf": [{"properties": {str(number): {}}} for number in range(100)]},
    "Self": {"allOf": [{"$ref": "#/components/schemas/Self"}]},
}


def taken_apart(schema: Any, version: str = "3.1") -> PlainObject | None:
    documents = DocumentSet(document({}, f"{version}.0", schemas=SCHEMAS), "", version)  # pyright: ignore[reportArgumentType]
    return plain_object(schema, documents.main, SchemaRewriter(documents, Report()))


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def test_parts_are_put_together() -> None:
    found = taken_apart(
        {"allOf": [ref("Base"), {"properties": {"a": {"minLength": 1}, "b": {}}, "required": ["b", "a"]}]}
    )
    assert found is not None
    assert {name: [each.value for each in places] for name, places in found.properties.items()} == {
        "a": [{"type": "string"}, {"minLength": 1}],
        "b": [{}],
    }
    assert found.required == ["a", "b"]
    assert found.extras is None


def test_siblings_of_a_reference_are_parts_since_3_1() -> None:
    schema = {**ref("Base"), "required": ["b"], "properties": {"b": {}}}
    newer, older = taken_apart(schema), taken_apart(schema, "3.0")
    assert newer is not None
    assert set(newer.properties) == {"a", "b"}
    assert older is not None
    assert set(older.properties) == {"a"}


def test_what_is_said_of_other_properties_is_kept_where_it_means_the_same() -> None:
    found = taken_apart({**SCHEMAS["Base"], "additionalProperties": False})
    assert found is not None
    assert found.extras is not None
    assert found.extras.value is False
    assert (
        taken_apart({"allOf": [{**SCHEMAS["Base"], "additionalProperties": False}, {"properties": {"b": {}}}]}) is None
    )


@pytest.mark.parametrize("schema", [ref("Many"), ref("Self"), ref("Nope"), {"type": "object"}, {}, True, None, 7])
def test_what_is_too_much_or_nothing_is_not_taken_apart(schema: Any) -> None:
    assert taken_apart(schema) is None


def test_an_object_that_is_always_empty_can_be() -> None:
    assert taken_apart({"type": "object", "additionalProperties": False}) is not None
