"""Snippets: copied code runs, with any names and values."""

import ast
import asyncio
import shlex
import sys
from typing import Any

import aiohttp
import msgspec
import pytest

from opwire import AccessControl, OperationRegistry, OperationSpec, Schema
from opwire.agents.snippets import curl_snippet, mcp_snippet, python_snippet
from opwire.console import serve_console
from opwire.model.operation import OperationType
from tests.console.served import OWNER, PAGE, make_registry, page_of
from tests.openapi.server.served import Client

HOSTILE = ["$(touch x)", "`id`", "'; rm -rf /; '", '"""', "\\", "\n", "é\u202e", "</script>", "\x1b[2J", "\ud800"]


def spec_of(name: str, type: OperationType = OperationType.QUERY) -> OperationSpec:
    return OperationSpec(namespace="n", name=name, type=type)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_values_stay_data(text: str) -> None:
    spec = spec_of(text if text.isprintable() else "x")
    curl = curl_snippet(spec, {"a": text}, "http://127.0.0.1:1")
    words = shlex.split(curl.partition("| base64 -d | ")[2] or curl)
    assert words[:2] == ["curl", "--globoff"]
    assert not {"touch", "rm", "id"} & set(words)
    python = python_snippet(spec, {"a": text}, "http://127.0.0.1:1")
    calls = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
    assert len(calls) == 5  # asyncio.run, main, Client, print, client.call
    request = msgspec.json.decode(mcp_snippet(spec, {"a": text}, "n_x"))
    assert request["params"]["arguments"] == {"input": {"a": text.replace("\ud800", "\ufffd")}}


def test_a_public_operation_needs_no_token() -> None:
    public = OperationSpec(namespace="n", name="x", access=AccessControl(public=True))
    assert "TOKEN" not in curl_snippet(public, None, "http://h") + python_snippet(public, None, "http://h")


async def test_what_the_page_shows_runs(tmp_path: Any) -> None:
    registry = make_registry()
    async with page_of(registry) as page:
        await page.log_in()
        for operation_id, input, expected in (
            ("shop.order", {"lines": ["it's $HOME"]}, b"it's $HOME"),
            ("shop.ticks", {"count": 2}, b"1"),
        ):
            body = {"operationId": operation_id, "input": input}
            found = (await page.api("POST", "snippets", body)).json
            script = tmp_path / "snippet.py"
            script.write_text(found["python"])
            for command in (["sh", "-c", f"{found['curl']} --silent"], [sys.executable, str(script)]):
                environment = {"OPWIRE_TOKEN": OWNER, "PATH": "/usr/bin:/bin"}
                process = await asyncio.create_subprocess_exec(
                    *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
                )
                out, err = await asyncio.wait_for(process.communicate(), 60)
                assert expected in out, err
            assert msgspec.json.decode(found["mcp"])["params"]["name"] == operation_id.replace(".", "_")


async def test_snippets_are_for_operations_that_the_person_may_call() -> None:
    async with page_of() as page:
        assert (await page.api("POST", "snippets", {"operationId": "shop.order"})).status == 401


async def test_without_an_http_api_there_is_nothing_to_call_with_curl() -> None:
    """A call can be copied as curl, Python and MCP, and what is copied runs."""
    registry = OperationRegistry()
    registry.register(
        OperationSpec(namespace="n", name="x", access=AccessControl(public=True)), lambda input, context: 1
    )
    async with serve_console(registry).listening() as address, aiohttp.ClientSession() as session:
        reply = await Client(session, address)("POST", "/api/snippets", headers=PAGE, json={"operationId": "n.x"})
    assert (reply.json["curl"], reply.json["python"]) == (None, None)
    assert "tools/call" in reply.json["mcp"]


@pytest.mark.parametrize("broken", [{"required": 5}, {"properties": []}, {"$schema": 1}])
def test_an_invalid_input_schema_of_a_foreign_tool_has_a_snippet_too(broken: dict[str, Any]) -> None:
    spec = OperationSpec(namespace="n", name="x", input_schema=Schema({"type": "object", **broken}))
    assert msgspec.json.decode(mcp_snippet(spec, {"a": 1}, "n_x"))["params"]["arguments"] == {"a": 1}
