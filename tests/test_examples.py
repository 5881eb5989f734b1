"""The examples run, and print what they are there to show."""

import ast
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

from opwire import RESPONSE_ENVELOPE_SCHEMA, Identity, Operation, OperationRegistry, Schema
from opwire.serve.http import serve_http
from tests.requirements import requirement
from tests.servers.brokers import NatsServer, RedisServer

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=60, check=False)


@requirement("examples.demo")
def test_the_demo_prints_an_envelope_for_each_call(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stderr
    lines = [line.split(maxsplit=1) for line in demo.stdout.splitlines()]
    envelopes = [(title, json.loads(text)) for title, text in lines if text.startswith("{")]
    assert [(title, envelope["data"]) for title, envelope in envelopes] == [
        ("math.add", 3),
        ("shop.order", {"lines": 2, "total": 20.0, "currency": "EUR"}),
        ("shop.order_twice", {"total": 40}),
        ("clock.ticks", {"tick": 0}),
        ("clock.ticks", {"tick": 1}),
        ("partner.profile", {"name": "Ada", "plan": "free"}),
    ]
    schema = Schema(RESPONSE_ENVELOPE_SCHEMA)
    for title, envelope in envelopes:
        assert schema.problems(envelope) == []
        assert envelope["meta"]["operationId"] == title


@requirement("examples.demo")
def test_the_demo_shows_a_typed_result_two_errors_and_a_warning(demo: subprocess.CompletedProcess[str]) -> None:
    *_, typed, invalid, unknown = demo.stdout.splitlines()
    assert typed.split(maxsplit=1) == ["typed", "Receipt(lines=2, total=20.0, currency='EUR')"]
    assert "VALIDATION_ERROR: math.add" in invalid
    assert unknown.endswith("OPERATION_NOT_FOUND: Operation not found: math.ad; did you mean math.add?")
    [warning] = demo.stderr.splitlines()
    assert "partner.profile: " in warning
    assert "/internal_id" in warning


@requirement("examples.demo")
def test_the_demo_needs_nothing_but_opwire() -> None:
    imported = set[str]()
    for node in ast.walk(ast.parse(DEMO.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                imported |= {each.name.partition(".")[0] for each in names}
            case ast.ImportFrom(module=str(module)):
                imported.add(module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"opwire"}


def test_the_code_of_the_readme_runs_and_says_what_the_readme_says(
    capsys: pytest.CaptureFixture[str], redis_server: RedisServer
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
    asyncio.run(namespace["remote"]())
    assert capsys.readouterr().out == "3\n0\n"
    asyncio.run(namespace["scale_out"](redis_server.url))
    assert capsys.readouterr().out == "3\nshop 5\n"
    asyncio.run(composed(namespace))
    assert capsys.readouterr().out == "UTC 3\nVALIDATION_ERROR\n"
    schema = namespace["schema"]
    assert schema.problems({"article": "tea"}) == [("", '"price" is a required property')]
    assert schema.fit({"article": "tea", "price": 3, "x": 1}).value == {"article": "tea", "price": 3, "quantity": 1}


async def composed(namespace: dict[str, Any]) -> None:
    """The README's composition, on a real MCP server and on the README's own registry served over HTTP."""
    served = OperationRegistry()
    served.register_all(
        Operation(spec, namespace["registry"].get_handler(spec.id)) for spec in namespace["registry"].list()
    )
    async with serve_http(served, identity=Identity(id="me", scopes=("*",))).listening() as url:
        clock = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}
        await namespace["compose"](clock, f"{url}/openapi.json")


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


@requirement("examples.two-processes")
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
