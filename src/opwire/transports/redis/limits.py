"""How large a message a Redis server lets through. No I/O.

A larger one does not fail alone: Redis closes the connection of whoever sends it, or of whoever it is for.
"""

import re
from collections.abc import Iterable
from typing import Any, cast

_MIB = 1024 * 1024
_USUAL = {
    b"proto-max-bulk-len": 512 * _MIB,
    b"client-query-buffer-limit": 1024 * _MIB,
    b"client-output-buffer-limit": 32 * _MIB,
}
_BYTES = re.compile(rb"(?:.*\bpubsub )?([0-9]{1,18})(?![0-9])")  # a number, or "normal 0 0 0 slave … pubsub <bytes> …"
_ROOM = 64 * 1024  # bytes, for what stands around a message, and what Redis has read of the next command

SETTINGS = tuple(_USUAL)
"""The settings that say how large."""


def largest_message(replies: Iterable[Any]) -> int:
    """Bytes that the replies to CONFIG GET allow. What a server refuses to say is taken to be as Redis comes."""
    limits = dict(_USUAL)
    for reply in replies:
        if isinstance(reply, dict):
            for setting, value in cast("dict[bytes, bytes]", reply).items():
                if (found := _BYTES.match(value)) is not None:
                    limits[setting] = int(found[1])
    # Of its output Redis counts what it has allocated, up to a quarter more than it needs, and more may be waiting.
    limits[b"client-output-buffer-limit"] //= 2
    return max(1, min(filter(None, limits.values())) - _ROOM)  # 0 is no limit
