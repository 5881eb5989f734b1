"""What the report keeps."""

from opwire.adapters.openapi.document import Report


def test_skips_are_told_as_method_path_and_reason() -> None:
    report = Report()
    report.skip("GET", "/a", "no reason")
    assert report.skipped == [("GET", "/a", "no reason")]
    assert str(report) == "skipped GET /a: no reason"


def test_each_warning_is_kept_once_in_order() -> None:
    report = Report()
    for warning in ("b", "a", "b"):
        report.warn(warning)
    assert report.warnings == ["b", "a"]
    assert str(report) == "warning: b\nwarning: a"


def test_warnings_have_a_limit() -> None:
    report = Report()
    for number in range(5000):
        report.warn(str(number))
    assert len(report.warnings) == 1000


def test_a_reason_of_a_megabyte_is_cut() -> None:
    report = Report()
    report.skip("GET", "/" + "a" * 10_000, "b" * 1_000_000)
    report.warn("c" * 1_000_000)
    assert len(str(report)) < 2_000
