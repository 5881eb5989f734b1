"""Changes that a server of 2026-07-28 tells of."""

import asyncio
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import subscriptions
from opwire.mcp.client.subscriptions import announced_changes
from tests.mcp.client.connections import at, call, connected, rogue, until


@pytest.mark.parametrize(
    ("capabilities", "wanted"),
    [
        ({}, {}),
        (
            {"tools": {"listChanged": True}, "prompts": {"listChanged": False}, "resources": 5},
            {"toolsListChanged": True},
        ),
        ({"prompts": {"listChanged": True}}, {"promptsListChanged": True}),
    ],
)
def test_only_changes_that_a_server_tells_of_are_asked_for(
    capabilities: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert announced_changes(capabilities) == wanted


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_a_real_server_tells_of_changes(path: str, sdk_address: str) -> None:
    seen: list[str] = []
    server = at(sdk_address, path, kind="sse" if path == "/sse" else "http")
    async with connected(server, on_notification=lambda method, _: seen.append(method)) as session:
        await session.watch_resource("test://page")
        await call(session, "grow")
        await until(lambda: {"notifications/tools/list_changed", "notifications/resources/updated"} <= set(seen))


@pytest.mark.parametrize("politely", [True, False])
async def test_a_subscription_that_ended_is_opened_again_and_what_may_have_been_missed_is_reported(
    politely: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are reported alike in every revision, also after a subscription or a connection broke."""
    monkeypatch.setattr(subscriptions, "FIRST_REOPEN_PAUSE", 0.02)
    seen: list[str] = []
    async with connected(rogue("modern"), on_notification=lambda method, _: seen.append(method)) as session:
        await session.watch_resource("test://page")
        await call(session, "hang_up", politely=politely)
        await until(lambda: {"notifications/tools/list_changed", "notifications/resources/updated"} <= set(seen))
        assert len((await call(session, "update"))["listening"]) == 2


async def test_a_server_that_promises_to_tell_and_does_not_is_used_without(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(rogue("modern", "lax")) as session:
        assert await call(session, "echo") == {"arguments": {}}
        with pytest.raises(CallError, match="no subscriptions/listen here"):
            await session.watch_resource("test://page")
        assert "are not reported: OPERATION_NOT_FOUND" in caplog.text


async def test_a_server_that_does_not_say_whether_it_will_tell_is_not_waited_for_for_ever() -> None:
    async with connected(rogue("modern", "mute"), connect_timeout=2) as session:
        await session.start()
        with pytest.raises(CallError, match="did not acknowledge in time") as failure:
            await session.watch_resource("test://page")
        assert failure.value.code is ErrorCode.TIMEOUT
        leaving = asyncio.create_task(session.watch_resource("test://page"))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        with pytest.raises(CallError):
            await asyncio.gather(session.watch_resource("test://other"), call(session, "crash"))


async def test_earlier_servers_tell_of_changes_by_themselves() -> None:
    seen: list[Any] = []
    async with connected(rogue(), on_notification=lambda *told: seen.append(told)) as session:
        await call(session, "announce", method="notifications/tools/list_changed", params={"a": 1})
    assert seen == [("notifications/tools/list_changed", {"a": 1})]
