"""A user's own function as an authenticator."""

import asyncio
import logging
import threading
from functools import partial
from typing import Any

import pytest

from opwire import CallError, ErrorCode, Identity
from opwire.auth import Grant, callback, tokens
from opwire.auth.tokens import UserFunction
from tests.auth.refusals import logged, refusal, unauthenticated

TOKEN = "a-secret-token-0123456789"
ANN = Identity(id="ann")


def look_up(token: str) -> Identity | None:
    return ANN if token == TOKEN else None


async def look_up_later(token: str) -> Grant | None:
    await asyncio.sleep(0)
    return Grant(ANN, ("shop",)) if token == TOKEN else None


class Users:
    async def __call__(self, token: str) -> Identity | None:
        return look_up(token)


@pytest.mark.parametrize(
    ("function", "grant"),
    [
        (look_up, Grant(ANN)),
        (look_up_later, Grant(ANN, ("shop",))),
        (lambda token: look_up_later(token + ""), Grant(ANN, ("shop",))),
        (partial(look_up_later), Grant(ANN, ("shop",))),
        (Users(), Grant(ANN)),
    ],
    ids=["sync", "async", "lambda of async", "partial", "object"],
)
async def test_a_function_says_what_a_token_gives_and_none_means_nothing(function: Any, grant: Grant) -> None:
    authenticator = callback(function)
    assert await authenticator.authenticate(TOKEN) == grant
    assert unauthenticated(await refusal(authenticator.authenticate("other"))) == "the token is not valid"


async def test_the_function_is_not_asked_about_a_token_that_is_missing_or_huge() -> None:
    asked: list[str] = []

    def function(token: str) -> None:
        asked.append(token)

    authenticator = callback(function)
    assert unauthenticated(await refusal(authenticator.authenticate(None))) == "a token is needed"
    await refusal(authenticator.authenticate("x" * 20_000))
    assert asked == []


async def test_a_plain_function_may_block_without_stopping_the_event_loop() -> None:
    turn, threads = threading.Event(), []

    def slow(token: str) -> Identity:
        threads.append(threading.current_thread())
        assert turn.wait(5)
        return ANN

    waiting = asyncio.ensure_future(callback(slow).authenticate(TOKEN))
    await asyncio.sleep(0)
    turn.set()  # reached only if the loop goes on
    assert await asyncio.wait_for(waiting, 5) == Grant(ANN)
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_a_function_raises_refuses_the_token_and_its_text_is_shown_nowhere(
    asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    users: dict[str, Identity] = {}

    def function(token: str) -> Identity:
        return users[token]  # KeyError: 'the token'

    async def later(token: str) -> Identity:
        return users[token]

    error = await refusal(callback(later if asynchronous else function).authenticate(TOKEN), TOKEN)
    assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "the token cannot be checked at the moment")
    [line] = logged(caplog, TOKEN)
    assert line.startswith("ERROR the function of callback() raised KeyError:\n")
    assert "return users[token]" in line  # the location, for the person that fixes it


async def test_an_error_that_the_function_chose_for_the_peer_is_passed_on() -> None:
    async def function(token: str) -> Identity:
        raise CallError("RATE_LIMITED", "three attempts a minute")

    error = await refusal(callback(function).authenticate(TOKEN))
    assert (error.code, error.message) == (ErrorCode.RATE_LIMITED, "three attempts a minute")


@pytest.mark.parametrize("answer", [True, {"id": "ann"}, "ann", 0, ""])
async def test_a_result_of_another_type_admits_no_caller(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A user's function that fails or returns something else admits no caller."""
    error = await refusal(callback(lambda token: answer).authenticate(TOKEN))
    assert error.code is ErrorCode.UNAVAILABLE
    assert logged(caplog)[0].endswith(f"returns a Grant, an Identity or None, and not {type(answer).__name__}")


async def test_a_caller_that_gives_up_cancels_the_function() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def function(token: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.ensure_future(callback(function).authenticate(TOKEN))
    await asyncio.wait_for(begun.wait(), 5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


@pytest.mark.parametrize("function", [look_up, look_up_later])
async def test_many_tokens_are_distinguished_at_the_same_time(function: Any) -> None:
    authenticator = callback(function)
    attempts = [authenticator.authenticate(TOKEN if number % 2 else f"other-{number}") for number in range(100)]
    answers = await asyncio.gather(*attempts, return_exceptions=True)
    assert [isinstance(answer, Grant) for answer in answers] == [bool(number % 2) for number in range(100)]


async def test_a_user_function_without_arguments_is_called_with_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert await UserFunction(lambda: 3, "a function")() == 3
    assert logged(caplog) == []


# --- a flood of made-up tokens ----------------------------------------------------------------------------------------


class Database:
    """Looks tokens up one after the other, on command."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answering = asyncio.Event()
        self.changed = asyncio.Condition()

    async def look_up(self, token: str) -> Identity | None:
        async with self.changed:
            self.asked.append(token)
            self.changed.notify_all()
        if token.startswith("bogus"):
            await self.answering.wait()
        return ANN if token.startswith("good") else None

    async def wait_for(self, number: int) -> None:
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: len(self.asked) >= number)


async def test_made_up_tokens_do_not_hold_up_those_that_were_good_before() -> None:
    database = Database()
    authenticator = callback(database.look_up)
    assert await authenticator.authenticate("good" * 8) == Grant(ANN)
    flood = [asyncio.create_task(refusal(authenticator.authenticate(f"bogus-{n}"))) for n in range(100)]
    await database.wait_for(1 + tokens.MAX_LOOKUPS)
    async with asyncio.timeout(20):
        assert await authenticator.authenticate("good" * 8) == Grant(ANN)
    assert len(database.asked) == 2 + tokens.MAX_LOOKUPS
    database.answering.set()
    await asyncio.gather(*flood)


async def test_of_the_tokens_that_are_new_the_newest_is_next() -> None:
    database = Database()
    authenticator = callback(database.look_up)
    flood = [asyncio.create_task(refusal(authenticator.authenticate(f"bogus-{n}"))) for n in range(100)]
    await database.wait_for(tokens.MAX_LOOKUPS)
    good = asyncio.create_task(authenticator.authenticate("good-and-new" * 8))
    while len(flood) > 50:  # waiters that give up take nothing with them
        flood.pop(tokens.MAX_LOOKUPS).cancel()
    await asyncio.sleep(0)
    database.answering.set()
    assert await asyncio.wait_for(good, 20) == Grant(ANN)
    assert database.asked[tokens.MAX_LOOKUPS].startswith("good")
    await asyncio.gather(*flood)
    async with asyncio.timeout(20):
        again = [authenticator.authenticate(f"good-{n}" * 8) for n in range(2 * tokens.MAX_LOOKUPS)]
        assert len(await asyncio.gather(*again)) == 2 * tokens.MAX_LOOKUPS


async def test_when_too_many_tokens_wait_the_oldest_is_refused_as_one_that_cannot_be_checked_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "MAX_WAITING", 3)
    database = Database()
    authenticator = callback(database.look_up)
    flood = [
        asyncio.create_task(refusal(authenticator.authenticate(f"bogus-{n}"))) for n in range(tokens.MAX_LOOKUPS + 5)
    ]
    await database.wait_for(tokens.MAX_LOOKUPS)
    async with asyncio.timeout(20):
        for early in flood[tokens.MAX_LOOKUPS : tokens.MAX_LOOKUPS + 2]:
            error = await early
            assert (error.code, error.retry_after) == (ErrorCode.UNAVAILABLE, 1)
    database.answering.set()
    assert {each.code for each in await asyncio.gather(*flood[: tokens.MAX_LOOKUPS])} == {ErrorCode.UNAUTHENTICATED}
    await asyncio.gather(*flood)


async def test_a_function_that_does_not_answer_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens, "LOOKUP_TIMEOUT", 0.05)
    error = await refusal(callback(Database().look_up).authenticate("bogus"))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "did not return" in caplog.text


async def test_a_token_that_was_good_can_be_withdrawn() -> None:
    users = {TOKEN: ANN}
    authenticator = callback(users.get)
    assert await authenticator.authenticate(TOKEN) == Grant(ANN)
    users.clear()
    for _ in range(2):
        unauthenticated(await refusal(authenticator.authenticate(TOKEN)))
