"""`opwire call`."""

import json
from pathlib import Path

import pytest

from opwire.cli.program import run
from tests.cli.process import SHOP, OnTerminal, opwire
from tests.requirements import requirement

CALL = ("call", *SHOP)


@requirement("cli.call", "cli.typed-input")
def test_words_files_and_standard_input_are_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"customer": "Ann", "lines": []}')
    for words in (
        ["customer=Ann", 'lines:=[{"article": "tea", "pieces": 2}]'],
        [f"@{file}", 'lines=[{"article": "tea", "pieces": 2}]'],
        ['{"customer": "Ann", "lines": [{"article": "tea", "pieces": 2}]}'],
    ):
        assert run([*CALL, "--json", "shop.order", *words]) == 0
        assert json.loads(capsys.readouterr().out) == {"customer": "Ann", "pieces": 2, "size": "s"}
    ended = opwire(*CALL, "--envelope", "math.add", "-", input='{"a": 1, "b": 2}')
    assert json.loads(ended.stdout)["data"] == 3


@requirement("cli.call", "cli.forms")
def test_binary_data_is_described_saved_or_passed_on(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run([*CALL, "shop.bytes"]) == 0
    assert capsysbinary.readouterr().out == b"[application/octet-stream, 3 bytes] --output FILE saves it\n"
    assert run([*CALL, "shop.bytes", "--raw"]) == 0
    assert capsysbinary.readouterr().out == b"\xff\x00\xfe"
    assert run([*CALL, "shop.bytes", "-o", str(tmp_path / "x.bin")]) == 0
    assert (tmp_path / "x.bin").read_bytes() == b"\xff\x00\xfe"


@requirement("cli.call", "cli.harmless")
def test_a_text_cannot_clear_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALL, "shop.text"]) == 0
    assert capsys.readouterr().out == "\\x1b[2Jxxx\n"


@requirement("cli.call", "cli.exit-codes")
def test_an_answer_that_is_an_error_is_printed_and_told_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALL, "shop.tool", "is_error=true", "-v"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("hello\n[image/png, 4 bytes]")
    assert "the tool returned an error" in err


@requirement("cli.call")
def test_who_waits_at_a_terminal_learns_how_far_it_is() -> None:
    with OnTerminal(*CALL, "shop.slow") as terminal:
        terminal.expect("shop.slow: 1 of 2 halfway")
        code, shown = terminal.end()
    assert code == 0
    assert "done" in shown


def test_a_subscription_is_watched_and_not_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CALL, "clock.ticks"]) == 2
    assert "use `opwire watch clock.ticks`" in capsys.readouterr().err
