"""Single HTTP requests: what is rejected, with which status, and how a call is answered."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from opwire import Context, OperationRegistry
from tests.mcp.server.raw import HANDSHAKE, call, request
from tests.mcp.server.shop import NEWEST, PATIENCE, until
from tests.mcp.server.test_app import GUEST, Browser, browsing

META = "io.modelcontextprotocol/"
ACCEPT = {"Accept": "application/json, text/event-stream"}
STATELESS = {**ACCEPT, "MCP-Protocol-Version": NEWEST, "Mcp-Method": "tools/call", "Mcp-Name": "math_add"}
ADD = call("math_add", {"a": 1, "b": 2}, era=NEWEST)


async def sent(browser: Browser, method: str, body: Any, headers: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http:
        content: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with http.request(method, browser.url, headers=headers, **content) as response:
            text = await response.text()
            return response.status, json.loads(text)["error"]["code"] if '"error"' in text else None


@pytest.mark.parametrize(
    ("changes", "body", "expected"),
    [
        ({}, ADD, (200, None)),
        ({"Mcp-Method": "tools/list"}, ADD, (400, -32020)),
        ({"Mcp-Name": "other"}, ADD, (400, -32020)),
        ({"MCP-Protocol-Version": "2027-01-01"}, ADD, (400, -32020)),
        ({}, call("math_add", {}), (400, -32602)),
        ({"Mcp-Name": "no"}, call("no", era=NEWEST), (400, -32602)),
        ({"Mcp-Method": "ping"}, request("ping", era=NEWEST), (404, -32601)),
        ({}, {"jsonrpc": "2.0", "method": "notifications/cancelled"}, (202, None)),
        ({"MCP-Protocol-Version": "2027-01-01"}, {"jsonrpc": "2.0", "method": "x"}, (400, -32022)),
        ({}, {"jsonrpc": "2.0", "id": 1, "result": {}}, (400, -32600)),
        ({}, [ADD], (400, -32600)),
        ({"Content-Type": "application/json"}, b"{", (400, -32700)),
        ({"Accept": "application/json"}, ADD, (406, -32600)),
    ],
)
async def test_a_stateless_request_that_contradicts_itself_is_rejected_with_its_status(
    changes: dict[str, str], body: Any, expected: tuple[int, Any]
) -> None:
    """Requests that contradict themselves or come out of turn get the status of the protocol."""
    async with browsing(anonymous=GUEST) as browser:
        assert await sent(browser, "POST", body, {**STATELESS, **changes}) == expected


async def test_a_header_that_is_there_twice_is_rejected_since_a_proxy_may_read_the_other_one() -> None:
    async with browsing(anonymous=GUEST) as browser:
        headers = [*STATELESS.items(), ("Mcp-Name", "data_list")]
        assert await sent(browser, "POST", ADD, headers) == (400, -32020)
        assert (await sent(browser, "GET", b"", STATELESS))[0] == 405


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("Mcp-Method", "tools/call"), ("Mcp-Name", "math_add")], (200, None)),
        ([("Mcp-Name", "=?base64?bWF0aF9hZGQ=?=")], (200, None)),
        ([("Mcp-Method", "tools/list")], (400, -32020)),
        ([("Mcp-Name", "data_list")], (400, -32020)),
        ([("Mcp-Name", "math_add"), ("Mcp-Name", "data_list")], (400, -32020)),
    ],
)
async def test_in_a_session_too_the_headers_by_which_proxies_route_are_those_of_the_message(
    headers: list[tuple[str, str]], expected: tuple[int, Any]
) -> None:
    async with browsing(anonymous=GUEST) as browser:
        session = await browser.session()
        given = [*ACCEPT.items(), ("Mcp-Session-Id", session), *headers]
        assert await sent(browser, "POST", call("math_add", {"a": 1, "b": 2}), given) == expected


@pytest.mark.parametrize(
    ("method", "headers", "body", "status"),
    [
        ("POST", {"Accept": "text/event-stream"}, HANDSHAKE[0], 406),
        ("POST", {**ACCEPT, "Content-Type": "text/plain"}, b"{}", 415),
        ("POST", ACCEPT, request("tools/list"), 400),
        ("POST", ACCEPT, HANDSHAKE[1], 400),
        ("GET", {"Accept": "text/event-stream"}, b"", 400),
        ("DELETE", {}, b"", 400),
        ("PUT", ACCEPT, HANDSHAKE[0], 405),
        ("POST", {**ACCEPT, "Mcp-Session-Id": "made-up"}, request("ping"), 404),
        ("POST", ACCEPT, request("initialize"), 200),
    ],
)
async def test_only_a_handshake_opens_a_session_and_nothing_else_ends_another(
    method: str, headers: dict[str, str], body: Any, status: int
) -> None:
    async with browsing(anonymous=GUEST, max_sessions=1) as browser:
        session = await browser.session()
        assert (await sent(browser, method, body, headers))[0] == status
        async with browser.post(request("ping"), Mcp_Session_Id=session) as response:
            assert response.status == 200


async def test_a_call_that_its_client_cancels_in_a_session_is_answered_as_cancelled() -> None:
    registry = OperationRegistry()
    begun = asyncio.Event()

    @registry.mutation("a.b")
    async def b() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with browsing(registry, anonymous=GUEST) as browser:
        session = await browser.session()
        calling = asyncio.create_task(browser.post(call("a_b", id=7), Mcp_Session_Id=session).__aenter__())
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            async with browser.post(cancel, Mcp_Session_Id=session) as response:
                assert response.status == 202
            assert (await (await calling).json())["error"]["code"] == -32800


@pytest.mark.parametrize("era", ["", NEWEST])
async def test_a_response_is_json_until_there_is_a_notification(era: str) -> None:
    registry = OperationRegistry()

    @registry.mutation("a.b")
    async def b(context: Context) -> int:
        context.report(1)
        await asyncio.sleep(0)
        return 5

    async with browsing(registry, anonymous=GUEST) as browser:
        session: dict[str, Any] = {} if era else {"Mcp_Session_Id": await browser.session()}
        async with browser.post(call("a_b", era=era), era=era, **session) as response:
            assert response.content_type == "application/json"
        async with browser.post(call("a_b", era=era, progressToken=3), era=era, **session) as response:
            assert response.content_type == "text/event-stream"
            events = [line for line in (await response.text()).splitlines() if line.startswith("data: {")]
        assert json.loads(events[0][6:])["params"] == {"progressToken": 3, "progress": 1.0}
        assert "result" in json.loads(events[-1][6:])


async def test_a_client_that_disconnects_does_not_stop_its_call_in_a_session() -> None:
    registry = OperationRegistry()
    steps: list[str] = []
    go_on = asyncio.Event()

    @registry.mutation("a.b")
    async def b() -> None:
        steps.append("begun")
        await go_on.wait()
        steps.append("ended")

    async with browsing(registry, anonymous=GUEST) as browser:
        session = await browser.session()
        calling = asyncio.create_task(browser.post(call("a_b"), Mcp_Session_Id=session).__aenter__())
        await until(lambda: steps == ["begun"])
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        go_on.set()
        await until(lambda: steps == ["begun", "ended"])
        async with browser.get(Mcp_Session_Id=session) as first, browser.get(Mcp_Session_Id=session) as second:
            assert (first.status, second.status) == (200, 409)
