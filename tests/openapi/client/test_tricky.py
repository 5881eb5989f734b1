"""Documents as people really write them: odd, old, broken in one place, or hostile."""

from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError
from opwire.model.operation import OperationType
from opwire.openapi.client import from_openapi
from tests.openapi.client.documents import JSON, Read, answers, document, json_body, parameter, read, read_one
from tests.openapi.client.plans import build_request

FORM = "application/x-www-form-urlencoded"
PET = {"type": "object", "properties": {"name": {"type": "string"}}}
FINE = {"/fine": {"get": {"operationId": "fine"}}}


def refer(place: str) -> dict[str, str]:
    return {"$ref": f"#/components/{place}"}


def content(schema: Any, content_type: str = JSON) -> dict[str, Any]:
    return {"content": {content_type: {"schema": schema}}}


def sent(operation: dict[str, Any], input: Any, path: str = "/a", method: str = "post", **fields: Any) -> Any:
    """The address without that of the server, and the body, of the request for an input that has to be valid."""
    only = Read(document({path: {method: operation}}, **fields), base_url="http://api.test").only
    assert only.spec.input_schema.problems(input) == []
    request = build_request(only.plan, input)
    return request.url.removeprefix("http://api.test"), request.body


# --- broken pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        ({"/a": None}, "the path item is not an object"),
        ({"/a": [1]}, "the path item is not an object"),
        ({"/a": {"$ref": "#/paths/~1a"}}, "is part of a cycle"),
        ({"/a": {"$ref": "#/components/pathItems/none"}}, "has no target"),
        ({"/a": {"$ref": "http://["}}, "leads to a document that is not loaded"),
        ({"/a": {"get": None}}, "the operation is not an object"),
        ({"/a": {"get": "x"}}, "the operation is not an object"),
        ({"/a": {"get": refer("x-operations/none")}}, "has no target"),
        ({"/a": {"get": {"parameters": {}}}}, "`parameters` is not an array"),
        ({"/a": {"get": {"parameters": [None]}}}, "needs `name` and `in`"),
        ({"/a": {"get": {"parameters": [{"name": "a"}]}}}, "needs `name` and `in`"),
        ({"/a": {"get": {"parameters": [{"name": "a", "in": "body of it"}]}}}, "needs `name` and `in`"),
        ({"/a": {"get": {"parameters": [refer("parameters/none")]}}}, "has no target"),
        ({"/a": {"get": {"parameters": [refer("parameters/round")]}}}, "is part of a cycle"),
        ({"/a": {"post": {"requestBody": 7}}}, "`requestBody` is not an object"),
        ({"/a": {"post": {"requestBody": refer("requestBodies/none")}}}, "has no target"),
        ({"/a": {"post": {"requestBody": {"$ref": "../../etc/passwd"}}}}, "has no folder to look it up"),
        ({"/a": {"post": {"requestBody": {"$ref": "http://a.test/x.json"}}}}, "`allow_external_refs` does not allow"),
        ({"/a": {"additionalOperations": {"NO GO": {}}}}, "invalid HTTP method"),
        ({"/fine": {"get": {"operationId": "fine"}, "GET": {}}}, "this method and path twice"),
        ({"fine": {"get": {}}}, "this method and path twice"),
        ({"/fine": {"get": {"operationId": "fine"}, "additionalOperations": {"GET": {}}}}, "path twice"),
    ],
)
def test_a_broken_operation_costs_only_itself(paths: Any, why: str) -> None:
    root = document({**FINE, **paths}, "3.2.0", components={"parameters": {"round": refer("parameters/round")}})
    source = from_openapi(root)
    assert [each.spec.name for each in source] == ["fine"]
    (skipped,) = source.report.skipped
    assert why in skipped.reason


@pytest.mark.parametrize(
    "operation",
    [
        {"responses": None, "parameters": None, "requestBody": None, "tags": None, "security": None, "servers": None},
        {"responses": {"200": None, "201": 7, "x-y": {}}, "tags": "x", "security": {}, "servers": [None, {}]},
        {"responses": {"200": {"$ref": "#/components/responses/none"}}},
        {"responses": {"$ref": "http://["}},
        {"responses": {"200": {"content": {JSON: None, "text/plain": 5}}}},
        {"responses": answers({"$ref": "http://["})},
        {"responses": answers([{"type": "string"}])},
        {"requestBody": {"content": None}},
        {"requestBody": {"content": {JSON: refer("x")}}},
        {"callbacks": {"x": 1}, "externalDocs": [], "summary": 1, "description": ["x"]},
        {"security": [None, {"none": None}, {"odd": ["a"]}]},
    ],
)
def test_what_is_empty_or_of_a_wrong_kind_says_nothing(operation: dict[str, Any]) -> None:
    found = read_one(operation, components={"securitySchemes": {"odd": {"type": "oauth2", "flows": {"x": None}}}})
    found.spec.input_schema.compile()
    found.spec.output_schema.compile()


@pytest.mark.parametrize("url", ["//[bad", "https://{none}.test", "ftp://files.test", "https://me:secret@api.test"])
def test_an_unreachable_server_is_reported_by_the_call(url: str) -> None:
    found = Read(document(FINE, servers=[{"url": url}]), uri="https://docs.test/api.json")
    with pytest.raises(CallError, match=r"cannot be called: .*its server") as caught:
        build_request(found.only.plan, {})
    assert "secret" not in str(caught.value)


def test_variables_of_a_server_may_be_numbers() -> None:
    variables = {"port": {"default": 8443}, "version": {"enum": [1.5, 2]}, "beta": {"default": True}}
    found = read(document(FINE, servers=[{"url": "https://api.test:{port}/{version}/{beta}", "variables": variables}]))
    assert found.only.plan.server == "https://api.test:8443/1.5/true"


@pytest.mark.parametrize("ref", ["http://[", "//[::1", "http://a\u2100b.test/x.json"])
def test_an_invalid_reference_fails_only_its_own_part(ref: str) -> None:
    source = from_openapi(document({**FINE, "/a": {"post": {"requestBody": json_body({"$ref": ref})}}}))
    operations = {each.spec.name: each.spec for each in source}
    assert operations["post_a"].input_schema.is_valid({"body": 1})
    assert any("not loaded" in each for each in source.report.warnings)


def test_a_header_that_cannot_be_sent_costs_only_itself() -> None:
    found = read(document({"/a": {"get": {"parameters": [parameter("X Y", "header"), parameter("X-Y", "header")]}}}))
    assert [each.name for each in found.only.plan.parameters] == ["X-Y"]
    assert found.report.warnings == ["GET /a: 'X Y' is not a valid header name: it is not sent"]


# --- where things stand ---------------------------------------------------------------------------------------------


def test_operations_and_responses_may_stand_elsewhere() -> None:
    elsewhere = {
        "x-operations": {"get": {"operationId": "got", "parameters": [parameter("q")], "responses": refer("x-all/a")}},
        "x-all": {"a": answers({"type": "string"})},
    }
    found = read(document({"/a": {"get": refer("x-operations/get")}}, components=elsewhere))["got"]
    assert [each.name for each in found.plan.parameters] == ["q"]
    assert found.spec.output_schema.json == {"type": "string"}


@pytest.mark.parametrize(
    "ref",
    [
        "#/components/schemas/A B",
        "#/components/schemas/A%20B",
        "#components/schemas/A B",
        "#/components/schemas/a~1b~0c%25",
        "#/components/schemas/Page«User»",
        "#/components/schemas/dotted.name",
        "#/components/schemas/chain",
        "#/components/schemas/holder/properties/it",
        "#/paths/~1b~1{id}/get/responses/200/content/application~1json/schema",
        "#/paths/~1b~1%7Bid%7D/get/responses/200/content/application~1json/schema",
        "#/components/parameters/0/schema",
    ],
)
def test_a_reference_is_found_however_it_is_spelt(ref: str) -> None:
    names = ("A B", "a/b~c%", "Page«User»", "dotted.name")
    schemas: dict[str, Any] = {name: {"type": "object", "properties": {"it": {"const": 1}}} for name in names}
    schemas |= {"chain": refer("schemas/link"), "link": refer("schemas/dotted.name")}
    schemas["holder"] = {"properties": {"it": refer("schemas/chain")}}
    paths = {
        "/a": {"get": {"operationId": "a", "responses": answers({"type": "array", "items": {"$ref": ref}})}},
        "/b/{id}": {"get": {"responses": answers(refer("schemas/chain"))}},
    }
    parameters = {"0": {"schema": refer("schemas/chain")}}
    found = read(document(paths, schemas=schemas, components={"parameters": parameters}))
    schema = found["a"].spec.output_schema
    assert schema.is_valid([{"it": 1}])
    assert not schema.is_valid([{"it": 2}])
    assert found.report.warnings == []


def test_files_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "my pets, and others.yaml").write_text("Pet: {type: object, properties: {name: {const: Rex}}}")
    (tmp_path / "api.yaml").write_text(
        "openapi: 3.1.0\npaths:\n  /a:\n    get:\n      responses:\n        default:\n          content:\n"
        "            application/json:\n              schema:\n"
        "                $ref: my pets, and others.yaml#/Pet # which is a file\n"
    )
    (operation,) = from_openapi(tmp_path / "api.yaml")
    assert operation.spec.output_schema.is_valid({"name": "Rex"})
    assert not operation.spec.output_schema.is_valid({"name": "Tom"})


# --- YAML -----------------------------------------------------------------------------------------------------------


def test_what_yaml_takes_for_something_else_is_what_was_written() -> None:
    (operation,) = from_openapi("""
openapi: 3.0
info: {title: T, version: 2020-01-01}
paths:
  /a/{on}:
    parameters:
    get:
      operationId: 1.5
      summary: 2024-01-01
      tags: [yes, 12, 2020-01-01]
      parameters:
        - {name: on, in: path, schema: {type: string, enum: [yes, no, 1, 1.5, true, 2020-01-01]}}
        - {name: 5, in: query, schema: {type: string}}
      responses:
        200:
          content:
            application/json:
              schema: {type: object, properties: {1: {const: 1}, no: {const: no}, 2020-01-01: {const: 0777}}}
""")
    spec = operation.spec
    assert (spec.name, spec.title, spec.tags) == ("1.5", "2024-01-01", ("yes", "12", "2020-01-01"))
    assert all(spec.input_schema.is_valid({"on": on, "5": "x"}) for on in ("yes", "no", "1", "1.5", "true"))
    assert spec.output_schema.is_valid({"1": 1, "no": "no", "2020-01-01": "0777"})
    assert not spec.output_schema.is_valid({"no": False})


def test_an_empty_document_has_no_operations() -> None:
    assert list(from_openapi("openapi: 3.0.0\npaths:\n")) == []
    assert list(from_openapi("openapi: 3.1.0\nwebhooks: {new: {post: {}}}\n")) == []


# --- what is sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "input", "url"),
    [
        ([{"in": "querystring", **content(PET, FORM)}], {"querystring": {"name": "a&b"}}, "?name=a%26b"),
        (
            [{"in": "querystring", "name": "q", **content(PET, FORM)}],
            {"q": {"name": "x", "y": [1, 2]}},
            "?name=x&y=1&y=2",
        ),
        ([{"in": "querystring", "name": "q", **content(PET)}], {"q": {"name": "x"}}, "?%7B%22name%22%3A%22x%22%7D"),
        ([parameter("a[]", schema={"type": "array"})], {"a[]": ["1", "&"]}, "?a%5B%5D=1&a%5B%5D=%26"),
        ([parameter("q&=?#"), parameter("é")], {"q&=?#": "1", "é": "2"}, "?q%26%3D%3F%23=1&%C3%A9=2"),
        ([parameter("f", **content(PET))], {"f": {"name": "x"}}, "?f=%7B%22name%22%3A%22x%22%7D"),
        ([parameter("s", style="nonsense")], {"s": "x"}, "?s=x"),
        ([parameter("id", "path"), parameter("id")], {"path": {"id": "../x"}, "query": {"id": None}}, "..%2Fx"),
    ],
)
def test_odd_parameters_are_sent(parameters: Any, input: Any, url: str) -> None:
    path = "/{id}" if "path" in input else "/"
    assert sent({"parameters": parameters}, input, path, "get", version="3.2.0") == (f"/{url}", None)


@pytest.mark.parametrize(
    ("content_type", "input", "body"),
    [
        ("*/*", {"name": "x"}, b'{"name":"x"}'),
        ("application/*", {"name": "x"}, b'{"name":"x"}'),
        ("application/vnd.pets+json; v=1", {"name": "x"}, b'{"name":"x"}'),
        ("Application/JSON; charset=utf-8", {"name": "x"}, b'{"name":"x"}'),
        (FORM, {"name": None, "other": "x y"}, b"other=x%20y"),
        ("text/csv", {"body": "a,b"}, b"a,b"),
        ("application/xml", {"body": "<pet/>"}, b"<pet/>"),
        ("application/octet-stream", {"body": "AAEC"}, b"\0\1\2"),
        ("image/*", {"body": "AAEC"}, b"\0\1\2"),
    ],
)
def test_odd_bodies_are_sent(content_type: str, input: Any, body: bytes) -> None:
    assert sent({"requestBody": content(PET, content_type)}, input) == ("/a", body)


@pytest.mark.parametrize("version", ["2.0", "3.0.3"])
def test_readonly_properties_are_not_asked_for_and_writeonly_ones_not_promised(version: str) -> None:
    schema = {
        "type": "object",
        "required": ["id", "name", "password"],
        "additionalProperties": False,
        "properties": {"id": {"readOnly": True}, "name": {}, "password": {"writeOnly": True}},
    }
    if version == "2.0":
        body = {"in": "body", "name": "b", "schema": schema, "required": True}
        operation = {"parameters": [body], "responses": {"200": {"schema": schema}}}
    else:
        operation = {"requestBody": json_body(schema), "responses": answers(schema)}
    found = read_one(operation, version=version)
    assert found.spec.input_schema.is_valid({"name": "x", "password": "y"})
    assert not found.spec.input_schema.is_valid({"id": 1, "name": "x", "password": "y"})
    assert found.spec.output_schema.is_valid({"id": 1, "name": "x"})
    assert not found.spec.output_schema.is_valid({"name": "x"})


def test_a_hidden_property_is_nowhere_required() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"readOnly": True}, "name": {}},
        "dependentRequired": {"name": ["id"]},
        "if": {"required": ["name"]},
        "then": {"required": ["id"]},
        "allOf": [{"required": ["id"]}],
    }
    found = read_one({"requestBody": json_body(schema), "responses": answers(schema)})
    assert found.spec.input_schema.is_valid({"body": {"name": "x"}})
    assert not found.spec.output_schema.is_valid({"name": "x"})


# --- what is answered -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("responses", "schema"),
    [
        ({"2XX": content(PET)}, PET),
        ({"2xx": content(PET)}, PET),
        ({"default": content(PET), "404": content({})}, PET),
        ({"200": content(PET), "default": content({})}, PET),
        ({"200": content(PET, "*/*")}, PET),
        ({"200": content(PET, "application/*")}, PET),
        ({"200": content(PET, "application/vnd.x+json")}, PET),
        ({"200": content(PET, "application/pdf")}, True),
        ({"200": {}}, {"type": "null"}),
        ({"204": {"content": {}}}, {"type": "null"}),
        ({"302": {}}, True),
        ({"200": content(PET), "204": {}}, {"anyOf": [PET, {"type": "null"}]}),
        ({"200": content(PET), "201": content(PET)}, PET),
        ({"201": content(PET), "200": content({"type": "string"})}, {"anyOf": [{"type": "string"}, PET]}),
    ],
)
def test_the_schema_is_that_of_the_successful_answer(responses: Any, schema: Any) -> None:
    assert read_one({"responses": responses}, method="get").spec.output_schema.json == schema


@pytest.mark.parametrize(
    ("version", "operation"),
    [
        ("2.0", {"produces": ["text/event-stream"], "responses": {"200": {"description": "events"}}}),
        ("2.0", {"produces": ["text/event-stream"], "responses": {"200": {"schema": {"type": "string"}}}}),
        ("3.0.3", {"responses": {"200": {"content": {"text/event-stream": {}}}}}),
        ("3.2.0", {"responses": {"200": {"content": {"application/jsonl": {"itemSchema": PET}}}}}),
    ],
)
def test_a_stream_is_a_subscription_even_if_nothing_describes_its_items(version: str, operation: Any) -> None:
    assert read_one(operation, method="get", version=version).spec.type is OperationType.SUBSCRIPTION


# --- hostile ones ---------------------------------------------------------------------------------------------------


def chain(link: Any) -> dict[str, Any]:
    """Schemas of which each needs the next one."""
    return {f"S{number}": link(f"#/components/schemas/S{number + 1}") for number in range(1_000)} | {"S1000": PET}


@pytest.mark.parametrize(
    "schemas",
    [
        chain(lambda ref: {"$ref": ref}),
        chain(lambda ref: {"allOf": [{"$ref": ref}]}),
        chain(lambda ref: {"properties": {"next": {"$ref": ref}}}),
    ],
)
def test_a_long_chain_of_schemas_is_read_to_its_end(schemas: Any) -> None:
    operation = {"requestBody": json_body(refer("schemas/S0")), "responses": answers(refer("schemas/S0"))}
    found = read_one(operation, schemas=schemas)
    given = {"name": "x"}
    assert found.spec.input_schema.is_valid(
        given if found.plan.body and not found.plan.body.input_path else {"body": given}
    )
    assert found.spec.output_schema.is_valid(given)


@pytest.mark.parametrize("depth", [90, 150, 300])
def test_a_schema_that_is_too_deep_for_the_compiler_takes_anything(depth: int) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    found = read(document({"/a": {"get": {"responses": answers(schema)}}}))
    found.only.spec.output_schema.compile()
    assert (found.only.spec.output_schema.json is True) is (depth > 100)
    assert bool(found.report.warnings) is (depth > 100)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [refer("schemas/A"), PET]},
        {"anyOf": [refer("schemas/A"), PET]},
        {
            "type": "object",
            "properties": {"a": {"items": refer("schemas/A")}},
            "additionalProperties": refer("schemas/A"),
        },
        {"not": {"allOf": [refer("schemas/A"), {"not": PET}]}},
    ],
)
def test_a_schema_that_contains_itself_does_not_loop(schema: Any) -> None:
    found = read_one({"requestBody": json_body(refer("schemas/A")), "responses": answers(refer("schemas/A"))},
                     schemas={"A": schema})  # fmt: skip
    assert isinstance(found.spec.input_schema.is_valid({"body": {"name": "x"}}), bool)
    assert found.spec.output_schema.fit({"name": "x"}, strip=False).value == {"name": "x"}
