"""What is printed, where, and what cannot be done to a terminal."""

import json
import logging
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opwire import CallError, ConfigError
from opwire.cli.screen import Screen, harmless, json_text, one_line


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output and error claim to be a terminal."""
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("\x9b31m", r"\x9b31m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb", r"a\rb"),
        ("txt.\u202eexe", r"txt.\u202eexe"),
        ("get\u200b_\u2063user\ufeff", r"get\u200b_\u2063user\ufeff"),
        ("tea\U000e0073\U000e0065", r"tea\U000e0073\U000e0065"),
        ("👩\u200d💻 ❤\ufe0f می\u200cخواهم", "👩\u200d💻 ❤\ufe0f می\u200cخواهم"),
        ("tab\tand\nline stay, so do ümlauts and 漢字", "tab\tand\nline stay, so do ümlauts and 漢字"),
    ],
)
def test_what_could_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert harmless(text) == shown


@given(st.text())
def test_no_text_can_steer_a_terminal(text: str) -> None:
    """Foreign text cannot send control sequences to the terminal."""
    shown = harmless(text)
    assert all(unicodedata.category(character) != "Cc" or character in "\t\n" for character in shown)
    assert harmless(shown) == shown


@given(st.recursive(st.none() | st.text() | st.integers(-(2**53), 2**53), lambda inner: st.lists(inner, max_size=3)))
@example("\x1b \u200b \U000e0073")
def test_json_is_harmless_and_says_the_same(value: Any) -> None:
    for indent in (True, False):
        text = json_text(value, indent=indent)
        assert harmless(text) == text
        assert json.loads(text) == value


def test_one_line_is_the_first_that_says_something() -> None:
    assert one_line("\n\n  Add.\nMore.") == "Add."
    assert one_line("") == ""


def test_rows_are_lines_with_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().rows([("math.add", "Add.\nTwo."), ("x.y", "a\tb\x1b")])
    assert capsys.readouterr().out == "math.add\tAdd.\nx.y\ta\tb\\x1b\n"


@pytest.mark.parametrize("colour", [True, False])
def test_no_color_is_respected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], colour: bool
) -> None:
    pretend_terminal(monkeypatch)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    Screen().warning("careful")
    assert ("\x1b[33m" in capsys.readouterr().err) is colour


def test_an_error_is_one_line_and_its_details_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    error = CallError("VALIDATION_ERROR", "math.add: /a: no\x1b", {"problems": [1]})
    screen.failure(error)
    assert capsys.readouterr() == ("", "error: VALIDATION_ERROR: math.add: /a: no\\x1b\n")
    screen.verbose = True
    screen.failure(error)
    assert '"problems"' in capsys.readouterr().err


def test_a_fault_of_ours_shows_its_traceback_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    try:
        raise KeyError("x")
    except KeyError as error:
        screen.failure(error)
        assert (
            capsys.readouterr().err == "error: internal error in opwire: KeyError: 'x'; --debug shows the traceback\n"
        )
        screen.debug = True
        screen.failure(error)
    assert "Traceback" in capsys.readouterr().err


def test_with_json_an_error_is_an_object_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json all output is JSON, including errors."""
    screen = Screen()
    screen.as_json = True
    screen.failure(CallError("RATE_LIMITED", "slowly", {"a": 1}, retry_after=1.5))
    screen.failure(ConfigError("a mistake"))
    limited, wrong = map(json.loads, capsys.readouterr().err.splitlines())
    assert limited["error"] == {
        "code": "RATE_LIMITED",
        "message": "slowly",
        "retryable": True,
        "details": {"a": 1},
        "retryAfterMs": 1500,
    }
    assert wrong["error"] == {"code": "CONFIGURATION", "message": "a mistake"}


def test_warnings_of_opwire_are_shown_as_long_as_the_block_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("opwire.registry")
    handlers = list(logging.getLogger("opwire").handlers)
    with Screen().logging():
        logger.warning("mended %s", "a\x1b")
        logger.info("not this")
    assert capsys.readouterr().err == "warning: mended a\\x1b\n"
    assert logging.getLogger("opwire").handlers == handlers


def test_warnings_of_other_libraries_cannot_steer_the_terminal_either(capsys: pytest.CaptureFixture[str]) -> None:
    stranger = logging.Logger("a library without a handler")
    before = logging.lastResort
    with Screen().logging():
        stranger.warning("unknown event %s", "\x1b]0;x\x07\x9b31m\u202e")
    assert capsys.readouterr().err == "warning: unknown event \\x1b]0;x\\x07\\x9b31m\\u202e\n"
    assert logging.lastResort is before


@pytest.mark.parametrize("wait", [float("inf"), float("nan"), 1e300])
def test_an_error_with_an_absurd_wait_is_still_shown(capsys: pytest.CaptureFixture[str], wait: float) -> None:
    screen = Screen()
    screen.as_json = True
    screen.failure(CallError("RATE_LIMITED", "slowly", retry_after=wait))
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "RATE_LIMITED"
