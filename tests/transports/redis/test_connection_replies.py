"""The protocol of Redis, without a server."""

from collections.abc import Iterable
from typing import Any

import pytest
from hiredis import ReplyError
from hypothesis import given
from hypothesis import strategies as st

from opwire.transports.redis.connection import Replies, command


class Talk:
    """Keeps what the two sides get: the replies under the number of the command, and what is pushed."""

    def __init__(self, commands: int) -> None:
        self.got: list[Any] = []
        self.replies = Replies(lambda channel, message: self.got.append((channel, message)))
        for number in range(commands):
            self.replies.expect(lambda reply, number=number: self.got.append((number, repr(reply))))


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


integers = st.integers(-(2**63), 2**63 - 1).map(lambda number: b":%d\r\n" % number)
strings = st.binary(max_size=50).map(bulk)
errors = st.from_regex(r"[A-Z]{1,9} [a-z ']{0,30}", fullmatch=True).map(lambda text: b"-%b\r\n" % text.encode())
simple = st.sampled_from([b"+OK\r\n", b"_\r\n", b"#f\r\n", b"#t\r\n", b"$-1\r\n", b"*0\r\n", b",1.5\r\n"])
maps = st.lists(st.tuples(strings, integers), max_size=3).map(
    lambda pairs: b"%%%d\r\n" % len(pairs) + b"".join(key + value for key, value in pairs)
)
replies = st.one_of(integers, strings, errors, simple, maps)
messages = st.tuples(st.binary(max_size=9), st.binary(max_size=99)).map(
    lambda pair: b">3\r\n" + bulk(b"message") + bulk(pair[0]) + bulk(pair[1])
)
confirmations = st.tuples(st.sampled_from([b"subscribe", b"unsubscribe"]), st.binary(max_size=9)).map(
    lambda pair: b">3\r\n" + bulk(pair[0]) + bulk(pair[1]) + b":1\r\n"
)
streams = st.lists(st.one_of(replies, messages, confirmations), max_size=12)


@given(streams, st.data())
def test_any_split_of_the_bytes_gives_the_same_replies_in_the_same_order(stream: list[bytes], data: Any) -> None:
    """However the bytes of Redis are split, each reply reaches its request, in order."""
    whole, split = Talk(len(stream)), Talk(len(stream))
    text = b"".join(stream)
    whole.replies.feed(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        split.replies.feed(text[start:stop])
    assert split.got == whole.got
    assert len(whole.got) == len(stream)
    numbers = [number for number, _ in whole.got if isinstance(number, int)]
    assert numbers == list(range(len(numbers)))


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error_or_waits_for_more(garbage: bytes) -> None:
    try:
        Talk(1000).replies.feed(garbage)
    except ValueError:
        pass


@pytest.mark.parametrize("text", [b"HTTP/1.1 400 Bad Request\r\n", b"$-9\r\n", b"*-5\r\n", b":12a\r\n"])
def test_what_redis_would_never_say_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        Talk(1).replies.feed(text)


def test_an_error_is_a_reply_like_any_other() -> None:
    got: list[Any] = []
    replies = Replies(lambda *_: None)
    for _ in range(2):
        replies.expect(got.append)
    replies.feed(b"-NOPERM no\r\n:1\r\n")
    assert isinstance(got[0], ReplyError)
    assert got[1] == 1


def test_an_unsolicited_reply_is_reported() -> None:
    with pytest.raises(ValueError, match="max number of clients"):
        Talk(0).replies.feed(b"-ERR max number of clients reached\r\n")


def feed_all(pieces: Iterable[bytes], limit: int) -> None:
    replies = Replies(lambda channel, message: None, limit=limit)
    replies.expect(lambda reply: None)
    for piece in pieces:
        replies.feed(piece)


def test_a_reply_without_end_is_given_up_before_it_fills_the_memory() -> None:
    fits = b"$90000\r\n" + b"x" * 90_000 + b"\r\n"
    feed_all([fits[:50_000], fits[50_000:]], 100_000)
    with pytest.raises(ValueError, match="more than 100,000 bytes"):
        feed_all([fits, b"*1000000\r\n", *1000 * [b":1\r\n" * 100]], 100_000)


@pytest.mark.parametrize(
    "data",
    [
        b"*1\r\n" * 100_000,
        b"$99999999999999999999\r\n",
        b"*99999999999999999999\r\n",
        b"*4000000000000\r\n",
        b"%4000000000\r\n",
        b"*2\r\n" * 8 + b"$-5\r\n",
    ],
)
def test_lengths_and_depths_that_cannot_be_are_invalid(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        feed_all([data, *20 * [b"$1\r\nx\r\n" * 15_000]], 1_000_000)


def test_pushes_of_other_kinds_are_passed_over() -> None:
    talk = Talk(1)
    talk.replies.feed(
        b">0\r\n" + b">1\r\n" + bulk(b"message") + b">2\r\n" + bulk(b"invalidate") + b"*0\r\n" + b"+OK\r\n"
    )
    assert talk.got == [(0, "b'OK'")]


@given(st.lists(st.one_of(st.binary(), st.integers(-(2**31), 2**31), st.text()), min_size=1))
def test_a_command_is_a_list_of_strings(parts: list[Any]) -> None:
    as_bytes = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    expected = b"*%d\r\n" % len(parts) + b"".join(map(bulk, as_bytes))
    assert command(*parts) == expected
