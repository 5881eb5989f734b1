"""Bodies of requests as documents give them; what becomes of them is in test_inputs."""

from itertools import count
from typing import Any

import pytest

from opwire.openapi.client.document import DocumentSet, Located, SourceDocument
from opwire.openapi.client.plan import PartEncoding
from opwire.openapi.client.request_bodies import file_schema
from opwire.openapi.client.schemas import SchemaRewriter
from opwire.registry.source import Report
from tests.openapi.client.documents import document, read_one

BINARY = {"type": "string", "format": "binary"}


def is_file(schema: Any, content_type: str = "", version: str = "3.1") -> bool:
    documents = DocumentSet(document({}, f"{version}.0"), "", version)  # pyright: ignore[reportArgumentType]
    schemas = SchemaRewriter(documents, Report())
    return file_schema(Located(schema, SourceDocument({})), content_type, schemas, count()) is not None


def test_fields_that_are_files_are_known() -> None:
    assert is_file(BINARY)
    assert is_file({"type": ["string", "null"], "format": "binary"})
    assert is_file({"type": "array", "items": {"type": "array", "items": BINARY}})
    assert is_file({"type": "string"}, "application/zip")
    assert is_file({})
    assert is_file({"type": "file"})


def test_fields_that_are_not_files_are_known_too() -> None:
    assert not is_file({}, version="3.0")
    assert not is_file({"type": "string"})
    assert not is_file({"type": "string"}, "text/csv, application/zip")
    assert not is_file({"type": "object"}, "application/zip")
    assert not is_file({"type": "string", "format": "byte"})
    assert not is_file({"type": "string", "contentMediaType": "image/png", "contentEncoding": "base64"})
    endless: dict[str, Any] = {"type": "array"}
    endless["items"] = endless
    assert not is_file(endless)


@pytest.mark.parametrize(
    ("version", "content_type", "style"),
    [
        ("3.0.0", "application/x-www-form-urlencoded", "deepObject"),
        ("3.0.0", "multipart/form-data", None),
        ("3.1.0", "multipart/form-data", "deepObject"),
    ],
)
def test_a_style_counts_in_parts_only_since_3_1(version: str, content_type: str, style: str | None) -> None:
    media = {"schema": {"type": "object", "properties": {"a": {}}}, "encoding": {"a": {"style": "deepObject"}}}
    body = read_one({"requestBody": {"content": {content_type: media}}}, version=version).plan.body
    assert body is not None
    assert body.parts.get("a", PartEncoding()).style == style


def test_a_sequence_of_items_is_given_as_an_array() -> None:
    body = {"requestBody": {"content": {"application/jsonl": {"itemSchema": {"type": "integer"}}}}}
    one = read_one(body, version="3.2.0")
    assert one.spec.input_schema.is_valid({"body": [1, 2]})
    assert not one.spec.input_schema.is_valid({"body": ["x"]})


@pytest.mark.parametrize(
    ("consumes", "sent"),
    [
        (None, "application/json"),
        (["application/xml", "application/json"], "application/json"),
        (["application/json-patch+json", "application/merge-patch+json"], "application/merge-patch+json"),
        (["text/plain", "application/x+json"], "application/x+json"),
        (["text/plain"], "text/plain"),
    ],
)
def test_swagger_says_what_it_consumes(consumes: list[str] | None, sent: str) -> None:
    operation: dict[str, Any] = {"parameters": [{"name": "b", "in": "body", "schema": {"type": "array"}}]}
    if consumes is not None:
        operation["consumes"] = consumes
    body = read_one(operation, version="2.0").plan.body
    assert body is not None
    assert body.content_type == sent


@pytest.mark.parametrize("content", [{}, None, [], {"application/json": None}])
def test_an_empty_body_schema_is_missing_or_allows_anything(content: Any) -> None:
    one = read_one({"requestBody": {"content": content}})
    assert (one.plan.body is None) is (not content)
    assert one.spec.input_schema.is_valid({})


@pytest.mark.parametrize(("schema", "is_binary"), [(BINARY, True), ({"type": "object"}, False)])
def test_a_range_of_types_is_what_its_schema_is(schema: Any, is_binary: bool) -> None:
    body = read_one({"requestBody": {"content": {"*/*": {"schema": schema}}}}).plan.body
    assert body is not None
    assert body.binary is is_binary
