"""Virtual time: waiting takes no real time, and a run that is stuck raises."""

import asyncio
import time

import pytest

from tests.chaos.virtual_time import run_virtually


def test_an_hour_passes_at_once_and_exactly() -> None:
    async def hour() -> tuple[float, float]:
        loop_time, clock = asyncio.get_running_loop().time(), time.monotonic()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - loop_time, time.monotonic() - clock

    began = time.perf_counter()
    assert run_virtually(hour()) == (3600, 3600)
    assert time.perf_counter() - began < 60


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def run() -> list[float]:
        fired: list[float] = []
        async with asyncio.TaskGroup() as group:
            for delay in (0.3, 0.1, 0.2):
                group.create_task(asyncio.sleep(delay)).add_done_callback(lambda _, delay=delay: fired.append(delay))
        return fired

    assert run_virtually(run()) == [0.1, 0.2, 0.3]


def test_a_run_in_which_nothing_can_happen_any_more_is_stopped() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="the run is stuck"):
        run_virtually(stuck())


def test_the_clock_is_restored_after_any_outcome() -> None:
    async def fail() -> None:
        raise KeyError("on purpose")

    before = time.monotonic
    with pytest.raises(KeyError):
        run_virtually(fail())
    assert time.monotonic is before
