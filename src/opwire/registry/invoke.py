"""Run handlers: sync ones on worker threads, with deadlines, and with their exceptions as `CallError`."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, cast
from uuid import uuid4

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context
from opwire.model.operation import Handler
from opwire.names import limit_text
from opwire.registry.signature import unwrapped
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import resolve, start_eagerly
from opwire.runtime.text import get_logger
from opwire.runtime.workers import WorkerPool

logger = get_logger("opwire.registry")

CLOSE_GRACE = 5.0
"""Seconds for a cancelled handler to return, and for a subscription's generator to run `finally`."""

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""Exceptions of a handler that fail the call; a KeyboardInterrupt ends the process."""

Run = Callable[[Any, Context], Awaitable[Any]]


def runner(handler: Handler, function: Callable[..., Any], pool: WorkerPool, label: str, *, inline: bool) -> Run:
    """Return the coroutine function that runs a handler; whether `function` is async decides where it runs."""
    if inspect.iscoroutinefunction(unwrapped(function)):
        return cast("Run", handler)

    async def run(input: Any, context: Context) -> Any:
        if inline:
            result = handler(input, context)
        else:
            result = await pool.run(lambda: handler(input, context), label, worker_owner(context))
        return await result if inspect.isawaitable(result) else result

    return run


def worker_owner(context: Context) -> str | None:
    """Return whose call this is, for a fair share of the worker threads; None: of this process."""
    if context.inbound is None:
        return None
    return "" if context.identity is None else context.identity.id


# --- deadlines --------------------------------------------------------------------------------------------------------


async def run_within(
    call: Callable[[], Awaitable[Any]],
    deadlines: Deadlines,
    deadline: float,
    label: str,
    renew: Callable[[], float] | None = None,
) -> Any:
    """Run a handler until a monotonic time, and abandon it if it ignores its cancellation for `CLOSE_GRACE`.

    `renew` is called at that time, and returns a later one if the handler may go on. The handler runs in its own task:
    a coroutine cannot be removed from the task that runs it, and would block the caller forever.

    Raises:
        CallError: TIMEOUT.
    """
    seconds = deadline - time.monotonic()
    if seconds > 0:
        run = _LimitedRun(call, deadlines, deadline, label, renew)
        value, error = await run.outcome()
        if error is None:
            return value
        if not (run.is_expired and isinstance(error, asyncio.CancelledError)):
            raise error
    raise CallError(ErrorCode.TIMEOUT, f"{label} did not answer within {limit_text(seconds)} s")


class _LimitedRun:
    """A handler in its own task, until a deadline."""

    def __init__(
        self,
        call: Callable[[], Awaitable[Any]],
        deadlines: Deadlines,
        deadline: float,
        label: str,
        renew: Callable[[], float] | None,
    ) -> None:
        self.is_expired = False
        self._deadlines = deadlines
        self._deadline = deadline
        self._deadline_tick = 0
        self._label = label
        self._renew = renew
        self._is_stopped = False
        self._outcome: tuple[Any, BaseException | None] = (None, asyncio.CancelledError())  # until the handler ends
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = start_eagerly(self._run(call))

    async def _run(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Run the handler and keep its result or exception: SystemExit in a task would stop the loop."""
        try:
            self._outcome = await call(), None
        except FAILURES as error:
            self._outcome = None, error
        resolve(self._ended)

    async def outcome(self) -> tuple[Any, BaseException | None]:
        """Wait for the handler; return its result, or its exception."""
        if not self._ended.done():
            await self._wait()
        outcome, self._outcome = self._outcome, (None, None)  # the traceback of an exception refers to this object
        return outcome

    async def _wait(self) -> None:
        self._deadline_tick = self._deadlines.add(self, self._deadline, _LimitedRun._expire)
        try:
            await self._ended
        except asyncio.CancelledError:
            self._stop()
            await asyncio.wait((self._task,), timeout=CLOSE_GRACE)
            raise
        finally:
            self._deadlines.discard(self, self._deadline_tick)

    def _expire(self) -> None:
        deadline = self._deadline if self._renew is None else self._renew()
        if deadline > time.monotonic():
            self._deadline_tick = self._deadlines.add(self, deadline, _LimitedRun._expire)
        else:
            self.is_expired = True
            self._stop()

    def _stop(self) -> None:
        """Cancel the handler, once: a second cancellation would interrupt its cleanup."""
        if not self._is_stopped:
            self._is_stopped = True
            self._task.cancel()
            self._task.add_done_callback(lambda _: resolve(self._ended))  # also if it has not started
            asyncio.get_running_loop().call_later(CLOSE_GRACE, self._give_up)

    def _give_up(self) -> None:
        if not self._task.done():
            leave_behind(self._task, self._label)
        resolve(self._ended)


def leave_behind(task: asyncio.Task[Any], label: str) -> None:
    """Log and abandon a task that ignores its cancellation: `asyncio.run` would wait for it at exit."""
    logger.warning("%s did not stop within %g s of being cancelled, and is abandoned", label, CLOSE_GRACE)
    asyncio.tasks._unregister_task(task)  # documented under "Extending asyncio"
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - it was logged above


# --- failures ---------------------------------------------------------------------------------------------------------


def failure(error: BaseException, label: str) -> CallError:
    """Return the `CallError` for an exception of a handler: unexpected ones are logged, and become an error id.

    Raises:
        CancelledError: the caller itself was cancelled.
    """
    if isinstance(error, CallError):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error  # the caller was cancelled
        return CallError(ErrorCode.ABORTED, f"{label} stopped itself")
    error_id = uuid4().hex[:12]
    logger.error("%s failed, error id %s", label, error_id, exc_info=error)
    message = f"{label} failed unexpectedly; see error id {error_id} in the log of its server"
    return CallError(ErrorCode.EXECUTION_ERROR, message, {"errorId": error_id})


def fail(error: BaseException, label: str) -> NoReturn:
    """Raise an exception of a handler as a `CallError`; see `failure`."""
    if isinstance(error, CallError):
        raise error
    raise failure(error, label) from error
