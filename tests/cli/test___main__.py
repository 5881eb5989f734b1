"""`python -m opwire.cli` is the program."""

import os
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("imported", ["opwire.cli.program", "opwire.cli.commands.listing"])
@pytest.mark.parametrize("completes", [False, True])
def test_an_interrupt_while_it_starts_ends_it_without_a_traceback(imported: str, completes: bool) -> None:
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if the tests run in the background of a shell
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {imported!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from opwire.cli import main
main()
"""
    completion = {"_OPWIRE_COMPLETE": "bash_complete", "COMP_WORDS": "opwire ls --", "COMP_CWORD": "2"}
    ended = subprocess.run(
        [sys.executable, "-c", code, "ls"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **(completion if completes else {})},
    )
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")


def test_without_click_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from opwire.cli import main; main(['ls'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == 1
    assert ended.stderr == (
        "opwire: the package click is not installed; run: pip install 'opwire[cli]', "
        "or without installing it: uvx --from 'opwire[cli]' opwire\n"
    )
