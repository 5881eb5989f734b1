"""`registry.preview` of operations of MCP servers shows the request that `execute` sends."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from opwire import Context, OperationRegistry
from opwire.mcp.client import from_mcp
from tests.mcp.client.listed_server import MODERN, Stage, tool

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.mark.parametrize("answers", [{}, MODERN], ids=["2025-11-25", "2026-07-28"])
async def test_a_previewed_mcp_request_is_the_one_that_is_sent(tmp_path: Path, answers: Any) -> None:
    received = {"result": "received"}
    registry = OperationRegistry()
    stage = Stage(tmp_path, tools=[tool("look")], answers=answers)
    async with from_mcp(stage.server, namespace="x") as source:
        registry.follow(source)
        shown = await registry.preview("x.look", received, Context(metadata=TRACE, on_progress=print))
        messages: Any = (await registry.execute("x.look", received, Context(metadata=TRACE, on_progress=print))).data
    message = msgspec.json.decode(shown.body or b"")
    sent = messages[-1]
    assert shown.protocol == "mcp"
    assert message.keys() == sent.keys()
    for each in (message, sent):
        del each["id"]
        del each["params"]["_meta"]["progressToken"]  # the next one
    assert message == sent
    assert sum(each.get("method") == "tools/call" for each in messages) == 1
