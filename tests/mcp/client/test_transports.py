"""All transports behave alike, against the SDK's own server, and bound what a server asks."""

from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import connection
from opwire.model.context import Progress
from tests.mcp.client.connections import SDK_SERVER, at, call, connected, rogue


@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_the_same_calls_give_the_same_results_over_every_transport(transport: str, sdk_address: str) -> None:
    """stdio, streamable HTTP and the SSE transport of 2024 give the same results."""
    places = {"stdio": SDK_SERVER, "http": at(sdk_address), "sse": at(sdk_address, "/sse", kind="sse")}
    steps: list[Progress] = []
    async with connected(places[transport]) as session:
        info = await session.start()
        assert (info.name, info.protocol) == ("judge", "2026-07-28")
        assert (await call(session, "add", a=1, b=2))["structuredContent"] == {"result": 3}
        params: dict[str, Any] = {"name": "count", "arguments": {"to": 3}}
        await session.request("tools/call", params, on_progress=steps.append)
        assert steps == [Progress(number, 3, f"step {number}") for number in range(3)]
        assert len((await call(session, "large", size=1_500_000))["structuredContent"]["result"]) == 1_500_000
        assert (await call(session, "nothing"))["isError"] is True


async def test_a_batch_of_a_server_on_stdio_is_its_messages() -> None:
    """The messages of a batch of a server are handled in order, over any transport."""
    seen: list[str] = []
    async with connected(rogue(), on_notification=lambda method, _: seen.append(method)) as session:
        changed = '{"jsonrpc": "2.0", "method": "notifications/%s/list_changed"}'
        batch = ", ".join((changed % "tools", changed % "prompts", '{"jsonrpc": "2.0", "id": ID, "result": {"n": 1}}'))
        text = f"[{batch}]".replace("ID", "%")
        assert await call(session, "raw", text=text) == {"n": 1}
    assert seen == ["notifications/tools/list_changed", "notifications/prompts/list_changed"]


async def test_a_server_that_floods_and_does_not_read_is_disconnected_and_the_next_call_connects_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server has a bounded number of questions open, and for each request of ours; others are refused, and a
    server that does not read the refusals is disconnected."""
    monkeypatch.setattr(connection, "REJECTION_TIMEOUT", 0.1)
    async with connected(rogue(stop_timeout=0.1)) as session:
        with pytest.raises(CallError, match="asks without reading the answers") as caught:
            await call(session, "flood", within=60, count=20_000)
        assert caught.value.code is ErrorCode.PROTOCOL_ERROR
        assert await call(session, "echo", within=60, n=1) == {"arguments": {"n": 1}}


async def test_a_call_in_which_a_server_asks_too_often_goes_on_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_REQUESTS", 50)
    asked: list[Any] = []

    async def elicit(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return {"action": "decline"}

    async with connected(rogue(), elicit=elicit) as session:
        await session.start()
        told = await call(session, "interview", within=60, count=60, method="elicitation/create")
        assert (told["refused"], len(asked)) == (10, 50)
        assert (await call(session, "interview", within=60, count=50, method="elicitation/create"))["refused"] == 0
