"""Runs the public MCP conformance suite, and reads its verdicts."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.judges.programs import npm_program
from tests.judges.serving import finished
from tests.servers.processes import mortal

REVISIONS = ("2025-11-25", "2026-07-28")
SDK_COUNTS = {"2025-11-25": (84, 0), "2026-07-28": (169, 25)}
"""Checks that the everything server of the official SDK passes and fails, those of unscored extensions included."""

EXPECTED = Path(__file__).with_name("expected-failures.yml")

_LISTED = re.compile(r"^  - (\S+) \[", re.MULTILINE)
_TASKS = re.compile(r"^  - (tasks-\S+) \[extension\]", re.MULTILINE)
_PASSED, _NOT_PASSED = "SUCCESS", {"FAILURE", "WARNING"}


def expected_failures(role: str, revision: str) -> set[str]:
    """The checks that are known not to pass, as `scenario:check`; scenarios without a verdict by their name."""
    entries: list[dict[str, Any]] = yaml.safe_load(EXPECTED.read_text(encoding="utf-8"))[role]
    assert all(entry["because"] for entry in entries)
    return {check for entry in entries for check in entry.get(revision, ())}


async def scenarios(role: str, revision: str) -> set[str]:
    """The scenarios of the suite that apply to a server, or to a client, of this revision."""
    listed = set(_LISTED.findall(await run_suite("list", f"--{role}", "--spec-version", revision)))
    assert listed
    return listed


async def task_scenarios() -> set[str]:
    """The scenarios for servers with tasks: an extension of the latest revision, which the suite does not score."""
    listed = set(_TASKS.findall(await run_suite("list", "--server")))
    assert listed
    return listed


async def run_suite(*arguments: str, within: Callable[[list[str]], list[str]] = list) -> str:
    """What the suite prints; `within` makes the command another one that runs it.

    Whether it is content is not asked: that is said, check by check, in the files that it writes.
    """
    ended = await finished(within(mortal([*npm_program("conformance"), *arguments])))
    return ended.output + ended.complaints


def checks(results: Path) -> dict[str, dict[str, str]]:
    """What the suite found, by scenario: each check, with its status and message if it did not pass, else empty.

    A scenario that does not apply writes nothing, and one that could check nothing is left out.
    """
    found: dict[str, dict[str, str]] = {}
    for file in results.rglob("checks.json"):
        scenario = _scenario(file.parent.relative_to(results).as_posix())
        for check in json.loads(file.read_text(encoding="utf-8")):
            if check["status"] in _NOT_PASSED:
                found.setdefault(scenario, {})[check["id"]] = f"{check['status']}: {check.get('errorMessage')}"
            elif check["status"] == _PASSED:
                found.setdefault(scenario, {}).setdefault(check["id"], "")
    return found


def counts(results: Path) -> tuple[int, int]:
    """How many checks passed and failed, as the suite counts them: one may be made several times."""
    made = [json.loads(file.read_text(encoding="utf-8")) for file in results.rglob("checks.json")]
    statuses = [check["status"] for each in made for check in each]
    return statuses.count(_PASSED), statuses.count("FAILURE")


def _scenario(folder: str) -> str:
    """Of `server-tools-list-2026-01-31T23-59-59-999Z`: `tools-list`."""
    return re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", folder).removeprefix("server-")


def not_passed(found: dict[str, dict[str, str]]) -> dict[str, str]:
    """The checks that did not pass, as `scenario:check`, and why."""
    return {f"{scenario}:{id}": why for scenario, each in found.items() for id, why in each.items() if why}


def differences(found: dict[str, dict[str, str]], listed: Iterable[str], role: str, revision: str) -> dict[str, Any]:
    """Where the verdicts are not the ones that are expected; empty if they all are."""
    failed, expected = not_passed(found), expected_failures(role, revision)
    silent = {name for name in expected if ":" not in name} - set(found)
    different = {
        "without a verdict": sorted(set(listed) - set(found) - silent),
        "fails, and is not listed": {name: why for name, why in failed.items() if name not in expected},
        "is listed, and does not fail": sorted(expected - set(failed) - silent),
    }
    return {what: which for what, which in different.items() if which}
