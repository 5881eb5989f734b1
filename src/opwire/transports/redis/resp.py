"""RESP3, the protocol of Redis: commands as bytes, and bytes as replies. No I/O.

Replies come in the order of the commands. What Redis has to tell comes in between, as a push. The push that confirms
SUBSCRIBE or UNSUBSCRIBE counts as the reply, so that every command has one: these name one channel.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from hiredis import PushNotification, Reader, ReplyError, pack_command  # pyright: ignore[reportUnknownVariableType]

Part = bytes | str | int
Done = Callable[[Any], None]
"""Takes a reply: plain data, or a `hiredis.ReplyError`. Raises nothing."""

_pack = cast("Callable[[tuple[Part, ...]], bytes]", pack_command)
_PUSH: Any = PushNotification
MAX_REPLY = 128 * 1024 * 1024
"""Bytes of one reply: a server that goes on for longer is given up."""

_MORE = object()  # "not enough data yet": any plain value could be a reply


def command(*parts: Part) -> bytes:
    """A command as Redis reads it."""
    return _pack(parts)


class Replies:
    """Hands every reply to whoever waits for it, and every message of a channel to `pushed`."""

    def __init__(self, pushed: Callable[[bytes, bytes], None], *, limit: int = MAX_REPLY) -> None:
        self._pushed = pushed
        self._limit = limit
        self._fed = 0  # bytes since the last reply that was complete
        self._reader = Reader(protocolError=ValueError, notEnoughData=_MORE)
        self._waiting: deque[Done] = deque()

    def expect(self, done: Done) -> None:
        """A command is on its way; its reply goes to `done`."""
        self._waiting.append(done)

    def feed(self, data: bytes) -> None:
        """Bytes arrived.

        Raises:
            ValueError: invalid data, or a reply without end.
        """
        self._fed += len(data)
        self._reader.feed(data)
        while (reply := self._next()) is not _MORE:
            self._fed = 0
            if type(reply) is _PUSH:
                self._push(reply)
            else:
                self._answer(reply)

        if self._fed > self._limit:
            raise ValueError(f"a reply has more than {self._limit:,} bytes")

    def _next(self) -> Any:
        try:
            return self._reader.gets()
        except MemoryError:  # it announces more items than there can be, and hiredis makes room for all of them
            raise ValueError("a reply announces too many items") from None

    def _push(self, push: list[Any]) -> None:
        match push:
            case [b"message", channel, message]:
                self._pushed(channel, message)
            case [b"subscribe" | b"unsubscribe", *_]:
                self._answer(push)
            case _:  # something that a newer Redis tells everybody
                pass

    def _answer(self, reply: Any) -> None:
        if not self._waiting:
            said = str(reply)[:200] if isinstance(reply, ReplyError) else f"a {type(reply).__name__}"
            raise ValueError(f"a reply without a command: {said}")
        self._waiting.popleft()(reply)
