"""Batches of messages, which revision 2025-03-26 has and no other."""

import asyncio
import json
from typing import Any

import pytest

from opwire import Context, OperationRegistry
from opwire.mcp.messages import MAX_BATCH
from opwire.mcp.server import serve_mcp, sessions
from opwire.mcp.server.sessions import HTTPSession
from tests.mcp.server.raw import HANDSHAKE, call, raw, request
from tests.mcp.server.test_app import GUEST, browsing
from tests.mcp.server.test_streams import opened

registry = OperationRegistry()


@registry.query("a.double")
async def double(n: int, context: Context) -> int:
    context.report(n)
    return 2 * n


def doubled(*numbers: int) -> list[Any]:
    return [call("a_double", {"n": n}, id=n, progressToken=n) for n in numbers]


def results(replies: list[Any]) -> dict[Any, Any]:
    return {each["id"]: each["result"]["structuredContent"]["result"] for each in replies if "result" in each}


async def test_a_batch_over_http_is_answered_with_a_batch() -> None:
    async with browsing(registry, anonymous=GUEST) as browser:
        session = await opened(browser, "2025-03-26")
        batch = [*doubled(1, 2), {"jsonrpc": "2.0", "method": "notifications/unknown"}, request("no/such", id=3)]
        async with browser.post(batch, Mcp_Session_Id=session) as response:
            replies = await response.json()
        assert results(replies) == {1: 2, 2: 4}
        assert [each["error"]["code"] for each in replies if "error" in each] == [-32601]
        notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
        async with browser.post([notification, notification], Mcp_Session_Id=session) as response:
            assert response.status == 202
        async with browser.post(doubled(1, 1), Mcp_Session_Id=session) as response:
            codes = [each.get("error", {}).get("code") for each in await response.json()]
            assert sorted(codes, key=str) == [-32600, None]


async def test_the_event_loop_runs_between_the_calls_of_a_batch() -> None:
    busy, turn, turns = OperationRegistry(), 0, list[int]()

    @busy.query("a.compute")
    async def compute() -> int:
        turns.append(turn)
        return turn

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with browsing(busy, anonymous=GUEST) as browser:
        session = await opened(browser, "2025-03-26")
        counting = asyncio.create_task(count_turns())
        async with browser.post([call("a_compute", id=n) for n in range(20)], Mcp_Session_Id=session) as response:
            replies = await response.json()
        counting.cancel()
    assert sorted(each["id"] for each in replies) == [*range(20)]
    assert len(set(turns)) == 20


async def test_responses_to_batches_that_clients_do_not_read_take_bounded_memory() -> None:
    large = OperationRegistry()

    @large.query("a.page")
    async def page() -> str:
        return "x" * 2_000_000  # which is in a response twice

    def refused(replies: list[Any]) -> list[bool]:
        return ["send it alone" in each.get("error", {}).get("message", "") for each in replies]

    async with browsing(large, anonymous=GUEST) as browser:
        session = await opened(browser, "2025-03-26")
        batch = [call("a_page", id=n) for n in range(10)]
        async with browser.post(batch, Mcp_Session_Id=session) as unread:
            assert unread.status == 200  # the rest is not read before the next batch is answered
            async with browser.post(batch, Mcp_Session_Id=session) as response:
                assert refused(await response.json()) == [True] * 10
            assert refused(await unread.json()) == [False] * 8 + [True] * 2
        async with browser.post(batch[:2], Mcp_Session_Id=session) as response:
            assert refused(await response.json()) == [False, False]


@pytest.mark.parametrize(
    ("version", "batch"),
    [("2025-06-18", doubled(1, 2)), ("2025-03-26", []), ("2025-03-26", doubled(*range(MAX_BATCH + 1)))],
    ids=["revision", "empty", "long"],
)
async def test_a_batch_of_another_revision_an_empty_and_a_long_one_are_rejected(version: str, batch: Any) -> None:
    async with browsing(registry, anonymous=GUEST) as browser:
        session = await opened(browser, version)
        async with browser.post(batch, Mcp_Session_Id=session) as response:
            assert response.status == 400


@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
async def test_the_messages_of_a_batch_on_stdio_are_handled_in_order(version: str) -> None:
    async with raw(serve_mcp(registry), handshake=False) as client:
        params = {**HANDSHAKE[0]["params"], "protocolVersion": version}
        await client.ask({**HANDSHAKE[0], "params": params})
        await client.send([HANDSHAKE[1], *doubled(1, 2)])
        if version != "2025-03-26":
            assert (await client.receive())["error"]["code"] == -32700
            return
        replies: list[Any] = []
        while len(results(replies)) < 2:
            replies.append(await client.receive())
        assert results([each for each in replies if "id" in each]) == {1: 2, 2: 4}
        assert json.dumps(replies).count("notifications/progress") == 2


async def test_a_session_that_ends_during_a_batch_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    library, opened_sessions = OperationRegistry(), list[HTTPSession]()

    class RecordedSession(HTTPSession):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened_sessions.append(self)

    @library.resource("book://{title}")
    async def book(title: str) -> str:
        return title

    @library.query("a.leave")
    async def leave() -> None:
        opened_sessions[0].end()

    monkeypatch.setattr(sessions, "HTTPSession", RecordedSession)
    async with browsing(library, anonymous=GUEST) as browser:
        session = await opened(browser, "2025-03-26")
        later = [request("resources/subscribe", {"uri": f"book://{n}"}, id=n) for n in range(1, 10)]
        async with browser.post([call("a_leave", id=0), *later], Mcp_Session_Id=session) as response:
            replies = await response.json()
        refusals = {reply["error"]["message"] for reply in replies[1:]}
        assert refusals <= {"Request cancelled", "rejected: the session has ended"}  # the task of one may have begun
        assert not library._updated
