"""XML bodies and answers by the `xml` hints of a document, against the examples of the specification and a parser."""

import logging
import time
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, OperationRegistry
from opwire.model.operation import ShapedResult
from opwire.openapi.client import from_openapi
from opwire.openapi.client.responses import ResponseHead, ResponseReader
from opwire.openapi.client.xml_text import XMLNode, XMLRoot, read_xml, write_xml
from tests.openapi.client.documents import Read, answers, document
from tests.openapi.client.echo import EchoServer, answer
from tests.openapi.client.plans import build_request
from tests.properties import examples

XML = "application/xml"
SERVER = [{"url": "http://api.example"}]
TEXT = {"type": "string"}


def api(schema: Any, *, version: str = "3.1.0", content_type: str = XML, **schemas: Any) -> Read:
    """A document with one operation that takes and returns a `Thing`."""
    body = {"required": True, "content": {content_type: {"schema": {"$ref": "#/components/schemas/Thing"}}}}
    operation = {
        "operationId": "put",
        "requestBody": body,
        "responses": answers({"$ref": "#/components/schemas/Thing"}, content_type=content_type),
    }
    root = document({"/": {"put": operation}}, version, servers=SERVER, schemas={"Thing": schema, **schemas})
    return Read(root)


def written(schema: Any, value: Any, **options: Any) -> str:
    """The XML of a value, without its declaration; a caller gives an object in properties, and other values whole."""
    operation = api(schema, **options).only
    input = value if isinstance(value, dict) else {"body": value}
    assert operation.spec.input_schema.problems(input) == []
    request = build_request(operation.plan, input)
    assert ("Content-Type", options.get("content_type", XML)) in request.headers
    assert request.body is not None
    declaration, _, text = request.body.decode().partition("\n")
    assert declaration == '<?xml version="1.0" encoding="UTF-8"?>'
    ElementTree.fromstring(text)
    return text


def answered(schema: Any, body: bytes, content_type: str = XML, **options: Any) -> ShapedResult:
    """What becomes of an answer in XML."""
    head = ResponseHead(method="PUT", status=200, reason="OK", headers=[], content_type=content_type)
    return ResponseReader(api(schema, **options).only.plan).read(head, body)


PERSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "xml": {"attribute": True}},
        "name": {"type": "string", "xml": {"namespace": "http://example.com/schema/sample", "prefix": "sample"}},
        "age": {"type": "number"},
        "alive": {"type": "boolean"},
    },
}
ARRAYS: list[tuple[dict[str, Any], str]] = [
    # Those of the specification, in its order.
    ({"items": TEXT}, "<animals>one</animals><animals>two</animals>"),
    ({"items": {**TEXT, "xml": {"name": "animal"}}}, "<animal>one</animal><animal>two</animal>"),
    (
        {"items": {**TEXT, "xml": {"name": "animal"}}, "xml": {"name": "aliens"}},
        "<animal>one</animal><animal>two</animal>",
    ),
    ({"items": TEXT, "xml": {"wrapped": True}}, "<animals><animals>one</animals><animals>two</animals></animals>"),
    (
        {"items": {**TEXT, "xml": {"name": "animal"}}, "xml": {"name": "aliens", "wrapped": True}},
        "<aliens><animal>one</animal><animal>two</animal></aliens>",
    ),
    (
        {"items": TEXT, "xml": {"name": "aliens", "wrapped": True}},
        "<aliens><aliens>one</aliens><aliens>two</aliens></aliens>",
    ),
    # 3.2
    (
        {"items": {**TEXT, "xml": {"name": "animal"}}, "xml": {"name": "aliens", "nodeType": "element"}},
        "<aliens><animal>one</animal><animal>two</animal></aliens>",
    ),
    ({"items": TEXT, "xml": {"nodeType": "none"}}, "<animals>one</animals><animals>two</animals>"),
]


def test_an_object_is_written_with_attributes_and_namespaces_and_read_back() -> None:
    value = {"id": 123, "name": "Rex & <Co>", "age": 5.5, "alive": True}
    text = written(PERSON, value)
    assert text == (
        '<Thing id="123"><sample:name xmlns:sample="http://example.com/schema/sample">Rex &amp; &lt;Co&gt;'
        "</sample:name><age>5.5</age><alive>true</alive></Thing>"
    )
    result = answered(PERSON, text.encode())
    assert result.value.data == value
    assert result.schema.is_valid(value)


@pytest.mark.parametrize(("array", "text"), ARRAYS)
def test_arrays_are_written_as_the_specification_shows_and_read_back(array: dict[str, Any], text: str) -> None:
    schema = {"type": "object", "properties": {"animals": {"type": "array", **array}}}
    assert written(schema, {"animals": ["one", "two"]}) == f"<Thing>{text}</Thing>"
    assert answered(schema, f"<Thing>{text}</Thing>".encode()).value.data == {"animals": ["one", "two"]}


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"type": "object", "xml": {"name": "pet"}, "properties": {"a": TEXT}}, {"a": "x"}, "<pet><a>x</a></pet>"),
        (
            {"type": "object", "xml": {"namespace": "urn:a"}, "properties": {"a": TEXT}},
            {"a": "x"},
            '<Thing xmlns="urn:a"><a>x</a></Thing>',
        ),
        (
            {"properties": {"a": {"$ref": "#/components/schemas/Other", "xml": {"name": "b"}}}},
            {"a": {"c": 1}},
            "<Thing><b><c>1</c></b></Thing>",
        ),
        ({"properties": {"a": {**TEXT, "xml": {"prefix": "p"}}}}, {"a": "x"}, "<Thing><a>x</a></Thing>"),
        (
            {
                "allOf": [{"$ref": "#/components/schemas/Other"}],
                "properties": {"d": {**TEXT, "xml": {"attribute": True}}},
            },
            {"c": 1, "d": "\n\"'"},
            '<Thing d="&#10;&quot;\'"><c>1</c></Thing>',
        ),
        (
            {
                "properties": {
                    "lang": {**TEXT, "xml": {"nodeType": "attribute"}},
                    "of": {**TEXT, "xml": {"nodeType": "text"}},
                }
            },
            {"lang": "en", "of": "a\rb"},
            '<Thing lang="en">a&#13;b</Thing>',
        ),
        (
            {"properties": {"code": {**TEXT, "xml": {"nodeType": "cdata"}}}},
            {"code": "a]]>b"},
            "<Thing><![CDATA[a]]]]><![CDATA[>b]]></Thing>",
        ),
        (
            {"properties": {"all": {"type": "object", "xml": {"nodeType": "none"}, "properties": {"c": TEXT}}}},
            {"all": {"c": "x"}},
            "<Thing><c>x</c></Thing>",
        ),
        (
            {
                "type": "array",
                "xml": {"name": "list", "wrapped": True},
                "items": {"$ref": "#/components/schemas/Other"},
            },
            [{"c": 1}, {"c": 2}],
            "<list><list><c>1</c></list><list><c>2</c></list></list>",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"body": {"x": 1, "y": 2}},
            "<Thing><x>1</x><y>2</y></Thing>",
        ),
        ({"properties": {"a": TEXT, "b": TEXT}}, {"a": None, "b": ""}, "<Thing><b/></Thing>"),
    ],
)
def test_hints_of_every_kind_are_written_and_read_back(schema: Any, value: Any, text: str) -> None:
    other = {"type": "object", "properties": {"c": {"type": "integer"}}}
    assert written(schema, value, Other=other) == text
    read = answered(schema, text.encode(), Other=other).value.data
    whole = value["body"] if isinstance(value, dict) and "body" in value else value
    assert read == ({"b": ""} if text == "<Thing><b/></Thing>" else whole)


def test_swagger_bodies_and_answers_are_xml_too() -> None:
    thing = {"type": "object", "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": TEXT}}}
    schema = {"$ref": "#/definitions/Thing"}
    operation = {
        "operationId": "put",
        "consumes": ["text/xml"],
        "produces": ["text/xml"],
        "parameters": [{"in": "body", "name": "b", "required": True, "schema": schema}],
        "responses": {"200": {"description": "", "schema": schema}},
    }
    root = document({"/": {"put": operation}}, "2.0", host="api.example", schemas={"Thing": thing})
    plan = Read(root).only.plan
    request = build_request(plan, {"n": 1, "tags": ["a"]})
    assert (request.body or b"").endswith(b"<Thing><n>1</n><tags>a</tags></Thing>")
    head = ResponseHead(method="PUT", status=200, reason="OK", headers=[], content_type="text/xml")
    body = b"<Thing><n>1</n><tags>a</tags></Thing>"
    assert ResponseReader(plan).read(head, body).value.data == {"n": 1, "tags": ["a"]}


def test_what_the_document_does_not_declare_is_kept() -> None:
    body = (
        b'<?xml version="1.0"?><!DOCTYPE r SYSTEM "http://elsewhere.example/r.dtd">'
        b'<r:Other xmlns:r="urn:r" extra="1"> <r:age>x</r:age> <more>1</more><more/> '
        b'<deep><down a="1">text</down></deep> <alive xmlns:xsi="urn:x" xsi:nil="true"/> </r:Other>'
    )
    data = {"age": "x", "more": ["1", ""], "deep": {"down": "text"}, "alive": None}
    result = answered(PERSON, body)
    assert result.value.data == data
    assert not result.schema.is_valid(data)


@pytest.mark.parametrize(
    ("text", "read"), [("7", 7), (" 7 ", 7), ("7.5", "7.5"), ("", ""), ("9" * 5000, "9" * 5000), ("1e999", "1e999")]
)
def test_text_becomes_a_number_only_if_it_is_one(text: str, read: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert answered(schema, f"<Thing><n>{text}</n></Thing>".encode()).value.data == {"n": read}


def test_the_charset_of_the_answer_counts_before_that_of_the_text() -> None:
    schema = {"type": "object", "properties": {"a": TEXT}}
    text = '<?xml version="1.0" encoding="ISO-8859-1"?><Thing><a>é</a></Thing>'
    assert answered(schema, text.encode("latin-1")).value.data == {"a": "é"}
    assert answered(schema, text.encode(), f"{XML}; charset=utf-8").value.data == {"a": "é"}
    assert answered(schema, text.encode("cp1252"), f"{XML}; charset=windows-1252").value.data == {"a": "é"}


LAUGHS = b'<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><a>&c;</a>'
FILE = b'<!DOCTYPE a [<!ENTITY f SYSTEM "file:///etc/passwd">]><a>&f;</a>'
DEFAULTS = b'<!DOCTYPE a [<!ATTLIST b c CDATA "' + b"x" * 10_000 + b'">]><a>' + b"<b/>" * 10_000 + b"</a>"  # 100 MB
UNKNOWN_ENTITY = b'<!DOCTYPE a SYSTEM "http://elsewhere.example/a.dtd"><a>&f;</a>'


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (LAUGHS, "entities"),
        (FILE, "entities"),
        (DEFAULTS, "declares entities or attributes"),
        (b'<?xml version="1.0" encoding="nonsense"?><a/>', "unknown encoding: nonsense"),
        (b'<?xml version="1.0" encoding="hex"?><a/>', "is not a text encoding"),
        (UNKNOWN_ENTITY, "entities"),
        (b"<a>" * 300 + b"</a>" * 300, "nested deeper than 200"),
        (b"<a>", "no element found"),
        (b"plain text", "syntax error"),
        (b"<a>\xff</a>", "not well-formed"),
    ],
)
def test_xml_that_is_hostile_or_broken_is_text_with_a_warning(
    body: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers in XML that declare entities, attributes or an unknown encoding, or are nested too deeply, stay
    text; no value breaks out of XML."""
    with caplog.at_level(logging.WARNING):
        result = answered(PERSON, body)
    assert result.value.data == body.decode(errors="replace")
    assert result.schema.is_unknown
    assert why in caplog.text


@pytest.mark.parametrize(
    "value", [{"body": {"a b": 1}}, {"body": {"a><b": 1}}, {"body": {"a:b": 1}}, {"body": {"a": "\x00"}}]
)
def test_names_and_text_cannot_break_out_of_an_element(value: Any) -> None:
    operation = api({"type": "object"}).only
    with pytest.raises(CallError, match="XML") as caught:
        build_request(operation.plan, value)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize(
    ("schema", "content_type", "warning"),
    [
        ({"type": "object", "properties": {"a": TEXT}}, XML, "does not name the root element"),
        ({"type": "object", "properties": {"a": TEXT}}, "text/plain", "is text: it is given as text"),
        ({"type": "object", "properties": {"a": TEXT}}, "application/x-thing", "is unknown: it is given as bytes"),
        ({"type": "array"}, "application/octet-stream", "is unknown: it is given as bytes"),
    ],
)
def test_where_the_schema_cannot_say_how_a_warning_does(schema: Any, content_type: str, warning: str) -> None:
    content = {content_type: {"schema": schema}}
    operation = {"operationId": "put", "requestBody": {"required": True, "content": content}, "responses": {}}
    found = Read(document({"/": {"put": operation}}, servers=SERVER))
    assert found.only.spec.input_schema.is_valid({"body": "PGEvPg=="})
    assert [each for each in found.report.warnings if warning in each]


@pytest.mark.parametrize("content_type", ["", "*/*", "*", "application/*"])
def test_an_object_without_a_content_type_is_json(content_type: str) -> None:
    schema = {"type": "object", "properties": {"a": TEXT}}
    content = {content_type: {"schema": schema}}
    operation = {"operationId": "put", "requestBody": {"required": True, "content": content}, "responses": {}}
    found = Read(document({"/": {"put": operation}}, servers=SERVER))
    request = build_request(found.only.plan, {"a": "x"})
    assert request.body == b'{"a":"x"}'
    assert ("Content-Type", "application/json") in request.headers
    assert found.report.warnings == []
    assert not found.only.spec.input_schema.is_valid({"a": None})


VALUES = st.recursive(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1).filter(
        lambda text: text.strip()
    ),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=examples(100))
def test_objects_of_text_survive_a_round_trip_without_any_schema(value: Any) -> None:
    node = XMLNode()
    assert read_xml(write_xml(value, XMLRoot("root", node), str), node) == value


def test_many_elements_of_a_schema_with_many_properties_are_read_in_proportion() -> None:
    fields = {f"p{number}": TEXT for number in range(1_000)}
    thing = {"type": "array", "items": {"type": "object", "properties": fields}, "xml": {"name": "l", "wrapped": True}}
    spent = time.process_time()
    result = answered(thing, b"<l>" + b"<a><p999>x</p999></a>" * 3_000 + b"</l>")
    assert time.process_time() - spent < 1.5  # of CPU; 3 million lookups
    assert result.value.data == [{"p999": "x"}] * 3_000


def test_objects_that_are_not_elements_multiply_a_bounded_number_of_times() -> None:
    def level(number: int) -> dict[str, Any]:
        inner = {"$ref": f"#/components/schemas/L{number + 1}", "xml": {"nodeType": "none"}}
        return {"type": "object", "properties": {"a": inner, "b": inner}}

    levels: dict[str, Any] = {f"L{number}": level(number) for number in range(1, 25)}
    levels["L25"] = {"properties": {"z": TEXT}}
    spent = time.process_time()
    result = answered({**level(0), "xml": {"name": "r"}}, b"<r><q>1</q></r>", **levels)
    assert time.process_time() - spent < 2  # of CPU; two to the power of 25
    assert result.value.data == {"q": "1"}


def test_an_object_that_is_not_an_element_and_contains_itself_is_read() -> None:
    itself = {"$ref": "#/components/schemas/Thing", "xml": {"nodeType": "none"}}
    thing = {"type": "object", "xml": {"name": "r"}, "properties": {"again": itself, "x": TEXT}}
    assert answered(thing, b"<r><x>1</x></r>").value.data


async def test_a_large_answer_is_read_beside_the_event_loop() -> None:
    thing = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}}
    responses = answers({"$ref": "#/components/schemas/Thing"}, content_type=XML)
    root = document({"/": {"get": {"operationId": "get", "responses": responses}}}, schemas={"Thing": thing})
    async with EchoServer() as server:
        body = b"<Thing>" + b"<n>7</n>" * 20_000 + b"</Thing>"
        server.on("/", answer(200, body, {"Content-Type": XML}))
        async with from_openapi(root, namespace="api", base_url=server.url) as source:
            registry = OperationRegistry()
            registry.register_all(source)
            envelope = await registry.execute("api.get", {})
    assert envelope.data == {"n": [7] * 20_000}
