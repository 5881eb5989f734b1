"""What runs beside what: suspects alone, as far as that is possible, and no task waits for ever."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from opwire.durable.isolation import Isolation, isolation_of_loop, quiet_time
from tests.chaos.virtual_time import run_virtually

QUIET = 30.0


def virtually(run: Callable[[Isolation], Awaitable[None]]) -> None:
    async def scene() -> None:
        await run(Isolation())

    run_virtually(scene())


def now() -> float:
    return asyncio.get_running_loop().time()


async def entered(isolation: Isolation, *names: str) -> None:
    for name in names:
        await isolation.enter(name)


def test_tasks_run_concurrently_without_a_suspect() -> None:
    async def run(isolation: Isolation) -> None:
        began = now()
        await entered(isolation, "a", "b", "c")
        assert (now(), isolation.closed) == (began, False)

    virtually(run)


def test_a_suspect_waits_for_others_and_is_alone_then() -> None:
    async def run(isolation: Isolation) -> None:
        await entered(isolation, "a", "b")
        waiting = asyncio.create_task(isolation.enter_alone("suspect", QUIET))
        await asyncio.sleep(1)
        isolation.leave("a")
        await asyncio.sleep(1)
        assert not waiting.done()
        isolation.leave("b")
        assert await waiting

    virtually(run)


def test_nothing_begins_beside_a_suspect_until_it_has_ended_or_is_opened() -> None:
    async def run(isolation: Isolation) -> None:
        await entered(isolation, "a")
        suspect = asyncio.create_task(isolation.enter_alone("suspect", QUIET))
        await asyncio.sleep(0)
        assert isolation.closed
        others = [asyncio.create_task(isolation.enter(name)) for name in ("b", "c")]
        await asyncio.sleep(1)
        isolation.leave("a")
        assert await suspect
        await asyncio.sleep(1)
        assert not any(each.done() for each in others)
        isolation.open("suspect")
        await asyncio.gather(*others)
        isolation.open("suspect")  # again, which does nothing
        second = asyncio.create_task(isolation.enter_alone("second", QUIET))
        await asyncio.sleep(0)
        isolation.leave("suspect")  # it has ended, and does not open what it has not closed
        assert isolation.closed
        for name in ("b", "c"):
            isolation.leave(name)
        assert await second
        isolation.leave("second")
        assert not isolation.closed

    virtually(run)


def test_a_suspect_does_not_wait_for_a_job_that_has_run_for_the_quiet_time_but_is_not_alone_then() -> None:
    async def run(isolation: Isolation) -> None:
        await entered(isolation, "long")
        await asyncio.sleep(10)
        await entered(isolation, "longer")
        began = now()
        assert not await isolation.enter_alone("suspect", QUIET)
        assert now() - began == pytest.approx(QUIET)

    virtually(run)


def test_suspects_take_turns() -> None:
    async def run(isolation: Isolation) -> None:
        order: list[str] = []

        async def work(name: str) -> None:
            assert await isolation.enter_alone(name, QUIET)
            order.append(name)
            await asyncio.sleep(1)
            isolation.leave(name)

        began = now()
        await asyncio.gather(*map(work, "abc"))
        assert (sorted(order), now() - began) == (["a", "b", "c"], pytest.approx(3))

    virtually(run)


def test_a_suspect_that_gives_up_waiting_blocks_no_other_task() -> None:
    async def run(isolation: Isolation) -> None:
        await entered(isolation, "a")
        waiting = asyncio.create_task(isolation.enter_alone("suspect", QUIET))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        isolation.leave("suspect")
        await entered(isolation, "b")
        assert isolation.changed == set()

    virtually(run)


def test_news_are_set_when_something_ends_or_is_opened() -> None:
    async def run(isolation: Isolation) -> None:
        changed = asyncio.Event()
        isolation.changed.add(changed)
        assert await isolation.enter_alone("suspect", QUIET)
        assert not changed.is_set()
        isolation.open("suspect")
        assert changed.is_set()
        changed.clear()
        isolation.leave("suspect")
        assert changed.is_set()

    virtually(run)


def test_the_quiet_time_doubles_with_each_loss_up_to_a_limit() -> None:
    assert [quiet_time(losses) for losses in (0, 1, 2, 3)] == [30, 30, 60, 120]
    assert quiet_time(2**64) == quiet_time(10**400) == quiet_time(100) < 48 * 3600
    assert quiet_time(-(10**400)) == 30


async def test_workers_of_one_event_loop_share_it() -> None:
    assert isolation_of_loop() is isolation_of_loop()

    async def elsewhere() -> Isolation:
        return isolation_of_loop()

    assert await asyncio.to_thread(asyncio.run, elsewhere()) is not isolation_of_loop()
