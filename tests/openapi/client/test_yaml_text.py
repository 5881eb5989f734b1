"""YAML with JSON's types, and what a hostile one must not do."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.openapi.client import yaml_text
from opwire.openapi.client.yaml_text import MAX_DEPTH, read_yaml
from tests.properties import examples


def load(text: str | bytes) -> Any:
    return read_yaml(text, lambda _: None)


def warnings_of(text: str) -> list[str]:
    found: list[str] = []
    read_yaml(text, found.append)
    return found


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2020-01-01", "2020-01-01"),
        ("2020-01-01T10:00:00Z", "2020-01-01T10:00:00Z"),
        ("12:30:45", "12:30:45"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("0777", "0777"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("7", 7),
        ("-0", 0),
        ("+3", 3),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e3", 1000.0),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ('"7"', "7"),
        ("'true'", "true"),
        ("!!str 7", "7"),
        ("!!int 7", 7),
        ("!custom 7", "7"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_scalars_have_the_types_of_json(written: str, read: Any) -> None:
    value = load(f"value: {written}")["value"]
    assert value == read
    assert type(value) is type(read)


def test_keys_are_always_text() -> None:
    assert load("{200: a, 1.50: b, true: c, null: d, 2020-01-01: e, on: f}") == {
        "200": "a", "1.50": "b", "true": "c", "null": "d", "2020-01-01": "e", "on": "f"
    }  # fmt: skip


def test_an_alias_is_what_its_anchor_is() -> None:
    assert load("a: &x {n: 1}\nb: *x\nc: [*x]") == {"a": {"n": 1}, "b": {"n": 1}, "c": [{"n": 1}]}
    assert load("a: &x 7\nb: *x") == {"a": 7, "b": 7}


def test_merge_keys_stand_back_behind_own_keys() -> None:
    text = "base: &b {a: 1, b: 2}\nother: &o {b: 3, c: 4}\none: {<<: *b, a: 9}\nmany: {d: 5, <<: [*b, *o]}"
    read = load(text)
    assert read["one"] == {"a": 9, "b": 2}
    assert read["many"] == {"a": 1, "b": 2, "c": 4, "d": 5}
    assert warnings_of(text) == []


def test_of_two_equal_keys_the_last_counts_and_a_warning_says_where() -> None:
    assert load("a: 1\na: 2") == {"a": 2}
    (warning,) = warnings_of("b: 0\na: 1\na: 2")
    assert "duplicate key 'a'" in warning
    assert "line 3" in warning


def test_of_several_documents_the_first_counts() -> None:
    assert load("a: 1\n---\na: 2") == {"a": 1}
    assert "several YAML documents" in warnings_of("a: 1\n---\na: 2")[0]
    assert len(warnings_of("a: 1\n---\n---\n[not read")) == 1
    assert load("") is None


def test_a_document_that_stands_for_too_much_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(ValueError, match="expands to more than"):
        load("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [*a]", "no complete anchor"),
        ("a: *b", "no complete anchor, line 1, column 4"),
        ("[" * (MAX_DEPTH + 1), "nested deeper"),
        ("{a: 1}: 2", "a key must be a scalar, line 1"),
        ("a: &x {n: 1}\n*x : 2", "a key must be a scalar, line 2"),
        ("a: [1", "line 2, column 1"),
        ("a: 'x", "line"),
        ("a: \x07", "unacceptable character|special characters"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load(text)


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(ValueError, match=r"invalid leading UTF-8 octet|unacceptable|not UTF-8"):
        load(b"a: \xff\xfe")


def test_tags_construct_nothing() -> None:
    assert load("a: !!python/object/apply:os.system ['true']") == {"a": ["true"]}


def test_digits_without_end_stay_text() -> None:
    digits = "9" * 5000
    assert load(f"a: {digits}") == {"a": digits}


words = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(60))
@given(st.dictionaries(words, plain, max_size=4))
def test_json_read_as_yaml_is_the_same(value: dict[str, Any]) -> None:
    assert load(json.dumps(value)) == value


def test_pyyaml_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.setattr(yaml_text, "_loader", yaml.Loader)
    assert load("a: [1, 2020-01-01, {200: yes}]") == {"a": [1, "2020-01-01", {"200": "yes"}]}


def test_a_few_lines_stand_for_no_more_than_a_multiple_of_their_size() -> None:
    lines = ["a0: &a0 {type: string}"]
    for level in range(1, 7):
        lines.append(f"a{level}: &a{level} {{{', '.join(f'k{key}: *a{level - 1}' for key in range(8))}}}")
    with pytest.raises(ValueError, match=r"expands to more than 1,0[0-9]{2},[0-9]{3} characters"):
        load("\n".join(lines))
    assert len(load("a: &a [1, 2, 3]\nb: [" + "*a, " * 1_000 + "]")["b"]) == 1_000


@pytest.mark.parametrize("anchored", ["&a {text}", "[&a {{k: {text}}}]", "{{k: &a [{text}]}}"])
def test_aliases_of_a_long_text_stand_for_no_more_than_a_multiple_of_the_document(anchored: str) -> None:
    text = anchored.format(text="x" * 100_000)
    few, many = (f"a: {text}\nb: [{', '.join(['*a'] * times)}]" for times in (5, 50))
    with pytest.raises(ValueError, match=r"expands to more than [0-9,]+ characters, .*, line 2"):
        load(many)
    assert len(load(few)["b"]) == 5


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # Tabs that are content, or separate tokens.
        ("a: |\n  \ttext\n  more\nb: 1", {"a": "\ttext\nmore\n", "b": 1}),
        ("a:\n  - b: >-\n\n      \t\ttext\n", {"a": [{"b": "\n\t\ttext"}]}),
        ("a:\n  - |- # note\n    \ttext\n  - !x >\r\n    \ttext\r\n", {"a": ["\ttext", "\ttext\n"]}),
        ("a:\n  b: |\n    \t\n    text\n", {"a": {"b": "\t\ntext\n"}}),
        ("a:\n\t\n  b: 1\n \t # note\n  c: 2\n\t", {"a": {"b": 1, "c": 2}}),
        ("a:\n  -\tb\n  -\t c", {"a": ["b", "c"]}),
        # Characters that end a line in YAML 1.1, or are control characters.
        ("a: x\u2028y\nb: |\n  x\u2029y\nc: 1 # x\x85y", {"a": "x\u2028y", "b": "x\u2029y\n", "c": 1}),
        ('a: "x\x92y\x7f"\nb: x\x80y', {"a": "x\x92y\x7f", "b": "x\x80y"}),
        ("k\x99: '\ufffe'", {"k\x99": "\ufffe"}),
        # Escapes as in JSON.
        (r'a: "\/ \ud83d\ude00 \\ud83d \" \uD83D\uDE00"', {"a": '/ \U0001f600 \\ud83d " \U0001f600'}),
        (r'a: "\ud83d"' + "\nb: '\\ud83d\\ude00'", {"a": "\ufffd", "b": r"\ud83d\ude00"}),
        # Names of anchors.
        ("a: &a.b/é [1]\nb: *a.b/é\nc: [*a.b/é]", {"a": [1], "b": [1], "c": [[1]]}),
        # Several at once, with text that must not change.
        ("é: x\u2028\nb: |\n \tx\nc: &d.e \x81\nf: [*d.e]", {"é": "x\u2028", "b": "\tx\n", "c": "\x81", "f": ["\x81"]}),
    ],
)
def test_text_that_only_libyaml_rejects_is_repaired(text: str, read: Any) -> None:
    """YAML that js-yaml reads loads, also where libyaml rejects it: tabs, C1 controls, U+2028."""
    assert load(text.encode()) == read
    assert load(text) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: |\n  \tx\nb: 1\nc: [", "line 5, column 1"),
        ("a: \x92\nb: [\nc: }", "line 3"),
        ("a: |\n\tx\n", "tab character.*line 2, column 1"),
        ("a:\n\tb: 1\n", "cannot start any token, line 2, column 1"),
        ("a: *.x\n", "alphabetic or numeric character, line 1"),
        ('a: "\\U00110000"\n', "escape code, line 1"),
        ("a: \x92\U0010fe00\n", "x0092: control characters"),
    ],
)
def test_text_that_cannot_be_repaired_says_where_it_is_invalid(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load(text)


def test_a_repaired_text_gives_each_warning_once() -> None:
    assert len(warnings_of("a: 1\na: 2\nb:\n  -\tx\n  -\ty\n")) == 1


def test_repairs_are_bounded() -> None:
    few, many = ("a:\n" + "  -\tx\n" * count for count in (20, 1_200))
    assert load(few) == {"a": ["x"] * 20}
    with pytest.raises(ValueError, match="cannot start any token, line"):
        load(many)
