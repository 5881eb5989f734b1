"""The examples run, and print what they are there to show."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from opwire import Identity, Operation, OperationRegistry
from opwire.openapi.server import serve_http
from tests.servers.brokers import NatsServer, RedisServer

ROOT = Path(__file__).parent.parent


def test_the_code_of_the_readme_runs_and_says_what_the_readme_says(
    capsys: pytest.CaptureFixture[str], redis_server: RedisServer, tmp_path: Path
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    namespace: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"README.md, block {number}", "exec"), namespace)
    assert capsys.readouterr().out == "3 local\n"
    registry = namespace["registry"]
    lines = {"lines": [{"article": "tea", "price": 4.5, "quantity": 2}]}
    assert asyncio.run(registry.execute("shop.twice", lines)).data == 18.0
    assert asyncio.run(registry.execute("users.get", {"id": 1})).data == {"name": "Ada", "plan": "free"}
    asyncio.run(namespace["ask"](registry))
    assert capsys.readouterr().out == "3\n0\n"
    asyncio.run(namespace["scale_out"](redis_server.url))
    assert capsys.readouterr().out == "3\nshop 5\n"
    asyncio.run(composed(namespace, tmp_path))
    assert capsys.readouterr().out == "UTC 3\nVALIDATION_ERROR\n"
    schema = namespace["schema"]
    assert schema.problems({"article": "tea"}) == [("", '"price" is a required property')]
    assert schema.fit({"article": "tea", "price": 3, "x": 1}).value == {"article": "tea", "price": 3, "quantity": 1}


async def composed(namespace: dict[str, Any], folder: Path) -> None:
    """The README's composition, on a real MCP server and on the README's own registry served over HTTP.

    Its document is written as another team would write it.
    """
    served = OperationRegistry()
    served.register_all(
        Operation(spec, namespace["registry"].get_handler(spec.id)) for spec in namespace["registry"].list()
    )
    async with serve_http(served, anonymous=Identity(id="me", scopes=("*",))).listening() as url:
        clock = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}
        document = folder / "store.json"
        document.write_text(json.dumps(store(url)))
        await namespace["compose"](clock, str(document))


def store(url: str) -> dict[str, Any]:
    def operation(name: str, *fields: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": {each: {"type": "integer"} for each in fields}, "required": fields}
        body = {"content": {"application/json": {"schema": schema}}, "required": True}
        return {"post": {"operationId": name, "requestBody": body, "responses": {"200": {"description": "the result"}}}}

    paths = {"/math/add": operation("add", "a", "b"), "/users/get": operation("get", "id")}
    info = {"title": "Store", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "servers": [{"url": url}], "paths": paths}


TOKEN = {**os.environ, "OPWIRE_TOKEN": "a-long-random-secret"}


def example(name: str, url: str) -> list[str | Path]:
    return [sys.executable, ROOT / "examples" / f"{name}.py", url]


@contextmanager
def running(name: str, url: str, says: str) -> Iterator[str]:
    """An example that goes on until it is asked to stop; what it says when it is ready."""
    with subprocess.Popen(example(name, url), stdout=subprocess.PIPE, text=True, env=TOKEN) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(says)
        try:
            yield line.removeprefix(says).strip()
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.parametrize("engine", ["redis", "nats", "hub"])
def test_two_processes_find_and_call_each_other(
    engine: str, redis_server: RedisServer, nats_server: NatsServer
) -> None:
    with ExitStack() as stack:
        if engine == "hub":
            url = stack.enter_context(running("hub", "ws://127.0.0.1:0", "listening"))
        else:
            url = {"redis": redis_server, "nats": nats_server}[engine].url
        assert stack.enter_context(running("serve", url, "serving")) == "math.add clock.ticks"
        called = subprocess.run(
            example("call", url), capture_output=True, text=True, timeout=30, check=False, env=TOKEN
        )
    assert called.returncode == 0, called.stderr
    found, *calls = called.stdout.splitlines()
    assert found == "found example 1.0.0 math.add clock.ticks"
    assert calls == ["math.add 3 by another process: True", "clock.ticks 0", "clock.ticks 1", "clock.ticks 2"]
