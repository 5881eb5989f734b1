"""One connection to a Redis server: commands go out, each with somebody who waits for its reply."""

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import Any

from hiredis import ReplyError

from opwire.errors import CallError, ErrorCode
from opwire.transports.link import Link
from opwire.transports.redis.refusals import is_refusal, refusal
from opwire.transports.redis.resp import Done, Part, Replies, command
from opwire.transports.redis.url import Target


class Connection:
    """`pushed` gets the channel and the text of what is published, `lost` the reason, once, when it is over."""

    def __init__(self, target: Target, pushed: Callable[[bytes, bytes], None], lost: Callable[[str], None]) -> None:
        self._target = target
        self._lost = lost
        self._replies = Replies(pushed)
        self._link = Link(self._received, self._ended)
        self._waiting: set[asyncio.Future[list[Any]]] = set()
        self._over: str | None = None  # why there is no connection any more
        self.heard = False  # whether anything came since somebody set this to False

    async def open(self, ssl: SSLContext | None) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """
        loop, target = asyncio.get_running_loop(), self._target
        try:
            if target.path is not None:
                await loop.create_unix_connection(lambda: self._link, target.path)
            else:
                await loop.create_connection(lambda: self._link, target.host, target.port, ssl=ssl)
        except (OSError, UnicodeError) as error:  # the latter: a host that no name server could be asked for
            raise CallError(ErrorCode.UNAVAILABLE, f"{target.name} cannot be reached: {error}") from error

    async def greet(self, *commands: bytes) -> None:
        """Say who we are, and send the first commands.

        Raises:
            CallError: UNAVAILABLE, if Redis refuses, or is a read-only replica or a Sentinel.
        """
        target = self._target
        hello: list[Part] = [b"HELLO", 3]
        if target.user is not None or target.password is not None:
            hello += [b"AUTH", target.user or b"default", target.password or b""]
        about, *_ = await self.ask(command(*hello, b"SETNAME", b"opwire"))
        match about:
            case {b"mode": b"sentinel"}:
                raise refusal(target.name, ReplyError("SENTINEL"))
            case {b"role": b"replica"}:
                raise refusal(target.name, ReplyError("READONLY"))
            case _:
                pass
        await self.ask(*([command(b"SELECT", target.db)] if target.db else []), *commands)

    def send(self, command: bytes, done: Done, *, control: bool = False) -> None:
        """Send a command. `done` gets the reply, unless the connection is lost before.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        if control:
            self._link.control(command)
        else:
            self._link.write(command)
        self._replies.expect(done)

    async def ask(self, *commands: bytes) -> list[Any]:
        """Send commands, and wait for their replies.

        Raises:
            CallError: UNAVAILABLE, if one is refused or the connection is gone; RATE_LIMITED.
        """
        if not commands:
            return []
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        replies: list[Any] = []

        def done(reply: Any) -> None:
            replies.append(reply)
            if future.done():
                return
            if is_refusal(reply):
                future.set_exception(refusal(self._target.name, reply))
            elif len(replies) == len(commands):
                future.set_result(replies)

        if self._over is not None:
            raise self._gone(self._over)
        for each in commands:
            self.send(each, done, control=True)
        self._waiting.add(future)
        try:
            return await future
        finally:
            self._waiting.discard(future)

    def abort(self, reason: str) -> None:
        """End it at once; `lost` is called with the reason."""
        self._link.abort(reason)

    async def close(self) -> None:
        """End it; `lost` is not called."""
        await self._link.close()
        self._settle("it was closed")

    def _received(self, data: bytes) -> None:
        self.heard = True
        self._replies.feed(data)

    def _ended(self, reason: str) -> None:
        self._settle(reason)
        self._lost(reason)

    def _settle(self, reason: str) -> None:
        self._over = self._over or reason
        for future in self._waiting:
            if not future.done():
                future.set_exception(self._gone(reason))

    def _gone(self, reason: str) -> CallError:
        return CallError(ErrorCode.UNAVAILABLE, f"the connection to {self._target.name} was lost: {reason}")
