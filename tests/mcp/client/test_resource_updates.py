"""Updates of resources, and those who watch them."""

import asyncio

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import subscriptions
from opwire.mcp.client.subscriptions import ResourceUpdates


async def test_a_watcher_is_notified_of_its_resource_and_of_what_lies_under_it() -> None:
    told = ResourceUpdates()
    with told.of("file:///a") as watcher:
        for uri in ("file:///b", "file:///ab", "file:///a", "file:///a/x"):
            told.publish({"uri": uri})
        assert [await watcher.next(), await watcher.next()] == ["file:///a", "file:///a/x"]


async def test_pending_updates_are_sent_once() -> None:
    told = ResourceUpdates()
    with told.of("a:") as watcher:
        for _ in range(3):
            told.publish({"uri": "a:"})
        assert await watcher.next() == "a:"
        waiting = asyncio.ensure_future(watcher.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        told.publish({"uri": "a:"})
        assert await waiting == "a:"


async def test_a_notification_without_a_uri_is_not_passed_on() -> None:
    told = ResourceUpdates()
    with told.of("a:") as watcher:
        told.publish({"uri": 3})
        told.publish({})
        told.publish({"uri": "a:"})
        assert await watcher.next() == "a:"


async def test_after_a_loss_everything_that_is_watched_counts_as_updated() -> None:
    told = ResourceUpdates()
    with told.of("a:") as one, told.of("b:") as two:
        told.missed()
        assert (await one.next(), await two.next()) == ("a:", "b:")


async def test_a_watcher_that_has_left_is_not_told() -> None:
    told = ResourceUpdates()
    with told.of("a:") as watcher:
        pass
    told.publish({"uri": "a:"})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watcher.next(), 0.01)


async def test_a_watcher_that_does_not_keep_up_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_PENDING_UPDATES", 3)
    told = ResourceUpdates()
    with told.of("a:") as watcher:
        for n in (0, 1, 2, 2, 1):
            told.publish({"uri": f"a:/{n}"})
        assert await watcher.next() == "a:/0"
        for n in (3, 4):
            told.publish({"uri": f"a:/{n}"})
        with pytest.raises(CallError) as why:
            await watcher.next()
        told.publish({"uri": "a:"})
        told.close()
        with pytest.raises(CallError) as still:
            await watcher.next()
    assert why.value.code is still.value.code is ErrorCode.ABORTED


async def test_closing_ends_every_watch() -> None:
    told = ResourceUpdates()
    with told.of("a:") as watcher:
        waiting = asyncio.ensure_future(watcher.next())
        await asyncio.sleep(0)
        told.close()
        with pytest.raises(CallError) as why:
            await waiting
    assert why.value.code is ErrorCode.UNAVAILABLE


async def test_an_update_of_an_absurd_uri_is_ignored() -> None:
    told = ResourceUpdates()
    with told.of("a:") as watcher:
        told.publish({"uri": "a:/" + "x" * subscriptions.MAX_URI_LENGTH})
        told.publish({"uri": "a:/b"})
        assert await watcher.next() == "a:/b"
