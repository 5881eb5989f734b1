"""Many deadlines on few timers: never early, never forgotten, and only their own task is hit."""

import asyncio
import gc
import math
import time
from typing import Any
from unittest import mock

import pytest

from opwire import CallError, ErrorCode
from opwire.runtime.deadlines import MAX_SECONDS, Deadlines, HoldUps, bounded_seconds, resume

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
    for n in range(20_000):
        deadlines.discard(n, deadlines.add(n, now + 3_600 + n, print))
    assert not deadlines._due
    assert len(deadlines._ticks) < 200
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
    assert not any(deadlines._due.values())


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
    assert sum(len(due) for due in deadlines._due.values()) == 0


# --- hold-ups ---------------------------------------------------------------------------------------------------------


async def test_a_loop_that_runs_was_not_held_up_and_one_that_was_stopped_says_for_how_long() -> None:
    """How long the event loop was held up lately is known to what it reads afterwards."""
    clock = [100.0]
    looks: list[Any] = []
    hold_ups, loop = HoldUps(), asyncio.get_running_loop()
    with (
        mock.patch.object(time, "monotonic", side_effect=lambda: clock[0]),
        mock.patch.object(loop, "call_later", lambda delay, look: looks.append((delay, look)) or mock.Mock()),
    ):
        assert hold_ups.recent(clock[0]) == 0, "it has not begun to look"
        assert hold_ups.calm_until == math.inf
        hold_ups.start()
        for _ in range(3):
            delay, look = looks.pop()
            clock[0] += delay
            assert hold_ups.recent(clock[0]) == 0
            look()
            assert clock[0] < hold_ups.calm_until <= clock[0] + delay
        clock[0] += 7.25
        assert hold_ups.calm_until < clock[0]
        assert hold_ups.recent(clock[0]) == 7, "what is read before the timer runs has waited, too"
        looks.pop()[1]()
        assert hold_ups.recent(clock[0]) == 7
        assert hold_ups.calm_until < clock[0]
        assert hold_ups.recent(clock[0] + 4.9) == 7, "what has waited is not read all at once"
        assert hold_ups.recent(clock[0] + 10) > 0, "nothing has looked since"
        for _ in range(40):
            delay, look = looks.pop()
            clock[0] += delay
            look()
        assert hold_ups.recent(clock[0]) == 0
        assert hold_ups.calm_until > clock[0]
        hold_ups.stop()
        assert hold_ups.recent(clock[0] + 60) == 0


async def test_a_coroutine_is_continued_after_its_first_step_and_sees_results_errors_and_cancellation() -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(3)]
    seen: list[Any] = []

    async def work() -> str:
        seen.append(await futures[0])
        try:
            await futures[1]
        except KeyError as error:
            seen.append(type(error))
        try:
            await futures[2]
        except asyncio.CancelledError as error:
            seen.append(type(error))
        return "done"

    async def run() -> str:
        started = work()
        return await resume(started, started.send(None))

    task = asyncio.create_task(run())
    loop.call_soon(futures[0].set_result, "first")
    loop.call_soon(futures[1].set_exception, KeyError())
    futures[1].add_done_callback(lambda _: loop.call_later(0.01, task.cancel))
    assert await within(task) == "done"
    assert seen == ["first", KeyError, asyncio.CancelledError]
