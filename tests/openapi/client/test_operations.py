"""From a document to operations."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from opwire.model.operation import OperationSpec, OperationType
from opwire.model.origin import ORIGIN_EXTENSION, Origin
from opwire.schema import Schema
from tests.openapi.client.documents import JSON, Read, answers, document, json_body, parameter, read
from tests.properties import is_thorough


def test_what_reads_is_a_query_and_what_else_a_mutation() -> None:
    """GET and HEAD are queries, other methods mutations."""
    methods = ("get", "head", "post", "put", "patch", "delete", "options", "trace")
    found = read(document({"/a": {method: {} for method in methods}}))
    queries = [name for name, one in found.operations.items() if one.spec.type is OperationType.QUERY]
    assert queries == ["get_a", "head_a"]
    assert {one.spec.type for one in found.operations.values()} == {OperationType.QUERY, OperationType.MUTATION}


def test_annotations_are_what_http_says_of_the_method() -> None:
    found = read(document({"/a": {method: {} for method in ("get", "post", "put", "delete")}}))
    assert {name: one.spec.mcp.annotations.to_mcp() for name, one in found.operations.items()} == {
        "get_a": {"readOnlyHint": True},
        "post_a": {},
        "put_a": {"idempotentHint": True},
        "delete_a": {"destructiveHint": True, "idempotentHint": True},
    }


def test_operations_are_named_by_their_ids() -> None:
    root = document(
        {
            "/z": {"get": {"operationId": "repos/get all"}},
            "/b": {"get": {"operationId": "same"}},
            "/a": {"get": {"operationId": "same"}},
            "/c/{d}": {"get": {}, "post": {"operationId": ""}, "put": {"operationId": None}},
            "/f": {"get": {"operationId": 7}, "put": {"operationId": True}},
            "/e": {"get": {"operationId": "a\tb"}},
        }
    )
    assert set(read(root).operations) == {
        "repos/get all", "same", "same_get_b", "get_c_d", "post_c_d", "put_c_d", "7", "true", "a_b"
    }  # fmt: skip
    assert read(root)["same"].plan.path == "/a"


def test_the_namespace_is_the_title_unless_given() -> None:
    root = document({"/a": {"get": {}}})
    root["info"] = {"title": "My Shop 2.0"}
    assert Read(root, namespace=None).only.spec.id == "my_shop.get_a"
    assert Read(root, namespace="shop").only.spec.id == "shop.get_a"
    assert Read({**root, "info": None}, namespace=None).only.spec.id == "api.get_a"


def test_an_unusable_namespace_is_reported_for_every_operation() -> None:
    found = Read(document({"/a": {"get": {}}}), namespace="a.b")
    assert found.operations == {}
    assert "has no dot" in found.report.skipped[0].reason


def test_what_is_said_of_an_operation_is_kept() -> None:
    operation = {"operationId": "a", "summary": " Short ", "description": "Long", "tags": ["x", None, "y"]}
    spec = read(document({"/a": {"get": operation}})).only.spec
    assert (spec.title, spec.description, spec.tags) == ("Short", "Long", ("x", "y"))
    assert spec.strip is False
    only_title = read(document({"/a": {"get": {"summary": "Short"}}})).only.spec
    assert only_title.description == "Short"


def test_how_answers_are_normalised_can_be_said() -> None:
    found = Read(document({"/a": {"get": {}}}), normalize="check", strip=True, unchecked_input=True)
    assert (found.only.spec.normalize, found.only.spec.strip) == ("check", True)
    assert found.only.spec.unchecked_input is True


def test_nothing_is_read_before_it_is_needed() -> None:
    root = document({"/a": {"get": {"responses": answers({"$ref": "#/components/schemas/Nope"})}}})
    found = read(root)
    assert found.only.spec.input_schema.is_deferred
    assert found.only.spec.output_schema.is_deferred
    assert found.report.warnings == []
    assert found.only.spec.output_schema.is_valid("anything")
    assert len(found.report.warnings) == 1
    assert found.only.plan is found.only.plan


def test_the_names_of_streams_are_free_ones() -> None:
    both = {"200": {"content": {"application/json": {}, "text/event-stream": {}}}}
    found = read(
        document({"/a": {"get": {"operationId": "a", "responses": both}}, "/b": {"get": {"operationId": "a_stream"}}})
    )
    assert list(found.operations) == ["a", "a_stream_2", "a_stream"]
    assert found["a_stream_2"].spec.type is OperationType.SUBSCRIPTION
    assert found["a"].spec.type is OperationType.QUERY


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"include": ("pets",)}, {"list", "add"}),
        ({"include": ("list*",)}, {"list", "listUsers"}),
        ({"include": ("/pets", "GET /users")}, {"list", "add", "listUsers"}),
        ({"exclude": ("GET *",)}, {"add"}),
        ({"include": ("pets",), "exclude": ("add",)}, {"list"}),
        ({"include": ("nothing",)}, set()),
    ],
)
def test_operations_can_be_chosen(options: dict[str, Any], names: set[str]) -> None:
    root = document(
        {
            "/pets": {
                "get": {"operationId": "list", "tags": ["pets"]},
                "post": {"operationId": "add", "tags": ["pets"]},
            },
            "/users": {"get": {"operationId": "listUsers"}},
        }
    )
    assert set(Read(root, **options).operations) == names


# --- another opwire -------------------------------------------------------------------------------------------------


def served(id: str, type: OperationType, schema: Any, **fields: Any) -> dict[str, Any]:
    namespace, _, name = id.partition(".")
    spec = OperationSpec(namespace=namespace, name=name, type=type, **fields)
    operation = {
        "operationId": "encoded",
        ORIGIN_EXTENSION: msgspec.to_builtins(Origin.of(spec)),
        "responses": answers({"type": "integer"}),
    }
    return {**operation, "requestBody": json_body(schema)}


def test_operations_of_another_opwire_are_what_they_were() -> None:
    said = {"tags": ("x",), "version": "2", "timeout": 5.0, "examples": ({"a": 1},)}
    post = served("math.add/all", OperationType.QUERY, {"type": "object", "anyOf": [{}]}, **said)
    get = {key: value for key, value in post.items() if key != "requestBody"}
    found = Read(document({"/math/add": {"get": get, "post": post}}), namespace=None, trust_annotations=True)
    one = found.only
    assert one.spec.id == "math.add/all"
    assert (one.spec.type, one.spec.tags, one.spec.version, one.spec.timeout) == (OperationType.QUERY, ("x",), "2", 5.0)
    assert one.spec.examples == ({"a": 1},)
    assert one.plan.method == "POST"
    assert one.spec.input_schema == Schema({"type": "object", "anyOf": [{}]})
    assert one.plan.body is not None
    assert one.plan.body.whole
    mine = Read(document({"/math/add": {"post": post}}), namespace="mine", trust_annotations=True)
    assert mine.only.spec.id == "mine.add/all"


def test_the_input_of_another_opwire_need_not_be_an_object() -> None:
    one = Read(
        document({"/a": {"post": served("a.b", OperationType.MUTATION, {"type": "integer"})}}),
        namespace=None,
        trust_annotations=True,
    ).only
    assert one.spec.input_schema.json == {"type": "integer"}


def test_a_subscription_of_another_opwire_stays_one() -> None:
    operation = served("a.ticks", OperationType.SUBSCRIPTION, {"type": "object"})
    operation["responses"] = answers({"type": "integer"}, content_type="text/event-stream")
    one = Read(document({"/a": {"post": operation}}), namespace=None, trust_annotations=True).only
    assert (one.spec.type, one.plan.stream) == (OperationType.SUBSCRIPTION, "sse")
    assert one.plan.body is not None
    assert dict(one.plan.body.fixed) == {}


@pytest.mark.parametrize("origin", [7, {}, {"id": "no-dot", "type": "query"}, {"id": "a.b", "type": "unheard-of"}])
def test_a_strangers_extension_of_that_name_is_survived(origin: Any) -> None:
    root = document({"/a": {"get": {ORIGIN_EXTENSION: origin}}, "/b": {"get": {}}})
    found = Read(root, namespace=None, trust_annotations=True)
    assert "get_b" in found.operations
    assert len(found.operations) + len(found.report.skipped) == 2


@pytest.mark.parametrize("namespace", [None, "mine"])
def test_an_extension_of_opwire_changes_nothing_in_a_document_that_is_not_trusted(namespace: str | None) -> None:
    said = {"tags": ("x",), "version": "2", "timeout": 5.0, "examples": ({"a": 1},)}
    delete = served("billing.overview", OperationType.QUERY, {"type": "object", "properties": {"a": {}}}, **said)
    twin = served("billing.overview", OperationType.QUERY, {}, **said)
    paths = {"/repos": {"delete": delete, "post": {**twin, "operationId": "other"}}}
    claimed = Read(document(paths), namespace=namespace)
    for operation in paths["/repos"].values():
        del operation[ORIGIN_EXTENSION]
    plain = Read(document(paths), namespace=namespace)
    assert list(claimed.operations) == list(plain.operations) == ["encoded", "other"]
    for name, one in claimed.operations.items():
        assert one.spec == plain[name].spec
        assert one.spec.type is OperationType.MUTATION
        assert one.plan == plain[name].plan


# --- hostile documents ----------------------------------------------------------------------------------------------

JUNK: tuple[Any, ...] = (None, True, 7, "x", [], {}, [None], {"$ref": "#/nowhere"}, {"$ref": "#/paths"}, {"$ref": 7})
RICH = document(
    {
        "/a/{id}": {
            "parameters": [parameter("id", "path"), {"name": "c", "in": "cookie", "content": {JSON: {"schema": {}}}}],
            "post": {
                "operationId": "a",
                "tags": ["x"],
                "servers": [{"url": "https://{b}.test", "variables": {"b": {"default": "x", "enum": ["x"]}}}],
                "requestBody": json_body(
                    {
                        "allOf": [
                            {"$ref": "#/components/schemas/Pet"},
                            {"properties": {"stream": {"type": "boolean"}}},
                        ],
                        "additionalProperties": {"type": "string"},
                    }
                ),
                "responses": {"200": {"content": {JSON: {"schema": {}}, "text/event-stream": {"itemSchema": {}}}}},
                "security": [{"key": ["a"]}],
            },
            "put": {
                "requestBody": {
                    "content": {
                        "multipart/form-data": {
                            "schema": {"type": "object", "properties": {"f": {"type": "string", "format": "binary"}}},
                            "encoding": {
                                "f": {"contentType": "image/png", "headers": {"X": {"schema": {"enum": ["x"]}}}}
                            },
                        }
                    }
                }
            },
        }
    },
    version="3.2.0",
    schemas={
        "Pet": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"type": "string", "enum": ["cat"]}, "next": {"$ref": "#/components/schemas/Pet"}},
            "discriminator": {"propertyName": "kind", "mapping": {"cat": "Pet"}},
        }
    },
    components={"securitySchemes": {"key": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/t"}}}}},
    info={"title": "Rich"},
    servers=[{"url": "/"}],
)


def places(node: Any, *steps: Any) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a document."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*steps, key)
        yield from places(value, *steps, key)


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_junk_anywhere_in_a_document_costs_no_more_than_an_operation(junk: Any) -> None:
    every = 1 if is_thorough() else 3  # on a developer's machine, a third of the places for each
    for place in [*places(RICH)][JUNK.index(junk) % every :: every]:
        if place in (("openapi",), ("paths",)):  # without them it is not a document
            continue
        root = copy.deepcopy(RICH)
        holder: Any = root
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = junk
        found = read(root)
        for one in found.operations.values():
            assert one.plan.operation_id == one.spec.id
            one.spec.input_schema.compile()
            one.spec.output_schema.compile()


def test_a_pattern_that_matches_nothing_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    root = document({"/pets": {"get": {"operationId": "listPets", "tags": ["pets"]}}})
    report = read(root, include=("lisPets", "pets"), exclude=("*zzz",)).report
    assert report.warnings == [
        "include 'lisPets' matches no operationId, tag, path or 'GET /path'; did you mean listPets?",
        "exclude '*zzz' matches no operationId, tag, path or 'GET /path'",
    ]
    assert [record.getMessage() for record in caplog.records] == report.warnings
