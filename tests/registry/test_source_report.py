"""The report of an adapter."""

from opwire.registry.source import Report, Skipped


def test_a_skipped_item_has_a_kind_a_name_and_a_reason() -> None:
    report = Report()
    report.skip("GET", "/a", "no reason")
    assert report.skipped == [Skipped("GET", "/a", "no reason")]
    assert str(report) == "skipped GET /a: no reason"


def test_each_warning_is_kept_once_in_order() -> None:
    report = Report()
    for warning in ("b", "a", "b"):
        report.warn(warning)
    assert report.warnings == ["b", "a"]
    assert str(report) == "warning: b\nwarning: a"


def test_entries_have_a_limit_and_the_rest_are_counted() -> None:
    report = Report(limit=1000)
    for number in range(1500):
        report.warn(str(number))
        report.skip("GET", str(number), "why")
    assert len(report.skipped) == 1000
    assert len(report.warnings) == 1001
    assert report.warnings[-1] == "1,000 more entries are not listed"


def test_a_reason_of_a_megabyte_is_cut() -> None:
    report = Report()
    report.skip("GET", "/" + "a" * 10_000, "b" * 1_000_000)
    report.warn("c" * 1_000_000)
    assert len(str(report)) < 2_000


def test_control_characters_of_a_foreign_name_are_escaped() -> None:
    report = Report()
    report.skip("GET", "/\x1b[2J", "why")
    assert str(report) == "skipped GET /\\x1b[2J: why"


def test_reports_are_added_up() -> None:
    one, two = Report(), Report()
    one.warn("v")
    two.skip("tool", "x", "why")
    two.warn("w")
    one.add(two)
    assert list(one) == ["skipped tool x: why", "warning: v", "warning: w"]
