"""`DurableWorker`: claims the tasks of a journal, runs them out of a registry, and records their outcomes.

A claimed task has a lease, which is renewed while its handler runs: as long as its worker lives, a long job is not run
twice. A worker that cannot renew a lease cancels the handler before it expires, since another one may begin then.

A suspect, which lost its last attempt, runs with nothing else in flight (see `attempt`). Afterwards the worker prefers
other tasks for as long as that took: suspects cost others half of the time, at most.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Self

from msgspec import Struct

from opwire.durable.attempt import MAX_DELAY, AttemptPolicy, Retry, TaskRunner, too_large
from opwire.durable.isolation import Isolation, isolation_of_loop, quiet_time
from opwire.durable.journal import MAX_SECONDS, Claim, Journal, Outcome, check_seconds, seconds_within
from opwire.errors import CallError, ErrorCode, UsageError, check_counts
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import OperationType
from opwire.registry import OperationRegistry
from opwire.registry.invoke import FAILURES
from opwire.runtime.deadlines import back_off as growing_delay
from opwire.runtime.tasks import AsyncResource
from opwire.runtime.text import get_logger

logger = get_logger("opwire.durable")

_WAIT = 0.5  # seconds for which a claim waits for a task; draining and closing may take as long
_FIRST_PAUSE = 0.1  # seconds before a request to a journal is retried, at first
_MAX_PAUSE = 5.0  # and at most
_TRIES = 8  # of a request for which a journal raises what it should not; they take about 7 s


class _RunningTask(Struct, eq=False):
    """A claimed task."""

    claim: Claim
    renewed: float  # when its lease began
    renewing: asyncio.Lock | None = None  # so that the last renewal says whether it is alone; few tasks need one
    task: asyncio.Task[None] | None = None
    running: bool = False  # its handler runs, or waits for its turn
    stopped: bool = False
    alone: bool = False  # nothing else is running
    isolated: float | None = None  # when it began to wait for being alone; None once others may begin beside it
    opening: asyncio.Task[None] | None = None  # lets others begin beside it

    def stop(self, reason: str) -> None:
        """Cancel the handler once, and not what follows it: an outcome that exists is recorded."""
        if self.task is not None and self.running and not self.stopped:
            self.stopped = True
            self.task.cancel(reason)


class DurableWorker(AsyncResource):
    """Serves the mutations of a registry to durable calls.

        async with RedisJournal(url) as journal, DurableWorker(registry, journal) as worker:
            ...
            await worker.drain()

    `operations` are the ids that it claims, by default every mutation of the registry, while it changes. `concurrency`
    bounds the running tasks; a claim expires `lease` seconds after its last renewal. A task that failed with a
    retryable error is retried after `back_off` seconds, doubled each time up to `max_back_off`, or after the error's
    `retry_after`, at most a day. After `max_attempts` failures it becomes a dead letter. A task that lost its worker is
    run with nothing else in flight; it becomes a dead letter after as many deaths, if it ran alone in all but the
    first.

    `anonymous` is the identity of callers without one, by default `LOCAL_IDENTITY`; and of all callers, if the journal
    cannot tell them apart.

    Raises:
        UsageError: an operation is not a mutation of the registry, or a number is invalid.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        journal: Journal,
        *,
        operations: Iterable[str] | None = None,
        concurrency: int = 16,
        lease: float = 30.0,
        max_attempts: int = 5,
        back_off: float = 1.0,
        max_back_off: float = 300.0,
        anonymous: Identity | None = None,
    ) -> None:
        check_counts(concurrency=concurrency, max_attempts=max_attempts)
        if not (back_off >= 0 and max_back_off >= 0):
            raise UsageError("back_off and max_back_off are numbers of seconds from zero on")
        self._registry = registry
        self._journal = journal
        self._anonymous = LOCAL_IDENTITY if anonymous is None and journal.trusted else anonymous
        self._wanted = None if operations is None else tuple(dict.fromkeys(operations))
        unknown = set(self._wanted or ()).difference(self._served())
        if unknown:
            raise UsageError(f"only mutations of the registry can be durable, not {', '.join(sorted(unknown))}")
        self._serves: list[str] = []  # operations, as of this number of changes of the registry
        self._serves_since = -1
        self._concurrency = concurrency
        self._lease = check_seconds("lease", lease)
        self._policy = AttemptPolicy(
            max_attempts=max_attempts,
            back_off=seconds_within(back_off, MAX_DELAY),
            max_back_off=seconds_within(max_back_off, MAX_DELAY),
        )
        self._runner = TaskRunner(registry, self._policy, anonymous=self._anonymous, trusted=journal.trusted)
        self._running: set[_RunningTask] = set()
        self._changed = asyncio.Event()  # a task has ended, or the worker stops claiming
        self._isolation = Isolation()  # until it is started
        self._prefer_others = -inf  # the time until which suspects are claimed only if there is nothing else
        self._draining = False
        self._closing = False
        self._claiming: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<DurableWorker of {self._registry!r} in {self._journal!r}, {len(self)} running>"

    async def start(self) -> Self:
        """Start to claim tasks. The journal has to be started before.

        Raises:
            UsageError: callers of the journal are anonymous, and an operation is not public.
        """
        if not self._journal.trusted and self._anonymous is None:
            # Otherwise every task would be recorded as rejected.
            specs = map(self._registry.get_spec, self._served())
            closed = [spec.id for spec in specs if spec is not None and not (spec.access and spec.access.public)]
            if closed:
                message = f"{self._journal.name} does not authenticate callers, and these operations are not public"
                help = "pass anonymous=, the identity of its callers, or operations="
                raise UsageError(f"{message}: {', '.join(closed[:3])}; {help}")
        self._draining = self._closing = False
        self._isolation = isolation_of_loop()
        self._isolation.changed.add(self._changed)
        create = asyncio.get_running_loop().create_task
        self._claiming = create(self._claim_tasks())
        self._renewing = create(self._renew_leases())
        return self

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._running)

    async def drain(self, timeout: float = 30.0) -> bool:
        """Stop claiming, and finish the running tasks. Return False if some did not end within `timeout` seconds."""
        done = await self._finish(timeout)
        if not done:
            logger.warning("%d tasks were not finished after %g s of draining", len(self._running), timeout)
        return done

    async def close(self, *, grace: float = 5.0) -> None:
        """Stop claiming, cancel the running tasks and release them: another worker can claim them at once."""
        self._closing = True
        for running in self._running:
            running.stop("the worker is closing")
        if not await self._finish(grace):
            logger.warning("%d tasks are left behind until their leases expire", len(self._running))
        loops = [task for task in (self._claiming, self._renewing) if task is not None]
        for task in (*loops, *(running.task for running in self._running)):
            if task is not None:
                task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        self._isolation.changed.discard(self._changed)

    async def _finish(self, timeout: float) -> bool:
        """Stop claiming, and wait until no task is running."""
        self._draining = True
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_within(timeout, MAX_SECONDS)):
                await self._end_of_claiming()
                while self._running:
                    self._changed.clear()
                    await self._changed.wait()
        return not self._running

    async def _end_of_claiming(self) -> None:
        if self._claiming is not None:
            await asyncio.wait([self._claiming])

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def _claim_tasks(self) -> None:
        failures = 0
        while not self._draining:
            room = self._concurrency - len(self._running)
            if room <= 0 or self._isolation.closed:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                claims = await self._claim(room)
                failures = 0
            except FAILURES as error:  # any exception of a journal: a worker would stop claiming silently
                failures += 1
                await _pause(failures, f"claiming tasks from {self._journal.name} failed", error)
                continue
            for claim in claims:
                self._begin(claim)
            await asyncio.sleep(0)  # a journal in memory may have more, and does not suspend

    def _begin(self, claim: Claim) -> None:
        running = _RunningTask(claim, time.monotonic())
        self._running.add(running)
        running.task = asyncio.get_running_loop().create_task(self._serve(running))
        running.task.add_done_callback(partial(self._ended, running))

    async def _claim(self, room: int) -> list[Claim]:
        if self._serves_since != self._registry.changes:
            self._serves, self._serves_since = self._served(), self._registry.changes
        operations = self._serves
        if not operations:
            await asyncio.sleep(_WAIT)
            return []
        if time.monotonic() < self._prefer_others:
            claims = await self._journal.claim(operations, lease=self._lease, wait=0, limit=room, suspects=False)
            if claims:
                return claims
        return await self._journal.claim(operations, lease=self._lease, wait=_WAIT, limit=room)

    def _served(self) -> list[str]:
        registry = self._registry
        known = (
            registry.list(type=OperationType.MUTATION) if self._wanted is None else map(registry.get_spec, self._wanted)
        )
        return [
            spec.id
            for spec in known
            if spec is not None and spec.type is OperationType.MUTATION and registry.get_handler(spec.id) is not None
        ]

    def _ended(self, running: _RunningTask, task: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._isolation.leave(running)  # sets `_changed`
        if running.opening is not None:
            running.opening.cancel()
        self._open(running)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not (task.cancelled() and self._closing):
            name, key = running.claim.task.operation_id, running.claim.task.key
            logger.error("%s with the key %r is retried when its lease expires", name, key, exc_info=error)

    # --- running ------------------------------------------------------------------------------------------------------

    async def _serve(self, running: _RunningTask) -> None:
        """Run a task, and store the result of this attempt; there is none if it was stopped."""
        result = await self._run(running)
        claim, name = running.claim, running.claim.task.operation_id
        try:
            match result:
                case Outcome():
                    try:
                        await self._insist(name, lambda: self._journal.record(claim, result))
                    except CallError as error:
                        if error.code is not ErrorCode.PAYLOAD_TOO_LARGE:
                            raise
                        instead = too_large(claim, result, error)  # a retry would lead to the same outcome
                        await self._insist(name, lambda: self._journal.record(claim, instead))
                case Retry():
                    logger.info("%s is retried in %.3g s: %s", name, result.delay, result.error)
                    await self._insist(name, lambda: self._journal.release(claim, result.delay, failed=result.failed))
                case None if self._closing:
                    await self._end_of_claiming()  # or this worker would claim it again
                    await self._journal.release(claim, 0)
                case None:
                    logger.warning("%s was cancelled: its lease is lost", name)
                    # Unless another worker has claimed it: this one lives, so that the attempt is not a loss.
                    await self._insist(name, lambda: self._journal.release(claim, 0))
        except FAILURES as error:
            _raise_cancellation(error)
            if self._closing:
                raise
            # The journal rejects the result. If it continues to, the task ends after the usual number of failures.
            delay = self._policy.delay(claim.attempt)
            logger.exception("%s with the key %r has no outcome, and is retried", name, claim.task.key)
            await self._insist(name, lambda: self._journal.release(claim, delay, failed=True))

    async def _run(self, running: _RunningTask) -> Outcome | Retry | None:
        """Return the result of an attempt; None if it was stopped."""
        if self._closing:
            return None
        running.running = True
        try:
            if running.claim.suspect and not self._runner.given_up(running.claim):
                # Wait until the suspect can run, alone if possible, and keep other tasks from beginning.
                quiet, running.isolated = quiet_time(running.claim.losses), time.monotonic()
                running.alone = await self._isolation.enter_alone(running, quiet)
                if running.alone:
                    await self._renew(running)
                    await asyncio.sleep(0)  # if the lease was lost, the cancellation arrives here, before the handler
                running.opening = asyncio.get_running_loop().create_task(self._open_after(running, quiet))
            else:
                await self._isolation.enter(running)
            return await self._runner.run(running.claim)
        except asyncio.CancelledError:
            if running.stopped and running.task is not None and running.task.uncancel() == 0:
                return None
            raise
        finally:
            running.running = False

    async def _open_after(self, running: _RunningTask, quiet: float) -> None:
        """Let others begin beside a suspect that has run for the quiet time."""
        await asyncio.sleep(quiet)
        running.alone = False
        # From now on others may kill its worker: the journal has to know before they begin, or the lease is over.
        while not await self._renew(running):
            if time.monotonic() > running.renewed + self._lease:
                break
            await asyncio.sleep(growing_delay(1, first=_FIRST_PAUSE, longest=_MAX_PAUSE))
        self._open(running)

    def _open(self, running: _RunningTask) -> None:
        if running.isolated is not None:
            now = time.monotonic()
            self._prefer_others, running.isolated = now + (now - running.isolated), None
            self._isolation.open(running)

    async def _insist(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        """Store the result of an attempt, retrying while the journal is unavailable: the work is done.

        Raise what the journal rejects for good, and any other exception that it raises repeatedly.
        """
        failures = 0
        while True:
            try:
                await act()
                return
            except FAILURES as error:
                _raise_cancellation(error)
                failures += 1
                if not error.retryable if isinstance(error, CallError) else failures == _TRIES:
                    raise
                await _pause(failures, f"recording the result of {name} failed", error)

    # --- leases -------------------------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        while True:
            next_beat = time.monotonic() + self._lease / 3
            await asyncio.gather(*(self._renew(running) for running in self._running))
            await asyncio.sleep(max(0.0, next_beat - time.monotonic()))

    async def _renew(self, running: _RunningTask) -> bool:
        """Renew a lease, or cancel the handler. Return whether the journal has renewed it."""
        requested, lock = time.monotonic(), running.renewing or asyncio.Lock()
        running.renewing = lock
        try:
            async with asyncio.timeout(self._lease / 3), lock:
                renewed = kept = await self._journal.renew(running.claim, alone=running.alone)
        except FAILURES as error:  # any exception of a journal: every lease would be lost
            _raise_cancellation(error)
            logger.debug("the lease of %s was not renewed: %s", running.claim.task.operation_id, error)
            # Unless the next beat comes in time, another worker may own the task before this one notices.
            renewed, kept = False, time.monotonic() + self._lease / 3 < running.renewed + self._lease
        else:
            running.renewed = requested
        if not kept:
            running.stop("the lease was lost")
        return renewed


def _raise_cancellation(error: BaseException) -> None:
    """Raise a CancelledError of this task again, but not one that leaked out of a journal."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


async def _pause(failures: int, what: str, error: BaseException) -> None:
    """Wait before a request to a journal is retried. Log the first failure as a warning, the others for debugging."""
    _raise_cancellation(error)
    level = logging.WARNING if failures == 1 else logging.DEBUG
    logger.log(level, "%s and is retried: %s", what, error, exc_info=not isinstance(error, CallError))
    await asyncio.sleep(growing_delay(failures, first=_FIRST_PAUSE, longest=_MAX_PAUSE))
