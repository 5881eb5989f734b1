"""The settings themselves."""

from pathlib import Path

import pytest

from opwire.config.settings import Config, EnvText, HubSettings, ServerSource


def test_relative_paths_begin_in_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Config().folder == tmp_path
    assert Config(file=Path("a/opwire.toml")).folder == tmp_path / "a"


def test_the_repr_of_a_configuration_shows_no_text_that_may_be_secret() -> None:
    source = ServerSource(url=EnvText("https://user:hunter2@x.example"), headers={"X": EnvText("hunter2")})
    config = Config(sources={"x": source}, hub=HubSettings(url=EnvText("redis://:hunter2@127.0.0.1")))
    assert "hunter2" not in repr(config)
