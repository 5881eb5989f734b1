"""Forms with a schema that is not a plain object: their files are still files, and their fields have their encoding."""

import time
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest

from opwire.http.client import HTTPRequest
from opwire.openapi.client import from_openapi
from opwire.openapi.client.operations import LazyOperation
from opwire.openapi.client.serialize import prepare_files
from tests.openapi.client.documents import Read, accepts, document, json_body, parameter, read_one
from tests.openapi.client.plans import build_request

FILE = {"type": "string", "format": "binary"}
TEXT = {"type": "string"}
MULTIPART = "multipart/form-data"
SERVER = [{"url": "http://api.test"}]

OBJECT = {"type": "object", "properties": {"file": FILE, "note": TEXT}}
SHAPES: dict[str, dict[str, Any]] = {
    "anyOf": {"anyOf": [OBJECT, {"type": "object", "required": ["url"], "properties": {"url": TEXT}}]},
    "oneOf": {"oneOf": [OBJECT, {"type": "object", "required": ["url"], "properties": {"url": TEXT}}]},
    "nested": {"allOf": [{"anyOf": [{"oneOf": [OBJECT]}]}]},
    "reference": {"anyOf": [{"$ref": "#/components/schemas/Upload"}]},
    "if": {**OBJECT, "if": {"required": ["note"]}, "then": {"required": ["file"]}},
    "then": {"type": "object", "properties": {"note": TEXT}, "if": {}, "then": {"properties": {"file": FILE}}},
    "else": {"type": "object", "if": False, "else": {"properties": {"file": FILE, "note": TEXT}}},
    "not": {**OBJECT, "not": {"required": ["url"]}},
    "dependentRequired": {**OBJECT, "dependentRequired": {"note": ["file"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"note": OBJECT}},
    "patternProperties": {**OBJECT, "patternProperties": {"^x-": TEXT}},
    "propertyNames": {**OBJECT, "propertyNames": {"maxLength": 10}},
    "minProperties": {**OBJECT, "minProperties": 1},
    "nullable": {**OBJECT, "type": ["object", "null"]},
    "empty elsewhere": {"anyOf": [OBJECT, {"properties": {"file": {}}, "required": ["file"]}]},
}


def form(schema: dict[str, Any], content_type: str = MULTIPART, version: str = "3.1.0", **fields: Any) -> LazyOperation:
    body = {"required": True, "content": {content_type: {"schema": schema, **fields}}}
    return read_one({"requestBody": body}, version=version, servers=SERVER, schemas={"Upload": OBJECT})


def sent(operation: LazyOperation, input: Any) -> HTTPRequest:
    """The request of an input that has passed its schema, as a call has it."""
    plain = prepare_files(operation.plan)(input)
    assert accepts(operation.spec.input_schema.json, plain), plain
    return build_request(operation.plan, plain)


def parts_of(request: HTTPRequest) -> dict[str, Message]:
    kind = dict(request.headers)["Content-Type"]
    message = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + (request.body or b""))
    parts = list(message.walk())[1:]
    return {str(part.get_param("name", str(index), "content-disposition")): part for index, part in enumerate(parts)}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_of_any_form_is_sent_as_a_file(shape: str) -> None:
    operation = form(SHAPES[shape], encoding={"note": {"contentType": "text/markdown"}})
    value = {"file": ("a.png", b"\x89PNG\xff", "image/png"), "note": "# hello"}
    parts = parts_of(
        sent(operation, value if operation.plan.body and not operation.plan.body.input_path else {"body": value})
    )
    assert parts["file"].get_filename() == "a.png"
    assert parts["file"].get_content_type() == "image/png"
    assert parts["file"].get_payload(decode=True) == b"\x89PNG\xff"
    assert parts["note"].get_content_type() == "text/markdown"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_form_without_parts_has_its_encoding_under_any_schema(shape: str) -> None:
    operation = form(
        {"allOf": [SHAPES[shape], {"properties": {"tags": {"type": "array"}}}]},
        "application/x-www-form-urlencoded",
        encoding={"tags": {"style": "pipeDelimited", "explode": False}},
    )
    value = {"tags": ["a", "b"]}
    request = sent(operation, value if operation.plan.body and not operation.plan.body.input_path else {"body": value})
    assert request.body == b"tags=a%7Cb"


def test_a_body_that_may_be_null_in_3_0_keeps_its_files() -> None:
    operation = form({**OBJECT, "nullable": True}, version="3.0.3")
    assert parts_of(sent(operation, {"body": {"file": b"x"}}))["file"].get_filename() == "file"


@pytest.mark.parametrize("note", [{}, {"note": TEXT}])
def test_extras_of_a_form_can_be_files(note: dict[str, Any]) -> None:
    operation = form({"type": "object", "properties": note, "additionalProperties": FILE})
    request = sent(
        operation,
        {"a": ("a.bin", b"\0"), "b": b"\xff", **dict.fromkeys(note, "text")}
        if note
        else {"body": {"a": ("a.bin", b"\0"), "b": b"\xff"}},
    )
    parts = parts_of(request)
    assert (parts["a"].get_filename(), parts["a"].get_payload(decode=True)) == ("a.bin", b"\0")
    assert (parts["b"].get_filename(), parts["b"].get_payload(decode=True)) == ("b", b"\xff")
    if note:
        assert parts["note"].get_filename() is None


def test_extras_that_are_files_leave_parameters_alone() -> None:
    body = {
        "content": {MULTIPART: {"schema": {"type": "object", "properties": {"n": TEXT}, "additionalProperties": FILE}}}
    }
    operation = read_one({"parameters": [parameter("q")], "requestBody": body}, servers=SERVER)
    request = sent(operation, {"q": "text", "n": "x", "f": b"\0"})
    assert request.url.endswith("?q=text")
    assert parts_of(request)["f"].get_payload(decode=True) == b"\0"


def test_properties_by_pattern_can_be_files_and_others_are_not() -> None:
    schema = {"type": "object", "patternProperties": {"^file": FILE, "^text": TEXT}}
    parts = parts_of(sent(form(schema), {"body": {"file1": b"\0", "text1": "AAAA", "other": "AAAA"}}))
    assert parts["file1"].get_filename() == "file1"
    assert [parts[each].get_filename() for each in ("text1", "other")] == [None, None]
    assert parts["text1"].get_payload() == "AAAA"


@pytest.mark.parametrize(
    ("nullable", "version"),
    [
        ({"type": ["string", "null"], "format": "binary"}, "3.1.0"),
        ({"type": ["null", "string"], "format": "binary"}, "3.1.0"),
        ({"anyOf": [FILE, {"type": "null"}]}, "3.1.0"),
        ({**FILE, "nullable": True}, "3.0.3"),
    ],
)
def test_a_required_file_that_may_be_null_may_be_none(nullable: dict[str, Any], version: str) -> None:
    """An optional parameter or form field may be None."""
    operation = form(
        {"type": "object", "required": ["file"], "properties": {"file": nullable, "n": TEXT}}, version=version
    )
    assert "file" not in parts_of(sent(operation, {"file": None, "n": "x"}))
    assert parts_of(sent(operation, {"file": b"x"}))["file"].get_filename() == "file"
    assert not accepts(operation.spec.input_schema.json, {"n": "x"})


def test_items_of_a_multipart_array_are_sent_by_their_position() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "object"}, FILE], "items": FILE}
    operation = form(
        schema,
        "multipart/mixed",
        "3.2.0",
        prefixEncoding=[{"headers": {"X-Kind": {"schema": {"const": "meta"}}}}, {"contentType": "image/png"}],
        itemEncoding={"contentType": "image/gif"},
    )
    parts = parts_of(sent(operation, {"body": [{"a": 1}, b"\x89", b"GIF", ("x.gif", b"G2")]}))
    kinds = [part.get_content_type() for part in parts.values()]
    assert kinds == ["application/json", "image/png", "image/gif", "image/gif"]
    assert [part.get_payload(decode=True) for part in parts.values()] == [b'{"a":1}', b"\x89", b"GIF", b"G2"]
    assert parts["0"]["X-Kind"] == "meta"


@pytest.mark.parametrize(
    ("charset", "expected"), [("iso-8859-1", b"\xe9"), ("utf-8", b"\xc3\xa9"), ("utf-16le", b"\xe9\0")]
)
def test_a_part_is_written_in_its_charset(charset: str, expected: bytes) -> None:
    operation = form(OBJECT, encoding={"note": {"contentType": f"text/plain; charset={charset}"}})
    assert expected in (sent(operation, {"note": "é"}).body or b"")


def test_the_headers_of_a_part_are_sent_where_the_document_has_a_value() -> None:
    headers = {
        "X-One": {"schema": {"enum": ["one"]}},
        "X-Default": {"required": True, "schema": {"type": "integer", "default": 5}},
        "X-Optional": {"schema": {"default": "no"}},
        "X-Unknown": {"required": True, "schema": TEXT},
    }
    body = {"content": {MULTIPART: {"schema": OBJECT, "encoding": {"note": {"headers": headers}}}}}
    found = Read(document({"/a": {"post": {"requestBody": body}}}, servers=SERVER))
    part = parts_of(sent(found.only, {"note": "x"}))["note"]
    assert {name: part[name] for name in headers} == {
        "X-One": "one",
        "X-Default": "5",
        "X-Optional": None,
        "X-Unknown": None,
    }
    assert any("X-Unknown" in warning for warning in found.report.warnings)


# --- stream: true -----------------------------------------------------------------------------------------------------

BOTH = {"200": {"description": "", "content": {"application/json": {}, "text/event-stream": {}}}}
BASE = {
    "type": "object",
    "properties": {"stream": {"type": "boolean", "default": False}, "text": TEXT},
    "required": ["text"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"stream": {"enum": [True]}}}]},
        {"anyOf": [{"$ref": "#/components/schemas/Base"}, {"type": "object", "properties": {"other": TEXT}}]},
        {"oneOf": [{**BASE, "required": ["text", "stream"]}]},
        {**BASE, "minProperties": 1},
        {**BASE, "type": ["object", "null"]},
        {**BASE, "dependentRequired": {"text": ["stream"]}},
    ],
)
def test_the_streaming_form_requests_a_stream_under_any_schema(schema: dict[str, Any]) -> None:
    operation = {"operationId": "chat", "requestBody": json_body(schema), "responses": BOTH}
    found = Read(document({"/a": {"post": operation}}, servers=SERVER, schemas={"Base": BASE}))
    request = sent(found["chat_stream"], {"body": {"text": "hi"}})
    assert request.body == b'{"text":"hi","stream":true}'
    assert b"stream" not in (sent(found["chat"], {"body": {"text": "hi"}}).body or b"") or schema.get("oneOf")
    if not {"allOf", "anyOf"} & schema.keys():  # these may have other properties
        assert not accepts(found["chat_stream"].spec.input_schema.json, {"body": {"text": "hi", "stream": "x"}})


def test_streams_of_mistral_ask_for_a_stream(shared: Path) -> None:
    api = {each.spec.name: each for each in from_openapi(shared / "openapi" / "mistral.yaml", strict_input=True)}
    for name in ("append", "restart"):
        operation = api[f"agents_api_v1_conversations_{name}_stream"]
        json = operation.spec.input_schema.json
        assert isinstance(json, dict)
        assert not accepts({**json["properties"]["body"], "$defs": json["$defs"]}, {"inputs": "x", "stream": False})


# --- whole queries ----------------------------------------------------------------------------------------------------


def test_a_whole_query_that_is_a_form_has_its_encoding() -> None:
    form = {"schema": {"type": "object"}, "encoding": {"tags": {"style": "spaceDelimited", "explode": False}}}
    whole = {"in": "querystring", "name": "q", "content": {"application/x-www-form-urlencoded": form}}
    operation = read_one({"parameters": [whole]}, method="get", version="3.2.0", servers=SERVER)
    request = sent(operation, {"q": {"tags": ["a", "b"], "x": [1, 2]}})
    assert request.url == "http://api.test/things?tags=a%20b&x=1&x=2"


def test_definitions_that_name_each_other_several_times_do_not_multiply() -> None:
    levels: dict[str, Any] = {
        f"L{number}": {"anyOf": [{"$ref": f"#/components/schemas/L{number + 1}"}] * 30} for number in range(18)
    }
    body = {"content": {MULTIPART: {"schema": {"$ref": "#/components/schemas/L0"}}}}
    operation = read_one({"requestBody": body}, schemas={**levels, "L18": OBJECT}, servers=SERVER)
    spent = time.process_time()
    assert operation.plan.body is not None
    assert operation.plan.body.parts["file"].binary
    assert time.process_time() - spent < 5  # of CPU; 30 to the power of 18 schemas would take for ever
