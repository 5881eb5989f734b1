"""Hostile values, schemas and handlers through `execute`, each in a process of its own with limited CPU and memory."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.limits import CPU_SECONDS
from tests.properties import is_thorough
from tests.servers.processes import unmeasured

ROOT = Path(__file__).parent.parent
TOO_DEEP = "hostile.it: the data is nested deeper than 200: it is neither normalised nor validated"


def run(module: str, case: str) -> tuple[Any, list[str]]:
    """What a case of `tests/hostile` came to, and what was logged."""
    return run_all(module, [case])[case]


def run_all(module: str, cases: Iterable[str]) -> dict[str, tuple[Any, list[str]]]:
    """What cases of `tests/hostile` came to in one process, which has to end by itself, and well."""
    command = [sys.executable, "-m", f"tests.hostile.{module}", *cases]
    done = subprocess.run(
        command, cwd=ROOT, env=unmeasured(), capture_output=True, text=True, timeout=11 * CPU_SECONDS, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"ended with {done.returncode} after {len(lines)} cases: {done.stderr[-2000:]}"
    assert all(len(line) < 20_000 for line in lines), "nothing that is reported echoes a huge value"
    answers = map(json.loads, lines)
    return {case: (answer["outcome"], answer["log"]) for case, answer in zip(cases, answers, strict=True)}


def problem_of(outcome: Any) -> str:
    assert outcome["code"] == "VALIDATION_ERROR"
    [problem] = outcome["details"]["problems"]
    return problem["message"]


def test_a_result_without_a_json_form_is_a_clear_error() -> None:
    complaints = {
        "result open file": "objects of type 'TextIOWrapper' cannot be sent as JSON",
        "result generator": "a handler that yields is registered as a subscription",
        "result cyclic list": "the value refers to itself, so it has no JSON form",
        "result cyclic dataclass": "the value refers to itself or is nested too deeply, so it has no JSON form",
        "result deep dataclass": "the value refers to itself or is nested too deeply, so it has no JSON form",
    }
    for case, (outcome, _) in run_all("values", complaints).items():
        assert outcome["code"] == "EXECUTION_ERROR", case
        assert outcome["message"].startswith("hostile.it: "), case
        assert outcome["message"].endswith(complaints[case]), case


def test_a_result_nested_100_000_deep_passes_whole_with_a_warning_in_every_mode() -> None:
    for case, found in run_all("values", ["result deep list", "result deep object"]).items():
        assert found == ([{"data": 100_000}] * 4, [TOO_DEEP] * 4), case


def test_deep_data_in_an_envelope_passes_whole_with_a_warning() -> None:
    for case, (outcome, log) in run_all("values", ["result deep envelope", "result deep lookalike"]).items():
        assert outcome == {"data": 100_000}, case
        assert log[-1] == TOO_DEEP, case


def test_a_result_that_unfolds_without_end_is_not_unfolded() -> None:
    outcome, log = run("values", "result doubled")
    assert outcome == [{"data": 2}] * 4
    assert len(log) == 4


def test_nan_is_kept_in_process_and_reported_where_a_number_is_due() -> None:
    assert run("values", "result nan") == ({"data": "[nan]"}, ['hostile.it: /0: the value is not of type "number"'])


def test_a_text_of_10_mb_passes_and_is_never_in_the_log() -> None:
    assert run("values", "result 10 MB text") == ({"data": 10 * 2**20}, [])
    outcome, log = run("values", "result 10 MB wrong text")
    assert outcome == {"data": 1}
    assert log == ['hostile.it: the data: the value is not of type "array"']


def test_a_result_with_100_000_problems_makes_one_short_warning() -> None:
    outcome, [warning] = run("values", "result 100,000 problems")
    assert outcome == {"data": 100_000}
    assert len(warning) < 3000


def test_hostile_input_is_refused_before_the_handler_runs() -> None:
    complaints = {
        "input open file": "objects of type 'TextIOWrapper' cannot be sent as JSON",
        "input cyclic": "the value is nested deeper than 200",
        "input deep": "the value is nested deeper than 200",
        "input deep unknown": "the value is nested deeper than 200",
        "input deep dataclass": "refers to itself or is nested too deeply",
        "input doubled": "the value is nested deeper than 200",
        "input nan": 'the value is not of type "integer"',
        "input 10 MB key": "",
    }
    for case, (outcome, log) in run_all("values", complaints).items():
        assert complaints[case] in problem_of(outcome), case
        assert log == [], case


def test_input_with_100_000_problems_is_refused_with_the_first_of_them() -> None:
    outcome, _ = run("values", "input 100,000 problems")
    assert outcome["code"] == "VALIDATION_ERROR"
    assert [each["path"] for each in outcome["details"]["problems"][:3]] == ["/0", "/1", "/2"]
    assert len(outcome["details"]["problems"]) == 100


def test_values_of_50_mb_are_handled_within_the_limits() -> None:
    (text, refused_text, many, refused_many), log = run("values", "fifty megabytes")
    assert (text, many) == ({"data": 50 * 2**20}, {"data": 300_000})
    assert problem_of(refused_text) == 'the value is not of type "integer"'
    assert problem_of(refused_many) == "the value has more than 3 items"
    assert log == ["hostile.it: the data: the value is longer than 3 characters"]


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_a_remote_reference_is_never_fetched() -> None:
    """Hostile schemas fetch nothing, hang nothing and crash nothing."""
    outcome, log = run("schemas", "remote references")
    assert outcome["refused"] is True
    allowed, refused, *results = outcome["calls"]
    assert (allowed, results) == ({"data": "handled"}, [{"data": 1}] * 3)
    assert "the input schema is invalid" in refused["message"]
    assert outcome["visits"] == 1, "the only visitor is the case's own probe"
    assert len(log) == 4
    assert all("schema is ignored" in message for message in log)


def test_a_file_reference_is_never_read() -> None:
    outcome, log = run("schemas", "file references")
    allowed, refused, *results = outcome["calls"]
    assert outcome["refused"] is True
    assert (allowed, results) == ({"data": "handled"}, [{"data": 1}] * 3)
    assert "the input schema is invalid" in refused["message"]
    assert all("schema is ignored" in message for message in log)


def test_patterns_that_backtrack_without_end_come_to_an_end() -> None:
    outcome, _ = run("schemas", "patterns")
    *by_pattern, names = outcome
    assert len(by_pattern) == 16
    for refused, *kept in zip(*[iter(by_pattern)] * 4, strict=True):
        assert refused["code"] == "VALIDATION_ERROR"
        assert all(each["data"]["text"].startswith("aaa") for each in kept)
    assert names == {"data": {}}


def test_schemas_that_refer_to_themselves_without_end_come_to_an_end() -> None:
    outcome, _ = run("schemas", "endless")
    of_self, of_ring, of_all, of_default = (outcome[start : start + 4] for start in (0, 4, 8, 12))
    assert of_self == of_ring == [{"data": "handled"}, *[{"data": {"next": {}}}] * 3]
    assert of_all[:2] == [{"data": "handled"}, {"data": {"a": 1}}]
    assert problem_of(of_default[0]) == '"next" is a required property'
    assert all("data" in each for each in of_default[1:])


def test_a_recursive_schema_does_not_follow_a_value_without_end() -> None:
    (refused, *kept), log = run("schemas", "deep tree")
    assert problem_of(refused) == "the value is nested deeper than 200"
    assert kept == [{"data": 1}] * 3
    assert log == [TOO_DEEP] * 3


@pytest.mark.parametrize("case", ["deep schema", "cyclic schema"])
def test_a_schema_nested_without_end_is_refused_or_not_used(case: str) -> None:
    outcome, log = run("schemas", case)
    refused, *results = outcome["calls"]
    assert outcome["refused"] is True
    assert "the input schema is invalid" in refused["message"]
    assert results == [{"data": [[1]]}] * 3
    assert len(log) == 3


# --- handlers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["never returns", "busy loop"])
def test_a_sync_handler_that_never_returns_is_a_timeout_and_the_process_still_ends(case: str) -> None:
    outcome, log = run("handlers", case)
    stuck = outcome[0] if isinstance(outcome, list) else outcome
    assert stuck["code"] == "TIMEOUT"
    assert stuck["message"].startswith("hostile.it did not answer within 0.")
    assert outcome in (stuck, [stuck, {"data": "quick"}])
    assert log == ["hostile.it did not return in time: its thread is left to itself"]


def test_a_process_with_all_threads_stuck_rejects_calls_and_still_ends() -> None:
    outcome, _ = run("handlers", "all stuck")
    assert [each["code"] for each in outcome] == ["TIMEOUT", "TIMEOUT", "UNAVAILABLE"]


def test_a_sync_generator_that_never_goes_on_is_a_timeout_and_the_process_still_ends() -> None:
    (first, second), _ = run("handlers", "stuck generator")
    assert first == {"data": 1}
    assert second["code"] == "TIMEOUT"


def test_a_handler_that_calls_exit_does_not_end_the_process() -> None:
    outcome, _ = run("handlers", "exits")
    assert outcome["code"] == "EXECUTION_ERROR"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tabs", "anchors", "escapes"] if is_thorough() else ["tabs"])  # one budget for all
def test_yaml_that_needs_a_thousand_repairs_is_rejected_without_parsing_it_a_thousand_times(case: str) -> None:
    problems, _ = run("documents", case)
    assert len(problems) == 2
    assert all("line 250" in each for each in problems)
