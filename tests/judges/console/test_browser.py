"""The console in a real browser: every feature, many operations, many calls, hostile content, and bad states."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.judges.console.server import MANY
from tests.judges.programs import NODE, NODE_MODULES
from tests.judges.serving import HOST, Finished, finished, free_port, listening

SCRIPT = Path(__file__).with_name("browser.mjs")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

Results = dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Run all scenarios in one browser, and return their errors by name."""
    if CHROMIUM is None:
        pytest.skip("Chromium is missing: run `make browser`")
    if not (NODE_MODULES / "playwright-core").exists():
        pytest.skip("playwright-core is missing: run `make judges`")
    run = asyncio.run(browse(tmp_path_factory.mktemp("console"), CHROMIUM))
    assert run.code == 0, run.complaints
    return {each["scenario"]: each["error"] for each in map(json.loads, run.output.splitlines())}


async def browse(folder: Path, chromium: str) -> Finished:
    """Run the browser against a server of its own."""
    port = free_port()
    server = [sys.executable, "-m", "tests.judges.console.server", str(port), str(MANY)]
    async with listening(server, port, log := folder / "server.log"):
        link = next(line for line in log.read_text().splitlines() if "#link=" in line)
        env = {**os.environ, "CHROMIUM": chromium, "LINK": link}
        return await finished([str(NODE), str(SCRIPT), f"http://{HOST}:{port}"], env)


def check(results: Results, *scenarios: str) -> None:
    """Fail with the errors of the scenarios that failed, and if one did not run."""
    assert {name: results[name] for name in scenarios} == dict.fromkeys(scenarios)


def test_ten_thousand_operations_are_listed_searched_and_described(results: Results) -> None:
    check(results, "operations", "search", "reference")


def test_an_input_is_written_as_a_form_and_as_json_with_messages_at_the_field(results: Results) -> None:
    """Form and JSON editor stay equal: unions, lists, files and values without a type are entered, and problems
    stand at their fields."""
    check(results, "form", "editor", "untyped")


def test_integers_beyond_53_bits_and_reserved_names_are_sent_as_they_are_written(results: Results) -> None:
    """Integers of any size and fields of any name are sent as they are written: in the form, as JSON, by defaults
    and examples, and from the history; a number that cannot be sent is an error."""
    check(results, "exact")


def test_results_are_shown_as_tree_table_envelope_difference_and_media(results: Results) -> None:
    check(results, "results", "media", "large", "secrets")


def test_calls_have_deadlines_progress_another_identity_and_are_cancelled_and_copied(results: Results) -> None:
    check(results, "options", "snippets")


def test_streams_are_paused_filtered_bounded_and_stopped(results: Results) -> None:
    """Streams are paused by back-pressure, filtered, and kept in a bounded buffer."""
    check(results, "streams", "firehose")


def test_questions_and_approvals_are_answered(results: Results) -> None:
    check(results, "questions", "approvals")


def test_the_tape_shows_nested_calls_and_thousands_per_second(results: Results) -> None:
    check(results, "tape", "load", "flood")


def test_servers_sources_figures_and_buried_tasks_are_shown(results: Results) -> None:
    check(results, "system")


def test_an_ended_session_and_a_lost_connection_lose_nothing(results: Results) -> None:
    check(results, "login", "link", "lost")


def test_hostile_names_descriptions_and_results_are_text(results: Results) -> None:
    check(results, "hostile")


def test_it_works_by_keyboard_at_390_pixels_and_without_findings_of_axe(results: Results) -> None:
    check(results, "keyboard", "narrow", "accessible")
