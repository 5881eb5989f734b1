"""The long run from the command line."""

import subprocess
import sys

import pytest

from tests.chaos.__main__ import main


def test_the_command_prints_what_it_injected(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--calls", "1000", "--seed", "3"])
    printed = capsys.readouterr().out
    assert printed.startswith("seed 3, 1,000 calls: ")
    assert "faults injected: " in printed


def test_the_command_fails_where_the_run_fails() -> None:
    # With so few calls, some kinds of faults are never injected.
    command = [sys.executable, "-m", "tests.chaos", "--calls", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode != 0
    assert "never injected" in run.stderr
