"""Ids are remembered for shells."""

from pathlib import Path

import pytest

from opwire import OperationSpec
from opwire.cli.sources import recall, remember

SPECS = [OperationSpec(namespace="math", name="add"), OperationSpec(namespace="clock", name="t", type="subscription")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_was_loaded_is_recalled_by_its_key() -> None:
    assert recall("mine") is None
    remember("mine", SPECS)
    assert recall("mine") == {"math.add": "query", "clock.t": "subscription"}
    assert recall("other") is None
    remember("mine", [])
    assert recall("mine") == {}


def test_nothing_is_written_where_nothing_has_changed(cache: Path) -> None:
    remember("mine", SPECS)
    [file] = cache.rglob("*.json")
    before = file.stat().st_ino
    remember("mine", SPECS)
    assert file.stat().st_ino == before


def test_a_cache_that_cannot_be_used_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember("mine", SPECS)
    [file] = cache.rglob("*.json")
    file.write_text("broken")
    assert recall("mine") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))  # a file, where a folder should be
    remember("mine", SPECS)
    assert recall("mine") is None
