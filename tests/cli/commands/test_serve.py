"""`opwire serve`."""

import socket
import time
from pathlib import Path
from secrets import token_hex
from signal import SIGINT, SIGKILL
from typing import Any
from urllib.request import urlopen

import httpx2
import pytest

from opwire.cli.commands.serve import ServeOptions, chosen_surfaces, with_callers
from opwire.cli.program import run
from opwire.cli.screen import Screen
from opwire.config import Config
from opwire.config.settings import AuthSettings, HTTPSurfaceSettings, MCPSurfaceSettings, OAuthSettings, ServeSettings
from tests.cli.process import COMMAND, SHOP, Running, opwire
from tests.servers.brokers import RedisServer

NOTHING = ServeOptions(mcp=None, http=False, host=None, port=None, allow_host=(), is_open=False)
CONFIGURED = Config(serve=ServeSettings(http=HTTPSurfaceSettings(port=99, title="Mine")))


def surfaces(config: Config, choice: ServeOptions) -> tuple[tuple[str, int] | None, int | None]:
    """Transport and port of the MCP server, and the port of the HTTP API."""
    serve = chosen_surfaces(config, choice).serve
    return serve.mcp and (serve.mcp.transport, serve.mcp.port), serve.http and serve.http.port


@pytest.mark.parametrize(
    ("config", "choice", "expected"),
    [
        (Config(), NOTHING, (("http", 8000), 8080)),
        (CONFIGURED, NOTHING, (None, 99)),
        (CONFIGURED, NOTHING._replace(mcp="stdio"), (("stdio", 8000), None)),
        (CONFIGURED, NOTHING._replace(http=True, port=5), (None, 5)),
        (Config(), NOTHING._replace(http=True, mcp="http", port=5), (("http", 5), 6)),
        (Config(), NOTHING._replace(http=True, mcp="stdio", port=5), (("stdio", 8000), 5)),
        (Config(), NOTHING._replace(port=0), (("http", 0), 0)),
    ],
)
def test_options_choose_the_surfaces(config: Config, choice: ServeOptions, expected: object) -> None:
    assert surfaces(config, choice) == expected


def test_what_the_configuration_says_of_a_surface_stands_unless_an_option_says_otherwise() -> None:
    chosen = chosen_surfaces(CONFIGURED, NOTHING._replace(http=True, host="0.0.0.0", allow_host=("shop.example",)))
    assert chosen.serve.http is not None
    assert (chosen.serve.http.title, chosen.serve.http.host) == ("Mine", "0.0.0.0")
    assert chosen.serve.http.hosts == ("localhost", "127.0.0.1", "[::1]", "shop.example")
    configured = Config(serve=ServeSettings(mcp=MCPSurfaceSettings(name="mine")))
    opened = chosen_surfaces(configured, NOTHING._replace(mcp="http", is_open=True)).serve.mcp
    assert opened is not None
    assert (opened.name, opened.transport, opened.anonymous) == ("mine", "http", "anonymous")


@pytest.mark.parametrize("command", [("serve", "--http", "--port"), ("hub",)])
def test_a_server_that_cannot_listen_shows_no_token(command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = str(port) if command[0] == "serve" else f"ws://127.0.0.1:{port}"
        ended = opwire(*command, where, *SHOP)
    assert ended.returncode == 6
    assert "cannot listen" in ended.stderr
    assert "token" not in ended.stderr


def test_a_server_needs_no_secrets_of_other_commands_and_warns_if_it_has_no_operations(tmp_path: Path) -> None:
    (tmp_path / "opwire.toml").write_text('[spoke]\nurl = "${BROKER_URL}"\n[durable]\nurl = "${BROKER_URL}"\n')
    with Running("serve", "--port", "0", cwd=tmp_path) as server:
        server.says(r"(opwire.toml has no sources of operations)")
        server.says(r"(serving 0 operations)")
        assert server.stop() == 0
    needed = opwire("serve", "--console", cwd=tmp_path)  # which shows the journal of [durable]
    assert (needed.returncode, "not set: BROKER_URL" in needed.stderr) == (2, True), needed.stderr


def test_both_surfaces_are_called_back_with_the_token_that_was_shown() -> None:
    """Operations are served as MCP and HTTP, called back through them, and reloaded when edited."""
    with Running("serve", *SHOP, "--port", "0") as server:
        mcp = server.says(r"MCP server at (\S+)")
        http = server.says(r"HTTP API at ([^,\s]+)")
        token = server.says(r"token for this run: (\S+)")
        called = opwire("call", "--url", http, "math.add", "a=1", "b=2", OPWIRE_TOKEN=token)
        assert (called.returncode, called.stdout) == (0, "3\n"), called.stderr
        denied = opwire("call", "--url", http, "math.add", "a=1", "b=2", OPWIRE_TOKEN="no" * 10)
        assert (denied.returncode, denied.stdout) == (5, ""), denied.stderr
        assert mcp.endswith("/mcp")
        assert server.stop() == 0


@pytest.mark.parametrize("command", [("serve", "--http"), ("hub", "ws://127.0.0.1:0")])
def test_garbage_collections_of_a_server_skip_what_it_has_loaded(command: tuple[str, ...], tmp_path: Path) -> None:
    module = """
import gc
from opwire import OperationRegistry

registry = OperationRegistry()

@registry.query("process.frozen")
def frozen() -> int:
    return gc.get_freeze_count()
"""
    (tmp_path / "process.py").write_text(module)
    port = ("--port", "0") if command[0] == "serve" else ()
    with Running(*command, "--python", str(tmp_path / "process.py"), *port, "--open") as server:
        url = server.says(r"((?:http|ws)://[^,;\s]+)")
        called = opwire("call", "--url", url, "process.frozen")
        assert called.returncode == 0, called.stderr
        assert int(called.stdout) > 1_000
        assert server.stop() == 0


def test_a_server_that_waits_for_calls_says_so_and_a_second_signal_ends_it(tmp_path: Path) -> None:
    module = """
import asyncio, sys
from opwire import OperationRegistry

registry = OperationRegistry()

@registry.query("night.sleep")
async def sleep() -> None:
    print("it has begun", file=sys.stderr, flush=True)
    await asyncio.sleep(60)
"""
    (tmp_path / "night.py").write_text(module)
    with Running("serve", "--http", "--python", str(tmp_path / "night.py"), "--port", "0", "--open") as server:
        url = server.says(r"(http://[^,;\s]+)")
        with Running("call", "--url", url, "night.sleep") as call:
            server.says("it has begun")
            server.send(SIGINT)
            server.says("waiting for calls in flight; .C stops at once")
            assert server.stop(SIGINT) == 130
            assert call.ends() != 0


def test_where_tokens_of_an_issuer_are_accepted_none_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_TOKEN", "")  # removed again afterwards
    issued = OAuthSettings(resource="https://tools.example/mcp", issuer="https://id.example")
    config = Config(auth=AuthSettings(oauth=issued))
    assert with_callers(config, Screen(), is_open=False).config.identities == {}
    assert "owner" in with_callers(Config(), Screen(), is_open=False).config.identities


def test_over_standard_input_and_output_it_is_a_source_again(capsys: pytest.CaptureFixture[str]) -> None:
    program = " ".join([*COMMAND, "serve", *SHOP, "--as", "mcp-stdio"])
    assert run(["call", "--mcp", f"mine={program}", "--json", "mine.math_add", "a=1", "b=2"]) == 0
    assert capsys.readouterr().out == "3\n"


DURABLE = """
[serve.mcp]
transport = "http"
port = 0
task_after = 0.05
state_key = "${STATE_KEY}"
durable_tasks = ["jobs.run"]

[sources.jobs]
python = "jobs.py:registry"

[durable]
url = "%s"
prefix = "%s"
trusted = true
lease = 1

[identities.ada]
token = "${ADA_TOKEN}"
"""
JOBS = """
import asyncio
from pathlib import Path
from opwire import Context, OperationRegistry

registry = OperationRegistry()

@registry.mutation("jobs.run")
async def run(context: Context) -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return f"done for {context.identity.id}"
"""


@pytest.mark.slow
def test_a_task_of_the_file_survives_kill_9_of_the_server(redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "opwire.toml").write_text(DURABLE % (redis_server.url, token_hex(4)))
    (tmp_path / "jobs.py").write_text(JOBS)
    env = {"STATE_KEY": "the key of all replicas", "ADA_TOKEN": "a token of ada, which is long enough"}
    headers = {
        "authorization": f"Bearer {env['ADA_TOKEN']}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
    }
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }

    def ask(url: str, method: str, about: str, **params: object) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        named = {**headers, "mcp-method": method, "mcp-name": about}
        return httpx2.post(url, json=message, headers=named, timeout=60).json()["result"]

    with Running("serve", cwd=tmp_path, **env) as server:
        server.says("durable mutations from Redis at ")
        task = ask(server.says(r"MCP server at (\S+)"), "tools/call", "jobs_run", name="jobs_run", arguments={})
        assert task["resultType"] == "task"
        server.says(r"(\^C stops)")
        assert server.stop(SIGKILL) == -SIGKILL
    (tmp_path / "go").touch()
    with Running("serve", cwd=tmp_path, **env) as server:
        url, found = server.says(r"MCP server at (\S+)"), task
        deadline = time.monotonic() + 60
        while found["status"] == "working" and time.monotonic() < deadline:
            found = ask(url, "tasks/get", task["taskId"], taskId=task["taskId"])
            time.sleep(0.05)
        assert found["result"]["content"][0]["text"] == "done for ada"
        server.says(r"(\^C stops)")
        assert server.stop() == 0


@pytest.mark.parametrize("command", [("serve", "--http", "--port", "0"), ("hub", "ws://127.0.0.1:0")])
def test_metrics_are_served_beside_everything_else(command: tuple[str, ...]) -> None:
    with Running(*command, *SHOP, "--metrics", "0", "--open") as server:
        with urlopen(server.says(r"metrics at (\S+)"), timeout=20) as page:
            assert b"process_cpu_seconds_total" in page.read()
        server.says(r"(\^C stops)")  # from here on a signal ends it in order
        assert server.stop() == 0


@pytest.mark.parametrize("address", ["here", "127.0.0.1:", "70000", "127.0.0.1:-1"])
def test_an_address_of_metrics_ends_with_a_port(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *SHOP, "--http", "--port", "0", "--open", "--metrics", address]) == 2
    assert "--metrics is [HOST:]PORT" in capsys.readouterr().err


def test_reload_is_rejected_for_an_mcp_session_over_stdio(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *SHOP, "--as", "mcp-stdio", "--reload"]) == 2
    assert "use --as mcp-http" in capsys.readouterr().err


@pytest.mark.slow
def test_an_edit_restarts_the_process_unless_the_configuration_is_invalid(tmp_path: Path) -> None:
    """An invalid configuration file is reported, and the running process goes on."""
    module = tmp_path / "mine.py"
    code = "from opwire import OperationRegistry\nregistry = OperationRegistry()\n"
    module.write_text(f"{code}@registry.query('my.answer')\nasync def answer() -> int:\n    return 41\n")
    (tmp_path / "opwire.toml").write_text('[sources.mine]\npython = "mine:registry"\n')
    with Running("serve", "--http", "--port", "0", "--open", "--reload", cwd=tmp_path) as server:
        http = server.says(r"HTTP API at ([^,\s]+)")
        server.says("1 operation")
        module.write_text(module.read_text().replace("41", "42"))
        server.says("restarting: mine.py changed")
        http = server.says(r"HTTP API at ([^,\s]+)")
        server.says("1 operation")
        assert opwire("call", "--url", http, "my.answer").stdout == "42\n"
        (tmp_path / "opwire.toml").write_text('[sources.mine]\npython = "mine:registry"\n[limts]\n')
        server.says("warning: not restarted: .*unknown key; did you mean `limits`")
        assert opwire("call", "--url", http, "my.answer").stdout == "42\n"
        module.write_text("syntax error")
        (tmp_path / "opwire.toml").write_text('[sources.mine]\npython = "mine:registry"\n[limits]\nmax_body = 5000\n')
        server.says("warning: source mine failed to load and is skipped: ")
        server.says("0 operations")
        module.write_text(f"{code}@registry.query('my.answer')\nasync def answer() -> int:\n    return 43\n")
        http = server.says(r"HTTP API at ([^,\s]+)")
        server.says("1 operation")
        assert opwire("call", "--url", http, "my.answer").stdout == "43\n"
        assert server.stop() == 0


def test_a_port_that_is_taken_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Running("serve", *SHOP, "--http", "--port", "0", "--open") as server:
        port = server.says(r"HTTP API at http://[^:]+:(\d+)")
        assert run(["serve", *SHOP, "--http", "--open", "--port", port]) == 6
        assert "cannot listen on" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve", *SHOP, "--http", "--open", "--port", "0", "--metrics", port]) == 6
    assert f"cannot listen on 127.0.0.1:{port} for metrics: " in capsys.readouterr().err
