"""What Redis refuses."""

import pytest
from hiredis import ReplyError

from opwire.errors import ErrorCode
from opwire.transports.redis.connection import is_refusal, refusal


@pytest.mark.parametrize(
    ("reply", "advice"),
    [
        ("NOAUTH Authentication required.", "put it into the URL"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "check the URL"),
        ("NOPERM this user has no permissions", "check its ACL"),
        ("LOADING Redis is loading the dataset in memory", "try again in a moment"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "raise its maxmemory"),
        ("MISCONF Redis is configured to save RDB snapshots", "see its log"),
        ("READONLY You can't write against a read only replica.", "connect to its primary"),
        ("ERR Error running script (call to f_1a): @user_script:1: @user_script: 1: -OOM no", "raise its maxmemory"),
        ("ERR Error running script (call to f_1a): @user_script:9: something new", "refused: something new"),
        ("SENTINEL", "is a Sentinel, which holds no data: connect with redis+sentinel://"),
        ("MOVED 1234 10.0.0.1:6379", "connect with redis+cluster://"),
        ("DENIED Redis is running in protected mode", "give it a password"),
        ("ERR something new", "ERR something new"),
    ],
)
def test_a_refusal_says_what_to_do(reply: str, advice: str) -> None:
    error = refusal("Redis at cache:6379", ReplyError(reply))
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message.startswith("Redis at cache:6379 ")
    assert advice in error.message


def test_a_command_that_redis_repeats_is_not_repeated_again() -> None:
    reply = "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `secret`, "
    message = refusal("Redis", ReplyError(reply)).message
    assert "Redis 6.2 or newer" in message
    assert "secret" not in message


def test_an_unforeseen_reply_is_cut() -> None:
    assert len(refusal("Redis", ReplyError("ERR " + "x" * 10_000)).message) < 300


def test_only_errors_are_refusals() -> None:
    oom = ReplyError("OOM no memory")
    assert is_refusal(oom)
    assert is_refusal(oom, "OOM", "MISCONF")
    assert not is_refusal(oom, "MISCONF")
    assert not is_refusal(b"OOM no memory")
    assert not is_refusal(0)
