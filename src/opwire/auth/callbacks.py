"""A user's own function as an authenticator.

Such a function may take its time, and anybody can make up tokens for it to look at. So tokens that were good lately are
looked up apart from the others, and of the others the newest comes first: those that wait longest in a flood are most
likely part of it.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from opwire.auth.grants import NOT_VALID, Authenticator, Grant, as_grant, presented, refused
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity
from opwire.workers import WorkerPool

logger = logging.getLogger("opwire.auth")

Answer = Grant | Identity | None

ROOM = 8
"""Tokens that were not good before are looked up so many at a time."""

MAX_WAITING = 1_000
"""So many more of them wait."""

MAX_PROVEN = 10_000
"""Tokens that are remembered as good, by their hashes."""

PATIENCE = 30.0
"""Seconds that a function may take, the time that its token waits included."""


class UserFunction:
    """Calls a function that is not ours: an async one on the event loop, any other on a worker thread.

    A `CallError` that it raises is passed on. Whatever else it raises is UNAVAILABLE for the peer, and in the log
    without its text: `users[token]` raises a KeyError that shows the token.
    """

    def __init__(self, function: Callable[..., Any], purpose: str) -> None:
        self._function = function
        self._purpose = purpose
        self._threads = None if iscoroutinefunction(function) else WorkerPool(8)

    async def __call__(self, *arguments: str) -> Any:
        """What the function returns.

        Raises:
            CallError: what the function raised, or UNAVAILABLE.
        """
        try:
            if self._threads is None:
                return await self._function(*arguments)
            answer = await self._threads.run(partial(self._function, *arguments), self._purpose)
            return await answer if isawaitable(answer) else answer
        except CallError:
            raise
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s raised %s:\n%s", self._purpose, type(error).__name__, where)
        # Not within `except`: the error would be chained to this one, and shown with it.
        raise self.failed()

    def failed(self) -> CallError:
        """The error for the peer when the function did not do its work."""
        return CallError(ErrorCode.UNAVAILABLE, "the token cannot be checked at the moment")


class _NewestFirst:
    """A semaphore whose newest waiter is next. When too many wait, the oldest is refused."""

    def __init__(self, room: int, max_waiting: int) -> None:
        self._room = room
        self._max_waiting = max_waiting
        self._waiting: dict[asyncio.Future[None], None] = {}  # the newest last

    async def __aenter__(self) -> None:
        if self._room > 0:
            self._room -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        if len(self._waiting) > self._max_waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            wrong = "too many tokens are being checked: try again"
            oldest.set_exception(CallError(ErrorCode.UNAVAILABLE, wrong, retry_after=1))
        try:
            await turn
        except BaseException:
            if self._waiting.pop(turn, turn) is turn and not turn.cancelled() and turn.exception() is None:
                self._leave()  # it had its turn, and was cancelled in the same moment
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._waiting:
            turn, _ = self._waiting.popitem()
            turn.set_result(None)
        else:
            self._room += 1


class _Callback:
    def __init__(self, function: Callable[..., Any]) -> None:
        purpose = "the function of callback()"
        self._known, self._new = UserFunction(function, purpose), UserFunction(function, purpose)
        self._line = _NewestFirst(ROOM, MAX_WAITING)
        self._proven: dict[int, None] = {}  # hashes of tokens that were good, the last one last

    async def authenticate(self, token: str | None) -> Grant:
        token = presented(token)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._look_up(token)
        except TimeoutError:
            logger.error("the function of callback() did not answer within %g s", PATIENCE)
            raise self._new.failed() from None
        if answer is None:
            raise refused(NOT_VALID, "the function does not know it")
        if not isinstance(answer, Grant | Identity):
            kind = type(answer).__name__
            logger.error("the function of callback() returns a Grant, an Identity or None, and not %s", kind)
            raise self._new.failed()
        return as_grant(answer)

    async def _look_up(self, token: str) -> Any:
        key = hash(token)
        if key in self._proven:
            answer = await self._known(token)
            if answer is None:
                self._proven.pop(key, None)
            return answer
        async with self._line:
            answer = await self._new(token)
        if answer is not None:
            self._proven[key] = None
            if len(self._proven) > MAX_PROVEN:
                del self._proven[next(iter(self._proven))]
        return answer


def callback(function: Callable[[str], Answer | Awaitable[Answer]]) -> Authenticator:
    """An authenticator that asks a function: the token's Grant or Identity, or None if it is not good.

        callback(lambda token: users.get(token))

    A plain function runs on a worker thread, so that it may wait for a database. Tokens that were good before are not
    held up by those that were not; they are looked up each time, so that one can be withdrawn.
    """
    return _Callback(function)
