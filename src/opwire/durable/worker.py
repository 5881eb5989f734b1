"""`DurableWorker`: claims the tasks of a journal, runs them out of a registry, and records their outcomes.

A claimed task has a lease, which is renewed while its handler runs: as long as its worker lives, a long job is not run
twice. A worker that cannot renew a lease cancels the handler before it expires, since another one may begin then.

A suspect, which lost its last attempt, runs with nothing else in flight (see `isolation`). Afterwards the worker
prefers other tasks for as long as that took: suspects cost others half of the time, at most.
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

from opwire.durable.attempt import MAX_DELAY_SECONDS, AttemptPolicy, Retry, TaskRunner, too_large
from opwire.durable.isolation import Isolation, isolation_of_loop, quiet_time
from opwire.durable.journal import MAX_SECONDS, Claim, Journal, Outcome, check_seconds, seconds_within
from opwire.errors import CallError, ErrorCode, UsageError, check_counts
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import OperationType
from opwire.registry import OperationRegistry
from opwire.registry.invoke import FAILURES
from opwire.runtime.deadlines import back_off as growing_delay
from opwire.runtime.tasks import AsyncResource, cancel_tasks
from opwire.runtime.text import get_logger

logger = get_logger("opwire.durable")

_CLAIM_WAIT_SECONDS = 0.5  # draining and closing may take as long
_FIRST_RETRY_DELAY_SECONDS = 0.1
_MAX_RETRY_DELAY_SECONDS = 5.0
_MAX_UNEXPECTED_ERRORS = 8  # they take about 7 s


class _Attempt(Struct, eq=False):
    """A claimed task that this worker runs."""

    claim: Claim
    renewed_at: float  # when its lease began
    renewal_lock: asyncio.Lock | None = None  # so that the last renewal says whether it is alone; few tasks need one
    task: asyncio.Task[None] | None = None
    is_running: bool = False  # its handler runs, or waits for its turn
    is_stopped: bool = False
    is_alone: bool = False  # nothing else is running
    isolated_since: float | None = None  # None once others may begin beside it
    opening: asyncio.Task[None] | None = None  # lets others begin beside it

    @property
    def operation_id(self) -> str:
        return self.claim.task.operation_id

    def stop(self, reason: str) -> None:
        """Cancel the handler once, and not what follows it: an outcome that exists is recorded."""
        if self.task is not None and self.is_running and not self.is_stopped:
            self.is_stopped = True
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
        self._selected = None if operations is None else tuple(dict.fromkeys(operations))
        unknown_ids = set(self._selected or ()).difference(self._served_operations())
        if unknown_ids:
            raise UsageError(f"only mutations of the registry can be durable, not {', '.join(sorted(unknown_ids))}")
        self._operations: list[str] = []  # that it serves, as of this number of changes of the registry
        self._operations_version = -1
        self._concurrency = concurrency
        self._lease = check_seconds("lease", lease)
        self._policy = AttemptPolicy(
            max_attempts=max_attempts,
            back_off=seconds_within(back_off, MAX_DELAY_SECONDS),
            max_back_off=seconds_within(max_back_off, MAX_DELAY_SECONDS),
        )
        self._runner = TaskRunner(registry, self._policy, anonymous=self._anonymous, trusted=journal.trusted)
        self._attempts: set[_Attempt] = set()
        self._changed = asyncio.Event()  # a task has ended, or the worker stops claiming
        self._isolation = Isolation()  # until it is started
        self._others_first_until = -inf  # until then, suspects are claimed only if there is nothing else
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
            specs = map(self._registry.get_spec, self._served_operations())
            closed_ids = [spec.id for spec in specs if spec is not None and not (spec.access and spec.access.public)]
            if closed_ids:
                message = f"{self._journal.name} does not authenticate callers, and these operations are not public"
                help = "pass anonymous=, the identity of its callers, or operations="
                raise UsageError(f"{message}: {', '.join(closed_ids[:3])}; {help}")
        self._draining = self._closing = False
        self._isolation = isolation_of_loop()
        self._isolation.changed.add(self._changed)
        loop = asyncio.get_running_loop()
        self._claiming = loop.create_task(self._claim_tasks())
        self._renewing = loop.create_task(self._renew_leases())
        return self

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._attempts)

    async def drain(self, timeout: float = 30.0) -> bool:
        """Stop claiming, and finish the running tasks. Return False if some did not end within `timeout` seconds."""
        done = await self._finish(timeout)
        if not done:
            logger.warning("%d tasks were not finished after %g s of draining", len(self), timeout)
        return done

    async def close(self, *, grace: float = 5.0) -> None:
        """Stop claiming, cancel the running tasks and release them: another worker can claim them at once."""
        self._closing = True
        for attempt in self._attempts:
            attempt.stop("the worker is closing")
        if not await self._finish(grace):
            logger.warning("%d tasks are left behind until their leases expire", len(self))
        for attempt in self._attempts:
            if attempt.task is not None:
                attempt.task.cancel()
        await cancel_tasks(self._claiming, self._renewing)
        self._isolation.changed.discard(self._changed)

    async def _finish(self, timeout: float) -> bool:
        """Stop claiming, and wait until no task is running."""
        self._draining = True
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_within(timeout, MAX_SECONDS)):
                await self._end_of_claiming()
                while self._attempts:
                    self._changed.clear()
                    await self._changed.wait()
        return not self._attempts

    async def _end_of_claiming(self) -> None:
        if self._claiming is not None:
            await asyncio.wait([self._claiming])

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def _claim_tasks(self) -> None:
        failures = 0
        while not self._draining:
            room = self._concurrency - len(self._attempts)
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

    async def _claim(self, room: int) -> list[Claim]:
        if self._operations_version != self._registry.changes:
            self._operations = self._served_operations()
            self._operations_version = self._registry.changes
        operations = self._operations
        if not operations:
            await asyncio.sleep(_CLAIM_WAIT_SECONDS)
            return []
        if time.monotonic() < self._others_first_until:
            claims = await self._journal.claim(operations, lease=self._lease, wait=0, limit=room, suspects=False)
            if claims:
                return claims
        return await self._journal.claim(operations, lease=self._lease, wait=_CLAIM_WAIT_SECONDS, limit=room)

    def _served_operations(self) -> list[str]:
        registry = self._registry
        if self._selected is None:
            specs = registry.list(type=OperationType.MUTATION)
        else:
            specs = map(registry.get_spec, self._selected)
        return [
            spec.id
            for spec in specs
            if spec is not None and spec.type is OperationType.MUTATION and registry.get_handler(spec.id) is not None
        ]

    def _begin(self, claim: Claim) -> None:
        attempt = _Attempt(claim, time.monotonic())
        self._attempts.add(attempt)
        attempt.task = asyncio.get_running_loop().create_task(self._serve(attempt))
        attempt.task.add_done_callback(partial(self._ended, attempt))

    def _ended(self, attempt: _Attempt, task: asyncio.Task[None]) -> None:
        self._attempts.discard(attempt)
        self._isolation.leave(attempt)  # sets `_changed`
        if attempt.opening is not None:
            attempt.opening.cancel()
        self._end_isolation(attempt)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not (task.cancelled() and self._closing):
            key = attempt.claim.task.key
            message = "%s with the key %r is retried when its lease expires"
            logger.error(message, attempt.operation_id, key, exc_info=error)

    # --- running ------------------------------------------------------------------------------------------------------

    async def _serve(self, attempt: _Attempt) -> None:
        result = await self._run(attempt)
        claim = attempt.claim
        try:
            await self._store(claim, result)
        except FAILURES as error:
            _raise_cancellation(error)
            if self._closing:
                raise
            # The journal rejects the result. If it continues to, the task ends after the usual number of failures.
            logger.exception("%s with the key %r has no outcome, and is retried", attempt.operation_id, claim.task.key)
            await self._release(claim, self._policy.delay(claim.attempt), failed=True)

    async def _run(self, attempt: _Attempt) -> Outcome | Retry | None:
        """Return the result of an attempt; None if it was stopped."""
        if self._closing:
            return None
        attempt.is_running = True
        try:
            if attempt.claim.suspect and not self._runner.given_up(attempt.claim):
                await self._isolate(attempt)
            else:
                await self._isolation.enter(attempt)
            return await self._runner.run(attempt.claim)
        except asyncio.CancelledError:
            if attempt.is_stopped and attempt.task is not None and attempt.task.uncancel() == 0:
                return None
            raise
        finally:
            attempt.is_running = False

    async def _store(self, claim: Claim, result: Outcome | Retry | None) -> None:
        """Store the result of an attempt; None: it was stopped."""
        operation_id = claim.task.operation_id
        match result:
            case Outcome():
                try:
                    await self._record(claim, result)
                except CallError as error:
                    if error.code is not ErrorCode.PAYLOAD_TOO_LARGE:
                        raise
                    await self._record(claim, too_large(claim, result, error))  # a retry would lead to the same outcome
            case Retry():
                logger.info("%s is retried in %.3g s: %s", operation_id, result.delay, result.error)
                await self._release(claim, result.delay, failed=result.failed)
            case None if self._closing:
                await self._end_of_claiming()  # or this worker would claim it again
                await self._journal.release(claim, 0)
            case None:
                logger.warning("%s was cancelled: its lease is lost", operation_id)
                # Unless another worker has claimed it: this one lives, so that the attempt is not a loss.
                await self._release(claim, 0)

    async def _record(self, claim: Claim, outcome: Outcome) -> None:
        await self._insist(claim, partial(self._journal.record, claim, outcome))

    async def _release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        await self._insist(claim, partial(self._journal.release, claim, delay, failed=failed))

    async def _insist(self, claim: Claim, request: Callable[[], Awaitable[object]]) -> None:
        """Repeat a request while the journal is unavailable: the work is done.

        Raise what the journal rejects for good, and any other exception that it raises repeatedly.
        """
        failures = 0
        while True:
            try:
                await request()
                return
            except FAILURES as error:
                _raise_cancellation(error)
                failures += 1
                is_expected = isinstance(error, CallError)
                if not (error.retryable if is_expected else failures < _MAX_UNEXPECTED_ERRORS):
                    raise
                await _pause(failures, f"recording the result of {claim.task.operation_id} failed", error)

    # --- suspects -----------------------------------------------------------------------------------------------------

    async def _isolate(self, attempt: _Attempt) -> None:
        """Wait until a suspect can run, alone if possible, and keep other tasks from beginning."""
        quiet = quiet_time(attempt.claim.losses)
        attempt.isolated_since = time.monotonic()
        attempt.is_alone = await self._isolation.enter_alone(attempt, quiet)
        if attempt.is_alone:
            await self._renew(attempt)
            await asyncio.sleep(0)  # if the lease was lost, the cancellation arrives here, before the handler
        attempt.opening = asyncio.get_running_loop().create_task(self._end_isolation_after(attempt, quiet))

    async def _end_isolation_after(self, attempt: _Attempt, quiet: float) -> None:
        """Let others begin beside a suspect that has run for the quiet time."""
        await asyncio.sleep(quiet)
        attempt.is_alone = False
        # From now on others may kill its worker: the journal has to know before they begin, or the lease is over.
        while not await self._renew(attempt):
            if time.monotonic() > attempt.renewed_at + self._lease:
                break
            await asyncio.sleep(growing_delay(1, first=_FIRST_RETRY_DELAY_SECONDS, longest=_MAX_RETRY_DELAY_SECONDS))
        self._end_isolation(attempt)

    def _end_isolation(self, attempt: _Attempt) -> None:
        if attempt.isolated_since is None:
            return
        now = time.monotonic()
        self._others_first_until = now + (now - attempt.isolated_since)
        attempt.isolated_since = None
        self._isolation.open(attempt)

    # --- leases -------------------------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        while True:
            next_beat = time.monotonic() + self._lease / 3
            await asyncio.gather(*map(self._renew, self._attempts))
            await asyncio.sleep(max(0.0, next_beat - time.monotonic()))

    async def _renew(self, attempt: _Attempt) -> bool:
        """Renew a lease, or cancel the handler. Return whether the journal has renewed it."""
        requested_at = time.monotonic()
        attempt.renewal_lock = attempt.renewal_lock or asyncio.Lock()
        try:
            async with asyncio.timeout(self._lease / 3), attempt.renewal_lock:
                renewed = await self._journal.renew(attempt.claim, alone=attempt.is_alone)
            attempt.renewed_at = requested_at
            is_lost = not renewed
        except FAILURES as error:  # any exception of a journal: every lease would be lost
            _raise_cancellation(error)
            logger.debug("the lease of %s was not renewed: %s", attempt.operation_id, error)
            renewed = False
            # Unless the next beat comes in time, another worker may own the task before this one notices.
            is_lost = time.monotonic() + self._lease / 3 >= attempt.renewed_at + self._lease
        if is_lost:
            attempt.stop("the lease was lost")
        return renewed


def _raise_cancellation(error: BaseException) -> None:
    """Raise a CancelledError of this task again, but not one that leaked out of a journal."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


async def _pause(failures: int, problem: str, error: BaseException) -> None:
    """Wait before a request to a journal is retried. Log the first failure as a warning, the others for debugging."""
    _raise_cancellation(error)
    level = logging.WARNING if failures == 1 else logging.DEBUG
    logger.log(level, "%s and is retried: %s", problem, error, exc_info=not isinstance(error, CallError))
    await asyncio.sleep(growing_delay(failures, first=_FIRST_RETRY_DELAY_SECONDS, longest=_MAX_RETRY_DELAY_SECONDS))
