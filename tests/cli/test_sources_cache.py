"""Ids are remembered for shells."""

from pathlib import Path

import pytest

from opwire import OperationSpec
from opwire.cli.sources import cache_fields, cache_ids, cached_ids
from opwire.schema import Schema

SPECS = [OperationSpec(namespace="math", name="add"), OperationSpec(namespace="clock", name="t", type="subscription")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_was_loaded_is_recalled_by_its_key() -> None:
    assert cached_ids("mine") is None
    cache_ids("mine", SPECS)
    known = cached_ids("mine")
    assert known is not None
    assert {id: each.type for id, each in known.items()} == {"math.add": "query", "clock.t": "subscription"}
    assert cached_ids("other") is None
    cache_ids("mine", [])
    assert cached_ids("mine") == {}


def test_fields_are_recalled_and_those_of_a_lazy_schema_once_they_are_known() -> None:
    schema = {"properties": {"size": {"enum": ["s", "m"]}, "on": {"type": "boolean"}}, "required": ["on"]}
    lazy = OperationSpec(namespace="a", name="b", input_schema=Schema.deferred(lambda: schema))
    cache_ids("mine", [OperationSpec(namespace="a", name="c", input_schema=schema), lazy])
    fields = {"on": ["true", "false"], "size": ["s", "m"]}
    assert cached_ids("mine") == {"a.c": ("query", fields), "a.b": ("query", None)}
    cache_fields("mine", lazy)
    assert cached_ids("mine") == {"a.c": ("query", fields), "a.b": ("query", fields)}
    other = OperationSpec(namespace="a", name="b", input_schema=Schema.deferred(lambda: schema))
    cache_ids("mine", [other])
    assert cached_ids("mine") == {"a.b": ("query", fields)}
    assert other.input_schema.is_deferred


def test_nothing_is_written_where_nothing_has_changed(cache: Path) -> None:
    cache_ids("mine", SPECS)
    [file] = cache.rglob("*.json")
    before = file.stat().st_ino
    cache_ids("mine", SPECS)
    assert file.stat().st_ino == before


def test_an_unusable_cache_is_ignored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_ids("mine", SPECS)
    [file] = cache.rglob("*.json")
    file.write_text("broken")
    assert cached_ids("mine") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))  # a file, where a folder should be
    cache_ids("mine", SPECS)
    assert cached_ids("mine") is None
