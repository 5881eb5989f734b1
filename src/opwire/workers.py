"""Threads for sync handlers: bounded in number, and a thread that never returns blocks neither others nor the exit.

The threads are daemons of our own, because the standard executor joins its threads at exit. A job whose caller has
given up while it runs is abandoned: its thread counts as stuck until it returns, and another takes its place.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import Context as ContextVars
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any

from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.workers")

IDLE = 30.0
"""Seconds after which a thread that got no job ends, so that a registry that is dropped leaves none behind."""


class _Job:
    """One call: made on the event loop, run on a thread, settled on the event loop."""

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
        except BaseException as raised:  # whatever it is, it belongs to the caller and not to this thread
            self.outcome = (None, raised)

    def settle(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop is closed: nobody waits any more
            logger.debug("%s ended after its event loop", self.label)

    def _settle(self) -> None:
        if not self.future.done():
            self.future.set_result(self.outcome)


class WorkerPool:
    """Runs blocking calls on at most `max_workers` threads, not counting those that are stuck."""

    def __init__(self, max_workers: int = 32) -> None:
        self.max_workers = max_workers
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0  # threads without a job; below zero: jobs without a thread
        self._stuck = 0

    @property
    def stuck(self) -> int:
        """How many threads run a call that nobody waits for any more."""
        return self._stuck

    async def run(self, call: Callable[[], Any], label: str) -> Any:
        """Run a call on a thread, with the caller's context variables.

        Raises:
            CallError: UNAVAILABLE, when as many threads are stuck as the pool may have.
        """
        job = _Job(call, label)
        self._submit(job)
        try:
            result, error = await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        if error is not None:
            raise error
        return result

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._stuck >= self.max_workers:
                raise self._exhausted()
            self._jobs.put(job)
            self._waiting -= 1
            self._grow()

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.abandoned = True
            if not job.running:
                return
            self._stuck += 1
            if self._stuck < self.max_workers:
                self._grow()
            elif self._stuck == self._threads:
                self._refuse_waiting()
        logger.warning("%s did not return in time: its thread is left to itself", job.label)

    def _exhausted(self) -> CallError:
        reason = f"{self._stuck} worker threads run handlers that outlived their deadline and do not return"
        return CallError(ErrorCode.UNAVAILABLE, reason)

    def _refuse_waiting(self) -> None:
        """End the jobs that no thread is left for. Call with the lock held."""
        while self._waiting < 0:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            self._waiting += 1
            job.outcome = (None, self._exhausted())
            job.settle()

    def _grow(self) -> None:
        """Start a thread if a job waits for one and the bound allows it. Call with the lock held."""
        if self._waiting < 0 and self._threads - self._stuck < self.max_workers:
            self._threads += 1
            self._waiting += 1
            threading.Thread(target=self._work, name="opwire-worker", daemon=True).start()

    def _work(self) -> None:
        while self._do_next():  # a function of its own, so that a thread that waits keeps no value of its last job
            pass

    def _do_next(self) -> bool:
        try:
            job = self._jobs.get(timeout=IDLE)
        except Empty:
            return not self._ends()
        with self._lock:
            job.running = not job.abandoned
        if not job.running:
            return self._goes_on(job)
        job.run()
        goes_on = self._goes_on(job)  # before its caller hears of it, who may have the next job at once
        job.settle()
        return goes_on

    def _ends(self) -> bool:
        """Whether a thread without a job may end: not if a job was submitted in the meantime, which counts on it."""
        with self._lock:
            if self._waiting <= 0:
                return False
            self._waiting -= 1
            self._threads -= 1
            return True

    def _goes_on(self, job: _Job) -> bool:
        """Count this thread as waiting again; one that was stuck ends if others have taken its place."""
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
