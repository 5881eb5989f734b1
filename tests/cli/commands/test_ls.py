"""`opwire ls`."""

import json

import pytest

from opwire.cli.program import run
from opwire.registry import matching
from tests.cli.process import SHOP, OnTerminal
from tests.cli.shop import registry
from tests.requirements import requirement


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["ls", *SHOP, *arguments]) == 0
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


@requirement("cli.ls")
@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["add"], ["math.add"]),
        (["bytes", "text"], ["shop.bytes"]),
        (["nothing-of-the-kind"], []),
        (["-n", "clock"], ["clock.ticks"]),
        (["--type", "mutation"], ["shop.order"]),
        (["--tag", "maths"], ["math.add"]),
        (["--source", "tests.cli.shop:registry", "--tag", "maths"], ["math.add"]),
    ],
)
def test_operations_are_searched_and_filtered(
    arguments: list[str], ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys, *arguments) == ids


def test_who_holds_the_words_in_the_id_comes_first() -> None:
    found = [spec.id for spec in matching(registry.list(), "text")]
    assert found[0] == "shop.text"
    assert len(found) > 1


@requirement("cli.ls", "cli.json")
def test_as_json_it_is_a_list_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", *SHOP, "--json", "add"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "id": "math.add",
            "type": "query",
            "title": "",
            "description": "Add two integers.",
            "tags": ["maths"],
            "version": "",
        }
    ]


@requirement("cli.ls", "cli.plain")
def test_on_a_terminal_it_is_a_table() -> None:
    with OnTerminal("ls", *SHOP) as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert "8 operations" in shown
    assert "\x1b[1m" in shown
    with OnTerminal("ls", *SHOP, NO_COLOR="1") as terminal:
        assert "\x1b[3" not in terminal.end()[1]
