"""Parts of a document that many others refer to: the work stays in proportion to the document.

Bounds are of CPU, at least five times what a busy machine needs; what they replace is in the comments.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from opwire.openapi.client import from_openapi
from opwire.openapi.webhooks import WebhookReceiver
from tests.openapi.client.documents import Read, accepts, answers, document, input_of, json_body, parameter, read

SHARED = {"$ref": "#/components/pathItems/P"}


@contextmanager
def cpu_seconds(most: float) -> Iterator[None]:
    spent = time.process_time()
    yield
    assert time.process_time() - spent < most


def why_skipped(found: Read) -> str:
    return found.report.skipped[0].reason


def test_operations_that_share_a_path_item_are_bounded_by_the_size_of_the_document() -> None:
    methods = {"additionalOperations": {f"M{number}": {} for number in range(1_000)}}
    root = document(
        {f"/a{number}": SHARED for number in range(1_000)}, "3.2.0", components={"pathItems": {"P": methods}}
    )
    with cpu_seconds(5):  # a million operations took minutes, and gigabytes
        found = read(root)
    assert 1_000 <= len(found.operations) <= 10_000
    assert "more of the document by references than its size allows" in why_skipped(found)


@pytest.mark.parametrize(
    ("item", "fields"),
    [
        ({"parameters": [parameter(f"p{number}") for number in range(900)], "get": {}}, {}),
        ({"get": {"responses": {"200": {"content": {f"a/b{number}": {} for number in range(900)}}}}}, {}),
        ({"get": {"responses": {str(number): {} for number in range(900)}}}, {}),
        ({"post": {"requestBody": json_body({"properties": {f"p{number}": {} for number in range(900)}})}}, {}),
        ({"get": {}}, {"security": [{f"s{number}": []} for number in range(900)]}),
    ],
    ids=["parameters", "contents", "responses", "properties", "security"],
)
def test_what_operations_share_counts_for_each_of_them(item: Any, fields: Any) -> None:
    paths = {f"/a{number}": SHARED for number in range(2_000)}
    with cpu_seconds(5):
        found = read(document(paths, components={"pathItems": {"P": item}}, **fields))
    assert 50 <= len(found.operations) <= 150
    assert "than its size allows" in why_skipped(found)


CHOICE: dict[str, Any] = {"type": "string", "enum": [f"e{number}" for number in range(50_000)]}


@pytest.mark.parametrize(
    ("item", "shared"),
    [
        ({"description": "lorem ipsum " * 50_000, "get": {}}, {}),
        ({"get": {"description": "lorem ipsum " * 50_000}}, {}),
        ({"get": {"tags": ["lorem ipsum " * 50_000]}}, {}),
        (
            {"parameters": [{"$ref": "#/components/parameters/P"}], "get": {}},
            {"parameters": {"P": parameter("p", schema=CHOICE)}},
        ),
        (
            {"get": {"parameters": [{"$ref": "#/components/parameters/P"}]}},
            {"parameters": {"P": parameter("p", schema=CHOICE)}},
        ),
        (
            {"get": {"responses": {"200": {"$ref": "#/components/responses/R"}}}},
            {"responses": {"R": answers(CHOICE)["200"]}},
        ),
        (
            {"post": {"requestBody": {"$ref": "#/components/requestBodies/B"}}},
            {"requestBodies": {"B": json_body({"properties": {"p": CHOICE}})}},
        ),
        (
            {"post": {"requestBody": json_body({"allOf": [{"$ref": "#/components/schemas/S"}]})}},
            {"schemas": {"S": {"properties": {"p": CHOICE}}}},
        ),
    ],
    ids=["item", "description", "tags", "parameters of the path", "parameters", "response", "body", "allOf"],
)
def test_what_operations_share_counts_by_its_size(item: Any, shared: Any) -> None:
    # 2,000 such operations took gigabytes when they were listed, and those of the first case when they were read.
    paths = {f"/a{number}": SHARED for number in range(2_000)}
    with cpu_seconds(5):
        found = read(document(paths, components={"pathItems": {"P": item}, **shared}))
    assert 10 <= len(found.operations) <= 40
    assert "than its size allows" in why_skipped(found)


def test_an_operation_that_is_nested_too_deeply_to_be_measured_is_skipped() -> None:
    deep: Any = "x"
    for _ in range(100_000):  # Python 3.13 encodes 5,000
        deep = [deep]
    found = read(document({"/a": {"get": {"x-deep": deep}}, "/b": {"get": {}}}))
    assert len(found.operations) == 1
    assert why_skipped(found) == "it is nested too deeply"


@pytest.mark.parametrize(
    "root",
    [
        document(
            {f"/a{number}": SHARED for number in range(300)},
            components={
                "pathItems": {
                    "P": {"post": {"callbacks": {f"c{n}": {"$ref": "#/components/callbacks/C"} for n in range(300)}}}
                },
                "callbacks": {"C": {f"e{number}": {"post": {}} for number in range(300)}},
            },
        ),
        document(
            {},
            webhooks={f"w{number}": SHARED for number in range(2_000)},
            components={"pathItems": {"P": {"post": {"description": "lorem ipsum " * 50_000}}}},
        ),
    ],
    ids=["callbacks", "description"],
)
def test_webhooks_count_as_operations_do(root: Any) -> None:
    with cpu_seconds(10):  # 10 kB with 80 of each were 512,000 subscriptions, after 20 s and in 1.8 GB
        source = from_openapi(json.dumps(root), webhooks=WebhookReceiver(unsigned=True))
        found = list(source)
    assert 10 < len(found) < 10_000
    assert any("than its size allows" in each for each in source.report.warnings)


def test_a_larger_document_may_share_more() -> None:
    item = {"parameters": [parameter(f"p{number}") for number in range(900)], "get": {}}
    root = document({f"/a{number}": SHARED for number in range(300)}, components={"pathItems": {"P": item}})
    few = list(from_openapi(json.dumps(root)))
    many = list(from_openapi(json.dumps({**root, "x-text": "a" * 2_000_000})))
    assert len(few) < 150
    assert len(many) == 300


def test_keywords_beside_the_reference_to_a_path_item_copy_it_a_bounded_number_of_times() -> None:
    item = {"get": {}, **{f"x-{number}": 0 for number in range(5_000)}}
    paths = {f"/a{number}": {**SHARED, "summary": "a"} for number in range(5_000)}
    with cpu_seconds(5):  # 25 million entries took 2 GB
        found = read(document(paths, components={"pathItems": {"P": item}}))
    assert len(found.operations) < 50


def test_a_long_chain_of_references_that_leads_nowhere_is_followed_a_bounded_number_of_times() -> None:
    chain = {f"p{number}": {"$ref": f"#/components/schemas/p{number + 1}"} for number in range(4_000)}
    any_of = {"anyOf": [{"$ref": each} for each in sorted(str(link["$ref"]) for link in chain.values())]}
    with cpu_seconds(6):  # 12 s
        schema = input_of({"requestBody": json_body(any_of)}, schemas=chain)
    assert accepts(schema, {"body": 1})


def test_a_schema_of_many_operations_is_rewritten_once() -> None:
    choice = parameter("p", schema={"type": "string", "enum": [f"e{number}" for number in range(2_000)]})
    found = read(
        document(
            {f"/a{number}": {"get": {"parameters": [{"$ref": "#/components/parameters/P"}]}} for number in range(100)},
            components={"parameters": {"P": choice}},
        )
    )
    schemas: list[Any] = [each.spec.input_schema.json for each in found.operations.values()]
    assert len({id(each["properties"]["p"]["anyOf"][0]["enum"]) for each in schemas}) == 1


@pytest.mark.parametrize("content_type", ["multipart/form-data", "text/event-stream"])
def test_branches_that_refer_to_each_other_are_searched_a_bounded_number_of_times(content_type: str) -> None:
    schemas = {"A": {"anyOf": [{"$ref": "#/components/schemas/A"}] * 300}}
    form = {"type": "object", "properties": {"f": {"$ref": "#/components/schemas/A"}}}
    operation: dict[str, Any] = {"responses": answers({"$ref": "#/components/schemas/A"}, content_type=content_type)}
    if content_type.startswith("multipart"):
        operation = {"requestBody": {"content": {content_type: {"schema": form}}}}
    found = read(document({"/a": {"post": operation}}, schemas=schemas)).only
    with cpu_seconds(3):  # 300 to the power of three and of four
        assert found.spec.input_schema.json is not None
        assert found.spec.output_schema.json is not None


def test_a_file_is_still_found_in_nested_unions() -> None:
    schemas = {
        "File": {"type": "string", "format": "binary"},
        "Maybe": {"anyOf": [{"$ref": "#/components/schemas/File"}, {"type": "string"}]},
    }
    form = {"type": "object", "properties": {"f": {"oneOf": [{"$ref": "#/components/schemas/Maybe"}]}}}
    content = {"multipart/form-data": {"schema": form}}
    operation = read(document({"/a": {"post": {"requestBody": {"content": content}}}}, schemas=schemas)).only
    assert operation.plan.file_paths == (("f",),)


def test_many_different_events_are_compared_by_their_json() -> None:
    def event(number: int) -> dict[str, Any]:
        data = {"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(20)}}
        return {"properties": {"data": {**data, "maxProperties": number}}}

    union = {"oneOf": [event(number) for number in range(1_000)] * 2}
    with cpu_seconds(5):
        found = read(document({"/a": {"get": {"responses": answers(union, content_type="text/event-stream")}}})).only
        schema: Any = found.spec.output_schema.json
    assert len(schema["anyOf"]) == 1_000


def test_a_discriminator_that_many_unions_inherit_is_read_once() -> None:
    schemas: dict[str, Any] = {
        "P": {
            "discriminator": {"propertyName": "k", "mapping": {f"t{n}": "#/components/schemas/A" for n in range(900)}}
        },
        "A": {"allOf": [{"$ref": "#/components/schemas/P"}], "maxProperties": 9},
        "B": {"allOf": [{"$ref": "#/components/schemas/P"}], "minProperties": 1},
    }
    variants = [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/B"}]
    unions = {"anyOf": [{"oneOf": variants} for _ in range(1_500)]}
    with cpu_seconds(5):
        schema = input_of({"requestBody": json_body(unions)}, schemas=schemas)
    assert len(json.dumps(schema)) < 10_000_000  # 1,500 unions that list 900 tags each had 25 MB
    assert accepts({**schema["properties"]["body"]["anyOf"][0], "$defs": schema["$defs"]}, {"k": "t1"})


def test_properties_of_the_other_direction_are_sought_once_in_a_schema_that_many_extend() -> None:
    schemas: dict[str, Any] = {"B": {"properties": {f"p{number}": {"readOnly": True} for number in range(3_000)}}}
    extended = {"allOf": [{"$ref": "#/components/schemas/B"}], "properties": {"p1": {}, "own": {}}}
    body = {"type": "object", "properties": {f"q{number}": extended for number in range(3_000)}}
    with cpu_seconds(5):  # 9 million lookups
        schema = input_of({"requestBody": json_body(body)}, schemas=schemas)
    assert schema["properties"]["q0"]["properties"] == {"own": {}}


def test_an_optional_body_of_many_required_properties_is_complete_or_absent() -> None:
    names = [f"p{number}" for number in range(3_000)]
    body = {"type": "object", "properties": {name: {} for name in [*names, "x"]}, "required": names}
    schema = input_of({"requestBody": json_body(body, required=False)})
    assert sum(map(len, schema["dependentRequired"].values())) < 10_000  # 9 million names
    few = ["a", "b", "c"]
    small = {"type": "object", "properties": {name: {} for name in [*few, "x"]}, "required": few}
    for required, given in ((names, schema), (few, input_of({"requestBody": json_body(small, required=False)}))):
        whole = dict.fromkeys(required, 1)
        assert accepts(given, {})
        assert accepts(given, whole)
        assert accepts(given, {**whole, "x": 1})
        assert not accepts(given, {"x": 1})
        for missing in (required[0], required[-1]):
            assert not accepts(given, {name: 1 for name in required if name != missing})


def test_a_path_of_thousands_of_variables_is_read_in_proportion() -> None:
    names = [f"v{number}" for number in range(8_000)]
    path = "/a?" + "&".join(f"{name}={{{name}}}" for name in names)
    with cpu_seconds(6):  # 64 million comparisons
        schema = input_of({}, path, "get")
    assert schema["required"] == names
