"""When a call is made again, and how much later."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.client.client import Retries, RetryBudget
from opwire.errors import CallError, UsageError

AGAIN = CallError("UNAVAILABLE")


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_waits_are_random_below_a_bound_that_doubles(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: low + chance * (high - low))
    budget = RetryBudget(Retries(max_attempts=9, back_off=1, max_back_off=10))
    waits = [budget.wait(AGAIN, attempts, 100) for attempts in range(1, 7)]
    assert waits == [bound * (1 + chance) / 2 for bound in (1, 2, 4, 8, 10, 10)]


def test_what_the_server_asks_for_comes_before_the_random_wait() -> None:
    wait = RetryBudget(Retries(back_off=1)).wait(CallError("RATE_LIMITED", retry_after=20), 1, 100)
    assert wait is not None
    assert 20.5 <= wait <= 21


def test_a_wait_beyond_the_deadline_does_not_begin() -> None:
    budget = RetryBudget(Retries(back_off=0))
    late = CallError("RATE_LIMITED", retry_after=5)
    assert budget.wait(late, 1, 5.1) == 5
    assert budget.wait(late, 1, 5) is None
    assert budget.wait(AGAIN, 1, 0) is None


def test_only_retryable_errors_are_repeated_and_only_so_often() -> None:
    budget = RetryBudget(Retries(max_attempts=2, back_off=0))
    assert budget.wait(CallError("VALIDATION_ERROR"), 1, 100) is None
    assert budget.wait(CallError("UNAVAILABLE", retryable=False), 1, 100) is None
    assert budget.wait(CallError("EXECUTION_ERROR", retryable=True), 1, 100) == 0
    assert budget.wait(AGAIN, 2, 100) is None
    assert budget.wait(AGAIN, 10**6, 100) is None


@given(st.floats(0, 1), st.integers(0, 20), st.lists(st.booleans(), max_size=200))
def test_retries_are_never_more_than_the_reserve_and_the_share_of_the_calls(
    share: float, reserve: int, steps: list[bool]
) -> None:
    """True is a call, False an attempt to repeat one."""
    budget = RetryBudget(Retries(share=share, reserve=reserve))
    calls = spent = 0
    for is_call in steps:
        if is_call:
            calls += 1
            budget.called()
        else:
            spent += budget.spend()
        assert spent <= reserve + share * calls + 1e-6


NOT_NUMBERS: list[Any] = [-1, float("nan"), float("inf"), "3", None, True]


@pytest.mark.parametrize("option", ["max_attempts", "back_off", "max_back_off", "share", "reserve"])
@pytest.mark.parametrize("wrong", NOT_NUMBERS, ids=str)
def test_numbers_that_mean_nothing_are_refused(option: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"{option} must be"):
        Retries(**{option: wrong})


@pytest.mark.parametrize("wrong", [0, 1.5])
def test_retries_need_a_whole_number_of_attempts(wrong: Any) -> None:
    with pytest.raises(UsageError, match="attempts must be a whole number above zero"):
        Retries(max_attempts=wrong)
