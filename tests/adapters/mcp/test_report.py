"""Tests of opwire.adapters.mcp.report."""

from opwire.adapters.mcp.report import Findings, Report, Skipped, merged
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
