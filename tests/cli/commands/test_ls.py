"""`opwire ls`."""

import json
import sys
from pathlib import Path

import pytest

from opwire import OperationSpec
from opwire.cli.commands.listing import listing_lines
from opwire.cli.program import run
from opwire.cli.text import cells
from tests.cli.process import SHOP, OnTerminal, unstyled


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["ls", *SHOP, *arguments]) == 0
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


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


def test_a_list_longer_than_the_terminal_is_paged() -> None:
    pager = f"{sys.executable} -c 'import sys; print(len(sys.stdin.readlines()), \"lines\")'"
    with OnTerminal("ls", *SHOP, rows=8, PAGER=pager) as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert unstyled(shown) == "13 lines\n8 operations\n"
    with OnTerminal("ls", *SHOP, "--no-pager", rows=8, PAGER=pager) as terminal:
        assert "shop.slow" in terminal.end()[1]


def test_an_unknown_namespace_and_a_file_without_sources_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ls", *SHOP, "-n", "shp"]) == 0
    assert capsys.readouterr() == ("", "unknown namespace 'shp'; did you mean shop?\n")
    assert run(["ls", *SHOP, "-n", "xylophone"]) == 0
    assert capsys.readouterr().err == "unknown namespace 'xylophone'; there are math, shop, clock\n"
    assert run(["ls", *SHOP, "-n", "shop", "--tag", "maths"]) == 0
    assert capsys.readouterr().err == "the namespace shop has no such operations\n"
    assert run(["ls", *SHOP, "xylophone"]) == 0
    assert capsys.readouterr().err.startswith("none of the ")
    (tmp_path / "opwire.toml").write_text("# no sources yet\n")
    assert run(["ls", "-c", str(tmp_path / "opwire.toml")]) == 0
    assert "opwire.toml has no sources of operations: add one" in capsys.readouterr().err


def test_wide_characters_count_twice() -> None:
    spec = OperationSpec(namespace="api", name="名前", description="説明" * 40)
    assert cells(listing_lines([spec], 60)[1].plain()) == 60


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "opwire.toml"
    source = '[sources.shop]\npython = "tests.cli.shop:registry"\n'
    views = '[views.few]\ninclude = ["math"]\nrename = { math = "m" }\n[views.mode]\nsearch = "always"\n'
    path.write_text(source + views, encoding="utf-8")
    return str(path)


def test_tokens_of_operations_and_views_are_shown(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--config", file, "--tokens", "add"]) == 0
    captured = capsys.readouterr()
    id, type, tokens, summary = captured.out.strip().split("\t")
    assert (id, type, summary) == ("math.add", "query", "Add two integers.")
    assert 20 < int(tokens) < 60
    assert captured.err.splitlines()[0] == f"1 operation, {tokens} tokens"
    assert captured.err.splitlines()[1].startswith("view few: 1 operation, ")
    assert captured.err.splitlines()[2].startswith("view mode: 3 operations, ")
    assert run(["ls", "--config", file, "--tokens", "--json", "add"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tokens"] == int(tokens)
    with OnTerminal("ls", "--config", file, "--tokens") as terminal:
        lines = unstyled(terminal.end()[1]).splitlines()
    assert lines[0] == f"math  1 operation, {tokens} tokens"
    assert lines[1].split() == ["query", tokens, "math.add", "Add", "two", "integers."]


def test_the_operations_of_a_view_are_listed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--config", file, "--view", "few"]) == 0
    assert capsys.readouterr().out.startswith("m.add\tquery\t")
    assert run(["ls", "--config", file, "--view", "fwe"]) == 2
    assert "unknown view 'fwe': the configuration has few, mode" in capsys.readouterr().err
