"""The journal in memory: what it adds to its state, which is waiting. The contract looks at the rest."""

import asyncio

import pytest

from opwire import CallError
from opwire.durable import MemoryJournal, MemoryJournalState
from tests.chaos.virtual_time import run_virtually
from tests.durable.samples import outcome, task


def test_a_claim_that_waits_is_woken_by_a_submission_and_by_the_end_of_a_delay_and_of_a_lease() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with MemoryJournal() as journal:
            waiting = asyncio.create_task(journal.claim(["shop.order"], lease=20, wait=100))
            await asyncio.sleep(7)
            began = loop.time()
            await journal.submit(task())
            (claim,) = await waiting
            assert loop.time() == began
            await journal.release(claim, 5)
            (claim,) = await journal.claim(["shop.order"], lease=20, wait=100)
            assert loop.time() == pytest.approx(began + 5)
            (claim,) = await journal.claim(["shop.order"], lease=20, wait=100)
            assert (loop.time(), claim.attempt) == (pytest.approx(began + 25), 3)

    run_virtually(run())


def test_outcomes_are_forgotten_after_a_while_and_dead_letters_are_not() -> None:
    async def run() -> None:
        async with MemoryJournal(keep=60) as journal:
            for key in ("done", "dead"):
                await journal.submit(task(key))
                (claim,) = await journal.claim(["shop.order"], lease=1, wait=0)
                await journal.record(claim, outcome(claim, dead_letter=key == "dead"))
            await asyncio.sleep(59)
            assert await journal.outcome("done") is not None
            await asyncio.sleep(2)
            assert await journal.outcome("done") is None
            assert await journal.outcome("dead") is not None
            assert await journal.submit(task("done", fingerprint="new")) is None

    run_virtually(run())


async def test_ends_with_the_same_books_are_the_same_journal_and_others_are_not() -> None:
    state = MemoryJournalState()
    async with MemoryJournal(state) as one, MemoryJournal(state) as other, MemoryJournal() as stranger:
        await one.submit(task())
        assert await stranger.claim(["shop.order"], lease=1, wait=0) == []
        assert len(await other.claim(["shop.order"], lease=1, wait=0)) == 1


async def test_closing_a_journal_wakes_its_waiters_and_keeps_its_state() -> None:
    state = MemoryJournalState()
    journal = MemoryJournal(state)
    await journal.start()
    waits = [
        asyncio.create_task(journal.claim(["shop.order"], lease=1, wait=60)),
        asyncio.create_task(journal.wait("k", 60)),
    ]
    await asyncio.sleep(0)
    await journal.close()
    for error in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(error, CallError)
        assert error.code == "UNAVAILABLE"
    assert not state.listeners


async def test_a_caller_that_gives_up_waiting_leaves_nothing_behind() -> None:
    async with MemoryJournal() as journal:
        waits = [
            asyncio.create_task(journal.claim(["shop.order"], lease=1, wait=60)),
            asyncio.create_task(journal.wait("k", 60)),
        ]
        await asyncio.sleep(0)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await journal.submit(task())  # a claim that was cancelled has taken nothing along
        assert len(await journal.claim(["shop.order"], lease=1, wait=0)) == 1
