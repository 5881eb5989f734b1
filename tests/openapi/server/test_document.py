"""The OpenAPI document of a registry."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import (
    AccessControl,
    CallError,
    OperationSpec,
    OperationType,
    Schema,
    encode_envelope,
    http_envelope,
    local_envelope,
    mcp_envelope,
)
from opwire.asgi.problem import encode_problem, problem_details
from opwire.model.origin import read_origin
from opwire.openapi.server.document import DocumentInfo, build_document, operation_names, summary_of
from opwire.openapi.server.request import OperationRoute
from opwire.protocol.schemas import RESPONSE_ENVELOPE_SCHEMA
from tests.openapi.server.conftest import make_registry

ABOUT = DocumentInfo(title="Shop", version="2.1")


def document_of(*specs: OperationSpec, about: DocumentInfo = ABOUT, **options: Any) -> dict[str, Any]:
    return build_document(specs, about, **options)


def operation(document: dict[str, Any], path: str, method: str = "post") -> dict[str, Any]:
    return document["paths"][path][method]


def validator(document: dict[str, Any], name: str) -> Any:
    root = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema_rs.validator_for(root)


def spec(name: str = "op", **fields: Any) -> OperationSpec:
    return OperationSpec(namespace="a", name=name, **fields)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_document(make_registry().list(), ABOUT)


def test_every_operation_is_there_by_post_and_by_get_where_that_can_be(document: dict[str, Any]) -> None:
    assert {path: sorted(item) for path, item in document["paths"].items()} == {
        "/math/add": ["get", "post"],
        "/math/find": ["get", "post"],
        "/shop/order": ["post"],
        "/shop/close": ["post"],
        "/shop/me": ["get", "post"],
        "/odd/a~2Fb~20~7E~C3~A9..": ["get", "post"],
        "/deep/admin.list": ["get", "post"],
        "/odd/~2E~2E": ["get", "post"],
        "/odd/text": ["get", "post"],
        "/fail/on_purpose": ["get", "post"],
        "/fail/by_mistake": ["get", "post"],
        "/fail/slow": ["get", "post"],
        "/far/page": ["get", "post"],
        "/far/tool": ["get", "post"],
        "/plain/sum": ["post"],
        "/plain/any": ["post"],
        "/plain/unserved": ["post"],
        "/clock/ticks": ["get", "post"],
        "/clock/plain": ["get", "post"],
        "/clock/feed": ["post"],
    }


def test_an_operation_says_what_it_takes_gives_and_is(document: dict[str, Any]) -> None:
    post = operation(document, "/math/add")
    assert (post["operationId"], post["summary"], post["description"]) == ("math_add", "Add", "Add two integers.")
    assert post["tags"] == ["numbers"]
    body = post["requestBody"]
    assert body["required"] is True
    assert body["content"]["application/json"]["schema"]["required"] == ["a"]
    assert sorted(post["responses"]) == ["200", "4XX", "default"]
    content = post["responses"]["200"]["content"]
    assert content["application/json"] == {"schema": {"type": "integer"}}
    assert sorted(content) == ["application/json", "application/vnd.opwire.envelope+json"]
    assert post["responses"]["4XX"] == post["responses"]["default"] == {"$ref": "#/components/responses/Problem"}
    assert list(document["components"]["responses"]["Problem"]["content"]) == ["application/problem+json"]
    origin = read_origin(post, "x-opwire")
    assert origin is not None
    assert (origin.id, origin.type, origin.tags) == ("math.add", OperationType.QUERY, ("numbers",))


@pytest.mark.parametrize(
    ("title", "description", "summary"),
    [
        ("Add", "Add two integers.", "Add"),
        ("", "Add two\n  integers. Slowly.\n\nMore.", "Add two integers"),
        ("", "Add.", "Add"),
        ("", "word " * 50, "word " * 23 + "word…"),
        ("", " \n", "math.add"),
    ],
)
def test_an_operation_has_a_summary(title: str, description: str, summary: str) -> None:
    """Every operation in the document has a summary: its title, else the start of its description."""
    spec = OperationSpec(namespace="math", name="add", type="query", title=title, description=description)
    assert summary_of(spec) == summary
    post = build_document([spec], DocumentInfo(title="", version=""))["paths"]["/math/add"]["post"]
    assert post["summary"] == summary


def test_the_properties_of_a_flat_input_are_query_parameters(document: dict[str, Any]) -> None:
    get = operation(document, "/math/add", "get")
    assert get["operationId"] == "math_add_get"
    assert get["parameters"] == [
        {"name": "a", "in": "query", "required": True, "schema": {"type": "integer"}},
        {"name": "b", "in": "query", "required": False, "schema": {"type": "integer", "default": 2}},
    ]
    assert "requestBody" not in get


def test_a_flat_input_that_refers_into_itself_has_parameters_too() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
    found = document_of(spec(input_schema=schema))
    parameters = operation(found, "/a/op", "get")["parameters"]
    assert [each["name"] for each in parameters] == ["a", "b"]
    assert parameters[1]["schema"] == {"$ref": "#/components/schemas/a_op_input/properties/a"}


def test_types_of_python_are_named_components(document: dict[str, Any]) -> None:
    body = operation(document, "/shop/order")["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["lines"]["items"] == {"$ref": "#/components/schemas/Line"}
    line = document["components"]["schemas"]["Line"]
    assert line["properties"]["parts"]["anyOf"][0]["items"] == {"$ref": "#/components/schemas/Line"}
    output = operation(document, "/shop/order")["responses"]["200"]["content"]["application/json"]["schema"]
    assert output == {"$ref": "#/components/schemas/Line"}


def test_what_is_unknown_may_be_anything_and_bytes_are_an_octet_stream(document: dict[str, Any]) -> None:
    anything = operation(document, "/plain/any")
    assert anything["requestBody"] == {"required": False, "content": {"application/json": {"schema": {}}}}
    content = anything["responses"]["200"]["content"]
    assert content["application/json"] == {"schema": {}}
    assert "application/octet-stream" in content
    bytes_first = operation(document, "/odd/a~2Fb~20~7E~C3~A9..")["responses"]["200"]["content"]
    assert list(bytes_first)[:2] == ["application/octet-stream", "application/json"]
    assert "application/octet-stream" not in operation(document, "/math/add")["responses"]["200"]["content"]


def test_an_input_that_is_not_an_object_is_the_unchanged_body(document: dict[str, Any]) -> None:
    body = operation(document, "/plain/sum")["requestBody"]
    assert body["required"] is True
    assert body["content"]["application/json"]["schema"] == {"type": "array", "items": {"type": "integer"}}


def test_a_subscription_is_a_stream_of_events_described_as_the_version_can() -> None:
    ticks = make_registry().get_spec("clock.ticks")
    assert ticks is not None
    for version, keyword in (("3.1", "schema"), ("3.2", "itemSchema")):
        found = document_of(ticks, version=version)
        assert found["openapi"].startswith(version)
        event = operation(found, "/clock/ticks")["responses"]["200"]["content"]["text/event-stream"][keyword]
        assert event["required"] == ["data"]
        assert event["properties"]["data"]["contentSchema"] == {"type": "integer"}


def test_where_tokens_are_taken_the_document_says_so() -> None:
    specs = spec("open", access=AccessControl(public=True)), spec("closed")
    assert document_of(*specs)["security"] == []
    found = document_of(*specs, about=DocumentInfo(title="", version="", takes_tokens=True))
    assert found["security"] == [{"bearer": []}, {"apiKey": []}]
    assert sorted(found["components"]["securitySchemes"]) == ["apiKey", "bearer"]
    assert operation(found, "/a/open")["security"] == []
    assert "security" not in operation(found, "/a/closed")
    optional = document_of(*specs, about=DocumentInfo(title="", version="", takes_tokens=True, allows_anonymous=True))
    assert {} in optional["security"]


def test_the_tags_of_operations_are_declared() -> None:
    found = document_of(spec("one", tags=("b", "a", "b")), spec("two"))
    assert operation(found, "/a/one")["tags"] == ["b", "a"]
    assert found["tags"] == [{"name": "a"}, {"name": "b"}]


def test_the_document_is_about_this_server() -> None:
    about = DocumentInfo(title="Shop", version="2.1", description="Sells tea.", server="/api")
    found = document_of(about=about)
    assert found["info"] == {"title": "Shop", "version": "2.1", "description": "Sells tea."}
    assert found["servers"] == [{"url": "/api"}]
    public = DocumentInfo(title="Shop", version="2.1", server="/api", servers=("https://shop.example/api",))
    assert document_of(about=public)["servers"] == [{"url": "https://shop.example/api"}]
    assert found["openapi"] == "3.1.1"


@pytest.mark.parametrize(
    "envelope",
    [
        local_envelope({"a": 1}, "a.op"),
        local_envelope(None, "a.op"),
        http_envelope(b"\x00", status_code=200, headers={"a": "b"}, content_type="x/y", set_cookie=["c"]),
        mcp_envelope([], is_error=True, content=[{"type": "text", "text": "x"}], structured_content=None),
    ],
)
def test_the_envelope_of_the_document_is_that_of_the_library(envelope: Any) -> None:
    found = document_of(spec())
    schema = operation(found, "/a/op")["responses"]["200"]["content"]["application/vnd.opwire.envelope+json"]["schema"]
    written = jsonschema_rs.validator_for({**schema, "components": found["components"]})
    encoded = encode_envelope(envelope).decode()
    assert written.is_valid(json.loads(encoded))
    assert jsonschema_rs.validator_for(RESPONSE_ENVELOPE_SCHEMA).is_valid(json.loads(encoded))
    assert not written.is_valid({"data": 1, "meta": {"source": "elsewhere"}})


def test_every_problem_is_as_the_document_says() -> None:
    errors = [
        CallError("INTERNAL"),
        CallError("RATE_LIMITED", "x", {"limit": 1}, retry_after=0.5),
        CallError("VALIDATION_ERROR", "x", {"problems": []}),
    ]
    described = validator(document_of(spec()), "Problem")
    for error in errors:
        assert described.is_valid(json.loads(encode_problem(problem_details(error, request_id="é"))))
    assert not described.is_valid({"title": "x"})


def test_only_what_writes_nothing_can_be_got() -> None:
    flat = {"type": "object", "properties": {}}
    assert "GET" in OperationRoute.of(spec(input_schema=flat)).methods
    assert "GET" in OperationRoute.of(spec(input_schema=flat, type=OperationType.SUBSCRIPTION)).methods
    assert "GET" not in OperationRoute.of(spec(input_schema=flat, type=OperationType.MUTATION)).methods
    assert "GET" not in OperationRoute.of(spec()).methods


garbage = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["object", "string", "#", "#/$defs/a", "#/x", "nowhere"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type properties items enum const required anyOf allOf $ref $defs $id a discriminator mapping x".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "$defs", "$ref", "anyOf", "required"]), garbage))
def test_an_invalid_schema_does_not_fail_the_document(json: dict[str, Any]) -> None:
    schema = Schema({"type": "object", **json})
    found = document_of(spec(input_schema=schema, output_schema=Schema(json)), spec("other"))
    assert "/a/other" in found["paths"]
    assert OperationRoute.of(spec(input_schema=schema)).methods[-1] == "POST"


ids = st.text(min_size=1, max_size=8).filter(str.isprintable)


@given(st.lists(ids, max_size=8, unique=True))
def test_operation_ids_are_safe_unique_and_readable(names: list[str]) -> None:
    specs = [spec(name) for name in names]
    found = operation_names(specs)
    assert len(set(found.values())) == len(found) == 2 * len(specs)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in found.values())


def test_operation_ids_that_would_clash_are_numbered() -> None:
    found = operation_names([spec("x/y"), spec("x.y"), spec("x-y_get"), OperationSpec(namespace="1", name="é")])
    assert found["a.x/y"] == "a_x_y"
    assert found["a.x.y"] == "a_x_y_2"
    assert found["a.x-y_get"] == "a_x_y_get_3"
    assert found["1.é"] == "_1"
