"""Every command has a cache of its own, without tokens and configuration of the machine."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPWIRE_TOKEN", raising=False)
    monkeypatch.chdir(ROOT)
