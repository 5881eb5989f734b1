"""Requests that were seen before."""

import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from opwire import ErrorCode
from opwire.auth.signed import SeenRequests
from tests.auth.refusals import refusal_of


def test_a_request_is_new_once_while_its_credential_is_good() -> None:
    replays = SeenRequests(10)
    assert replays.is_new("ann", "r1", until=160, now=100)
    assert not replays.is_new("ann", "r1", until=160, now=100)
    assert not replays.is_new("ann", "r1", until=190, now=159.9)
    assert replays.is_new("ann", "r1", until=230, now=160)


def test_holders_and_their_requests_are_distinguished() -> None:
    replays = SeenRequests(10)
    assert replays.is_new("ann", "r1", 160, 100)
    assert replays.is_new("bob", "r1", 160, 100)
    assert replays.is_new("ann", "r2", 160, 100)
    assert replays.is_new("an", "nr1", 160, 100)


def test_what_has_expired_is_forgotten() -> None:
    replays = SeenRequests(1_000)
    for number in range(10_000):
        assert replays.is_new("ann", str(number), until=number + 60, now=number)
        assert len(replays) <= 60
    assert replays.is_new("ann", "last", until=20_001, now=20_000)
    assert len(replays) == 1


def test_what_does_not_fit_is_refused_and_nothing_is_forgotten_early() -> None:
    replays = SeenRequests(6)  # half of them for one holder
    assert all(replays.is_new("ann", str(number), until=160, now=100) for number in range(3))
    error = refusal_of(replays.is_new, "ann", "4", 160, 100)
    assert (error.code, error.retryable, error.retry_after) == (ErrorCode.RATE_LIMITED, True, 1)
    assert not any(replays.is_new("ann", str(number), until=160, now=159) for number in range(3))
    assert replays.is_new("ann", "4", until=300, now=160)


def test_one_holder_leaves_room_for_the_requests_of_others() -> None:
    replays = SeenRequests(6)
    assert all(replays.is_new("eve", str(number), until=160, now=100) for number in range(3))
    refusal_of(replays.is_new, "eve", "4", 160, 100)
    assert all(replays.is_new("ann", str(number), until=160, now=100) for number in range(3))
    refusal_of(replays.is_new, "bob", "1", 160, 100)
    assert replays.is_new("eve", "5", until=300, now=160)


def test_a_long_request_id_takes_no_more_memory_than_a_short_one() -> None:
    replays = SeenRequests(10)
    assert replays.is_new("ann", "x" * 1_000_000, 160, 100)
    assert not replays.is_new("ann", "x" * 1_000_000, 160, 100)
    tracemalloc.start()
    for number in range(5):
        assert replays.is_new("eve", f"{number}" + "x" * 1_000_000, 160, 100)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 10_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ann", "bob"]),
            st.sampled_from(["1", "2", "3"]),
            st.floats(1, 50),
            st.floats(0, 30),
        )
    )
)
def test_a_request_passes_exactly_when_it_has_not_within_its_time(seen: list[tuple[str, str, float, float]]) -> None:
    replays, now = SeenRequests(100), 0.0
    until: dict[tuple[str, str], float] = {}
    for holder, request_id, lifetime, step in seen:
        now += step
        expected = until.get((holder, request_id), now) <= now
        assert replays.is_new(holder, request_id, now + lifetime, now) is expected
        if expected:
            until[holder, request_id] = now + lifetime


def test_of_many_threads_with_the_same_request_one_is_first() -> None:
    replays, start = SeenRequests(10_000), threading.Barrier(8)

    def race(_: int) -> int:
        start.wait(5)
        return sum(replays.is_new("ann", str(number), 160, 100) for number in range(500))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet half-way
    try:
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(race, range(8))) == 500
    finally:
        sys.setswitchinterval(interval)
