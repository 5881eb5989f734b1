"""Words of a command line become what the schema says, and nothing else."""

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.cli.inputs import SchemaField, completed_fields, from_text, read_input

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "text": {"type": "string"},
        "on": {"type": "boolean"},
        "maybe": {"type": ["integer", "null"]},
        "either": {"type": ["string", "integer"]},
        "level": {"enum": [1, 2, "3"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "filter": {"type": "object", "properties": {"since": {"type": "integer"}, "name": {"type": "string"}}},
        "dotted.name": {"type": "integer"},
        "photo": {"type": "string", "contentEncoding": "base64"},
        "free": {},
    },
}


def read(*words: str, schema: Any = SCHEMA) -> Any:
    return read_input(words, SchemaField(schema), stdin=io.BytesIO(b'{"count": 7}').read)


@pytest.mark.parametrize(
    ("words", "input"),
    [
        (["count=5"], {"count": 5}),
        (["count=five"], {"count": "five"}),
        (["count=5.0"], {"count": "5.0"}),
        (["ratio=5", "text=5"], {"ratio": 5, "text": "5"}),
        (["ratio=1e3"], {"ratio": 1000.0}),
        (["count=123456789012345678901234567890"], {"count": 123456789012345678901234567890}),
        (['{"count": 123456789012345678901234567890}'], {"count": 123456789012345678901234567890}),
        (["on=true"], {"on": True}),
        (["on=yes"], {"on": "yes"}),
        (["maybe=null"], {"maybe": None}),
        (["maybe=3"], {"maybe": 3}),
        (["either=5"], {"either": "5"}),
        (["either:=5"], {"either": 5}),
        (["level=2"], {"level": 2}),
        (["level=3"], {"level": "3"}),
        (["free=5"], {"free": "5"}),
        (["unknown=5"], {"unknown": "5"}),
        (["text=a=b"], {"text": "a=b"}),
        (["a::=1"], {"a:": 1}),
        (["text="], {"text": ""}),
        (["tags=x"], {"tags": ["x"]}),
        (["tags=x", "tags=y"], {"tags": ["x", "y"]}),
        (['tags=["x", "y"]'], {"tags": ["x", "y"]}),
        (["tags=[x"], {"tags": ["[x"]}),
        (["numbers=1", "numbers=2"], {"numbers": [1, 2]}),
        (["free=1", "free=2", "free=3"], {"free": ["1", "2", "3"]}),
        (["filter.since=3", "filter.name=4"], {"filter": {"since": 3, "name": "4"}}),
        (['filter={"since": 3}'], {"filter": {"since": 3}}),
        (["free.a.b=1"], {"free": {"a": {"b": "1"}}}),
        (["dotted.name=1"], {"dotted.name": 1}),
        (['{"count": 5}'], {"count": 5}),
        (["-"], {"count": 7}),
        (["-", "text=x"], {"count": 7, "text": "x"}),
        ([], None),
    ],
)
def test_words_are_typed_by_the_schema(words: list[str], input: Any) -> None:
    found = read(*words)
    assert found == input
    assert json.dumps(found) == json.dumps(input), "types are the same, too: 5 is not 5.0"


def test_files_are_read(tmp_path: Path) -> None:
    whole, note, photo = tmp_path / "input.json", tmp_path / "note.txt", tmp_path / "cat.png"
    whole.write_text('{"count": 5}')
    note.write_text("hello")
    photo.write_bytes(b"\xff\x00")
    assert read(f"@{whole}") == {"count": 5}
    assert read(f"text=@{note}", f"photo=@{photo}") == {"text": "hello", "photo": "/wA="}
    with pytest.raises(click.UsageError, match="not UTF-8 text"):
        read(f"text=@{photo}")


def test_an_input_that_is_not_an_object_is_one_word() -> None:
    assert read("5", schema={"type": "integer"}) == 5
    assert read("[1]", schema={"type": "array"}) == [1]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["word"], "invalid input 'word': expected key=value"),
        (["count=1", '{"a": 1}'], "invalid input"),
        (["=5"], "invalid input"),
        ([":=5"], "invalid input"),
        (["{"], "the input: invalid JSON"),
        (["count:=x"], "count: invalid JSON"),
        (["@nowhere.json"], "nowhere.json: cannot read the file"),
        (["count=1", "count=2"], "given twice"),
        (["text=1", "text.a=2"], "conflicts with another argument"),
        (["[1]", "a=1"], "is not an object"),
    ],
)
def test_what_cannot_be_read_is_explained(words: list[str], wrong: str) -> None:
    with pytest.raises(click.UsageError, match=wrong):
        read(*words)


@pytest.mark.parametrize("word", ["{'count': 1}", "filter:={since: 5}", "filter={since: 5}", "lines=[article:tea]"])
def test_quotes_that_the_shell_removed_are_explained(word: str) -> None:
    lines = {"lines": {"type": "array", "items": {"type": "object"}}}
    with pytest.raises(click.UsageError, match=r"invalid JSON: .*; JSON has double quotes, .*: put single quotes"):
        read(word, schema=SCHEMA | {"properties": SCHEMA["properties"] | lines})


@pytest.mark.parametrize(("word", "value"), [("tags=[x]", ["[x]"]), ("text={x}", "{x}"), ("level=[x]", "[x]")])
def test_text_may_begin_like_json(word: str, value: object) -> None:
    assert read(word) == {word.partition("=")[0]: value}


@given(st.text(), st.sampled_from(["integer", "number", "boolean", "null", "array", "object", "string"]))
def test_any_text_becomes_a_value_of_the_type_or_stays_unchanged(text: str, kind: str) -> None:
    value = from_text(text, SchemaField({"type": kind}))
    expected = {
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
        "array": list,
        "object": dict,
        "string": str,
    }
    assert value == text or isinstance(value, expected[kind])


ORDER: dict[str, Any] = {
    "properties": {
        "lines": {
            "type": "array",
            "items": {"properties": {"article": {"type": "string"}, "pieces": {"type": "integer"}}},
        },
        "tags": {"type": "array", "items": {"type": "string"}},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "by_number": {"type": "object", "additionalProperties": {"type": "integer"}},
    }
}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["lines.0.article=tea"], {"lines": [{"article": "tea"}]}),
        (
            ["lines.0.article=tea", "lines.0.pieces=2", "lines.1.article=5"],
            {"lines": [{"article": "tea", "pieces": 2}, {"article": "5"}]},
        ),
        (["tags[]=a", "tags[]=b"], {"tags": ["a", "b"]}),
        (["tags=a", "tags[]=b", "tags.2=c"], {"tags": ["a", "b", "c"]}),
        (["tags[]:=1"], {"tags": [1]}),
        (["grid.0.0=1", "grid.0.1=2", "grid.1[]=3"], {"grid": [[1, 2], [3]]}),
        (["by_number.0=7"], {"by_number": {"0": 7}}),
        (["unknown.0.x=a", "unknown.1.x=b"], {"unknown": [{"x": "a"}, {"x": "b"}]}),
        (["new[]=a", "new[]=b"], {"new": ["a", "b"]}),
    ],
)
def test_items_of_lists_are_given_by_number_or_appended(words: list[str], value: Any) -> None:
    assert read(*words, schema=ORDER) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lines.1.article=tea"], "item 0 of the list is missing"),
        (["lines.99999999999.article=tea"], "item 0 of the list is missing"),
        (["lines.0.article=tea", "lines.x.article=tea"], "'lines' is not an object"),
        (["tags.0=a", "tags.0=b"], "is given twice"),
        (["unknown.0=a", "unknown.x=b"], "conflicts|is missing"),
        (["unknown.x.y=a", "unknown.x.0.z=b"], "conflicts with another argument"),
    ],
)
def test_items_that_do_not_fit_are_explained(words: list[str], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        read(*words, schema=ORDER)


def test_fields_and_values_are_completed_from_a_schema() -> None:
    schema = {
        "properties": {
            "size": {"enum": ["s", 2, "x" * 999]},
            "lines": ORDER["properties"]["lines"],
            "where": {"properties": {"city": {"type": "string"}}},
            "urgent": {"type": "boolean"},
            "a=b": {},
        },
        "required": ["urgent"],
    }
    assert completed_fields(SchemaField(schema)) == {
        "urgent": ["true", "false"],
        "size": ["s", "2"],
        "lines.0.article": [],
        "lines.0.pieces": [],
        "where.city": [],
    }
    many = {"properties": {f"field{number}": {} for number in range(1000)}}
    assert len(completed_fields(SchemaField(many))) == 200
