"""`opwire ls`."""

import json
import sys

import pytest

from opwire import OperationSpec
from opwire.cli.commands.listing import listing_lines
from opwire.cli.program import run
from opwire.cli.text import cells
from tests.cli.process import SHOP, OnTerminal, unstyled
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
        (["adding", "integrs"], ["math.add"]),
        (["xylophone"], []),
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
def test_on_a_terminal_namespaces_are_groups_with_counts() -> None:
    with OnTerminal("ls", *SHOP) as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert "\x1b[1m" in shown
    lines = unstyled(shown).splitlines()
    assert lines[:2] == ["math  1 operation", "  query         math.add  Add two integers."]
    assert "shop  6 operations" in lines
    assert lines[-1] == "8 operations"
    with OnTerminal("ls", *SHOP, NO_COLOR="1") as terminal:
        assert "\x1b[" not in terminal.end()[1]


@requirement("cli.ls")
def test_a_list_longer_than_the_terminal_is_paged() -> None:
    pager = f"{sys.executable} -c 'import sys; print(len(sys.stdin.readlines()), \"lines\")'"
    with OnTerminal("ls", *SHOP, rows=8, PAGER=pager) as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert unstyled(shown) == "13 lines\n8 operations\n"
    with OnTerminal("ls", *SHOP, "--no-pager", rows=8, PAGER=pager) as terminal:
        assert "shop.slow" in terminal.end()[1]


def test_wide_characters_count_twice() -> None:
    spec = OperationSpec(namespace="api", name="名前", description="説明" * 40)
    assert cells(listing_lines([spec], 60)[1].plain()) == 60
