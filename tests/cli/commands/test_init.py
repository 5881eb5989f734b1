"""`opwire init`."""

from pathlib import Path

import pytest

from opwire.cli.program import run
from opwire.config import load_config


def test_a_configuration_is_written_and_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A commented configuration is written, and an existing file is never overwritten."""
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    assert load_config("opwire.toml").sources == {}
    Path("opwire.toml").write_text("# mine\n")
    assert run(["init"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert Path("opwire.toml").read_text() == "# mine\n"
    assert run(["init", "my shop.toml"]) == 0
    assert "list them with `opwire ls -c 'my shop.toml'`" in capsys.readouterr().err
    assert run(["init", "nowhere/opwire.toml"]) == 2
    assert "cannot write the file" in capsys.readouterr().err
