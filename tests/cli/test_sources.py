"""Where operations come from."""

import json
from pathlib import Path

import click
import pytest

from opwire import CallError, ConfigError
from opwire.cli.program import run
from opwire.cli.screen import Screen
from opwire.cli.sources import Sources
from opwire.config.settings import OpenAPISettings, ProgramSource, PythonSource, ServersFileSource, ServerSource
from tests.cli.process import SHOP
from tests.requirements import requirement


@requirement("cli.sources")
def test_sources_named_on_the_spot_become_sources_of_a_configuration(tmp_path: Path) -> None:
    servers = tmp_path / "mcp.json"
    servers.write_text('{"mcpServers": {}}')
    read = Sources(
        python=("shop:registry",),
        mcp=("uvx mcp-server-time --utc", "https://tools.example.org/mcp", "mine=node server.js", str(servers)),
        openapi=("petstore.yaml", "petstore.yaml", "https://api.example.org/openapi.json"),
    ).read()
    kinds = {name: type(source) for name, source in read.sources.items()}
    assert kinds == {
        "shop:registry": PythonSource,
        "mcp-server-time": ProgramSource,
        "tools-example-org": ServerSource,
        "mine": ProgramSource,
        "mcp": ServersFileSource,
        "petstore": OpenAPISettings,
        "petstore_2": OpenAPISettings,
        "api-example-org": OpenAPISettings,
    }


@requirement("cli.sources")
@pytest.mark.parametrize(
    ("program", "namespace"),
    [
        ("npx -y @scope/server-files .", "server-files"),
        ("python3.11 -m mcp_server_git", "mcp_server_git"),
        ("uv run tools/server.py --fast", "server"),
        ("python", "python"),
    ],
)
def test_a_program_is_named_after_what_it_is_about(program: str, namespace: str) -> None:
    assert list(Sources(mcp=(program,)).read().sources) == [namespace]


@requirement("cli.sources")
def test_the_nearest_configuration_is_used_unless_a_source_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opwire.toml").write_text('[sources.a]\npython = "a:registry"\n')
    inner = tmp_path / "x" / "y"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert list(Sources().read().sources) == ["a"]
    assert list(Sources(python=("b",)).read().sources) == ["b"]
    assert list(Sources(config="../../opwire.toml", python=("b",)).read().sources) == ["a", "b"]


@requirement("cli.sources")
def test_without_any_source_one_learns_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError, match="write one with `opwire init`"):
        Sources().read()
    assert Sources().read(may_be_empty=True).sources == {}
    with pytest.raises(ConfigError):
        Sources(config="nowhere.toml").read()


@requirement("cli.sources")
async def test_what_cannot_hold_an_operation_is_not_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "shop", "version": "1"},
        "servers": [{"url": "http://127.0.0.1:1"}],
    }
    answer = {"operationId": "add", "responses": {"200": {"description": "Done."}}}
    (tmp_path / "shop.json").write_text(json.dumps({**document, "paths": {"/add": {"get": answer}}}))
    (tmp_path / "opwire.toml").write_text(
        '[sources.shop]\nopenapi = "shop.json"\n[sources.broken]\ncommand = "there-is-no-such-program"\n'
    )
    sources = Sources(config=str(tmp_path / "opwire.toml"))
    async with sources.open(Screen()) as loaded:
        assert set(loaded.specs) == {"shop.add"}
    assert "source broken failed to load and is skipped" in capsys.readouterr().err
    async with sources.open(Screen(), "shop.add") as loaded:
        assert set(loaded.specs) == {"shop.add"}
    async with sources.open(Screen(), source="shop") as loaded:
        assert set(loaded.specs) == {"shop.add"}
    assert capsys.readouterr().err == ""
    with pytest.raises(CallError, match="did you mean"):
        async with sources.open(Screen(), "shop.ad") as loaded:
            loaded.spec("shop.ad")
    assert "source broken failed to load and is skipped" in capsys.readouterr().err, (
        "all were loaded before it was said that there is no such id"
    )
    with pytest.raises(click.UsageError, match="unknown source 'x'; sources of the configuration: shop, broken"):
        async with sources.open(Screen(), source="x"):
            pass


@requirement("cli.sources")
def test_a_source_that_is_named_on_the_spot_and_fails_ends_the_command_with_its_own_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["ls", "--mcp", "there-is-no-such-program"]) == 6
    assert capsys.readouterr().err.startswith("error: UNAVAILABLE: ")
    assert run(["ls", "--openapi", "nowhere.yaml"]) == 4
    assert "nowhere.yaml" in capsys.readouterr().err


def test_a_quote_that_does_not_end_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--mcp", "server 'x"]) == 2
    assert "invalid command line" in capsys.readouterr().err


def test_a_url_goes_with_no_other_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--url", "ws://127.0.0.1:1", *SHOP]) == 2
    assert "--url cannot be combined with other sources" in capsys.readouterr().err


def test_a_url_that_nobody_serves_is_an_error_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--url", "http://127.0.0.1:1"]) == 6
    assert capsys.readouterr().err.startswith("error: UNAVAILABLE: ")


@requirement("cli.describe")
def test_the_options_can_be_said_again() -> None:
    given = Sources(None, ("shop:registry",), ("time=uvx mcp-server-time",), ("pets.yaml",), token_env="SHOP_TOKEN")
    assert given.words == [
        *("--python", "shop:registry"),
        *("--from-mcp", "time=uvx mcp-server-time"),
        *("--openapi", "pets.yaml"),
        *("--token-env", "SHOP_TOKEN"),
    ]
    assert Sources("my.toml", url="ws://hub").words == ["--config", "my.toml", "--url", "ws://hub"]
    assert Sources().words == []
