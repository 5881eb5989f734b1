"""The model of a call over a broker, checked by Spin in every order of events."""

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "docs" / "adr" / "0042-model-of-a-call.pml"

pytestmark = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")), reason="needs the packages spin and gcc"
)

# A mistake that is built into the model, and the claim that it breaks; the assertions are checked with each claim.
MISTAKES = {
    "NO_MEMORY": "ends",
    "NO_LEASE": "ends",
    "NO_TRANSIT": "ends",
    "ANY_TOKEN": "ends",
    "LATE_REJECTION": "ends",
    "NO_SILENCE": "stops",
    "FORGETS_REJECTION": "ends",
    "TWO_OUTCOMES": "stops",
}


def check(folder: Path, claim: str, *settings: str) -> str:
    """Check a claim and all assertions, each process being scheduled fairly; return what Spin reports."""

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=250).stdout

    run("spin", *(f"-D{each}" for each in settings), "-a", str(MODEL))
    run("gcc", "-O1", "-w", "-DNFAIR=4", "-o", "pan", "pan.c")
    report = run("./pan", "-a", "-f", "-m100000", "-N", claim)
    assert "max search depth too small" not in report
    return report


@pytest.mark.parametrize("claim", ["ends", "stops"])
@pytest.mark.parametrize("deadline", ["without a deadline", "with a deadline"])
def test_every_call_ends_once_runs_at_most_once_and_is_stopped(claim: str, deadline: str, tmp_path: Path) -> None:
    """In every order of losses, repetitions, drains and crashes a call has one outcome and runs at most once."""
    settings = ["DEADLINE=1"] if deadline == "with a deadline" else []
    assert "errors: 0" in check(tmp_path, claim, *settings)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_model_finds_each_mistake_that_is_built_into_it(mistake: str, tmp_path: Path) -> None:
    settings = ["DEADLINE=1"] if mistake == "NO_TRANSIT" else []
    assert "errors: 1" in check(tmp_path, MISTAKES[mistake], f"BROKEN={mistake}", *settings)
