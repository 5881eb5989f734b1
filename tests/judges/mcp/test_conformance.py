"""The public MCP conformance suite judges a registry that is served, and the client that reads servers.

What it finds is compared with `expected-failures.yml`, check by check: the run fails when the list would have to grow,
and when it could shrink.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.judges.conftest import SUMMARY
from tests.judges.mcp.conformance import (
    REVISIONS,
    SDK_COUNTS,
    checks,
    counts,
    differences,
    run_suite,
    scenarios,
    task_scenarios,
)
from tests.judges.mcp.served import over_http
from tests.judges.network import alone, refusal
from tests.judges.serving import HOST, free_port

AT_ONCE = 4  # scenarios, each of which is two processes


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_served_registry_passes_the_suite_but_for_the_checks_that_are_listed(
    revision: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A served registry passes the public MCP conformance suite for 2025-11-25 and 2026-07-28, but for the checks
    that are listed with their reasons; the list can neither grow nor be too long unnoticed."""
    results, listed = tmp_path / "results", await scenarios("server", revision)
    async with over_http("conformance_registry", tmp_path) as url:
        await run_suite("server", "--url", url, "--suite", "all", "--spec-version", revision, "-o", str(results))
        for extension in await task_scenarios() if revision == REVISIONS[-1] else ():
            await run_suite("server", "--url", url, "--scenario", extension, "-o", str(results))
            listed.add(extension)
    (passed, failed), sdk = counts(results), SDK_COUNTS[revision]
    figures = f"{passed} checks passed, {failed} failed; of the SDK's own server {sdk[0]} and {sdk[1]}"
    record_property(SUMMARY, f"MCP conformance of a server, {revision}: {figures}")
    assert differences(checks(results), listed, "server", revision) == {}
    assert passed >= sdk[0]


async def test_a_scenario_that_does_not_apply_does_not_count_as_passed(tmp_path: Path) -> None:
    url = f"http://{HOST}:{free_port()}/mcp"  # without a server, which the suite accepts
    arguments = ["--scenario", "server-stateless", "--spec-version", "2025-11-25", "-o", str(tmp_path)]
    printed = await run_suite("server", "--url", url, *arguments)
    assert "Passed:" not in printed
    found = differences(checks(tmp_path), {"server-stateless"}, "client", "2025-11-25")
    assert found == {"without a verdict": ["server-stateless"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("revision", REVISIONS)
async def test_from_mcp_passes_the_client_scenarios(
    revision: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`from_mcp` passes the suite's client scenarios, OAuth with the SDK's provider among them."""
    if reason := refusal():
        pytest.skip(reason)  # the suite's servers listen on all interfaces
    listed = await scenarios("client", revision)
    if revision != REVISIONS[-1]:  # how a user logs in is the same in all of them, and takes its time
        listed = {name for name in listed if not name.startswith("auth/")}
    turns = asyncio.Semaphore(AT_ONCE)

    async def run(scenario: str) -> str:
        arguments = ["--scenario", scenario, "--spec-version", revision, "-o", str(tmp_path)]
        command = f"{sys.executable} -m tests.judges.mcp.conformance_client"
        async with turns:
            return await run_suite("client", "--command", command, *arguments, within=alone)

    printed = await asyncio.gather(*map(run, sorted(listed)))
    passed, failed = counts(tmp_path)
    record_property(SUMMARY, f"MCP conformance of a client, {revision}: {passed} checks passed, {failed} failed")
    assert differences(checks(tmp_path), listed, "client", revision) == {}
    assert [text for text in printed if "CLIENT TIMED OUT" in text or "CLIENT EXITED" in text] == []
