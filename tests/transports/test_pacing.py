"""The pace of large messages over a broker."""

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.transports.pacing import LargeMessages


def test_each_receiver_gets_so_many_bytes_at_once() -> None:
    large = LargeMessages("The broker", 3_000_000, 1 << 20)
    large.pace("a", 2_000_000, None)
    with pytest.raises(CallError, match="The broker closes the connection") as caught:
        large.pace("a", 2_000_000, None)
    assert caught.value.code is ErrorCode.RATE_LIMITED
    large.pace("b", 2_000_000, None)
    large.pace("c", 9_000_000, None)  # more than fits at once is sent alone
    large.pace("a", 1_000_000, None)
