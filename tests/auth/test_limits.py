"""How much one connection may ask for."""

import logging
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError
from opwire.auth import TokenBucket, tokens
from opwire.runtime.limits import LogLimit
from tests.auth.refusals import wrong_use

LIMITED_LOGGER = tokens.logger  # conftest replaces it


def test_a_burst_passes_at_once_and_then_one_call_a_turn() -> None:
    limit = TokenBucket(per_second=10, burst=3)
    assert [limit.take(100.0) for _ in range(3)] == [0, 0, 0]
    assert limit.take(100.0) == pytest.approx(0.1)
    assert limit.take(100.05) == pytest.approx(0.05)
    assert limit.take(100.15) == 0
    assert limit.take(100.15) > 0


def test_the_bucket_never_holds_more_than_its_burst() -> None:
    limit = TokenBucket(per_second=1000, burst=2)
    limit.take(0)
    assert [limit.take(1e6) == 0 for _ in range(3)] == [True, True, False]


def test_a_time_that_goes_back_gives_nothing() -> None:
    limit = TokenBucket(per_second=1)
    assert limit.take(100) == 0
    assert limit.take(0) == 1
    assert limit.take(100) == 1
    assert limit.take(101) == 0


@given(
    st.floats(0.01, 1000),
    st.integers(1, 20),
    st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=60),
)
def test_in_no_time_more_calls_pass_than_burst_and_rate_allow(rate: float, burst: int, steps: list[float]) -> None:
    limit, now, passed = TokenBucket(rate, burst), 0.0, []
    for step in steps:
        now += step
        wait = limit.take(now)
        assert 0 <= wait <= 1 / rate + 1e-9
        if wait == 0:
            passed.append(now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + (passed[last] - passed[first]) * rate + 1e-6


@given(st.floats(0.01, 1000), st.integers(0, 10))
def test_a_client_that_waits_for_retry_after_passes(rate: float, before: int) -> None:
    limit, now = TokenBucket(rate, 3), 0.0
    for _ in range(before):
        limit.take(now)
    while (wait := limit.take(now)) == 0:
        pass
    assert limit.take(now + wait * (1 + 1e-9) + 1e-9) == 0


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (nan, 1), (inf, 1), (1, 0)])
def test_a_limit_that_lets_nothing_or_everything_pass_is_refused(rate: float, burst: int) -> None:
    wrong_use(TokenBucket, rate, burst)


def line(text: str, at: float, level: int = logging.WARNING) -> logging.LogRecord:
    record = logging.LogRecord("x", level, __file__, 1, text, (), None)
    record.created = at
    return record


def test_of_many_lines_some_are_written_and_the_others_counted() -> None:
    limit = LogLimit(per_second=1, burst=3)
    assert sum(limit.filter(line("refused", 100.0)) for _ in range(1_000)) == 3
    record = line("refused", 102.0)
    assert limit.filter(record)
    assert record.getMessage() == "refused (997 lines before this one were dropped)"
    record = line("refused", 104.0)
    assert limit.filter(record)
    assert record.getMessage() == "refused"


def test_failures_have_a_limit_of_their_own() -> None:
    peers, failures = LogLimit(most=logging.INFO, burst=1), LogLimit(least=logging.WARNING, most=logging.ERROR, burst=2)

    def is_written(level: int) -> bool:
        return all(each.filter(line("token", 1.0, level)) for each in (peers, failures))

    assert [is_written(logging.INFO) for _ in range(3)] == [True, False, False]
    assert [is_written(logging.ERROR) for _ in range(4)] == [True, True, False, False]
    assert is_written(logging.CRITICAL)


async def test_tokens_that_cannot_be_checked_do_not_flood_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made-up tokens do not flood the log, even while none can be checked."""

    async def look_up(token: str) -> None:
        raise OSError("the database is down")

    monkeypatch.setattr(tokens, "logger", LIMITED_LOGGER)
    check = tokens.callback(look_up)
    for number in range(1_000):
        with pytest.raises(CallError, match="UNAVAILABLE"):
            await check.authenticate(f"made-up-{number}")
    assert len(caplog.records) < 500


def test_graver_lines_and_other_lines_are_not_limited() -> None:
    limit = LogLimit(per_second=1, burst=1, start="socket.accept")
    assert all(limit.filter(line("socket.accept failed", 1.0, logging.ERROR)) for _ in range(10))
    assert all(limit.filter(line("other", 1.0)) for _ in range(10))
    assert [limit.filter(line("socket.accept", 1.0)) for _ in range(3)] == [True, False, False]
