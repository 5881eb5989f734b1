"""The files in examples/deploy start servers that work; they are run as processes, without containers."""

import asyncio
import configparser
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from opwire.client import Client
from opwire.errors import CallError
from tests.docs.pages import ROOT
from tests.servers.brokers import NatsServer, RedisServer

pytestmark = pytest.mark.slow

DEPLOY = ROOT / "examples" / "deploy"
BIN = Path(sys.executable).parent
TOKEN = "a-long-random-secret"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
SPOKE: list[str] = yaml.safe_load((DEPLOY / "hubs.yaml").read_text(encoding="utf-8"))["services"]["spoke"]["command"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def app(tmp_path: Path, port: int) -> Path:
    """Make the working directory of the image, with a port that is free here."""
    for copied in re.findall(r"^COPY (.+) \./$", DOCKERFILE, re.MULTILINE):
        for name in copied.split():
            text = (DEPLOY / name).read_text(encoding="utf-8")
            (tmp_path / name).write_text(text.replace("port = 8080", f"port = {port}"), encoding="utf-8")
    return tmp_path


def environment(broker: str) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    secrets = dict.fromkeys(("WEB_TOKEN", "SHOP_TOKEN", "OPWIRE_CLUSTER_SECRET"), TOKEN)
    return {**os.environ, **secrets, "PATH": path, "BROKER_URL": broker}


@asynccontextmanager
async def running(
    service: str, app: Path, broker: str, command: list[str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command of a service until the block ends; SIGTERM has to stop it cleanly."""
    process = await asyncio.create_subprocess_exec(
        *(command or SERVICES[service]["command"]),
        cwd=app,
        env=environment(broker),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def healthy(command: list[str], app: Path, broker: str) -> None:
    """Repeat a health check until it succeeds."""
    async with asyncio.timeout(60):
        while True:
            check = await asyncio.create_subprocess_exec(
                *command,
                cwd=app,
                env=environment(broker),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            if await check.wait() == 0:
                return


async def test_the_http_service_passes_the_health_check_of_its_image_and_serves(app: Path, port: int) -> None:
    found = re.search(r"^HEALTHCHECK .*\n  CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    _, *arguments = yaml.safe_load(found[1].replace(":8080", f":{port}"))
    async with running("http", app, "redis://127.0.0.1:1"):
        await healthy([sys.executable, *arguments], app, "")
        async with Client(f"http://localhost:{port}", token=TOKEN) as client:
            assert await client.call("shop.order", {"article": "tea", "quantity": 2}) == {
                "total": 9.0,
                "currency": "EUR",
            }


@pytest.mark.parametrize("engine", ["redis", "nats"])
async def test_a_worker_passes_its_health_check_over_the_broker_and_serves(
    engine: str, app: Path, redis_server: RedisServer, nats_server: NatsServer
) -> None:
    url = {"redis": redis_server, "nats": nats_server}[engine].url
    kind, command = SERVICES["worker"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    async with running("worker", app, url):
        await healthy(["sh", "-c", command.replace("$$", "$")], app, url)
        async with Client(url) as client:
            assert (await client.call("shop.order", {"article": "tea"}))["total"] == 4.5


async def test_the_hubs_are_one(app: Path, nats_server: NatsServer) -> None:
    """`opwire hub --cluster` and `[hub] cluster` make hubs one."""
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "hubs.yaml").read_text(encoding="utf-8"))["services"]
    ports = {}
    for name in ("hub1", "hub2"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports[name] = free.getsockname()[1]
    async with AsyncExitStack() as stack:
        for name, port in ports.items():
            command = [each.replace("0.0.0.0:8700", f"127.0.0.1:{port}") for each in services[name]["command"]]
            await stack.enter_async_context(running(name, app, nats_server.url, command))
            kind, *check = services[name]["healthcheck"]["test"]
            assert kind == "CMD"
            check[-1] = check[-1].replace(":8700", f":{port}")
            await healthy([sys.executable, *check[1:]], app, "")
        command = [each.replace("hub1:8700,hub2:8700,hub3:8700", f"127.0.0.1:{ports['hub1']}") for each in SPOKE]
        await stack.enter_async_context(running("spoke", app, "", command))
        caller = await stack.enter_async_context(Client(f"ws://127.0.0.1:{ports['hub2']}", token=TOKEN))
        async with asyncio.timeout(20):
            while True:
                with suppress(CallError):  # the spoke is starting
                    assert (await caller.call("shop.order", {"article": "tea"}))["total"] == 4.5
                    break
                await asyncio.sleep(0.05)


def test_the_image_installs_extras_that_exist_and_runs_the_http_service() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"opwire\[([a-z,]+)\]", DOCKERFILE)
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    assert f"CMD {SERVICES['http']['command']}".replace("'", '"') in DOCKERFILE


def test_systemd_accepts_the_unit_which_runs_the_http_service(tmp_path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    text = (DEPLOY / "opwire.service").read_text(encoding="utf-8")
    unit.read_string(text)
    folder = unit["Service"]["WorkingDirectory"]
    assert unit["Service"]["ExecStart"].split() == [f"{folder}/.venv/bin/opwire", *SERVICES["http"]["command"][1:]]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    here = tmp_path / "opwire.service"
    here.write_text(text.replace(f"{folder}/.venv/bin", str(BIN)).replace(folder, str(tmp_path)), encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", here], capture_output=True, text=True, timeout=60, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
