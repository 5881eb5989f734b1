"""Both type checkers agree with every `assert_type` in tests/typing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties import is_thorough
from tests.servers.processes import unmeasured

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "typing"
CHECKERS = {
    "pyright": ["pyright", "--pythonpath", sys.executable, str(FOLDER)],
    "mypy": ["mypy", "--python-executable", sys.executable, str(FOLDER)],
}


@pytest.mark.skipif(not is_thorough(), reason="runs with CI=true; `make check` runs the same checkers")
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_types_are_what_the_files_in_typing_assert(checker: str) -> None:
    """What type checkers infer for the public API is what the tests assert, for pyright and for mypy."""
    command = [sys.executable, "-m", *CHECKERS[checker]]
    result = subprocess.run(
        command, cwd=ROOT, env=unmeasured(), capture_output=True, text=True, check=False, timeout=100
    )
    assert result.returncode == 0, result.stdout + result.stderr
