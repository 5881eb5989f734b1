"""What the judges stand on."""

import pytest

from tests.judges import programs

SUMMARY = "summary"
"""The property of a test whose value is a line at the end of the run."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests recorded."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == SUMMARY:
                    terminalreporter.write_line(str(value))


@pytest.fixture(scope="session", autouse=True)
def judges() -> None:
    """The programs that judge; they are installed by `make judges`."""
    if reason := programs.missing():
        pytest.skip(reason)
