"""How large a message may be."""

from collections.abc import Callable
from typing import Any

import pytest
from hiredis import ReplyError

from opwire.transports.redis.connection import SETTINGS, largest_message
from tests.servers.brokers import RedisServer
from tests.transports.redis.ends import end

MIB = 1024 * 1024
ROOM = 64 * 1024
USUAL = b"normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"


@pytest.mark.parametrize(
    ("replies", "largest"),
    [
        ([], 16 * MIB),
        ([ReplyError("NOPERM no")] * 3, 16 * MIB),
        ([{}, {b"proto-max-bulk-len": b"?"}, b"OK"], 16 * MIB),
        ([{b"client-output-buffer-limit": USUAL}], 16 * MIB),
        ([{b"client-output-buffer-limit": b"normal 5 5 5"}], 16 * MIB),
        ([{b"client-output-buffer-limit": b"pubsub 8388608 0 0 normal 0 0 0"}], 4 * MIB),
        ([{b"client-output-buffer-limit": b"normal 0 0 0 slave 1 1 1 pubsub 0 0 0"}], 512 * MIB),
        ([{b"client-query-buffer-limit": b"2097152"}, {b"proto-max-bulk-len": b"1048576"}], MIB),
    ],
)
def test_the_smallest_of_the_settings_counts(replies: list[Any], largest: int) -> None:
    assert largest_message(replies) == largest - ROOM


def test_however_small_a_limit_is_something_fits() -> None:
    assert largest_message([{b"proto-max-bulk-len": b"1"}]) == 1


@pytest.mark.parametrize("setting", SETTINGS)
async def test_the_limits_of_a_server_are_learned_and_what_is_just_below_passes(
    own_redis: Callable[..., RedisServer], setting: bytes
) -> None:
    limit = "pubsub 2mb 0 0" if setting == b"client-output-buffer-limit" else "1mb"
    server = own_redis(**{setting.decode(): limit})
    async with end(server.url, "one", "a.b") as one:
        assert one.connection.max_message == MIB - ROOM
        for number in range(1, 4):
            one.connection.request("a.b", "token", b"x" * one.connection.max_message)
            await one.log.until(lambda number=number: len(one.log.messages) == 2 * number - 1)
            one.connection.send("one", "token", b"y" * one.connection.max_message, control=False)
            await one.log.until(lambda number=number: len(one.log.messages) == 2 * number)
        assert one.log.ends == []
