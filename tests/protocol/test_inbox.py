"""The bounded buffer of a subscription: what each policy keeps, and that credits are never exceeded."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, local_envelope
from opwire.protocol import CallCredit
from opwire.protocol.call_table import EVERYTHING, MAX_EXCESS, MAX_WINDOW, Credits, Inbox, Overflow, Window
from tests.protocol.harness import settled, within


def item(n: int) -> Any:
    return local_envelope(n, "a.b")


def box(limit: int, overflow: Overflow, size: int = 0) -> Inbox:
    """A buffer with items of this size."""
    return Inbox(limit, overflow, lambda _: size)


def credit(n: int, **fields: Any) -> CallCredit:
    return CallCredit(request_id="r", n=n, **fields)


async def drain(inbox: Inbox) -> list[Any]:
    """Everything that is buffered, up to the end that has to be there."""
    found: list[Any] = []
    while (envelope := await within(inbox.get())) is not None:
        found.append(envelope.data)
    return found


async def drain_some(inbox: Inbox, n: int) -> list[Any]:
    return [envelope.data for _ in range(n) if (envelope := await within(inbox.get())) is not None]


async def test_items_come_out_as_they_went_in_and_the_end_comes_last() -> None:
    inbox = box(10, "block")
    assert all(inbox.put(item(n)) for n in range(5))
    assert not inbox.ended
    inbox.end(None)
    assert inbox.ended
    assert await drain(inbox) == [0, 1, 2, 3, 4]
    assert await within(inbox.get()) is None


async def test_what_is_buffered_is_consumed_before_the_error_is_raised() -> None:
    inbox = box(10, "block")
    inbox.put(item(1))
    inbox.end(CallError("EXECUTION_ERROR", "broken"))
    assert (await within(inbox.get())).data == 1
    for _ in range(2):
        with pytest.raises(CallError, match="broken"):
            await within(inbox.get())


async def test_a_consumer_that_waits_is_woken_by_an_item_and_by_the_end() -> None:
    inbox = box(10, "block")
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
    inbox = box(10, "block")
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


@pytest.mark.parametrize(("overflow", "kept", "dropped"), POLICIES)
async def test_a_full_buffer_keeps_and_drops_what_its_policy_says(overflow: Overflow, kept: Any, dropped: int) -> None:
    inbox = box(3, overflow)
    assert all(inbox.put(item(n)) for n in range(10))
    inbox.end(None)
    assert await drain(inbox) == kept
    assert inbox.dropped == dropped


async def test_a_full_buffer_that_may_not_drop_ends_the_stream_with_a_clear_error() -> None:
    inbox = box(3, "error")
    assert [inbox.put(item(n)) for n in range(4)] == [True, True, True, False]
    error = inbox.overflowed()
    assert error.code is ErrorCode.ABORTED
    assert "3 items were buffered" in error.message
    assert inbox.dropped == 0
    inbox.end(None)
    assert await drain(inbox) == [0, 1, 2]


async def test_what_a_producer_without_credits_sends_beyond_the_window_is_bounded_in_bytes() -> None:
    inbox = box(3, "block", size=MAX_EXCESS // 4)
    assert [inbox.put(item(n)) for n in range(7)] == [True] * 6 + [False]
    assert "ignores credits" in inbox.overflowed().message
    assert await drain_some(inbox, 6) == [0, 1, 2, 3, 4, 5]
    assert [inbox.put(item(n)) for n in range(6)] == [True] * 6, "a buffer that was consumed has room again"


def test_items_without_content_are_bounded_in_number() -> None:
    inbox = box(3, "block")
    assert sum(inbox.put(item(n)) for n in range(20_000)) < 10_000


@given(st.sampled_from(["error", "drop_oldest", "drop_newest", "latest"]), st.integers(1, 5), st.data())
def test_a_buffer_is_never_above_its_limit_and_every_item_is_consumed_dropped_or_refused(
    overflow: Overflow, limit: int, data: st.DataObject
) -> None:
    async def consume() -> None:
        inbox = box(limit, overflow)
        put = refused = 0
        taken: list[int] = []
        for step in data.draw(st.lists(st.sampled_from(["put", "get"]), max_size=40)):
            if step == "put":
                put += 1
                refused += not inbox.put(item(put))
            elif len(inbox):
                envelope = await inbox.get()
                assert envelope is not None
                taken.append(envelope.data)
            assert len(inbox) <= limit
        assert taken == sorted(set(taken)), "in order, and none twice"
        assert put == len(taken) + len(inbox) + inbox.dropped + refused
        assert not (refused and inbox.dropped)

    asyncio.run(consume())


# --- credits ----------------------------------------------------------------------------------------------------------


async def send(credits: Credits) -> None:
    await within(credits.ready())
    credits.sent += 1


async def takes(credits: Credits, log: list[int]) -> None:
    while True:
        await credits.ready()
        credits.sent += 1
        log.append(len(log) + 1)


async def test_a_producer_takes_exactly_the_credits_that_it_was_given() -> None:
    credits, log = Credits(3), []
    producer = asyncio.ensure_future(takes(credits, log))
    await settled()
    assert log == [1, 2, 3]
    credits.grant(credit(2))
    credits.grant(credit(1))
    await settled()
    assert len(log) == 6
    producer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(producer)
    credits.grant(credit(1))
    await send(credits)


async def test_no_credits_at_first_is_a_producer_that_waits() -> None:
    credits = Credits(0)
    waiting = asyncio.ensure_future(credits.ready())
    await settled()
    assert not waiting.done()
    for nothing in (0, 0):
        credits.grant(credit(nothing))
    await settled()
    assert not waiting.done()
    credits.grant(credit(1))
    await within(waiting)


async def test_a_consumer_that_says_nothing_of_credits_sets_no_limit() -> None:
    credits = Credits(None)
    for _ in range(1_000):
        await send(credits)
    credits.grant(credit(5))
    await send(credits)


async def test_a_total_that_is_repeated_grants_nothing_more_and_a_lost_one_is_made_up_for() -> None:
    credits, log = Credits(3), []
    producer = asyncio.ensure_future(takes(credits, log))
    for _ in range(3):
        credits.grant(credit(2, total=5))
        await settled()
    assert len(log) == 5
    credits.grant(credit(2, total=9))  # the one between them was lost
    credits.grant(credit(0, total=7))  # an old one, late
    await settled()
    assert len(log) == 9
    producer.cancel()


@pytest.mark.parametrize("grant", [credit(10**400), credit(1, total=10**400)], ids=["increment", "total"])
async def test_a_grant_without_end_is_an_end_of_flow_control_and_nothing_worse(grant: CallCredit) -> None:
    for credits in (Credits(0), Credits(10**400)):
        credits.grant(grant)
        credits.grant(grant)
        credits.sent = EVERYTHING - 1
        await send(credits)
        assert credits.sent == EVERYTHING


async def test_an_item_that_a_waiting_consumer_keeps_missing_is_lost() -> None:
    credits = Credits(10)
    for _ in range(4):
        await send(credits)
    reports = [credits.lost_item(credit(0, total=10, received=2)) for _ in range(3)]
    assert reports == [None, None, 3]


async def test_items_that_may_be_on_their_way_are_not_lost() -> None:
    credits = Credits(10)
    for received in range(5):  # each report is of an item more
        await send(credits)
        assert credits.lost_item(credit(0, total=10, received=received)) is None
    credits = Credits(10)
    for _ in range(9):  # the consumer waits for an item that is not there yet
        assert credits.lost_item(credit(0, total=10, received=0)) is None
        await within(credits.ready())  # allowed is not sent
    await send(credits)  # sent between two reports
    for _ in range(2):
        assert credits.lost_item(credit(0, total=10, received=0)) is None
    for ordinary in (credit(2, total=12, received=0), credit(2)):
        assert credits.lost_item(ordinary) is None


def test_a_window_is_granted_again_by_halves() -> None:
    window, item = Window(4, "block"), local_envelope(1, "a.b")
    assert (window.granted, [window.take(item) for _ in range(5)], window.granted) == (4, [0, 2, 0, 2, 0], 8)
    assert Window(1, "block").take(item) == 1
    endless = Window(4, "drop_oldest")
    assert (endless.granted, endless.take(item), endless.take(item)) == (EVERYTHING, 0, 0)


def test_a_window_opens_for_small_items_and_closes_for_large_ones() -> None:
    """A consumer grants few items in advance if they are large, and never none."""
    small, large = local_envelope("x", "a.b"), local_envelope("x" * (MAX_WINDOW // 4), "a.b")
    window = Window(64, "block")
    assert window.granted == 8  # before the size of an item is known
    assert [window.take(small) for _ in range(4)] == [0, 0, 0, 60]
    outstanding = 64
    for _ in range(100):
        outstanding += window.take(large) - 1
    assert outstanding in (2, 3)  # of which a fourth would be more than the limit
    grants = [window.take(small) for _ in range(200)]
    assert outstanding + sum(grants) - len(grants) > 32
    assert Window(64, "block", is_local=True).granted == 64


@given(sizes=st.lists(st.sampled_from([1, 1000, MAX_WINDOW // 8, MAX_WINDOW, 2 * MAX_WINDOW]), max_size=200))
def test_a_consumer_that_reads_never_stalls_its_producer(sizes: list[int]) -> None:
    with patch("opwire.protocol.call_table._wire_size", lambda item: item.data):
        window = Window(16, "block")
        for consumed, size in enumerate(sizes, 1):
            window.take(local_envelope(size, "a.b"))
            assert consumed < window.granted <= consumed + 16
