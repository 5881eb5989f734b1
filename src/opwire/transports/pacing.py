"""`LargeMessages`: large messages over a broker, at a pace at which it does not have to buffer them.

A broker buffers what a peer does not read, Redis 32 MiB and NATS 64 MB by default, and then closes its connection,
which ends all its calls. The sender cannot see that buffer.
"""

import time

from opwire.errors import CallError, ErrorCode
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.limits import TokenBucket
from opwire.transports.link import Link

LARGE = 64 * 1024
"""Bytes of a message that is paced."""

_MAX_RECEIVERS = 4096


class LargeMessages:
    """Limits the bytes of large messages, at once and per second, to each receiver, or for each operation."""

    def __init__(self, broker: str, at_once: int, per_second: int) -> None:
        self._broker = broker
        self._at_once = at_once
        self._per_second = per_second
        self._buckets: BoundedDict[str, TokenBucket] = BoundedDict(_MAX_RECEIVERS)

    def pace(self, to: str, size: int, link: Link) -> None:
        """Check that a large message may be sent now, over this link.

        Raises:
            CallError: RATE_LIMITED.
        """
        bucket = self._buckets.get(to)
        if bucket is None:
            bucket = self._buckets[to] = TokenBucket(self._per_second, self._at_once)
        is_behind = link.paused  # then the broker would get all of them at once, later
        if is_behind or bucket.take(time.monotonic(), min(size, self._at_once)):
            rate = f"large messages are sent at {self._per_second >> 20} MiB/s"
            closes = f"{self._broker} closes the connection of an end that does not keep up"
            raise CallError(ErrorCode.RATE_LIMITED, f"{closes}: {rate}")
