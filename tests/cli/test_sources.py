"""Where operations come from."""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from opwire import CallError, ConfigError
from opwire.cli.program import run
from opwire.cli.screen import Screen
from opwire.cli.sources import Sources, check_variables, complete_url, serving
from opwire.cli.sources import run as run_coroutine
from opwire.config import Config
from opwire.config.settings import (
    EnvText,
    HubSettings,
    IdentitySettings,
    OpenAPISettings,
    ProgramSource,
    PythonSource,
    Secret,
    ServersFileSource,
    ServerSource,
)
from opwire.openapi.client import from_openapi
from tests.cli.process import SHOP


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--python", "nope.py"), "nope.py"),
        (("--openapi", "nope.yaml"), "nope.yaml cannot be read: No such file or directory"),
        (("--openapi", "README.md"), "README.md"),
        (("--openapi", "docs"), "docs is not a file"),
        (("--mcp", "nope.py"), "--mcp nope.py: no such file"),
        (("--mcp", "nope.json"), "--mcp nope.json: no such file"),
        (("--mcp", "docs"), "--mcp docs is a folder"),
        (("-c", "nope.toml"), "nope.toml: no such file"),
        (("--url", "ftp://localhost"), "unknown URL scheme 'ftp'; expected one of http, https, ws, wss, redis"),
    ],
)
def test_a_source_that_cannot_be_used_is_a_mistake_of_the_command_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ls", *arguments]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert message in printed
    assert arguments[0] in printed or arguments[0] in ("-c", "--url")


@pytest.mark.parametrize(
    ("id", "code", "error"),
    [("down.x", 6, "error: UNAVAILABLE: the MCP server http://"), ("gone.x", 2, "error: sources.gone: ")],
)
def test_an_operation_of_a_source_that_failed_ends_the_command_with_the_error_of_the_source(
    id: str, code: int, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "opwire.toml"
    file.write_text('[sources.down]\nurl = "http://127.0.0.1:9/mcp"\n[sources.gone]\nopenapi = "nope.yaml"\n')
    assert run(["call", "-c", str(file), id]) == code
    *warnings, last = capsys.readouterr().err.splitlines()
    assert last.startswith(error)
    assert sorted(each.split()[2] for each in warnings) == ["down", "gone"]  # each of them once


def test_operations_that_an_earlier_source_has_are_not_skipped_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """from opwire import OperationRegistry
registry = OperationRegistry()
@registry.query("shop.price")
async def price() -> int:
    return 1
"""
    for name in ("one", "two"):
        (tmp_path / f"{name}_shop.py").write_text(code)
    assert run(["ls", "--python", str(tmp_path / "one_shop.py"), "--python", str(tmp_path / "two_shop.py")]) == 0
    [warning] = capsys.readouterr().err.splitlines()
    assert warning.endswith(": 1 operation skipped, since an earlier source has the same ids: shop.price")


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


def test_without_any_source_one_learns_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError, match="write one with `opwire init`"):
        Sources().read()
    for command, is_named in (("ls", True), ("serve", False)):  # `serve` has no --url
        assert run([command]) == 2
        assert ("--url" in capsys.readouterr().err) is is_named
    assert Sources().read(may_be_empty=True).sources == {}
    with pytest.raises(ConfigError):
        Sources(config="nowhere.toml").read()


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


def test_a_source_that_is_named_on_the_spot_and_fails_ends_the_command_with_its_own_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["ls", "--mcp", "there-is-no-such-program"]) == 6
    assert capsys.readouterr().err.startswith("error: UNAVAILABLE: ")


async def test_a_document_has_the_namespace_that_the_library_derives_unless_it_is_named(tmp_path: Path) -> None:
    paths = {"/pets": {"get": {"operationId": "list", "responses": {"200": {"description": "ok"}}}}}
    root = {"openapi": "3.1.0", "info": {"title": "GitHub v3 REST API", "version": "1"}, "paths": paths}
    file = tmp_path / "document.json"
    file.write_text(json.dumps(root))
    (tmp_path / "opwire.toml").write_text('[sources.a]\nopenapi = "document.json"\nnamespace = ""\n')
    library = [each.spec.id for each in from_openapi(file)]
    assert library == ["github.list"]
    for sources, ids in (
        (Sources(openapi=(str(file),)), library),
        (Sources(str(tmp_path / "opwire.toml")), library),
        (Sources(openapi=(f"mine={file}",)), ["mine.list"]),
    ):
        async with sources.open(Screen(), ids[0]) as loaded:
            assert list(loaded.specs) == ids


def test_a_quote_that_does_not_end_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--mcp", "server 'x"]) == 2
    assert "invalid command line" in capsys.readouterr().err


def test_a_url_goes_with_no_other_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--url", "ws://127.0.0.1:1", *SHOP]) == 2
    assert "--url cannot be combined with other sources" in capsys.readouterr().err


def test_a_url_without_a_server_is_an_error_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--url", "http://127.0.0.1:1"]) == 6
    assert capsys.readouterr().err.startswith("error: UNAVAILABLE: ")


def test_the_options_can_be_said_again() -> None:
    given = Sources(None, ("shop:registry",), ("time=uvx mcp-server-time",), ("pets.yaml",), token_env="SHOP_TOKEN")
    assert given.words == [
        *("--python", "shop:registry"),
        *("--mcp", "time=uvx mcp-server-time"),
        *("--openapi", "pets.yaml"),
        *("--token-env", "SHOP_TOKEN"),
    ]
    assert Sources("my.toml", url="ws://hub").words == ["--config", "my.toml", "--url", "ws://hub"]
    assert Sources().words == []


CODE = """
from opwire import OperationRegistry
mine = OperationRegistry()

@mine.query("my.answer")
async def answer() -> int:
    return 42
"""


@pytest.mark.parametrize("target", ["shop.py", "shop.py:mine", "./shop.py", "deep/inner.py"])
def test_a_python_file_is_a_source(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").mkdir()
    for file in ("shop.py", "deep/inner.py"):
        (tmp_path / file).write_text(CODE)
    monkeypatch.chdir(tmp_path)
    assert run(["call", "--python", target, "my.answer"]) == 0
    assert capsys.readouterr().out == "42\n"


MCP_SERVER = """
import asyncio
from opwire import OperationRegistry
from opwire.mcp.server import serve_mcp

registry = OperationRegistry()

@registry.query("double")
def double(n: int) -> dict[str, int]:
    return {"result": 2 * n}

asyncio.run(serve_mcp(registry).run_stdio())
"""


def test_a_python_file_is_an_mcp_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = tmp_path / "my server.py"
    server.write_text(MCP_SERVER)
    assert run(["call", "--mcp", f"mine={server}", "--json", "mine.local_double", "n=4"]) == 0
    assert json.loads(capsys.readouterr().out) == {"result": 8}
    assert run(["ls", "--mcp", "away.py"]) == 2
    assert "--mcp away.py: no such file" in capsys.readouterr().err
    assert run(["ls", "--python", "away.py"]) == 2
    assert capsys.readouterr().err == "error: --python: away.py: no such file\n"


@pytest.mark.parametrize("command", ["ls", "serve"])
def test_a_surface_in_the_place_of_a_source_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--mcp", "stdio"]) == 2
    assert "--mcp names a source" in (said := capsys.readouterr().err)
    assert "opwire serve --as mcp-stdio" in said


def test_a_url_without_a_scheme_is_http_on_this_machine_and_https_elsewhere() -> None:
    assert complete_url("localhost:8080") == "http://localhost:8080"
    assert complete_url("127.0.0.1:8080/v1") == "http://127.0.0.1:8080/v1"
    assert complete_url("[::1]:8080") == "http://[::1]:8080"
    assert complete_url("api.example") == "https://api.example"
    assert complete_url("ws://hub") == "ws://hub"


def test_every_missing_variable_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN_A", "TOKEN_B", "HUB_URL", "OPTIONAL"):
        monkeypatch.delenv(name, raising=False)
    identities = {name: IdentitySettings(token=Secret(f"${{TOKEN_{name}}}")) for name in "AB"}
    optional = OpenAPISettings(openapi=EnvText("${OPTIONAL}"))
    config = Config(identities=identities, hub=HubSettings(url=EnvText("${HUB_URL}")), sources={"x": optional})
    with pytest.raises(ConfigError, match="not set: TOKEN_A, TOKEN_B, HUB_URL; run: export TOKEN_A=… TOKEN_B=…"):
        check_variables(config, config.identities, config.hub)
    check_variables(config, config.serve, config.spoke)  # those of other commands are not needed
    for name in ("TOKEN_A", "TOKEN_B", "HUB_URL"):
        monkeypatch.setenv(name, "x")
    check_variables(config, config.identities, config.hub)


def test_a_server_runs_on_uvloop_if_that_is_installed_and_another_command_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FastLoop(asyncio.SelectorEventLoop):
        pass

    @serving
    async def serve(name: str) -> tuple[str, type[asyncio.AbstractEventLoop]]:
        return name, type(asyncio.get_running_loop())

    async def list_operations() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop=FastLoop))
    assert serve("hub") == ("hub", FastLoop)
    assert run_coroutine(list_operations()) is not FastLoop
    monkeypatch.setitem(sys.modules, "uvloop", None)  # not installed
    assert serve("hub")[1] is not FastLoop
