"""`python -m opwire.cli` is the program."""

import subprocess
import sys

from opwire import __version__
from tests.cli.process import opwire


def test_the_module_runs_the_program() -> None:
    ended = opwire("--version")
    assert (ended.returncode, ended.stdout) == (0, f"opwire {__version__}\n")


def test_so_does_the_package() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "opwire", "--version"], capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (0, f"opwire {__version__}\n")


def test_without_click_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from opwire.cli import main; main(['ls'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == 1
    assert ended.stderr == (
        "opwire: the package click is not installed; run: pip install 'opwire[cli]', "
        "or without installing it: uvx --from 'opwire[cli]' opwire\n"
    )
