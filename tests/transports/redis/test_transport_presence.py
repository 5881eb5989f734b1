"""Which operations an end serves, without a server."""

from typing import Any

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from opwire.transports.redis.transport import Presence, RedisNames

names = st.lists(st.text(max_size=3), max_size=8)


def presence(*operations: str, heartbeat: float = 1.0) -> Presence:
    here = Presence(RedisNames("opwire"), heartbeat)
    here.begin("me")
    here.add(operations)
    return here


def parts(command: bytes) -> list[Any]:
    reader = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
    reader.feed(command)
    return reader.gets()


def lists(entry: bytes) -> list[str]:
    """The lists that an entry is about."""
    _, _, number, end, *rest = parts(entry)
    assert end == "opwire:end:me"
    return [key.removeprefix("opwire:serving:") for key in rest[: int(number) - 1]]


@given(st.lists(st.tuples(st.booleans(), names)))
def test_what_is_served_is_what_was_added_and_not_removed(steps: list[tuple[bool, list[str]]]) -> None:
    here, expected = presence(), dict[str, None]()
    for adds, operations in steps:
        if adds:
            new = here.add(operations)
            assert new == [each for each in dict.fromkeys(operations) if each not in expected]
            expected.update(dict.fromkeys(operations))
        else:
            here.remove(operations)
            expected = {each: None for each in expected if each not in operations}
        assert here.served == list(expected)


def test_nothing_is_served_at_another_address() -> None:
    here = presence("a.b")
    here.begin("somebody else")
    assert here.served == []
    assert here.own_name == b"opwire:end:somebody else"


def test_many_operations_are_entered_in_portions() -> None:
    operations = [f"many.{number}" for number in range(1_223)]
    entries = presence().entries(operations)
    assert [len(lists(entry)) for entry in entries] == [500, 500, 223]
    assert [each for entry in entries for each in lists(entry)] == operations
    assert presence().entries([]) == []


def test_a_lease_lasts_three_beats() -> None:
    assert parts(presence(heartbeat=0.25).entries(["a.b"])[0])[-2:] == ["750", "3600000"]


def test_an_end_without_operations_only_checks_whether_its_lease_can_be_renewed() -> None:
    assert parts(presence().renewal(1.0)) == ["PEXPIRE", "opwire:end:me", "3000"]


@given(st.integers(1, 300), st.sampled_from([0.01, 0.2, 1.0, 7.0, 60.0, 1000.0]))
def test_every_list_is_renewed_once_a_minute_and_never_all_at_once_unless_beats_are_rare(
    number: int, every: float
) -> None:
    operations = [f"many.{each}" for each in range(number)]
    here = presence(*operations)
    portions = []
    while sum(map(len, portions)) < number:
        portions.append(lists(here.renewal(every)))
    assert sorted(each for portion in portions for each in portion) == sorted(operations)
    assert (len(portions) - 1) * every < 60.0
    assert max(map(len, portions)) <= number * every / 60.0 + 1


def test_what_was_removed_is_not_renewed() -> None:
    here = presence("a.b", "c.d", "e.f")
    assert lists(here.renewal(1.0)) == ["a.b"]
    here.remove(["c.d"])
    here.add(["g.h"])
    assert [lists(here.renewal(1.0)) for _ in range(5)] == [[], ["e.f"], ["a.b"], ["e.f"], ["g.h"]]


def test_leaving_takes_the_end_off_every_list() -> None:
    *departures, lease = map(parts, presence("a.b", "c.d").absence())
    assert departures == [["LREM", f"opwire:serving:{each}", "0", "opwire:end:me"] for each in ("a.b", "c.d")]
    assert lease == ["DEL", "opwire:end:me"]


def test_every_list_is_looked_through_some_at_each_beat() -> None:
    assert presence().pruning() == []
    operations = [f"many.{number}" for number in range(120)]
    here = presence(*operations)
    seen: list[str] = []
    for number in (50, 50, 20):
        _, _, count, *rest = parts(here.pruning()[0])
        assert (int(count), rest[-2]) == (number, "opwire:end:")
        seen += [key.removeprefix("opwire:serving:") for key in rest[:-2]]
    assert seen == operations
