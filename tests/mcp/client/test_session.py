"""A server that is there, goes away, and comes back."""

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.servers import StdioServer
from opwire.mcp.client.session import MCPSession, progress_callback
from opwire.model.context import MAX_PROGRESS_MESSAGE, Context, Progress
from tests.mcp.client.connections import PATIENCE, at, call, connected, rogue
from tests.servers.leaks import Leaks
from tests.servers.processes import ROOT, wait_until_gone


async def test_a_session_connects_when_it_is_first_needed_and_says_what_the_server_is() -> None:
    async with connected(rogue()) as session:
        assert session.info is None
        assert await call(session, "echo", text="hé") == {"arguments": {"text": "hé"}}
        assert session.info is not None
        assert (session.info.name, session.info.version, session.info.protocol) == ("rogue", "1", "2025-11-25")
        assert await session.start() == session.info


def test_a_session_connects_again_in_the_next_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    session = MCPSession(rogue())
    for number in range(3):
        assert asyncio.run(call(session, "echo", n=number)) == {"arguments": {"n": number}}
    asyncio.run(session.close())
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_call_in_an_event_loop_beside_that_of_the_connection_says_where_to_call() -> None:
    async with connected(rogue()) as session:
        await session.start()
        with pytest.raises(CallError, match=r"connected in another event loop: .* SyncClient") as caught:
            await asyncio.to_thread(asyncio.run, call(session, "echo"))
        assert (caught.value.code, caught.value.retryable) == (ErrorCode.UNAVAILABLE, False)
        assert await call(session, "echo", n=1) == {"arguments": {"n": 1}}


async def test_a_real_server_answers_and_nothing_of_its_answer_is_lost() -> None:
    async with connected(StdioServer(sys.executable, ("-m", "mcp_server_time"))) as session:
        listed = await session.request("tools/list", {})
        assert {tool["name"] for tool in listed["tools"]} == {"get_current_time", "convert_time"}
        result = await call(session, "get_current_time", timezone="Asia/Tokyo")
        assert "Asia/Tokyo" in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("tool", "words"), [("crash", "ended with status 3"), ("killed", "was ended by signal 9")], ids=["exit", "signal"]
)
async def test_when_the_server_dies_pending_calls_end_at_once_and_the_next_one_starts_it_again(
    tool: str, words: str
) -> None:
    async with connected(rogue()) as session:
        await session.start()
        hanging = [asyncio.create_task(call(session, "hang", within=None)) for _ in range(3)]
        await call(session, "echo")  # so that those before it have arrived
        with pytest.raises(CallError, match=words) as failure:
            await call(session, tool)
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert failure.value.retryable
        for ended in await asyncio.wait_for(asyncio.gather(*hanging, return_exceptions=True), PATIENCE):
            assert isinstance(ended, CallError)
            assert ended.code is ErrorCode.UNAVAILABLE
        assert await call(session, "echo", n=1) == {"arguments": {"n": 1}}


async def test_a_dead_server_is_noticed_although_its_child_holds_the_output_open() -> None:
    async with connected(rogue("parent")) as session:
        with pytest.raises(CallError, match="ended with status 3"):
            await call(session, "crash", within=None)


async def test_between_failures_calls_fail_at_once_and_say_when_to_come_back() -> None:
    """After repeated failures there are growing pauses, in which calls fail at once and say how long."""
    async with connected(rogue("dying")) as session:
        with pytest.raises(CallError, match="ended with status 3") as first:
            await session.start()
        assert first.value.retry_after is None
        with pytest.raises(CallError, match="the next attempt is in") as second:
            await call(session, "echo")
        assert second.value.code is ErrorCode.UNAVAILABLE
        assert second.value.retry_after is not None
        assert 0 < second.value.retry_after <= 0.25
        await asyncio.sleep(second.value.retry_after)
        with pytest.raises(CallError, match=r"status 3; the connection is closed$"):
            await call(session, "echo")


async def test_a_server_that_dies_again_and_again_is_started_less_and_less_often() -> None:
    async with connected(rogue()) as session:
        with pytest.raises(CallError, match="ended with status 3"):
            await call(session, "crash")
        with pytest.raises(CallError, match="ended with status 3"):
            await call(session, "crash")
        with pytest.raises(CallError, match="the next attempt is in") as refused:
            await call(session, "crash")
        await asyncio.sleep(refused.value.retry_after or 0)
        await call(session, "echo")  # it answers: all is forgotten
        with pytest.raises(CallError, match="ended with status 3"):
            await call(session, "crash")
        await call(session, "echo")


async def test_a_server_that_never_answers_is_given_up_after_the_connect_timeout_and_leaves_no_process() -> None:
    """A server that does not get ready is given up in time, and nothing of it stays."""
    async with connected(rogue("silent"), connect_timeout=0.3) as session:
        with pytest.raises(CallError, match=r"was not ready within 0\.3 seconds") as failure:
            await session.start()
        assert failure.value.code is ErrorCode.TIMEOUT


async def test_a_call_waits_for_a_connection_no_longer_than_its_deadline() -> None:
    async with connected(rogue("silent")) as session:
        with pytest.raises(CallError, match="was not connected before the deadline") as failure:
            await call(session, "echo", within=0.1)
        assert failure.value.code is ErrorCode.TIMEOUT


async def test_a_program_that_does_not_exist_is_said_so() -> None:
    async with connected(StdioServer("/no/such/program", cwd="/tmp")) as session:
        with pytest.raises(
            CallError, match=r"cannot be started in /tmp: there is no program .*; check its name"
        ) as failure:
            await session.start()
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert not failure.value.retryable


async def test_a_server_that_ends_when_it_is_asked_for_its_revisions_is_started_again_and_greeted_as_before() -> None:
    async with connected(rogue("picky")) as session:
        assert (await session.start()).protocol == "2025-11-25"
        with pytest.raises(CallError):
            await call(session, "crash")
        assert await call(session, "echo") == {"arguments": {}}  # this time it was started once: it is known now


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_hundred_callers_may_leave_at_any_moment_and_the_others_notice_nothing(
    transport: str, sdk_address: str
) -> None:
    chance = random.Random(7)
    async with connected(rogue() if transport == "stdio" else at(sdk_address)) as session:
        await session.start()

        async def caller(number: int) -> int:
            if transport == "stdio":
                return (await call(session, "echo", n=number))["arguments"]["n"]
            return (await call(session, "add", a=number, b=0))["structuredContent"]["result"]

        tasks = [asyncio.create_task(caller(number)) for number in range(100)]
        leaving = chance.sample(range(100), 40)
        await asyncio.sleep(0)  # now all have sent their requests, and no reply has been read
        tasks[leaving[0]].cancel()
        for number in leaving[1:]:
            await asyncio.sleep(0.001 * chance.random())
            tasks[number].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for number, result in enumerate(results):
            if not (number in leaving and isinstance(result, asyncio.CancelledError)):
                assert result == number
        assert isinstance(results[leaving[0]], asyncio.CancelledError)
        assert await caller(1000) == 1000


async def test_concurrent_callers_share_one_connection() -> None:
    connects: list[None] = []
    async with connected(rogue(), on_connected=lambda: connects.append(None)) as session:
        results = await asyncio.gather(*(call(session, "environment") for _ in range(10)))
        assert len({result["pid"] for result in results}) == 1
    assert len(connects) == 1


async def test_progress_arrives_in_order_and_before_the_result() -> None:
    told: list[Progress] = []
    raw: list[Any] = []
    async with connected(rogue()) as session:
        params = {"name": "progress", "arguments": {"steps": 50}, "_meta": {"mine": 1}}
        assert await session.request("tools/call", params, on_progress=told.append) == {"done": True}
        response = await session.call("tools/call", params, Context(), lambda step: raw.append(step["_meta"]))
        assert response.result == {"done": True}
    assert told == [Progress(number, 50) for number in range(50)]
    assert raw[:50] == [{"number": number} for number in range(50)]


async def test_a_token_that_comes_back_as_a_text_is_known_and_nonsense_is_not() -> None:
    told: list[Progress] = []
    async with connected(rogue()) as session:
        await session.request("tools/call", {"name": "stringly"}, on_progress=told.append)
    assert told == [Progress(1)]


async def test_resources_stay_watched_until_as_many_have_left_as_came_and_across_connects() -> None:
    seen: list[str] = []
    async with connected(rogue("modern"), on_notification=lambda method, _: seen.append(method)) as session:
        await session.watch_resource("test://page")
        await session.watch_resource("test://page")
        await session.unwatch_resource("test://page")
        await call(session, "update")
        assert seen.count("notifications/resources/updated") == 1
        with pytest.raises(CallError):
            await call(session, "crash")
        seen.clear()
        async with asyncio.timeout(PATIENCE):
            while "notifications/resources/updated" not in seen:
                await call(session, "update")
        await session.unwatch_resource("test://page")
        async with asyncio.timeout(PATIENCE):
            while "resourceSubscriptions" in str((await call(session, "update"))["listening"]):
                pass


async def test_a_resource_that_cannot_be_watched_is_not_counted_as_watched() -> None:
    async with connected(rogue()) as session:
        for _ in range(2):
            with pytest.raises(CallError, match="no resources/subscribe here") as failure:
                await session.watch_resource("test://page")
            assert failure.value.code is ErrorCode.OPERATION_NOT_FOUND


async def test_an_exception_of_a_listener_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ValueError("mine")

    async with connected(rogue(), on_notification=fail, on_connected=fail) as session:
        announced = {"method": "notifications/tools/list_changed", "params": {}}
        assert await call(session, "announce", **announced) == {}
        assert await call(session, "echo") == {"arguments": {}}
    assert caplog.text.count("ValueError: mine") == 2


async def test_a_closed_session_refuses_and_may_be_closed_again() -> None:
    async with connected(rogue()) as session:
        hanging = asyncio.create_task(call(session, "hang", within=None))
        await call(session, "echo")
        await session.close()
        with pytest.raises(CallError) as failure:
            await hanging
        assert failure.value.code is ErrorCode.UNAVAILABLE
        await session.close()
        with pytest.raises(CallError, match="was closed") as refused:
            await call(session, "echo")
        assert not refused.value.retryable


async def test_closing_while_it_connects_ends_the_attempt_and_its_waiters() -> None:
    async with connected(rogue("silent")) as session:
        starting = asyncio.create_task(session.start())
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(CallError, match="was closed"):
            await starting


async def test_a_session_that_is_cancelled_while_it_closes_still_kills_its_server() -> None:
    async with Leaks():
        session = MCPSession(rogue("stubborn", stop_timeout=0.2))
        await session.start()
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,))


async def test_a_process_that_forgets_its_sessions_leaves_no_server_behind(tmp_path: Path) -> None:
    """Its loop is closed in the middle of everything, and the interpreter ends."""
    script = tmp_path / "forgetful.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from opwire.mcp.client.session import MCPSession\n"
        "from tests.mcp.client.connections import call, rogue\n"
        "async def start():\n"
        "    global session\n"
        "    session = MCPSession(rogue('stubborn'))\n"
        "    print((await call(session, 'environment'))['pid'], flush=True)\n"
        "loop = asyncio.new_event_loop()\n"
        "loop.run_until_complete(start())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 4 * PATIENCE)
    wait_until_gone(int(said))


def test_progress_that_cannot_be_calculated_with_is_not_reported() -> None:
    told: list[Progress] = []
    report = progress_callback(told.append)
    for value in (10**400, -(10**400), float("inf"), float("nan"), True, "5", None):
        report({"progress": value})
        report({"progress": 1, "total": value})
    assert told == [Progress(1, None, None)] * 7
    report({"progress": 0.5, "total": 3, "message": "x" * 10_000})
    assert told[-1] == Progress(0.5, 3, "x" * MAX_PROGRESS_MESSAGE)
