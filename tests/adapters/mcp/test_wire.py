"""All transports behave alike, against the SDK's own server."""

from typing import Any

import pytest

from opwire.operation import Progress
from tests.adapters.mcp.scenes import SDK_SERVER, at, call, connected
from tests.requirements import requirement


@requirement("mcp.in.transports")
@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_the_same_calls_give_the_same_results_over_every_transport(transport: str, sdk_address: str) -> None:
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
