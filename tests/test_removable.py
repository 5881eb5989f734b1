"""What a part needs is written down, so that removing it stays possible."""

import re

from tests.removable import ROOT, needs, part_of, parts, parts_of_tests, with_dependents

RECORD = ROOT / "docs" / "adr" / "0059-parts-can-be-removed.md"
CORE = ("model", "registry", "runtime", "schema", "typed")


def recorded_needs() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", RECORD.read_text(encoding="utf-8"), re.MULTILINE)
    return {part: set(re.findall(r"`([\w.]+)`", cell)) for part, cell in rows}


def test_a_part_needs_what_the_record_of_decision_says_and_the_core_needs_none() -> None:
    imported = needs()
    assert imported.pop("core") == set()
    assert recorded_needs() == imported


def test_tests_of_the_core_use_only_the_core() -> None:
    used = {
        path.relative_to(ROOT).as_posix(): names
        for path, names in parts_of_tests().items()
        if path.relative_to(ROOT).parts[1] in CORE
    }
    assert len(used) > 50
    assert {path: names for path, names in used.items() if names} == {}


def test_a_module_is_in_the_smallest_part_that_contains_it() -> None:
    modules = {
        "opwire.hub.hub": "hub",
        "opwire.hub.cluster": "hub.cluster",
        "opwire.__main__": "cli",
        "opwire.cli.screen": "cli",
        "opwire.openapi.client.call": "openapi",
        "opwire.registry.view": None,
        "opwire.errors": None,
    }
    assert {module: part_of(module, parts()) for module in modules} == modules


def test_a_part_is_removed_with_those_that_need_it_and_those_inside_of_them() -> None:
    needed = {"cli": {"config"}, "cli.demo": {"mcp"}, "config": set[str](), "mcp": set[str](), "http": set[str]()}
    assert with_dependents("http", needed) == {"http"}
    assert with_dependents("mcp", needed) == {"mcp", "cli.demo"}
    assert with_dependents("config", needed) == {"config", "cli", "cli.demo"}
