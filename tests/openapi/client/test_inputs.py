"""The input of an operation."""

from typing import Any

import msgspec
import pytest

from opwire import OperationRegistry
from opwire.openapi.client import from_openapi
from opwire.openapi.client.operations import LazyOperation
from opwire.openapi.client.plan import PartEncoding
from opwire.openapi.client.serialize import FILE_SCHEMA
from opwire.schema import Schema
from tests.openapi.client.documents import accepts, answers, document, input_of, json_body, parameter, read, read_one
from tests.openapi.client.echo import EchoServer

PET = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


def body(schema: Any, content_type: str, **fields: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {content_type: {"schema": schema, **fields}}}}


def test_parameters_and_properties_of_the_body_stand_side_by_side() -> None:
    operation = {
        "parameters": [parameter("id", "path"), parameter("dry", schema={"type": "boolean"})],
        "requestBody": json_body(PET),
    }
    one = read_one(operation, "/pets/{id}")
    assert one.spec.input_schema.json == {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "dry": {"type": ["boolean", "null"]},
            "name": {"type": "string"},
            "age": {"type": "integer"},
        },
        "required": ["id", "name"],
    }
    assert [each.input_path for each in one.plan.parameters] == [("id",), ("dry",)]
    assert one.plan.body is not None
    assert (one.plan.body.input_path, one.plan.body.properties, one.plan.body.open) == ((), ("name", "age"), True)


@pytest.mark.parametrize(
    "operation",
    [
        {"parameters": [parameter("name", "path")], "requestBody": json_body(PET)},
        {"parameters": [parameter("name", "path"), parameter("name")], "requestBody": json_body(PET)},
        {"parameters": [parameter("name", "path")], "requestBody": json_body({**PET, "properties": {"age": {}}})},
    ],
)
def test_names_that_clash_put_everything_into_groups(operation: dict[str, Any]) -> None:
    one = read_one(operation, "/pets/{name}")
    groups = ["path", *(["query"] if len(operation["parameters"]) > 1 else []), "body"]
    json = one.spec.input_schema.json
    assert isinstance(json, dict)
    assert list(json["properties"]) == groups
    assert json["required"] == ["path", "body"]
    assert accepts(json, {"path": {"name": "a"}, "body": {"name": "b"}})
    assert not accepts(json, {"path": {}, "body": {"name": "b"}})
    assert not accepts(json, {"path": {"name": "a"}, "body": {}})
    assert one.plan.parameters[0].input_path == ("path", "name")
    assert one.plan.body is not None
    assert one.plan.body.input_path == ("body",)


@pytest.mark.parametrize("properties", [{"id": {"type": "string"}, "age": {}}, {"age": {}}])
async def test_a_property_named_like_a_parameter_does_not_take_its_place(
    server: EchoServer, properties: dict[str, Any]
) -> None:
    put = {
        "operationId": "put",
        "parameters": [parameter("id", "path")],
        "requestBody": json_body({"type": "object", "properties": properties, "required": ["id"]}),
        "responses": {"200": {"description": ""}},
    }
    async with from_openapi(document({"/pets/{id}": {"put": put}}), namespace="pets", base_url=server.url) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        await registry.execute("pets.put", {"path": {"id": "a"}, "body": {"id": "b", "age": 3}})
    (arrived,) = server.arrived
    assert (arrived.path, msgspec.json.decode(arrived.body)) == ("/pets/a", {"id": "b", "age": 3})


def test_a_parameter_called_body_clashes_with_a_body_that_stands_under_that_name() -> None:
    operation = {"parameters": [parameter("body")], "requestBody": json_body({"type": "array"})}
    assert list(input_of(operation)["properties"]) == ["query", "body"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/components/schemas/Pet"},
        {"allOf": [{"$ref": "#/components/schemas/Pet"}, {"description": "x"}]},
        {
            "allOf": [
                {"properties": {"name": {"type": "string"}}},
                {"properties": PET["properties"], "required": ["name"]},
            ]
        },
        {**PET, "x-more": 1, "title": "Pet", "example": {}, "discriminator": {"propertyName": "name"}},
    ],
)
def test_objects_are_taken_apart_through_references_and_all_of(schema: Any) -> None:
    json = input_of({"requestBody": json_body(schema)}, schemas={"Pet": PET})
    assert set(json["properties"]) == {"name", "age"}
    assert json["required"] == ["name"]
    assert accepts(json, {"name": "Rex"})
    assert not accepts(json, {"name": 1})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {}},
        {"type": "object"},
        {**PET, "type": ["object", "null"]},
        {**PET, "minProperties": 1},
        {**PET, "anyOf": [{"required": ["age"]}]},
        {"oneOf": [PET, {"type": "string"}]},
        {"allOf": [PET, {"oneOf": [{}, {}]}]},
        {"allOf": [{**PET, "additionalProperties": False}, {"properties": {"b": {}}}]},
        {"$ref": "#/components/schemas/Endless"},
        True,
    ],
)
def test_any_other_body_stands_under_its_own_name(schema: Any) -> None:
    endless = {"allOf": [{"$ref": "#/components/schemas/Endless"}, {"properties": {"a": {}}}]}
    one = read_one({"requestBody": json_body(schema)}, schemas={"Endless": endless})
    json = one.spec.input_schema.json
    assert isinstance(json, dict)
    assert list(json["properties"]) == ["body"]
    assert json["required"] == ["body"]
    assert json["additionalProperties"] is False
    one.spec.input_schema.compile()
    assert one.plan.body is not None
    assert one.plan.body.input_path == ("body",)


@pytest.mark.parametrize(
    ("extras", "takes", "is_open"), [({}, True, True), ({"additionalProperties": False}, False, False),
    ({"additionalProperties": {"type": "integer"}}, True, True), ({"additionalProperties": True}, True, True)],
)  # fmt: skip
def test_what_the_body_says_of_other_properties_counts(extras: Any, takes: bool, is_open: bool) -> None:
    one = read_one({"parameters": [parameter("q")], "requestBody": json_body({**PET, **extras})})
    assert one.spec.input_schema.is_valid({"name": "Rex", "other": 1}) is takes
    assert one.plan.body is not None
    assert one.plan.body.open is is_open


def test_what_is_required_without_being_declared_is_required() -> None:
    json = input_of({"requestBody": json_body({**PET, "required": ["name", "other"]})})
    assert json["required"] == ["name", "other"]


def test_without_a_body_nothing_but_the_parameters_is_taken() -> None:
    json = input_of({"parameters": [parameter("q")]}, method="get")
    assert json == {"type": "object", "properties": {"q": {"type": ["string", "null"]}}, "additionalProperties": False}


def test_a_body_that_may_be_left_out_has_to_be_whole_if_it_is_given() -> None:
    json = input_of({"requestBody": json_body(PET, required=False)})
    assert accepts(json, {})
    assert accepts(json, {"name": "Rex", "age": 1})
    assert not accepts(json, {"age": 1})
    assert "required" not in json


def test_an_empty_closed_body_asks_for_nothing() -> None:
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    one = read_one({"parameters": [parameter("q")], **body(empty, FORM)})
    json = one.spec.input_schema.json
    assert isinstance(json, dict)
    assert list(json["properties"]) == ["q"]


def test_what_only_answers_hold_is_not_asked_for() -> None:
    properties = {"id": {"type": "integer", "readOnly": True}, "name": {}}
    pet = {"type": "object", "properties": properties, "required": ["id", "name"]}
    operation = {"parameters": [parameter("id", "path")], "requestBody": json_body(pet)}
    json = input_of(operation, "/pets/{id}")
    assert json["properties"] == {"id": {"type": "string"}, "name": {}}
    assert json["required"] == ["id", "name"]


def test_what_describes_a_parameter_describes_its_value() -> None:
    given = parameter("q", description="what", deprecated=True, schema={"type": "string", "default": "x"})
    json = input_of({"parameters": [given, parameter("r", examples={"a": {"value": 1}}), parameter("s", example="y")]})
    text = {"type": ["string", "null"]}
    assert json["properties"] == {
        "q": {**text, "default": "x", "description": "what", "deprecated": True},
        "r": {**text, "examples": [1]},
        "s": {**text, "examples": ["y"]},
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "string", "enum": ["a"], "description": "x"},
        {"$ref": "#/components/schemas/Id"},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"type": ["integer", "null"]},
        {"type": "null"},
        {"const": 1},
        {},
    ],
)
def test_what_may_be_left_out_may_be_none(schema: Any) -> None:
    form = {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a"]}
    operation = {
        "parameters": [parameter("q", schema=schema), parameter("r", schema=schema, required=True)],
        **body(form, FORM),
    }
    json = input_of(operation, schemas={"Id": {"type": "integer"}})
    plain = accepts({**schema, "components": {"schemas": {"Id": {"type": "integer"}}}}, None)
    takes = {name: accepts({**json, "required": []}, {name: None}) for name in ("q", "b", "r", "a")}
    assert takes == {"q": True, "b": True, "r": plain, "a": plain}
    assert json["properties"]["q"].get("description") == schema.get("description")


def test_none_in_json_is_null_and_has_to_be_allowed() -> None:
    json = input_of({"requestBody": json_body(PET)})
    assert not accepts(json, {"name": "Rex", "age": None})


def test_definitions_stand_at_the_root_of_the_input() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}}
    operation = {
        "parameters": [parameter("at", schema={"$ref": "#/components/schemas/Id"})],
        "requestBody": json_body({"$ref": "#/components/schemas/Node"}),
    }
    json = input_of(operation, schemas={"Node": node, "Id": {"type": "integer"}, "Other": {}})
    assert set(json["$defs"]) == {"Node", "Id"}
    assert accepts(json, {"at": 1, "next": {"next": {}}})
    assert not accepts(json, {"next": {"next": 1}})


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", ["application/octet-stream", "image/png", "application/pdf", "video/*"])
def test_a_binary_body_is_a_file(content_type: str) -> None:
    one = read_one(body({"type": "string", "format": "binary"}, content_type))
    json = one.spec.input_schema.json
    assert isinstance(json, dict)
    assert json["properties"]["body"] == FILE_SCHEMA
    assert one.plan.file_paths == (("body",),)
    assert one.plan.body is not None
    assert one.plan.body.binary


@pytest.mark.parametrize(
    ("field", "encoding"),
    [
        ({"type": "string", "format": "binary"}, {}),
        ({"type": "string", "contentMediaType": "image/png"}, {}),
        ({"contentMediaType": "application/octet-stream"}, {}),
        ({"type": "string"}, {"contentType": "image/png, image/jpeg"}),
        ({}, {}),
        ({"$ref": "#/components/schemas/File"}, {}),
    ],
)
def test_a_field_that_is_a_file_takes_one(field: Any, encoding: Any) -> None:
    form = {"type": "object", "properties": {"file": field, "note": {"type": "string"}}}
    one = read_one(
        body(form, MULTIPART, encoding={"file": encoding}), schemas={"File": {"type": "string", "format": "binary"}}
    )
    json = one.spec.input_schema.json
    assert isinstance(json, dict)
    assert json["properties"]["file"] == {"anyOf": [*FILE_SCHEMA["anyOf"], {"type": "null"}]}
    assert one.plan.file_paths == (("file",),)
    assert one.plan.body is not None
    assert one.plan.body.parts["file"].binary
    assert "note" not in one.plan.body.parts


def test_several_files_and_unions_of_files_are_taken() -> None:
    binary = {"type": "string", "format": "binary"}
    fields = {
        "many": {"type": "array", "items": binary},
        "either": {"anyOf": [binary, {"type": "array", "items": binary}]},
    }
    one = read_one(body({"type": "object", "properties": fields}, MULTIPART))
    assert one.spec.input_schema.is_valid({"many": ["aGk=", {"data": "aGk=", "filename": "a"}], "either": "aGk="})
    assert one.spec.input_schema.is_valid({"either": ["aGk="]})
    assert one.plan.file_paths == (("many",), ("either",))


def test_base64_in_json_and_in_forms_stays_text() -> None:
    fields = {"a": {"type": "string", "format": "byte"}, "b": {"type": "string", "contentEncoding": "base64"}}
    for content_type in ("application/json", FORM, MULTIPART):
        assert read_one(body({"type": "object", "properties": fields}, content_type)).plan.file_paths == ()


# --- kinds of body --------------------------------------------------------------------------------------------------


def test_json_is_preferred_to_every_other_kind_of_body() -> None:
    kinds = [MULTIPART, "text/plain", FORM, "application/vnd.x+json", "application/json; charset=utf-8"]
    content = {kind: {"schema": PET} for kind in kinds}
    chosen: list[str] = []
    for _ in kinds:
        plan = read_one({"requestBody": {"content": content}}).plan
        assert plan.body is not None
        chosen.append(plan.body.content_type)
        del content[chosen[-1]]
    assert chosen == ["application/json; charset=utf-8", "application/vnd.x+json", FORM, MULTIPART, "text/plain"]


def test_an_object_is_sent_as_a_merge_patch_and_not_as_a_list_of_changes() -> None:
    content = {f"application/{kind}-patch+json": {"schema": {"type": "object"}} for kind in ("json", "merge")}
    plan = read_one({"requestBody": {"content": content}}, method="patch").plan
    assert plan.body is not None
    assert plan.body.content_type == "application/merge-patch+json"


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "text/csv"])
def test_text_stays_text_even_if_it_looks_like_another_type(content_type: str) -> None:
    json = input_of(body(PET, content_type))
    assert json["properties"]["body"]["type"] == "string"


def test_the_encoding_of_a_form_says_how_its_fields_are_sent() -> None:
    form = {"type": "object", "properties": {name: {} for name in "abcd"}}
    encoding = {
        "a": {"style": "deepObject", "explode": True},
        "b": {"explode": False},
        "c": {
            "contentType": "application/json",
            "headers": {"X-Kind": {"schema": {"const": "k"}}, "X-Any": {"schema": {}}},
        },
    }
    plan = read_one(body(form, FORM, encoding=encoding)).plan
    assert plan.body is not None
    assert plan.body.parts == {
        "a": PartEncoding(style="deepObject", explode=True),
        "b": PartEncoding(style="form", explode=False),
        "c": PartEncoding(content_type="application/json", headers={"X-Kind": "k"}, explode=True),
    }


# --- streams --------------------------------------------------------------------------------------------------------


def chat(**stream: Any) -> dict[str, Any]:
    answers = {kind: {"schema": {"type": "object"}} for kind in ("application/json", "text/event-stream")}
    request = {"type": "object", "properties": {"q": {"type": "string"}, "stream": stream}, "required": ["q"]}
    return {
        "operationId": "chat",
        "requestBody": json_body(request, required=False),
        "responses": {"200": {"content": answers}},
    }


@pytest.mark.parametrize(
    ("stream", "plain"),
    [
        ({"type": "boolean"}, {}),
        ({"type": "boolean", "default": True}, {"stream": False}),
        ({"type": ["boolean", "null"], "default": False}, {}),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, {}),
    ],
)
def test_a_request_for_a_stream_says_so(stream: dict[str, Any], plain: dict[str, Any]) -> None:
    both = read(document({"/chat": {"post": chat(**stream)}}))
    assert list(both.operations) == ["chat", "chat_stream"]
    for name, fixed in (("chat", plain), ("chat_stream", {"stream": True})):
        json = both[name].spec.input_schema.json
        assert isinstance(json, dict)
        assert list(json["properties"]) == ["q"]
        sent = both[name].plan.body
        assert sent is not None
        assert sent.fixed == fixed
        assert sent.required is bool(fixed)


def test_a_stream_parameter_that_is_not_a_switch_is_left_to_the_caller() -> None:
    both = read(document({"/chat": {"post": chat(type="string")}}))
    json = both["chat_stream"].spec.input_schema.json
    assert isinstance(json, dict)
    assert list(json["properties"]) == ["q", "stream"]


# --- Swagger 2.0 ----------------------------------------------------------------------------------------------------


def test_the_body_of_swagger_is_a_parameter() -> None:
    given = {"name": "pet", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Pet"}}
    json = input_of({"parameters": [given]}, version="2.0", schemas={"Pet": PET})
    assert set(json["properties"]) == {"name", "age"}


def test_the_form_of_swagger_is_made_of_parameters() -> None:
    fields = [
        {"name": "file", "in": "formData", "type": "file", "required": True, "description": "a picture"},
        {"name": "tags", "in": "formData", "type": "array", "items": {"type": "string"}, "collectionFormat": "pipes"},
        {"name": "note", "in": "formData", "type": "string"},
    ]
    one = read_one({"parameters": fields, "consumes": [FORM]}, version="2.0")
    json = one.spec.input_schema.json
    assert isinstance(json, dict)
    assert json["properties"]["file"] == {**FILE_SCHEMA, "description": "a picture"}
    assert json["required"] == ["file"]
    assert one.plan.body is not None
    assert one.plan.body.content_type == MULTIPART
    assert one.plan.body.parts["tags"] == PartEncoding(style="pipeDelimited", explode=False)
    without = read_one({"parameters": fields[1:], "consumes": [MULTIPART, FORM]}, version="2.0").plan.body
    assert without is not None
    assert without.content_type == FORM


def test_every_input_schema_is_usable() -> None:
    operation = {"parameters": [parameter("a", schema=None), parameter("b", content={"text/plain": {}})]}
    one = read_one(operation)
    assert one.spec.input_schema.is_valid({"a": [1], "b": "x"})
    assert not Schema(one.spec.input_schema.json).is_valid({"c": 1})


def properties_of(operation: LazyOperation) -> dict[str, Any]:
    schema = operation.spec.input_schema.json
    assert isinstance(schema, dict)
    return schema["properties"]


DATE = {"type": "string", "format": "date-time"}
OVERLAP = {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]}
CLOSED = {
    "allOf": [
        {"$ref": "#/components/schemas/Base"},
        {"type": "object", "properties": {"c": {"type": "integer"}}, "additionalProperties": False},
    ],
    "properties": {"b": {"type": "string"}},
    "additionalProperties": False,
}
BASE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (DATE, "2021-01-17T12:34:00.000+0000", 7),
        (OVERLAP, {"a": 1, "b": 2}, []),
        ({**OVERLAP, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 2}, {}),
        (CLOSED, {"a": 1, "b": "x", "c": 2}, {"a": 1, "b": "x", "c": "2"}),
        (
            {"allOf": [{"$ref": "#/components/schemas/Closed"}, {"$ref": "#/components/schemas/Alias"}]},
            {"a": 1, "d": 2},
            {"a": 1, "d": "2"},
        ),
        (
            {"allOf": [{"$ref": "#/components/schemas/Maps"}], "properties": {"e": {"type": "integer"}}},
            {"a": 1, "e": 2},
            {"a": 1, "e": "2"},
        ),
        (
            {"anyOf": [{"$ref": "#/components/schemas/Base"}], "additionalProperties": False},
            {"a": 1},
            {"a": "x"},
        ),
    ],
)
@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_an_input_that_only_the_document_contradicts_is_accepted_unless_strict(
    schema: Any, accepted: Any, rejected: Any, version: str
) -> None:
    # As an item, so that the body stays one value.
    """`format`, overlapping `oneOf` and misplaced restrictions reject an input only if strict."""
    operation = {"requestBody": json_body({"type": "array", "items": schema})}
    closed = {**BASE, "additionalProperties": False}
    other = {"type": "object", "properties": {"d": {"type": "integer"}}, "additionalProperties": False}
    maps = {**BASE, "additionalProperties": {"type": "object"}}
    schemas = {
        "Base": BASE,
        "Closed": closed,
        "Maps": maps,
        "Other": other,
        "Alias": {"$ref": "#/components/schemas/Other"},
    }
    given = document({"/x": {"post": operation}}, version, schemas=schemas)
    relaxed, strict = read(given).only, read(given, strict_input=True).only
    assert relaxed.spec.input_schema.is_valid({"body": [accepted]})
    assert relaxed.spec.input_schema.problems({"body": [accepted]}) == []
    assert not strict.spec.input_schema.is_valid({"body": [accepted]})
    for each in (relaxed, strict):
        assert not each.spec.input_schema.is_valid({"body": [rejected]})
    assert schema is not DATE or properties_of(relaxed)["body"]["items"] == DATE


def test_an_output_and_a_trusted_input_are_checked_as_declared() -> None:
    operation = {"requestBody": json_body({"type": "array", "items": OVERLAP}), "responses": answers(DATE)}
    given = document({"/x": {"post": operation}})
    assert not read(given).only.spec.output_schema.is_valid("yesterday")
    assert not read(given, trust_annotations=True).only.spec.input_schema.is_valid({"body": [{"a": 1, "b": 2}]})


def test_a_composed_object_stays_closed_if_only_it_declares_properties() -> None:
    schema = {**BASE, "additionalProperties": False, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    operation = {"requestBody": json_body({"type": "array", "items": schema})}
    schema = read(document({"/x": {"post": operation}})).only.spec.input_schema
    assert schema.is_valid({"body": [{"a": 1}]})
    assert not schema.is_valid({"body": [{"a": 1, "aa": 1}]})


def test_problems_of_a_relaxed_input_leave_formats_out() -> None:
    schema = {"type": "object", "properties": {"at": DATE, "n": {"type": "integer"}}}
    one = read_one({"requestBody": json_body(schema)})
    assert [each.path for each in one.spec.input_schema.problems({"at": "yesterday", "n": "x"})] == ["/n"]


@pytest.mark.parametrize(
    ("items", "becomes"),
    [
        ({"type": "string"}, {"type": "string", "enum": ["a", "1"]}),
        ({"$ref": "#/components/schemas/Word"}, {"allOf": [{"$ref": "#/$defs/Word"}], "enum": ["a", 1]}),
        (None, {"enum": ["a", 1]}),
    ],
)
def test_the_enum_of_an_array_that_lists_items_is_applied_to_them(items: Any, becomes: Any) -> None:
    schema = {"type": "array", "enum": ["a", 1], **({"items": items} if items else {})}
    found = read(
        document({"/x": {"get": {"parameters": [parameter("q", schema=schema, required=True)]}}}, schemas={"Word": {}})
    )
    assert properties_of(found.only)["q"] == {"type": "array", "items": becomes}
    assert "applied to the items" in found.report.warnings[0]
    kept = {"type": "array", "enum": [["a"], []]}
    one = read(document({"/x": {"get": {"parameters": [parameter("q", schema=kept, required=True)]}}})).only
    assert properties_of(one)["q"] == kept
