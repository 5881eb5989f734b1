"""A client made of `from_mcp`, for the client scenarios of the public MCP conformance suite.

The suite starts it with the URL of its server as the only argument, and names the scenario in the environment.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from opwire import CallError, OperationRegistry, ResponseEnvelope
from opwire.mcp.client import from_mcp
from tests.judges.mcp.oauth_user import use


async def call(registry: OperationRegistry, name: str, input: Any = None) -> ResponseEnvelope[Any]:
    """Call an operation of the suite's server."""
    return await registry.execute(f"suite.{name}", input or {})


def fill_in(params: dict[str, Any]) -> dict[str, Any]:
    """A user that accepts every default of a form, or says yes without one."""
    fields: dict[str, dict[str, Any]] = params["requestedSchema"]["properties"]
    return {"action": "accept", "content": {name: field.get("default", True) for name, field in fields.items()}}


async def only_connect(registry: OperationRegistry) -> None:
    """Listing what there is has been enough."""


async def call_a_tool(registry: OperationRegistry) -> None:
    await call(registry, "add_numbers", {"a": 5, "b": 3})


async def be_asked(registry: OperationRegistry) -> None:
    await call(registry, "test_client_elicitation_defaults")


async def lose_the_stream(registry: OperationRegistry) -> None:
    await call(registry, "test_reconnection")


async def be_asked_several_times(registry: OperationRegistry) -> None:
    await asyncio.gather(
        call(registry, "test_mrtr_echo_state"),
        call(registry, "test_mrtr_no_state"),
        call(registry, "test_mrtr_unrelated"),
    )
    await call(registry, "test_mrtr_no_result_type")


async def use_everything(registry: OperationRegistry) -> None:
    await call(registry, "test_headers")
    await call(registry, "my-hyphenated-tool")
    for resource in (await call(registry, "resources/list")).data["resources"]:
        await call(registry, "resources/read", {"uri": resource["uri"]})
    await call(registry, "prompts/list")
    await call(registry, "prompts/test_prompt")


async def send_headers(registry: OperationRegistry) -> None:
    for each in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await call(registry, each["name"], each["arguments"])


async def call_whatever_is_there(registry: OperationRegistry) -> None:
    for spec in registry.list():
        arguments = dict.fromkeys(spec.input_schema.json.get("properties", {}), "x")  # pyright: ignore
        await registry.execute(spec.id, arguments)


async def validate_against_a_remote_schema(registry: OperationRegistry) -> None:
    with suppress(CallError):  # the suite's server lists this tool, and does not have it
        await call(registry, "lookup_user", {"id": "ada", "profile": {"displayName": 1}})


async def send_back_a_schema(registry: OperationRegistry) -> None:
    spec = registry.get_spec("suite.json_schema_2020_12_tool")
    assert spec is not None
    await call(registry, "json_schema_echo", {"schema": spec.input_schema.json})


SCENARIOS: dict[str, Callable[[OperationRegistry], Awaitable[None]]] = {
    "initialize": only_connect,
    "request-metadata": only_connect,
    "tools_call": call_a_tool,
    "elicitation-sep1034-client-defaults": be_asked,
    "sse-retry": lose_the_stream,
    "sep-2322-client-request-state": be_asked_several_times,
    "http-standard-headers": use_everything,
    "http-custom-headers": send_headers,
    "http-invalid-tool-headers": call_whatever_is_there,
    "json-schema-ref-no-deref": validate_against_a_remote_schema,
    "json-schema-2020-12-preservation": send_back_a_schema,
}


async def main(url: str) -> None:
    """Connect, and do what the scenario is about."""
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    if scenario.startswith("auth/"):
        context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
        await use(url, scenario, context, call_whatever_is_there)
        return
    registry = OperationRegistry()
    async with from_mcp(url, namespace="suite", elicit=fill_in) as source:
        registry.follow(source)
        await SCENARIOS[scenario](registry)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
