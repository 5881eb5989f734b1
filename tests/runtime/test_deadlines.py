"""Many deadlines on few timers: never early, never forgotten, and only their own task is hit."""

import asyncio
import gc
import math
import time
import tracemalloc
from typing import Any
from unittest import mock

import pytest

from opwire import CallError, ErrorCode
from opwire.runtime.deadlines import MAX_SECONDS, Deadlines, bounded_seconds

PATIENCE = 20
SHORT = 0.03


async def within(awaitable: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def test_a_deadline_is_never_early() -> None:
    deadlines, done = Deadlines(), asyncio.Event()
    late: list[float] = []

    def expire(when: float) -> None:
        late.append(time.monotonic() - when)
        if len(late) == 20:
            done.set()

    now = time.monotonic()
    for n in range(20):
        deadlines.add(now + n * 0.003, now + n * 0.003, expire)
    await within(done.wait())
    assert min(late) >= 0


@pytest.mark.parametrize("never", [math.inf, math.nan, 1e300])
async def test_a_time_that_never_comes_is_not_a_deadline(never: float) -> None:
    deadlines, expired = Deadlines(), list[str]()
    tick = deadlines.add("never", never, expired.append)
    deadlines.add("soon", time.monotonic() + 0.02, expired.append)
    await asyncio.sleep(0.1)
    deadlines.discard("never", tick)
    assert expired == ["soon"]


async def test_deadlines_that_are_close_share_one_timer() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    when = time.monotonic() + 60
    with mock.patch.object(loop, "call_later", wraps=loop.call_later) as timers:
        ticks = {deadlines.add(n, when, print) for n in range(1_000)}
        assert (timers.call_count, len(ticks)) == (1, 1)
        deadlines.add("later", when + 1, print)
        assert timers.call_count == 1
        deadlines.add("earlier", when - 1, print)
        assert timers.call_count == 2


async def test_calls_that_have_ended_leave_nothing_behind_however_far_their_deadline_was() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    before = len(loop._scheduled)  # pyright: ignore[reportAttributeAccessIssue]
    now = time.monotonic()
    tracemalloc.start()
    for n in range(20_000):
        deadlines.discard(n, deadlines.add(n, now + 3_600 + n, print))
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(deadlines) == 0
    assert kept_bytes < 100_000
    assert len(loop._scheduled) - before < 200  # pyright: ignore[reportAttributeAccessIssue]


async def test_the_timer_of_a_deadline_that_was_taken_back_does_not_hide_the_next_one() -> None:
    deadlines, done = Deadlines(), asyncio.Event()
    now = time.monotonic()
    deadlines.discard("a", deadlines.add("a", now + SHORT, print))
    deadlines.add("b", now + 2 * SHORT, lambda _: done.set())
    await within(done.wait())


async def test_deadlines_in_any_order_all_expire_in_the_order_of_their_times() -> None:
    deadlines, done, expired = Deadlines(), asyncio.Event(), list[float]()
    now = time.monotonic()
    times = [now + n % 7 * 0.02 for n in range(50)]
    ticks = [deadlines.add((n, when), when, lambda key: expired.append(key[1])) for n, when in enumerate(times)]
    for n in range(0, 50, 2):
        deadlines.discard((n, times[n]), ticks[n])
    deadlines.add("end", now + 0.16, lambda _: done.set())
    await within(done.wait())
    assert expired == sorted(times[1::2])


async def test_a_callback_that_fails_does_not_keep_the_others_from_expiring() -> None:
    deadlines, done, failures = Deadlines(), asyncio.Event(), list[Any]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(_: str) -> None:
        raise KeyError("mine")

    when = time.monotonic() + SHORT
    deadlines.add("a", when, fail)
    deadlines.add("b", when, lambda _: done.set())
    try:
        await within(done.wait())
    finally:
        loop.set_exception_handler(None)
    assert [type(each) for each in failures] == [KeyError]


async def test_a_deadline_that_expires_again_and_again_at_a_time_that_has_passed_does_not_hold_up_the_loop() -> None:
    deadlines, turns, done = Deadlines(), list[int](), asyncio.Event()
    when = time.monotonic() - 1

    def once_more(number: int) -> None:
        turns.append(number)
        if done.is_set():
            return
        deadlines.add(number + 1, when, once_more)

    deadlines.add(0, when, once_more)
    while len(turns) < 3:
        await within(asyncio.sleep(0))
    done.set()
    assert len(turns) < 20


@pytest.mark.parametrize(
    ("given", "taken"),
    [(1.5, 1.5), (0, 0.0), (-3, 0.0), (10**400, MAX_SECONDS), (-(10**400), 0.0), (float("inf"), MAX_SECONDS)],
)
def test_a_time_from_a_peer_is_between_zero_and_a_day(given: float, taken: float) -> None:
    assert bounded_seconds(given) == taken
    assert isinstance(bounded_seconds(given), float)


def test_a_time_from_a_peer_may_have_a_bound_of_its_own() -> None:
    assert bounded_seconds(100, 60) == 60.0


@pytest.mark.parametrize("given", [float("nan"), True, "5", None, [1]])
def test_what_is_not_a_number_is_not_a_time(given: Any) -> None:
    with pytest.raises(ValueError, match="number"):
        bounded_seconds(given)


async def test_what_was_taken_back_does_not_expire_and_what_was_not_does() -> None:
    deadlines, expired, done = Deadlines(), [], asyncio.Event()
    when = time.monotonic() + SHORT
    tick = deadlines.add("a", when, expired.append)
    deadlines.add("b", when, expired.append)
    deadlines.add("end", when, lambda _: done.set())
    deadlines.discard("a", tick)
    deadlines.discard("a", tick)
    deadlines.discard("never added", 0)
    await within(done.wait())
    assert expired == ["b"]
    deadlines.discard("b", tick)


async def test_a_deadline_that_has_passed_already_expires_at_the_next_turn_of_the_loop() -> None:
    deadlines, done = Deadlines(), asyncio.Event()
    deadlines.add("past", time.monotonic() - 100, lambda _: done.set())
    assert not done.is_set()
    await within(done.wait())


async def test_a_deadline_added_while_others_expire_is_not_forgotten() -> None:
    deadlines, done = Deadlines(), asyncio.Event()
    when = time.monotonic() + SHORT

    def once_more(_: str) -> None:
        deadlines.add("second", when, lambda _: done.set())

    deadlines.add("first", when, once_more)
    await within(done.wait())


def test_the_deadlines_of_a_loop_that_is_gone_do_not_keep_those_of_the_next_one_from_expiring() -> None:
    deadlines = Deadlines()
    when = time.monotonic() + SHORT

    async def leave_one_behind() -> None:
        deadlines.add("left behind", when, lambda _: pytest.fail("its loop is closed"))

    async def wait_for_one() -> None:
        done = asyncio.Event()
        deadlines.add("next", when, lambda _: done.set())
        await within(done.wait())

    asyncio.run(leave_one_behind())
    asyncio.run(wait_for_one())


# --- limit ------------------------------------------------------------------------------------------------------------


async def forever() -> None:
    await asyncio.Event().wait()


async def caught(awaitable: Any) -> CallError:
    with pytest.raises(CallError) as found:
        await within(awaitable)
    return found.value


async def test_what_ends_in_time_gives_its_result_or_its_error() -> None:
    deadlines = Deadlines()

    async def answer() -> int:
        return 3

    async def fail() -> int:
        raise KeyError("mine")

    for when in (None, time.monotonic() + 60):
        assert await deadlines.limit(answer, when, "x") == 3
        with pytest.raises(KeyError):
            await deadlines.limit(fail, when, "x")
    assert len(deadlines) == 0


async def test_what_does_not_end_in_time_is_cancelled_and_is_a_timeout_that_says_so() -> None:
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await forever()
        finally:
            ended.set()

    error = await caught(Deadlines().limit(wait, time.monotonic() + SHORT, "a.b did not answer"))
    assert error.code is ErrorCode.TIMEOUT
    assert error.message.startswith("a.b did not answer within 0.0")
    assert ended.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_comes_too_late_is_not_even_begun() -> None:
    begun: list[int] = []

    async def begin() -> None:
        begun.append(1)

    error = await caught(Deadlines().limit(begin, time.monotonic() - 5, "a.b"))
    assert (error.code, begun) == (ErrorCode.TIMEOUT, [])


async def test_a_caller_that_is_cancelled_is_cancelled_and_not_timed_out() -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await forever()

    task = asyncio.ensure_future(Deadlines().limit(wait, time.monotonic() + 60, "x"))
    await within(begun.wait())
    task.cancel("by hand")
    with pytest.raises(asyncio.CancelledError, match="by hand"):
        await within(task)


async def test_a_caller_that_is_cancelled_in_the_very_moment_of_its_deadline_is_cancelled() -> None:
    deadlines, when = Deadlines(), time.monotonic() + SHORT
    task = asyncio.ensure_future(deadlines.limit(forever, when, "x"))

    def by_hand(task: asyncio.Task[Any]) -> None:
        task.cancel()

    deadlines.add(task, when, by_hand)
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    assert task.cancelled()


@pytest.mark.parametrize("outcome", ["value", "error"])
async def test_a_call_that_makes_something_of_its_cancellation_leaves_no_trace_of_it(outcome: str) -> None:
    async def stubborn() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            pass
        if outcome == "error":
            raise KeyError("mine")
        return "late, but here"

    task = asyncio.current_task()
    assert task is not None
    limited = Deadlines().limit(stubborn, time.monotonic() + SHORT, "x")
    if outcome == "error":
        with pytest.raises(KeyError):
            await within(limited)
    else:
        assert await within(limited) == "late, but here"
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_the_inner_of_two_limits_that_expire_together_does_not_swallow_the_outer() -> None:
    deadlines, when = Deadlines(), time.monotonic() + SHORT
    swallowed: list[CallError] = []

    async def inner() -> None:
        try:
            await deadlines.limit(forever, when, "inner")
        except CallError as error:
            swallowed.append(error)
            await forever()

    error = await caught(deadlines.limit(inner, when, "outer"))
    assert error.message.startswith("outer")
    assert swallowed == []
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_limit_that_has_ended_holds_no_reference_to_its_task() -> None:
    deadlines = Deadlines()

    async def answer() -> None: ...

    for _ in range(100):
        await deadlines.limit(answer, time.monotonic() + 60, "x")
    gc.collect()
    assert len(deadlines) == 0
