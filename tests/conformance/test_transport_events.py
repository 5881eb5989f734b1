"""What the checks of bare events say when they fail, so that the author of a transport finds the place."""

import pytest

from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire.typed.plain import MAX_DEPTH, survey
from opwire_conformance import transport as events
from opwire_conformance.harness import TransportHarness
from tests.chaos.virtual_time import run_virtually
from tests.conformance import broken


def complaint(check: object, kind: type[MemoryTransport]) -> str:
    bus = MemoryBus(codec=True)

    async def run() -> None:
        async with TransportHarness(lambda: kind(bus)) as harness:
            await check(harness)  # pyright: ignore

    with pytest.raises(AssertionError) as failure:
        run_virtually(run())
    return str(failure.value)


@pytest.mark.parametrize(
    ("check", "kind", "said"),
    [
        (events.events_arrive_once_and_in_order, broken.DropsEveryTenth, "after 20 s: 301 events arrive"),
        (events.events_arrive_once_and_in_order, broken.Reorders, "not in order from place 1: [3, 2, 5, 4"),
        (events.same_request_ids_do_not_meet, broken.AnswersTheLastCaller, "after 20 s: 2 events arrive"),
        (events.data_arrives_as_it_was_sent, broken.MutatesPayloads, "input False arrived as 0.0"),
        (events.fields_arrive_as_they_were_sent, broken.ForgetsFields, "credits=7"),
        (events.withdrawn_operations_are_not_routed_here, broken.NeverWithdraws, "after 20 s: 20 events arrive"),
        (events.a_closed_end_refuses, broken.AcceptsAfterClose, "on a closed end was not refused"),
    ],
)
def test_a_check_says_what_it_saw(check: object, kind: type[MemoryTransport], said: str) -> None:
    assert said in complaint(check, kind)


def test_the_values_that_have_to_arrive_are_the_difficult_ones() -> None:
    values = events.VALUES
    assert None in values
    assert any(isinstance(value, int) and len(str(abs(value))) == 40 for value in values)
    assert any(isinstance(value, str) and not value.isascii() for value in values)
    assert not any(survey(value).deep for value in values)
    deepest = max(repr(value).count("[") + repr(value).count("{") for value in values)
    assert deepest == MAX_DEPTH
