"""Every snippet runs and prints the output that its page shows."""

import ast
import asyncio
import json
import logging
import os
import re
import runpy
import socket
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from opwire import CallError, OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth import StaticTokens
from opwire.client import Client
from opwire.client.codegen import generate_client
from opwire.mcp.client import MCPServer, StdioServer, from_mcp, read_servers
from opwire.mcp.server import serve_mcp
from opwire.model.identity import Identity
from tests.cli.process import OnTerminal, unstyled
from tests.docs.pages import SNIPPETS
from tests.properties import is_thorough
from tests.servers.brokers import NatsServer, RedisServer

pytestmark = pytest.mark.slow

PROGRAMS = sorted(path.stem for path in SNIPPETS.glob("*.txt"))
MODULES = {path.stem for path in SNIPPETS.glob("*.py")} - set(PROGRAMS)
# Each command of transcript.console starts a server on the MCP SDK, 2 s of CPU time; without CI=true, `call_mcp` does.
CONSOLES = sorted(path.name for path in SNIPPETS.glob("*.console"))
BIN = Path(sys.executable).parent
LINES = {"lines": [{"article": "tea", "price": 4.5, "quantity": 2}]}
TOKEN = "a-long-random-secret"
THERE = "/path/to/shop"


@pytest.fixture(autouse=True)
def in_the_folder_of_the_snippets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in the folder of the snippets, with the programs of the environment on the PATH, as a reader would."""
    monkeypatch.chdir(SNIPPETS)
    monkeypatch.syspath_prepend(SNIPPETS)
    monkeypatch.setenv("PATH", os.pathsep.join([str(BIN), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).parent == SNIPPETS:
            del sys.modules[name]
    access_log = logging.getLogger("opwire.access")
    access_log.handlers.clear()
    access_log.setLevel(logging.NOTSET)


def matches(shown: str, printed: str) -> bool:
    """Return whether the output matches; "…" matches any text."""
    return re.fullmatch(re.escape(shown).replace("…", ".*"), printed, re.DOTALL) is not None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_snippet_prints_what_the_page_says(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    monkeypatch.setenv("BROKER_URL", redis_server.url)
    runpy.run_path(f"{name}.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert matches((SNIPPETS / f"{name}.txt").read_text(encoding="utf-8"), printed), printed


def test_what_runs_over_redis_runs_over_nats(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, nats_server: NatsServer
) -> None:
    monkeypatch.setenv("BROKER_URL", nats_server.url)
    runpy.run_path("over_a_broker.py", run_name="__main__")
    assert matches((SNIPPETS / "over_a_broker.txt").read_text(encoding="utf-8"), capsys.readouterr().out)


def imported_by(name: str) -> set[str]:
    tree = ast.walk(ast.parse((SNIPPETS / f"{name}.py").read_text(encoding="utf-8")))
    return {node.module for node in tree if isinstance(node, ast.ImportFrom) and node.module}


def test_every_snippet_is_run_by_one_of_these_tests() -> None:
    used = {module for name in (*PROGRAMS, *MODULES) for module in imported_by(name)}
    assert MODULES - used == {
        "articles",
        "warehouse",
        "mounted",
        "as_mcp",
        "as_durable_mcp",
        "as_http",
        "proxy",
        "test_shop",
    }  # others start it; the rest is below


@pytest.mark.parametrize("sync", [False, True])
def test_the_generated_modules_are_those_of_today(sync: bool) -> None:
    specs = runpy.run_path("shop.py")["registry"].list()
    shown = (SNIPPETS / f"shop_{'sync' if sync else 'async'}.py").read_text(encoding="utf-8")
    assert generate_client(specs, class_name="Shop", sync=sync) == shown


async def test_the_proxy_serves_what_is_behind_it() -> None:
    registry = OperationRegistry()
    async with from_mcp(StdioServer(sys.executable, ("proxy.py",), cwd=str(SNIPPETS))) as source:
        registry.follow(source)
        assert (await registry.execute("mcp.warehouse_stock", {"article": "pot"})).data == {
            "article": "pot",
            "pieces": 3,
        }


async def test_both_surfaces_can_be_mounted_into_one_app() -> None:
    app = runpy.run_path("mounted.py")["app"]
    async with listening(app) as address:
        async with Client(f"{address}/api") as client:
            assert await client.call("shop.order", LINES) == {"total": 9.0, "currency": "EUR"}
        async with from_mcp(f"{address}/mcp", trust_annotations=True) as tools:
            assert {"shop.order", "shop.visitors"} <= {operation.spec.id for operation in tools}


async def test_the_program_that_serves_mcp_is_an_mcp_server() -> None:
    await check_shop(StdioServer(sys.executable, ("as_mcp.py",), cwd=str(SNIPPETS)))


async def test_the_program_with_durable_tasks_is_an_mcp_server(redis_server: RedisServer) -> None:
    env = {"BROKER_URL": redis_server.url, "SHOP_STATE_KEY": "a secret of all servers"}
    await check_shop(StdioServer(sys.executable, ("as_durable_mcp.py",), cwd=str(SNIPPETS), env=env))


async def test_the_program_that_serves_http_listens_behind_a_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with started(sys.executable, "as_http.py", PORT=str(port), SHOP_TOKEN=TOKEN) as process:
        address = f"http://127.0.0.1:{port}"
        await answering(port)
        async with Client(address, token=TOKEN) as client:
            assert await client.call("shop.order", LINES) == {"total": 9.0, "currency": "EUR"}
        async with Client(address) as stranger:
            with pytest.raises(CallError, match="UNAUTHENTICATED"):
                await stranger.call("shop.order", LINES)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def answering(port: int) -> None:
    """Wait until the port accepts connections."""
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


@asynccontextmanager
async def started(*command: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **env},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("console", [name for name in CONSOLES if is_thorough() or name != "transcript.console"])
async def test_commands_print_what_the_page_says(console: str, tmp_path: Path) -> None:
    text = (SNIPPETS / console).read_text(encoding="utf-8")
    rates = runpy.run_path("rates.py")["app"]
    async with listening(rates) as address:
        for command, shown in re.findall(r"^\$ ([^\n]+)\n(.*?)(?=^\$ |\Z)", text, re.MULTILINE | re.DOTALL):
            printed = await run(command, RATES_URL=address, XDG_CACHE_HOME=str(tmp_path))
            assert matches(shown, printed), f"{command}\n{printed}"


async def run(command: str, **env: str) -> str:
    """Return what a reader sees who types a command at a terminal."""
    with OnTerminal(command, command=["/bin/sh", "-c"], columns=80, rows=40, cwd=SNIPPETS, **env) as terminal:
        _, shown = await asyncio.to_thread(terminal.end)
    return unstyled(shown)


def servers_of(name: str, address: str = "") -> dict[str, MCPServer]:
    """Return the servers of a client's configuration, with its paths replaced by those of this machine."""
    text = (SNIPPETS / "clients" / name).read_text(encoding="utf-8")
    text = text.replace(f"{THERE}/.venv/bin", str(BIN)).replace(THERE, str(SNIPPETS))
    text = text.replace("http://127.0.0.1:8000", address)
    if name.endswith(".json"):
        return read_written(json.loads(text))
    servers = tomllib.loads(text)["mcp_servers"]  # the same words but for this one
    for server in servers.values():
        if variable := server.pop("bearer_token_env_var", None):
            server["headers"] = {"Authorization": f"Bearer ${{{variable}}}"}
    return read_written({"mcpServers": servers})


def read_written(content: dict[str, Any]) -> dict[str, MCPServer]:
    """Return the servers of a file with this content."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "mcp.json")
        file.write_text(json.dumps(content))
        return read_servers(file)


async def test_clients_can_start_opwire_as_the_page_tells_them() -> None:
    servers = servers_of("claude_desktop_config.json")
    assert servers == servers_of("vscode.json") == servers_of("codex.toml")
    await check_shop(servers["shop"])


@pytest.mark.parametrize("name", ["cursor_http.json", "codex_http.toml"])
async def test_clients_can_reach_opwire_as_the_page_tells_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    registry: OperationRegistry = runpy.run_path("shop.py")["registry"]
    tokens = StaticTokens({TOKEN: Identity(id="client", scopes=("*",))})
    app = serve_mcp(registry, name="shop").asgi(authenticate=tokens)
    async with listening(app, on_drain=app.drain) as address:
        await check_shop(servers_of(name, address)["shop"])


async def check_shop(server: MCPServer) -> None:
    """Assert that the server serves the shop."""
    async with from_mcp(server, trust_annotations=True) as tools:
        registry = OperationRegistry()
        registry.follow(tools)
        assert (await registry.execute("shop.order", LINES)).data == {"total": 9.0, "currency": "EUR"}
