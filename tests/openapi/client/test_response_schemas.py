"""The answers of an operation."""

from typing import Any

import pytest

from opwire.schema import Schema
from tests.openapi.client.documents import JSON, accepts, answers, document, output_of, read, read_one

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def responses(**content: Any) -> dict[str, Any]:
    """Responses by status (`s200`), each with its schemas by content type; None has no content."""
    return {
        "responses": {
            status.removeprefix("s"): {"description": ""}
            if types is None
            else {"content": {kind: {"schema": schema} for kind, schema in types.items()}}
            for status, types in content.items()
        }
    }


@pytest.mark.parametrize(
    ("operation", "schema"),
    [
        (responses(s200={JSON: NUMBER}), NUMBER),
        (responses(s200={JSON: NUMBER}, default={JSON: TEXT}, s404={JSON: TEXT}), NUMBER),
        (responses(s201={JSON: TEXT}, s200={JSON: NUMBER}), {"anyOf": [NUMBER, TEXT]}),
        (responses(s200={JSON: NUMBER}, s202={JSON: NUMBER}), NUMBER),
        (responses(s200={JSON: NUMBER}, s204=None), {"anyOf": [NUMBER, {"type": "null"}]}),
        (responses(s204=None), {"type": "null"}),
        (responses(s2XX={JSON: NUMBER}), NUMBER),
        (responses(s2xx={JSON: NUMBER}), NUMBER),
        (responses(default={JSON: NUMBER}), NUMBER),
        (responses(s200={"text/plain": TEXT, "application/problem+json": NUMBER}), NUMBER),
        (responses(s200={"application/xml": NUMBER, JSON: TEXT}), TEXT),
        (responses(s200={"*/*": NUMBER}), NUMBER),
        (responses(s200={"text/plain": TEXT}), TEXT),
        (responses(s200={"text/html": NUMBER}), True),
        (responses(s200={"application/pdf": {"type": "string", "format": "binary"}}), True),
        (responses(s200={JSON: {}}), True),
        (responses(s200={JSON: NUMBER}, s201={"image/png": {}}), True),
        (responses(s404={JSON: TEXT}), True),
        ({"responses": []}, True),
        ({"responses": {"200": None}}, {"type": "null"}),
        ({"responses": {"200": {"$ref": "#/nowhere"}}}, {"type": "null"}),
        ({}, True),
    ],
)
def test_the_schema_of_the_success_stands_for_all(operation: dict[str, Any], schema: Any) -> None:
    assert output_of(operation) == schema


def test_the_answer_to_head_is_nothing() -> None:
    assert output_of(responses(s200={JSON: NUMBER}), method="head") == {"type": "null"}


def test_every_answer_keeps_its_own_schema() -> None:
    plan = read_one(responses(s200={JSON: NUMBER, "text/csv": TEXT}, s201={JSON: TEXT})).plan
    found = {
        (status, each.content_type): each.schema.json for status, kinds in plan.responses.items() for each in kinds
    }
    assert found == {("200", JSON): NUMBER, ("200", "text/csv"): TEXT, ("201", JSON): TEXT}


def test_the_only_answer_shares_the_schema_of_the_operation() -> None:
    one = read_one(responses(s200={JSON: NUMBER}))
    assert one.plan.responses["200"][0].schema is one.spec.output_schema


@pytest.mark.parametrize(
    ("types", "accept"),
    [
        ({JSON: {}}, "application/json, */*;q=0.1"),
        ({"application/xml": {}, JSON: {}, "application/other+json": {}}, "application/json, */*;q=0.1"),
        ({"text/csv": {}, "image/png": {}}, "text/csv, image/png, */*;q=0.1"),
        ({"*/*": {}}, "*/*"),
        ({"text/x\r\nEvil: 1": {}}, "*/*"),
    ],
)
def test_what_is_asked_for(types: dict[str, Any], accept: str) -> None:
    assert read_one(responses(s200=types)).plan.accept == accept


def test_swagger_names_the_kinds_of_answer_elsewhere() -> None:
    operation = {"responses": {"200": {"schema": NUMBER}, "404": {"schema": TEXT}}, "produces": ["text/csv", JSON]}
    one = read_one(operation, version="2.0")
    assert [each.content_type for each in one.plan.responses["200"]] == ["text/csv", JSON]
    assert one.spec.output_schema.json == NUMBER
    assert output_of({"responses": {"200": {"schema": {"type": "file"}}}}, version="2.0") is True


# --- streams --------------------------------------------------------------------------------------------------------

SSE = "text/event-stream"
EVENT = {"type": "object", "properties": {"event": TEXT, "data": NUMBER, "id": TEXT}}


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        (SSE, "sse"),
        ("text/event-stream; charset=utf-8", "sse"),
        ("application/x-ndjson", "ndjson"),
        ("application/jsonl", "ndjson"),
        ("application/json-seq", "json-seq"),
    ],
)
def test_a_stream_is_a_subscription(content_type: str, kind: str) -> None:
    one = read_one({"responses": answers(NUMBER, content_type=content_type)}, method="get")
    assert one.spec.type == "subscription"
    assert one.plan.stream == kind
    assert one.spec.output_schema.json == NUMBER
    assert one.plan.responses["200"][0].stream == kind


@pytest.mark.parametrize(
    ("content_type", "fields", "item"),
    [
        (SSE, {"schema": NUMBER}, NUMBER),
        (SSE, {"itemSchema": NUMBER, "schema": TEXT}, NUMBER),
        ("application/jsonl", {"schema": {"type": "array", "items": NUMBER}}, NUMBER),
        (SSE, {"schema": EVENT}, NUMBER),
        (SSE, {"itemSchema": {"properties": {"data": {"type": "string", "contentSchema": NUMBER}}}}, NUMBER),
        (SSE, {"schema": {"oneOf": [EVENT, {"properties": {"data": TEXT}}]}}, {"anyOf": [NUMBER, TEXT]}),
        (SSE, {"schema": {"properties": {"data": NUMBER, "n": NUMBER}}}, {"properties": {"data": NUMBER, "n": NUMBER}}),
        (SSE, {}, True),
    ],
)  # fmt: skip
def test_the_schema_of_one_item(content_type: str, fields: dict[str, Any], item: Any) -> None:
    operation = {"responses": {"200": {"content": {content_type: fields}}}}
    one = read_one(operation, method="get", version="3.2.0")
    assert accepts(one.spec.output_schema.json, 1) is accepts(item, 1)
    assert one.spec.output_schema.json in (item, {} if item is True else item)


def test_an_operation_that_offers_both_has_each_in_its_own_plan() -> None:
    """What offers plain answers and streams is two operations; each sets `stream` itself."""
    operation = {"operationId": "both", **responses(s200={JSON: TEXT, SSE: NUMBER}, s201={"text/csv": {}})}
    both = read(document({"/a": {"get": operation}}))
    kinds = {
        name: [(status, each.content_type) for status, kinds in one.plan.responses.items() for each in kinds]
        for name, one in both.operations.items()
    }
    assert kinds == {"both": [("200", JSON), ("201", "text/csv")], "both_stream": [("200", SSE)]}
    assert both["both"].plan.accept == "application/json, */*;q=0.1"
    assert both["both_stream"].plan.accept == "text/event-stream, */*;q=0.1"
    assert both["both_stream"].spec.output_schema.json == NUMBER


def test_an_endless_union_of_events_ends() -> None:
    loop = {"oneOf": [{"$ref": "#/components/schemas/Loop"}]}
    one = read_one(
        {"responses": answers({"$ref": "#/components/schemas/Loop"}, content_type=SSE)}, schemas={"Loop": loop}
    )
    assert Schema(one.spec.output_schema.json).compile()
