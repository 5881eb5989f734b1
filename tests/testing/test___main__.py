"""The long run from the command line."""

import subprocess
import sys

import pytest

from opwire.testing.__main__ import main
from tests.requirements import requirement


@requirement("chaos.counts")
def test_the_command_prints_what_it_injected(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--calls", "1500", "--seed", "3"])
    printed = capsys.readouterr().out
    assert printed.startswith("seed 3, 1,500 calls: ")
    assert "faults injected: " in printed


@requirement("chaos.counts")
def test_the_command_fails_where_the_run_fails() -> None:
    # So few calls meet no fault of some kind.
    command = [sys.executable, "-m", "opwire.testing", "--calls", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "never injected" in run.stderr
