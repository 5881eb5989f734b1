"""`opwire completion`."""

import shutil
import subprocess

import pytest

from opwire.cli.commands.completion import SHELLS
from opwire.cli.program import run
from tests.requirements import requirement


@requirement("cli.completion")
@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_OPWIRE_COMPLETE={shell}_complete" in script
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert run(["completion"]) == 0
    assert capsys.readouterr().out == script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=10)


def test_a_shell_that_is_not_known_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/nush")
    assert run(["completion"]) == 2
    assert "say which shell: bash, zsh, fish" in capsys.readouterr().err
