"""`opwire watch`."""

import json
from pathlib import Path

import pytest

from opwire.cli.program import run
from tests.cli.process import SHOP

WATCH = ("watch", *SHOP)


def test_items_are_printed_as_lines_until_the_end_or_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    """The items of a subscription are printed as they come."""
    assert run([*WATCH, "clock.ticks", "count=3", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"tick": 0},
        {"tick": 1},
        {"tick": 2},
    ]
    assert run([*WATCH, "clock.ticks", "count=3", "last=false", "--count", "2", "--envelope"]) == 0
    envelopes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["data"]["tick"], each["meta"]["source"]) for each in envelopes] == [(0, "local"), (1, "local")]


def test_a_query_is_called_and_not_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WATCH, "math.add"]) == 2
    assert "use `opwire call math.add`" in capsys.readouterr().err


def test_wrong_input_ends_it_with_the_code_of_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WATCH, "clock.ticks", "count=many"]) == 4
    assert "VALIDATION_ERROR" in capsys.readouterr().err


RESUMABLE = """
from collections.abc import AsyncIterator
from opwire import Item, OperationRegistry

registry = OperationRegistry()


@registry.subscription("log.follow")
async def follow(resume_from: str | None = None) -> AsyncIterator[Item[int]]:
    for number in range(int(resume_from or 0) + 1, 5):
        yield Item(number, cursor=str(number))
"""


def test_it_begins_behind_a_cursor_or_says_that_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.py").write_text(RESUMABLE)
    follow = ["watch", "--python", str(tmp_path / "log.py"), "log.follow", "--resume", "--resume-from", "2"]
    assert run([*follow, "--envelope"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["data"], each["meta"]["cursor"]) for each in lines] == [(3, "3"), (4, "4")]
    for options in (["--resume"], ["--resume-from", "1"]):
        assert run([*WATCH, "clock.ticks", *options]) == 4
        assert "clock.ticks cannot be resumed" in capsys.readouterr().err
