"""Documents as plain data."""

import json
from collections import OrderedDict
from datetime import date
from types import MappingProxyType
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.openapi.client import from_openapi
from opwire.openapi.client.document import json_of, read_text, references_in, version_of
from opwire.registry.source import Report


def load(text: bytes | str, name: str = "doc.json") -> Any:
    return read_text(text, name, Report())


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, true]}',
        b'{"a": [1, true]}',
        b'\xef\xbb\xbf{"a": [1, true]}',
        '{"a": [1, true]}'.encode("utf-16"),
        "a: [1, true]",
        "# a comment\na:\n- 1\n- true\n",
        '\n  {"a": [1, true]}\n',
    ],
)
def test_json_and_yaml_are_distinguished(text: bytes | str) -> None:
    assert load(text) == {"a": [1, True]}


def test_a_yaml_file_may_start_with_a_brace() -> None:
    assert load("{a: 1, b: yes}", "doc.yaml") == {"a": 1, "b": "yes"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a": 1,\n "b": }', "doc.json is not readable as JSON: .*, line 2, column 7"),
        (b'{"a": "\xff"}', "not readable as JSON"),
        (b"a: [1", "not readable as YAML: .*line"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfea", "not readable as utf-16"),
    ],
)
def test_what_cannot_be_read_says_where(text: bytes, says: str) -> None:
    with pytest.raises(CallError, match=says) as caught:
        load(text)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_warnings_name_the_document() -> None:
    report = Report()
    assert read_text("a: 1\na: 2", "pets.yaml", report) == {"a": 2}
    assert report.warnings[0].startswith("pets.yaml: duplicate key 'a'")


def test_lone_surrogates_are_replaced() -> None:
    assert load('{"a": "\\ud800"}') == {"a": "\ufffd"}


def test_a_mapping_may_hold_what_pyyaml_made_of_it() -> None:
    given = OrderedDict({200: date(2020, 1, 1), "a": MappingProxyType({1.5: (1, 2)})})
    assert json.loads(json_of(given)) == {"200": "2020-01-01", "a": {"1.5": [1, 2]}}
    assert json.loads(json_of({date(2020, 1, 1): {None: 1, True: [2]}})) == {"2020-01-01": {"null": 1, "true": [2]}}


def test_a_mapping_that_has_no_json_form_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    for given, says in ((endless, "contains itself"), ({"a": object()}, "object")):
        with pytest.raises(CallError, match=says):
            json_of(given)


@pytest.mark.parametrize(
    ("root", "version"),
    [
        ({"swagger": "2.0", "paths": {}}, "2.0"),
        ({"swagger": 2.0, "paths": {}}, "2.0"),
        ({"openapi": "3.0.3", "paths": {}}, "3.0"),
        ({"openapi": 3.1}, "3.1"),
        ({"openapi": "3.1.1"}, "3.1"),
        ({"openapi": "3.2.0-rc1", "paths": None}, "3.2"),
    ],
)
def test_the_version_is_known(root: Any, version: str) -> None:
    report = Report()
    assert version_of(root, "doc", report) == version
    assert list(report) == []


@pytest.mark.parametrize("declared", ["3.3.0", "3.3.0-draft", "3.3", 3.3, "3.10.1"])
def test_a_later_version_is_read_as_the_latest_known_one_with_a_warning(declared: Any) -> None:
    api = from_openapi({"openapi": declared, "info": {"title": "T"}, "paths": {"/pets": {"query": {}, "new": {}}}})
    assert [str(operation.spec.id) for operation in api] == ["t.query_pets"]
    assert (
        api.report.warnings[0]
        == f"the document: OpenAPI {str(declared)!r} is read as 3.2, the latest version that opwire knows"
    )


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ([], "it is an array"),
        (None, "it is empty"),
        ("hello", "it is a string"),
        ({}, "no `openapi` or `swagger` field"),
        ({"openapi": "4.0.0"}, "this one has '4.0.0'"),
        ({"openapi": "3.x"}, "this one has '3.x'"),
        ({"openapi": "33.0"}, "this one has '33.0'"),
        ({"openapi": f"3.{'9' * 5_000}"}, "this one has '3.99"),
        ({"openapi": True}, "this one has 'True'"),
        ({"swagger": "1.2", "paths": {}}, "'1.2'"),
        ({"openapi": ["3.1"]}, "3.1"),
        ({"openapi": "3.1.0", "paths": []}, "`paths` is an array"),
        ({"openapi": "3.0.0"}, "it has no `paths`"),
        ({"swagger": "2.0", "paths": "x"}, "`paths` is a string"),
    ],
)
def test_what_is_not_a_document_is_a_clear_error(root: Any, says: str) -> None:
    """What is not an OpenAPI document is a VALIDATION_ERROR that says why."""
    with pytest.raises(CallError, match=says) as caught:
        version_of(root, "doc", Report())
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_references_are_found_in_every_spelling() -> None:
    yaml = "a: {$ref: '#/x y'}\nb:\n  $ref: \"#/z\"\nc: {$ref: other.yaml#/a, d: 1}\n$ref: plain.json"
    assert found(yaml) == {"#/x y", "#/z", "other.yaml#/a", "plain.json"}
    assert found(b'{"$ref": "#\\/a", "b": {"$ref" : "x\\u0041"}}') == {"#/a", "xA"}
    assert found(b"$ref: '#/\xc3\xa9'") == {"#/é"}
    assert found("default:\n  $ref: my pets, and others.yaml # which is a file\n") == {"my pets, and others.yaml"}
    assert found("default:\n  $ref: >-\n    pets.yaml\n".encode("utf-16")) == {"pets.yaml"}


def found(text: bytes | str) -> set[str]:
    return references_in(text, load(text, "doc.yaml"))
