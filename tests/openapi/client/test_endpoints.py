"""The operations of a document, and those that are left out."""

import time
from typing import Any

import pytest

from opwire.registry.source import Skipped
from tests.openapi.client.documents import document, parameter, read

GOOD = {"get": {"operationId": "good"}}


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (None, "the operation is not an object"),
        ([], "the operation is not an object"),
        ("x", "the operation is not an object"),
        ({"parameters": {}}, "`parameters` is not an array"),
        ({"parameters": [None]}, "a parameter needs `name` and `in`"),
        ({"parameters": [{"in": "query", "required": True}]}, "a parameter needs `name` and `in`"),
        ({"parameters": [{"in": "path"}]}, "a parameter needs `name` and `in`"),
        ({"parameters": [{"name": "a", "in": "nowhere"}]}, "a parameter needs `name` and `in`"),
        ({"parameters": [{"$ref": "#/components/parameters/Nope"}]}, "there is no 'Nope'"),
        ({"parameters": [{"$ref": "#/components/parameters/Loop"}]}, "is part of a cycle"),
        ({"parameters": [{"$ref": "other.yaml#/a"}]}, "a document that is not loaded"),
        ({"requestBody": {"$ref": "#/components/requestBodies/Nope"}}, "there is no 'requestBodies'"),
        ({"requestBody": []}, "`requestBody` is not an object"),
    ],
)
def test_a_broken_operation_is_left_out_with_its_reason(operation: Any, reason: str) -> None:
    loop = {"$ref": "#/components/parameters/Loop"}
    found = read(document({"/bad": {"post": operation}, "/good": GOOD}, components={"parameters": {"Loop": loop}}))
    assert list(found.operations) == ["good"]
    (skipped,) = found.report.skipped
    assert (skipped.kind, skipped.name) == ("POST", "/bad")
    assert reason in skipped.reason


@pytest.mark.parametrize(
    "item", [None, [], "x", {"$ref": "#/nowhere"}, {"$ref": "#/info/title"}, {"$ref": "#/paths/~1bad"}]
)
def test_a_broken_path_costs_its_own_operations(item: Any) -> None:
    found = read(document({"/bad": item, "/good": GOOD}))
    assert list(found.operations) == ["good"]
    assert (found.report.skipped[0].kind, found.report.skipped[0].name) == ("*", "/bad")


def test_parts_that_only_describe_answers_never_cost_an_operation() -> None:
    operation = {
        "responses": {"200": {"$ref": "#/nowhere"}},
        "tags": "x",
        "summary": 7,
        "description": [],
        "security": 1,
    }
    found = read(document({"/a": {"get": operation}}))
    assert found.only.plan.security == ()
    assert found.report.skipped == []


def test_a_path_may_be_a_reference_with_siblings() -> None:
    root = document(
        {
            "/a": {"$ref": "#/components/pathItems/A", "parameters": [parameter("b")]},
            "/c": {"$ref": "#/components/pathItems/A"},
        },
        components={"pathItems": {"A": {"get": {"summary": "there"}, "parameters": [parameter("x")]}}},
    )
    found = read(root)
    assert [each.name for each in found["get_a"].plan.parameters] == ["b"]
    assert [each.name for each in found["get_c"].plan.parameters] == ["x"]
    assert found["get_c"].spec.title == "there"


def test_every_method_is_an_operation_and_nothing_else_is() -> None:
    methods = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
    item: dict[str, Any] = {method: {} for method in methods}
    item |= {"summary": "x", "x-get": {}, "query": {}, "additionalOperations": {"COPY": {}}}
    found = read(document({"/a": item, "x-paths": {"get": {}}}))
    assert list(found.operations) == [f"{method}_a" for method in methods]


def test_3_2_has_more_methods() -> None:
    """3.2's `query` and additionalOperations are operations."""
    item = {"query": {}, "additionalOperations": {"COPY": {}, "x y": {}, "Lock": {}}}
    found = read(document({"/a": item}, "3.2.0"))
    assert {name: one.plan.method for name, one in found.operations.items()} == {
        "query_a": "QUERY", "copy_a": "COPY", "lock_a": "Lock"
    }  # fmt: skip
    assert found["query_a"].spec.type == "query"
    assert found["copy_a"].spec.type == "mutation"
    assert found.report.skipped == [Skipped("x y", "/a", "invalid HTTP method")]


def test_paths_that_cannot_be_found_are_reported() -> None:
    found = read(document({"$ref": "#/nowhere"}))
    assert found.operations == {}
    assert "there is no 'nowhere'" in found.report.skipped[0].reason


def test_webhooks_are_not_operations() -> None:
    assert read(document({"/a": GOOD}, webhooks={"new": {"post": {}}})).operations.keys() == {"good"}


def test_a_path_without_a_slash_gets_one() -> None:
    assert read(document({"a/b": {"get": {}}})).only.plan.path == "/a/b"


def test_a_document_without_paths_has_no_operations() -> None:
    assert read({"openapi": "3.1.0", "info": {}}).operations == {}


def test_a_path_item_that_thousands_of_paths_share_is_read_quickly() -> None:
    shared = {"parameters": [parameter(f"p{number}") for number in range(30)], "get": {}}
    paths = {f"/a{number}": {"$ref": "#/components/pathItems/P"} for number in range(2_000)}
    spent = time.process_time()
    found = read(document(paths, components={"pathItems": {"P": shared}}))
    assert time.process_time() - spent < 3  # of CPU
    assert len(found.operations) == 2_000


def test_only_what_can_be_a_status_is_one() -> None:
    answer = {"description": "", "content": {"application/json": {"schema": {"type": "integer"}}}}
    operation = {
        "operationId": "a",
        "responses": {"2ab": answer, "2\u4e00\u4e00": answer, "2xx": answer, "200": answer},
    }
    assert set(read(document({"/a": {"get": operation}}))["a"].plan.responses) == {"200", "2XX"}
