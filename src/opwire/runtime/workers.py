"""A bounded thread pool for sync handlers, in which a call that never returns blocks neither other calls nor the exit.

The threads are daemons, because the executor of the standard library joins its threads at exit. If its caller is
cancelled, a running job is abandoned: its thread counts as stuck until it returns, and another thread replaces it.
A caller with `max_workers` stuck threads gets no others: it may have set a short deadline on purpose.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from contextvars import Context as ContextVars
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from opwire.errors import CallError, ErrorCode
from opwire.runtime.bounded import Tally
from opwire.runtime.tasks import resolve
from opwire.runtime.text import get_logger

logger = get_logger("opwire.runtime")

T = TypeVar("T")

IDLE = 30.0
"""Seconds after which a thread that got no job ends, so that a registry that is dropped leaves none behind."""


MAX_STUCK = 4
"""How many times `max_workers` threads may be stuck in all, before every call is rejected."""


class _Job:
    """One call: created on the event loop, run on a thread, resolved on the event loop."""

    def __init__(self, call: Callable[[], Any], label: str, caller: str | None) -> None:
        self.call = call
        self.label = label
        self.caller = caller
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
            self.loop.call_soon_threadsafe(resolve, self.future, self.outcome)
        except RuntimeError:  # the loop is closed, and with it the caller
            logger.debug("%s ended after its event loop", self.label)


class WorkerPool:
    """Runs blocking calls on at most `max_workers` threads, stuck ones excluded."""

    def __init__(self, max_workers: int = 32) -> None:
        self.max_workers = max_workers
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0  # idle threads; below zero: queued jobs
        self.stuck = 0
        """The number of threads that run an abandoned call."""
        self._stuck_of: Tally[str | None] = Tally()  # by caller

    async def run(self, call: Callable[[], Any], label: str, caller: str | None = None) -> Any:
        """Run a call on a thread, with the caller's context variables. `caller` is a remote one; None: this process.

        Raises:
            CallError: UNAVAILABLE, if `max_workers` threads are stuck in calls of this caller, or far more in all.
        """
        job = _Job(call, label, caller)
        if self._process != os.getpid():  # forked: the threads that are counted do not exist here
            self._reset()
        with self._lock:
            if self._is_exhausted(caller):
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
            self.stuck += 1
            self._stuck_of[job.caller] += 1
            if self.stuck < MAX_STUCK * self.max_workers:
                self._grow()
            elif self.stuck == self._threads:  # every thread is: fail the queued jobs
                while self._waiting < 0:
                    try:
                        queued = self._jobs.get_nowait()
                    except Empty:
                        break
                    self._waiting += 1
                    queued.outcome = (None, self._exhausted())
                    queued.settle()
        logger.warning("%s did not return in time: its thread is left to itself", job.label)

    def _is_exhausted(self, caller: str | None) -> bool:
        return self._stuck_of[caller] >= self.max_workers or self.stuck >= MAX_STUCK * self.max_workers

    def _exhausted(self) -> CallError:
        reason = f"{self.stuck} worker threads run handlers that outlived their deadline and do not return"
        return CallError(ErrorCode.UNAVAILABLE, reason)

    def _grow(self) -> None:
        """Start a thread if a job is queued and the limit allows it. Call with the lock held."""
        if self._waiting < 0 and self._threads - self.stuck < self.max_workers:
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
            is_rejected = not job.abandoned and self._is_exhausted(job.caller)  # since it was queued
            job.running = not (job.abandoned or is_rejected)
        if is_rejected:
            job.outcome = (None, self._exhausted())
            job.settle()
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
                self.stuck -= 1
                self._stuck_of.subtract(job.caller)
                if self._threads - self.stuck > self.max_workers:
                    self._threads -= 1
                    return False
            self._waiting += 1
            return True
