"""Names of channels and keys, and what is written in front of a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.transports.redis.transport import RedisNames, pack_message, unpack_message

addresses = st.from_regex(r"[A-Za-z0-9]{1,63}", fullmatch=True)
tokens = st.from_regex(r"[A-Za-z0-9]{0,64}", fullmatch=True)


@given(addresses, tokens, st.binary())
def test_what_was_sealed_is_unsealed_as_it_was(sender: str, token: str, message: bytes) -> None:
    assert unpack_message(pack_message(sender.encode(), token, message)) == (sender, token, message)


@given(st.binary())
def test_anything_can_be_unsealed(published: bytes) -> None:
    letter = unpack_message(published)
    assert letter is None or letter[0]


@pytest.mark.parametrize(
    "published",
    [
        b"",
        b"hello",
        b"a b",
        b"\n{}",
        b" token\n{}",
        b"sender\n{}",
        b"\xff \n{}",
        b"sender  token\n{}",
        b"sen:der token\n{}",
        b"sender to*ken\n{}",
        b"sender token\r\n{}",
        b"x" * 129 + b" \n{}",
        b"sender " + b"x" * 129 + b"\n{}",
    ],
)
def test_what_is_not_ours_is_nothing(published: bytes) -> None:
    assert unpack_message(published) is None


def test_an_end_and_an_operation_have_readable_names_under_the_prefix() -> None:
    names = RedisNames("opwire", 3)
    assert names.peer("0a1b") == b"opwire:end:0a1b"
    assert names.serving("github.repos/get") == b"opwire:serving:github.repos/get"
    assert names.all == b"opwire:all:3"
    assert names.address(names.peer("0a1b")) == "0a1b"
    assert names.peer("\ud800") == b"opwire:end:?"  # an address that no end has


@given(st.text(st.characters()), st.text(st.characters()))
def test_every_operation_has_a_key_of_its_own_even_one_without_utf8(one: str, other: str) -> None:
    names = RedisNames("opwire")
    assert (names.serving(one) == names.serving(other)) is (one == other)
    assert names.serving("\ud800") != names.serving("?")
