"""Missing fields are asked for on a terminal, and nowhere else."""

import io
import sys
from typing import Any

import click
import pytest

from opwire import Schema
from opwire.cli.inputs import complete_input
from tests.cli.process import SHOP, OnTerminal, opwire

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Who\x1b orders."},
        "pieces": {"type": "integer", "minimum": 2},
        "key": {"type": "string", "writeOnly": True},
        "place": {"type": "object", "properties": {"shelf": {"$ref": "#/$defs/shelf"}}, "required": ["shelf"]},
        "note": {"type": "string"},
    },
    "required": ["name", "pieces", "key", "place"],
    "$defs": {"shelf": {"type": "integer"}},
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the person types, and behind it the questions."""
    given: list[str] = []

    def prompt(text: str, **options: Any) -> str:
        given.append(f"{text}{' hidden' if options['hide_input'] else ''}{options['default'] or ''}")
        return given.pop(0)

    monkeypatch.setattr(click, "prompt", prompt)
    return given


def test_required_fields_are_asked_for_until_the_schema_has_nothing_against_them(
    answers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answers += ["Ann", "many", "1", "2", "s3cret", "7"]
    assert complete_input(None, Schema(ORDER)) == {
        "name": "Ann",
        "pieces": 2,
        "key": "s3cret",
        "place": {"shelf": 7},
    }
    pieces = "pieces (integer)"
    assert answers == ["name (string)", pieces, pieces, pieces, "key (string) hidden", "place.shelf (integer)"]
    about, wrong, less = capsys.readouterr().err.splitlines()
    assert about == "Who\\x1b orders."
    assert "integer" in wrong
    assert "2" in less


def test_what_is_given_is_not_asked_for(answers: list[str]) -> None:
    answers += ["3"]
    given = {"name": "Ann", "pieces": 2, "key": "x", "place": {}}
    assert complete_input(given, Schema(ORDER))["place"] == {"shelf": 3}
    assert given["place"] == {}, "the input itself is not changed"
    assert complete_input({"x": 1}, Schema(True)) == {"x": 1}
    assert complete_input([1], Schema(ORDER)) == [1]


def test_a_prompt_for_objects_says_that_it_takes_json(answers: list[str]) -> None:
    lines = {"type": "array", "items": {"type": "object"}}
    answers += ['[{"article": "tea"}]']
    asked = complete_input(None, Schema({"type": "object", "properties": {"lines": lines}, "required": ["lines"]}))
    assert (asked, answers) == ({"lines": [{"article": "tea"}]}, ["lines (list of object as JSON)"])


def test_a_person_at_a_terminal_is_asked() -> None:
    with OnTerminal("call", *SHOP, "math.add", "a=1") as terminal:
        terminal.expect("b (integer): ")
        terminal.type("two\n")
        terminal.expect("b (integer): ")
        terminal.type("2\n")
        code, shown = terminal.end()
    assert (code, shown.split()) == (0, ["2", "3"])


def test_control_c_ends_a_question_at_once() -> None:
    with OnTerminal("call", *SHOP, "math.add") as terminal:
        terminal.expect("a (integer): ")
        code, shown = terminal.interrupt()
    assert code == 130
    assert "Traceback" not in shown


def test_in_a_pipe_no_question_is_asked() -> None:
    ended = opwire("call", *SHOP, "math.add", "a=1", input="2\n")
    assert ended.returncode == 4
    assert '"b" is a required property' in ended.stderr


def test_a_default_is_shown_without_control_characters_and_taken_unchanged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    steering = "\x1b]0;x\x07\x9b31m\u202e\nsecond line"
    field = {"type": "string", "default": steering, "description": steering, "enum": [steering]}
    schema = Schema({"type": "object", "properties": {f"a{steering}": field}, "required": [f"a{steering}"]})
    assert complete_input({}, schema) == {f"a{steering}": steering}
    shown = "".join(capsys.readouterr())
    assert "\\x1b]0;x" in shown
    assert not set(shown) & set("\x1b\x07\x9b\u202e")


def test_a_misspelt_field_is_reported_before_the_missing_one_is_prompted_for() -> None:
    closed = {
        "type": "object",
        "properties": {"name": {}, "limit": {}},
        "required": ["name"],
        "additionalProperties": False,
    }
    with pytest.raises(click.UsageError, match="unknown field 'nme'; did you mean name") as failure:
        complete_input({"nme": "tea"}, Schema(closed))
    assert failure.value.exit_code == 2
