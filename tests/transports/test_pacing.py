"""The pace of large messages over a broker."""

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.transports.link import Link
from opwire.transports.pacing import LargeMessages


def test_each_receiver_gets_so_many_bytes_at_once() -> None:
    link = Link(lambda data: None, lambda reason: None)
    large = LargeMessages("The broker", 3_000_000, 1 << 20)
    large.pace("a", 2_000_000, link)
    with pytest.raises(CallError, match="The broker closes the connection") as caught:
        large.pace("a", 2_000_000, link)
    assert caught.value.code is ErrorCode.RATE_LIMITED
    large.pace("b", 2_000_000, link)
    large.pace("c", 9_000_000, link)  # more than fits at once is sent alone
    large.pace("a", 1_000_000, link)
