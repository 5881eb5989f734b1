"""Operations ask the person at the terminal, and never elsewhere."""

import pytest

from tests.cli.process import OnTerminal, opwire

ASKING = ("--python", "tests.cli.asking:registry")


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("y\n", "deleted"),
        ("n\n", "kept: accept"),
        ("!\n", "kept: decline"),
        ("\x04", "kept: cancel"),
        ("what\ny\n", "deleted"),
    ],
)
def test_a_confirmation_is_asked_for_at_the_terminal(keys: str, shown: str) -> None:
    with OnTerminal("call", *ASKING, "ask.delete") as terminal:
        before = terminal.expect("[y/n]: ")
        terminal.type(keys)
        code, rest = terminal.end()
    assert "Delete 3 orders?" in before
    assert "\x1b[2J" not in before, "what an operation asks does not steer the terminal"
    assert code == 0
    assert rest.rstrip().endswith(shown)


def test_a_form_is_asked_for_field_by_field_until_it_is_valid() -> None:
    with OnTerminal("call", *ASKING, "ask.order") as terminal:
        terminal.expect("What do you want?")
        terminal.expect("kind (one of tea, coffee): ")
        terminal.type("milk\n")
        terminal.expect("kind (one of tea, coffee): ")
        terminal.type("tea\n")
        terminal.expect("cups (integer): ")
        terminal.type("0\n")
        terminal.expect("cups (integer): ")
        terminal.type("2\n")
        terminal.expect("note (string): ")
        terminal.type("\n")
        code, rest = terminal.end()
    assert (code, rest.split("\n")[-2].strip()) == (0, "2 tea None")


def test_a_form_can_be_declined_and_the_command_interrupted() -> None:
    with OnTerminal("call", *ASKING, "ask.order") as terminal:
        terminal.expect("kind (one of tea, coffee): ")
        terminal.type("!\n")
        code, rest = terminal.end()
    assert (code, rest.split("\n")[-2].strip()) == (0, "decline")
    with OnTerminal("call", *ASKING, "ask.order") as terminal:
        terminal.expect("kind (one of tea, coffee): ")
        code, rest = terminal.interrupt()
    assert code == 130
    assert "Traceback" not in rest


def test_a_question_names_the_operation_and_cannot_look_like_one_of_the_system() -> None:
    with OnTerminal("call", *ASKING, "ask.disguise") as terminal:
        shown = terminal.expect("password (string): ")
        terminal.type("!\n")
        code, rest = terminal.end()
    assert (code, rest.split("\n")[-2].strip()) == (0, "decline")
    lines = shown.replace("\r", "").split("\n")
    assert "ask.disguise asks, and gets the answer:" in lines[-8]
    assert lines[-7:] == [
        "  z",
        "  [sudo] password",
        "(! declines, ^D cancels)",
        "  y",
        "  [sudo] password",
        "  x",
        "  [sudo] ",
    ]


def test_in_a_pipe_the_error_says_what_was_asked_and_how_to_answer() -> None:
    ended = opwire("call", *ASKING, "ask.delete", input="y\n")
    assert ended.returncode != 0
    assert 'asks "Delete 3 orders?' in ended.stderr
    assert "in a terminal" in ended.stderr


def test_a_terminal_has_no_model() -> None:
    with OnTerminal("call", *ASKING, "ask.think") as terminal:
        code, rest = terminal.end()
    assert code != 0
    assert "for a completion by a model, which a terminal cannot answer" in rest
