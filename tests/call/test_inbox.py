"""The bounded buffer of a subscription: what each policy keeps, and that credits are never exceeded."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, local_envelope
from opwire.call.inbox import Credits, Inbox, Overflow
from tests.call.scenes import settled, within
from tests.requirements import requirement


def item(n: int) -> Any:
    return local_envelope(n, "a.b")


async def drain(inbox: Inbox) -> list[Any]:
    """Everything that is buffered, up to the end that has to be there."""
    found: list[Any] = []
    while (envelope := await within(inbox.get())) is not None:
        found.append(envelope.data)
    return found


@requirement("subscribe.order")
async def test_items_come_out_as_they_went_in_and_the_end_comes_last() -> None:
    inbox = Inbox(10, "block")
    assert all(inbox.put(item(n)) for n in range(5))
    assert not inbox.ended
    inbox.end(None)
    assert inbox.ended
    assert await drain(inbox) == [0, 1, 2, 3, 4]
    assert await within(inbox.get()) is None


@requirement("subscribe.errors")
async def test_what_is_buffered_is_consumed_before_the_error_is_raised() -> None:
    inbox = Inbox(10, "block")
    inbox.put(item(1))
    inbox.end(CallError("EXECUTION_ERROR", "broken"))
    assert (await within(inbox.get())).data == 1
    for _ in range(2):
        with pytest.raises(CallError, match="broken"):
            await within(inbox.get())


async def test_a_consumer_that_waits_is_woken_by_an_item_and_by_the_end() -> None:
    inbox = Inbox(10, "block")
    waiting = asyncio.ensure_future(inbox.get())
    await settled()
    inbox.put(item(1))
    inbox.put(item(2))
    assert (await within(waiting)).data == 1
    assert (await within(inbox.get())).data == 2
    waiting = asyncio.ensure_future(inbox.get())
    await settled()
    inbox.end(None)
    inbox.end(None)
    assert await within(waiting) is None


async def test_a_consumer_that_was_cancelled_while_it_waited_loses_no_item() -> None:
    inbox = Inbox(10, "block")
    waiting = asyncio.ensure_future(inbox.get())
    await settled()
    inbox.put(item(1))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(waiting)
    assert (await within(inbox.get())).data == 1


POLICIES: list[tuple[Overflow, list[int], int]] = [
    ("drop_oldest", [7, 8, 9], 7),
    ("drop_newest", [0, 1, 2], 7),
    ("latest", [9], 9),
]


@requirement("subscribe.overflow")
@pytest.mark.parametrize(("overflow", "kept", "dropped"), POLICIES)
async def test_a_full_buffer_keeps_and_drops_what_its_policy_says(overflow: Overflow, kept: Any, dropped: int) -> None:
    inbox = Inbox(3, overflow)
    assert all(inbox.put(item(n)) for n in range(10))
    inbox.end(None)
    assert await drain(inbox) == kept
    assert inbox.dropped == dropped


@requirement("subscribe.overflow")
@pytest.mark.parametrize("overflow", ["block", "error"])
async def test_a_full_buffer_that_may_not_drop_ends_the_stream_with_a_clear_error(overflow: Overflow) -> None:
    inbox = Inbox(3, overflow)
    assert [inbox.put(item(n)) for n in range(4)] == [True, True, True, False]
    error = inbox.overflowed()
    assert error.code is ErrorCode.ABORTED
    assert "3 items were waiting" in error.message
    assert inbox.dropped == 0
    inbox.end(None)
    assert await drain(inbox) == [0, 1, 2]


@requirement("subscribe.bounded")
@given(st.sampled_from(["block", "error", "drop_oldest", "drop_newest", "latest"]), st.integers(1, 5), st.data())
def test_a_buffer_is_never_above_its_limit_and_every_item_is_consumed_dropped_or_refused(
    overflow: Overflow, limit: int, data: st.DataObject
) -> None:
    async def consume() -> None:
        inbox = Inbox(limit, overflow)
        put = refused = 0
        taken: list[int] = []
        for step in data.draw(st.lists(st.sampled_from(["put", "get"]), max_size=40)):
            if step == "put":
                put += 1
                refused += not inbox.put(item(put))
            elif inbox._items:
                envelope = await inbox.get()
                assert envelope is not None
                taken.append(envelope.data)
            assert len(inbox._items) <= limit
        assert taken == sorted(set(taken)), "in order, and none twice"
        assert put == len(taken) + len(inbox._items) + inbox.dropped + refused
        assert not (refused and inbox.dropped)

    asyncio.run(consume())


# --- credits ----------------------------------------------------------------------------------------------------------


async def takes(credits: Credits, log: list[int]) -> None:
    while True:
        await credits.take()
        log.append(len(log) + 1)


@requirement("subscribe.credits")
async def test_a_producer_takes_exactly_the_credits_that_it_was_given() -> None:
    credits, log = Credits(3), []
    producer = asyncio.ensure_future(takes(credits, log))
    await settled()
    assert log == [1, 2, 3]
    credits.grant(2)
    credits.grant(1)
    await settled()
    assert len(log) == 6
    producer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(producer)
    credits.grant(1)
    await within(credits.take())


@requirement("subscribe.credits")
async def test_no_credits_at_first_is_a_producer_that_waits() -> None:
    credits = Credits(0)
    waiting = asyncio.ensure_future(credits.take())
    await settled()
    assert not waiting.done()
    for nothing in (0, -5):
        credits.grant(nothing)
    await settled()
    assert not waiting.done()
    credits.grant(1)
    await within(waiting)


@requirement("subscribe.credits")
async def test_a_consumer_that_says_nothing_of_credits_sets_no_limit() -> None:
    credits = Credits(None)
    for _ in range(1_000):
        await within(credits.take())
    credits.grant(5)
    await within(credits.take())
