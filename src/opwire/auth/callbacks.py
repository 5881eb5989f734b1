"""A user's own function as an authenticator."""

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


class _Callback:
    def __init__(self, function: UserFunction) -> None:
        self._function = function

    async def authenticate(self, token: str | None) -> Grant:
        answer = await self._function(presented(token))
        if answer is None:
            raise refused(NOT_VALID, "the function does not know it")
        if not isinstance(answer, Grant | Identity):
            kind = type(answer).__name__
            logger.error("the function of callback() returns a Grant, an Identity or None, and not %s", kind)
            raise self._function.failed()
        return as_grant(answer)


def callback(function: Callable[[str], Answer | Awaitable[Answer]]) -> Authenticator:
    """An authenticator that asks a function: the token's Grant or Identity, or None if it is not good.

        callback(lambda token: users.get(token))

    A plain function runs on a worker thread, so that it may wait for a database.
    """
    return _Callback(UserFunction(function, "the function of callback()"))
