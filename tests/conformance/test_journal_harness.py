"""What the checks of the contract are made with."""

import pytest

from opwire import CallError
from opwire.durable import MemoryJournal, MemoryJournalState
from opwire.errors import ErrorCode
from opwire_conformance.harness import refused
from opwire_conformance.journal_tasks import JournalHarness
from tests.chaos.virtual_time import run_virtually


async def nothing() -> None:
    """Something that raises nothing."""


async def fail(code: str) -> None:
    raise CallError(code)


def complaint(checking: object) -> str:
    with pytest.raises(AssertionError) as failure:
        run_virtually(checking)  # pyright: ignore[reportArgumentType]
    return str(failure.value)


def test_refused_says_what_was_wrong() -> None:
    run_virtually(refused("it", fail("UNAVAILABLE"), ErrorCode.UNAVAILABLE))
    assert "it raised TIMEOUT" in complaint(refused("it", fail("TIMEOUT"), ErrorCode.UNAVAILABLE))
    assert complaint(refused("it", nothing(), ErrorCode.UNAVAILABLE)) == "it was not refused"


async def test_a_stage_closes_its_ends() -> None:
    books = MemoryJournalState()
    async with JournalHarness(lambda: MemoryJournal(books)) as harness:
        await harness.end()
        await harness.end()
        assert len(books.listeners) == 2
    assert not books.listeners


def test_stages_on_the_same_engine_do_not_meet() -> None:
    one, other = JournalHarness(MemoryJournal), JournalHarness(MemoryJournal)
    assert one.id() != other.id()
    assert one.task("k").key != other.task("k").key


def test_a_claim_in_vain_and_a_claim_that_should_be_in_vain_are_noticed() -> None:
    async def in_vain() -> None:
        async with JournalHarness(MemoryJournal) as harness:
            await harness.claim(await harness.end())

    async def not_in_vain() -> None:
        async with JournalHarness(MemoryJournal) as harness:
            journal = await harness.end()
            await harness.nothing(journal, wait=1)
            await journal.submit(harness.task("k"))
            await harness.nothing(journal)

    assert "no task could be claimed within" in complaint(in_vain())
    assert "could be claimed, and should not" in complaint(not_in_vain())
