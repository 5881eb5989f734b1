"""A bounded thread pool for sync handlers, in which a call that never returns blocks neither other calls nor the exit.

The threads are daemons, because the executor of the standard library joins its threads at exit. A job whose caller is
cancelled while it runs is abandoned: its thread counts as stuck until it returns, and another thread replaces it.

`eager_task` is the other way to run a handler: in the event loop, and at once. `PromptFuture` is its counterpart for a
caller, which continues where its response is received.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context as ContextVars
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.workers")

T = TypeVar("T")

IDLE = 30.0
"""Seconds after which a thread that got no job ends, so that a registry that is dropped leaves none behind."""


class _Job:
    """One call: created on the event loop, run on a thread, resolved on the event loop."""

    def __init__(self, call: Callable[[], Any], label: str) -> None:
        self.call = call
        self.label = label
        self.vars: ContextVars = copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.outcome: tuple[Any, BaseException | None] = (None, None)
        self.running = False
        self.abandoned = False

    def run(self) -> None:
        try:
            self.outcome = (self.vars.run(self.call), None)
        except BaseException as raised:  # any exception is passed to the caller, not raised in this thread
            self.outcome = (None, raised)

    def settle(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop is closed, and with it the caller
            logger.debug("%s ended after its event loop", self.label)

    def _settle(self) -> None:
        if not self.future.done():
            self.future.set_result(self.outcome)


class WorkerPool:
    """Runs blocking calls on at most `max_workers` threads, stuck ones excluded."""

    def __init__(self, max_workers: int = 32) -> None:
        self.max_workers = max_workers
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0  # idle threads; below zero: queued jobs
        self._stuck = 0

    @property
    def stuck(self) -> int:
        """The number of threads that run an abandoned call."""
        return self._stuck

    async def run(self, call: Callable[[], Any], label: str) -> Any:
        """Run a call on a thread, with the caller's context variables.

        Raises:
            CallError: UNAVAILABLE, if `max_workers` threads are stuck.
        """
        job = _Job(call, label)
        with self._lock:
            if self._stuck >= self.max_workers:
                raise self._exhausted()
            self._jobs.put(job)
            self._waiting -= 1
            self._grow()
        try:
            result, error = await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        if error is not None:
            raise error
        return result

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.abandoned = True
            if not job.running:
                return
            self._stuck += 1
            if self._stuck < self.max_workers:
                self._grow()
            elif self._stuck == self._threads:  # every thread is: fail the queued jobs
                while self._waiting < 0:
                    try:
                        queued = self._jobs.get_nowait()
                    except Empty:
                        break
                    self._waiting += 1
                    queued.outcome = (None, self._exhausted())
                    queued.settle()
        logger.warning("%s did not return in time: its thread is left to itself", job.label)

    def _exhausted(self) -> CallError:
        reason = f"{self._stuck} worker threads run handlers that outlived their deadline and do not return"
        return CallError(ErrorCode.UNAVAILABLE, reason)

    def _grow(self) -> None:
        """Start a thread if a job is queued and the limit allows it. Call with the lock held."""
        if self._waiting < 0 and self._threads - self._stuck < self.max_workers:
            self._threads += 1
            self._waiting += 1
            threading.Thread(target=self._work, name="opwire-worker", daemon=True).start()

    def _work(self) -> None:
        while self._do_next():  # a separate function, so that an idle thread keeps no reference to its last job
            pass

    def _do_next(self) -> bool:
        try:
            job = self._jobs.get(timeout=IDLE)
        except Empty:
            with self._lock:
                ends = self._waiting > 0  # not if a job was queued for this thread meanwhile
                if ends:
                    self._waiting -= 1
                    self._threads -= 1
            return not ends
        with self._lock:
            job.running = not job.abandoned
        if not job.running:
            return self._goes_on(job)
        job.run()
        goes_on = self._goes_on(job)  # before the caller resumes, which may submit the next job at once
        job.settle()
        return goes_on

    def _goes_on(self, job: _Job) -> bool:
        """Count this thread as idle again; return False for a stuck thread that was replaced."""
        with self._lock:
            was_stuck = job.running and job.abandoned
            job.running = False
            if was_stuck:
                self._stuck -= 1
                if self._threads - self._stuck > self.max_workers:
                    self._threads -= 1
                    return False
            self._waiting += 1
            return True


class _FirstStep:
    """Takes the step that a new task schedules. Not a nested function, whose annotations take 2 µs for each call.

    Finalizers may run in the constructor of the task, and schedule something else, such as the end of a connection.
    """

    __slots__ = ("context", "schedule", "step")
    step: Callable[[], object]
    context: ContextVars | None

    def __init__(self, schedule: Callable[..., asyncio.Handle]) -> None:
        self.schedule = schedule
        self.context = None

    def __call__(
        self, callback: Callable[..., object], *arguments: Any, context: ContextVars | None = None
    ) -> asyncio.Handle | None:
        if arguments or self.context or not isinstance(getattr(callback, "__self__", None), asyncio.Task):
            return self.schedule(callback, *arguments, context=context)
        self.step, self.context = callback, context
        return None


def eager_task(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[T]:
    """Create a task, and execute its first step before this returns.

    A task factory of the event loop, which may instrument tasks, is used instead if there is one. Python 3.11 has no
    option for this. There, the step that the task passes to `call_soon` is executed instead of scheduled, with the task
    that is running now set aside, as later versions do.
    """
    if loop.get_task_factory() is not None:
        return loop.create_task(work)
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    own: dict[str, Any] | None = getattr(loop, "__dict__", None)
    if own is None or "call_soon" in own:  # not a loop of Python, or one that something else has changed
        return loop.create_task(work)
    first = own["call_soon"] = _FirstStep(loop.call_soon)  # instead of the method, only for the constructor
    try:
        task = asyncio.Task(work, loop=loop)
    finally:
        del own["call_soon"]
    running = asyncio.current_task(loop)
    if first.context is None:  # not a task of asyncio
        return task
    if running is None:
        first.context.run(first.step)
        return task
    asyncio.tasks._leave_task(loop, running)  # documented under "Extending asyncio", like the next
    try:
        first.context.run(first.step)
    finally:
        asyncio.tasks._enter_task(loop, running)
    return task


_starting: set[asyncio.AbstractEventLoop] = set()
"""Event loops in the first step of a handler: calls that it makes there start later, or they would grow the stack."""


def start_handler(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    """Create the task of a handler, and execute its first step at once, where that is allowed."""
    if loop in _starting:
        return loop.create_task(work)
    _starting.add(loop)
    try:
        return eager_task(work, loop)
    finally:
        _starting.discard(loop)


class PromptFuture(asyncio.Future[T]):
    """A future for one task, which continues within `settle` instead of in the next turn of the event loop.

    A turn takes about 10 µs between calls that come alone, a system call included. Any other outcome, such as a
    cancellation, takes the usual way.
    """

    _wake_up: Callable[..., object] | None = None
    _context: ContextVars | None = None

    def add_done_callback(self, fn: Callable[..., object], /, *, context: ContextVars | None = None) -> None:
        """Remember how the task continues, which is the only one that waits."""
        self._wake_up, self._context = fn, context
        super().add_done_callback(fn, context=context)

    def settle(self, result: T) -> None:
        """Set the result, and continue the task, unless this runs in another task."""
        wake_up, context = self._wake_up, self._context
        if wake_up is None or context is None or asyncio.current_task(self.get_loop()) is not None:
            self.set_result(result)
            return
        self.remove_done_callback(wake_up)
        self.set_result(result)
        context.run(wake_up, self)
