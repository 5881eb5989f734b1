"""Tests of opwire.adapters.mcp.report."""

import logging

import pytest

from opwire.adapters.mcp import report as reporting
from opwire.adapters.mcp.report import MAX_FINDINGS, MAX_LINES, MAX_SHOWN, Findings, Report, ServerLog, Skipped, merged
from tests.requirements import requirement


@requirement("mcp.in.report")
def test_a_report_says_what_was_left_out_and_why() -> None:
    findings = Findings("ns")
    findings.skip("a\tb", "its name")
    findings.skip(42, "no object")
    findings.warn("add", "its outputSchema is not used")
    report = findings.report()
    assert report.skipped == (Skipped("ns", "a\tb", "its name"), Skipped("ns", "42", "no object"))
    assert report.warnings == ("ns: add: its outputSchema is not used",)
    assert str(report.skipped[0]) == "ns: 'a\\tb' is left out: its name"


@requirement("mcp.in.report")
def test_what_was_said_before_is_not_said_again() -> None:
    findings = Findings("ns")
    findings.warn("add", "old")
    before = findings.report()
    findings.warn("add", "new")
    assert findings.report().since(before) == ["ns: add: new"]


@requirement("mcp.in.report")
def test_names_and_reasons_are_as_long_as_somebody_will_read() -> None:
    findings = Findings("ns")
    findings.skip("x" * 10_000, "y" * 10_000)
    findings.warn("x" * 10_000, "y" * 10_000)
    (skipped,), (warning,) = findings.report().skipped, findings.report().warnings
    assert max(len(skipped.name), len(skipped.reason), len(warning)) < 400


def test_reports_of_several_servers_are_one() -> None:
    one, two = Report((Skipped("a", "x", "why"),), ("w",)), Report((), ("v",))
    assert merged([one, two]) == Report((Skipped("a", "x", "why"),), ("w", "v"))


@requirement("mcp.in.report")
def test_a_report_is_bounded_however_much_is_wrong() -> None:
    findings = Findings("ns")
    for number in range(MAX_FINDINGS + 20):
        findings.skip([[[[[[[[number]]]]]]]], "no object")
        findings.warn(f"t{number}", "its schema \x1b[2J is not used")
    report = findings.report()
    assert len(report.skipped) == MAX_FINDINGS
    assert len(report.warnings) == MAX_FINDINGS + 1
    assert report.warnings[-1] == "ns: 40 more of this kind are not listed"
    assert report.warnings[0] == "ns: t0: its schema \\x1b[2J is not used"


@requirement("mcp.in.stderr")
def test_a_server_cannot_flood_the_log_or_forge_lines_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    log = ServerLog("judge")
    log.write(logging.WARNING, "a\nb\x1b]0;c\x07\u202e" + "x" * 10_000)
    first = caplog.records[0].getMessage()
    assert first.startswith("judge: a\\nb\\x1b]0;c\\x07\\u202exxx")
    assert len(first) < MAX_SHOWN + 50
    for number in range(MAX_LINES * 3):
        log.write(logging.WARNING, f"line {number}")
    assert len(caplog.records) == MAX_LINES + 1
    assert "more than 100 lines a second" in caplog.records[-1].getMessage()
    now[0] += 1
    log.write(logging.WARNING, "again")
    assert caplog.records[-1].getMessage() == "judge: again"
