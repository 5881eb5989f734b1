"""`DurableWorker`: claims the tasks of a journal, runs them out of a registry, and records what came of them.

A task in hand is a lease, which is renewed while its handler runs: as long as its worker lives, a long job is not run
twice. A worker that cannot renew a lease stops the handler before the lease is over, since then another one may begin.

A suspect, whose last attempt was lost, is run with nothing else in hand, as `isolation` says. Afterwards the worker
takes other tasks for as long as that took, if there are any: suspects cost others half of the time, at most.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from math import inf
from typing import Self

from msgspec import Struct, field

from opwire.call import LOCAL_IDENTITY
from opwire.durable.attempt import (
    MAX_DELAY,
    Again,
    Attempts,
    Isolation,
    Patience,
    isolation_here,
    quiet_time,
    too_large,
)
from opwire.durable.journal import MAX_SECONDS, Claim, Journal, Outcome, check_seconds, seconds_within
from opwire.errors import CallError, ErrorCode
from opwire.invoke import FAILURES
from opwire.operation import Identity, OperationType
from opwire.registry import OperationRegistry

logger = logging.getLogger("opwire.durable")

_WAIT = 0.5  # seconds for which a claim waits for a task; draining and closing may take as long
_PAUSE = 5.0  # seconds, at most, between two attempts to reach a journal
_TRIES = 8  # how often a journal is told something that makes it raise what it should not; this takes about 7 s


class _Held(Struct, eq=False):
    """A task in hand."""

    claim: Claim
    renewed: float  # when its lease began
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)  # so that the last renewal says whether it is alone
    task: asyncio.Task[None] | None = None
    running: bool = False  # its handler, that is, or it waits for its turn
    stopped: bool = False
    alone: bool = False  # nothing else is in hand
    isolated: float | None = None  # when it began to wait for being alone, until others may begin beside it
    opening: asyncio.Task[None] | None = None  # lets others begin beside it

    def stop(self, reason: str) -> None:
        """Cancel the handler, but not again, and not what comes after it: an outcome that is there is recorded."""
        if self.task is not None and self.running and not self.stopped:
            self.stopped = True
            self.task.cancel(reason)


class DurableWorker:
    """Serves the mutations of a registry to durable calls.

        async with RedisJournal(url) as journal, DurableWorker(registry, journal) as worker:
            ...
            await worker.drain()

    `operations` are those that it claims, by default every mutation that the registry has, while it changes.
    `concurrency` bounds the tasks in hand; `lease` is for how many seconds each is its own without a sign of life. What
    failed and can be retried is tried again after `back_off` seconds, then twice as long each time up to
    `max_back_off`, or when the error says, but within a day. It is buried after `max_attempts` failures. A task that
    was in hand when its worker died is run with nothing else in hand; it is buried after as many deaths, if it was
    alone in all but the first. `identity` is whom callers count as: all of them, if the journal cannot tell who has
    submitted a task; otherwise those who state none, and these are by default `LOCAL_IDENTITY`.

    Raises:
        CallError: VALIDATION_ERROR, if an operation is not a mutation of the registry, or a number makes no sense.
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
        identity: Identity | None = None,
    ) -> None:
        if not (concurrency >= 1 and max_attempts >= 1 and back_off >= 0 and max_back_off >= 0):
            wrong = "concurrency and max_attempts are at least 1, and back_off and max_back_off are not negative"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        self._registry = registry
        self._journal = journal
        self._identity = LOCAL_IDENTITY if identity is None and journal.trusted else identity
        self._wanted = None if operations is None else tuple(dict.fromkeys(operations))
        self._check_wanted()
        self._concurrency = concurrency
        self._lease = check_seconds("the lease", lease)
        self._patience = Patience(
            max_attempts=max_attempts,
            back_off=seconds_within(back_off, MAX_DELAY),
            max_back_off=seconds_within(max_back_off, MAX_DELAY),
        )
        self._attempts = Attempts(registry, self._patience, identity=self._identity, trusted=journal.trusted)
        self._held: set[_Held] = set()
        self._news = asyncio.Event()  # a task has left our hands, or the worker is to take no more
        self._isolation = Isolation()  # until it is started
        self._rest = -inf  # until when suspects are taken only if there is nothing else
        self._draining = False
        self._closing = False
        self._claiming: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    def _check_wanted(self) -> None:
        strangers = set(self._wanted or ()).difference(self._served())
        if strangers:
            wrong = f"only mutations of the registry can be durable, and not {', '.join(sorted(strangers))}"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)

    async def start(self) -> Self:
        """Claim tasks from now on. The journal has been started.

        Raises:
            CallError: VALIDATION_ERROR, if there are operations that nobody could call.
        """
        self._check_access()
        self._draining = self._closing = False
        self._isolation = isolation_here()
        self._isolation.news.add(self._news)
        create = asyncio.get_running_loop().create_task
        self._claiming = create(self._claim_tasks())
        self._renewing = create(self._renew_leases())
        return self

    def _check_access(self) -> None:
        """Without this, a worker that was not told who calls would record for each task that it was refused."""
        if self._journal.trusted or self._identity is not None:
            return
        specs = map(self._registry.get_spec, self._served())
        closed = [spec.id for spec in specs if spec is not None and not (spec.access and spec.access.public)]
        if closed:
            wrong = f"{self._journal.name} cannot tell who calls {', '.join(closed[:3])}, which not everybody may call"
            help = "give the worker an identity, or name other operations"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{wrong}: {help}")

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __len__(self) -> int:
        """How many tasks are in hand."""
        return len(self._held)

    async def drain(self, timeout: float = 30.0) -> bool:
        """Claim no more tasks, and let those in hand finish, in so many seconds; False if some did not."""
        done = await self._finish(timeout)
        if not done:
            logger.warning("%d tasks were not finished after %g s of draining", len(self._held), timeout)
        return done

    async def close(self, *, grace: float = 5.0) -> None:
        """Claim no more tasks, stop those in hand and give them back: another worker can have them at once."""
        self._closing = True
        for held in self._held:
            held.stop("the worker is closing")
        if not await self._finish(grace):
            logger.warning("%d tasks are left behind; they come back when their leases run out", len(self._held))
        loops = [task for task in (self._claiming, self._renewing) if task is not None]
        for task in (*loops, *(held.task for held in self._held)):
            if task is not None:
                task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        self._isolation.news.discard(self._news)

    async def _finish(self, timeout: float) -> bool:
        """Claim no more, and wait until nothing is in hand."""
        self._draining = True
        self._news.set()
        try:
            async with asyncio.timeout(seconds_within(timeout, MAX_SECONDS)):
                await self._end_of_claiming()
                while self._held:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        return not self._held

    async def _end_of_claiming(self) -> None:
        if self._claiming is not None:
            await asyncio.wait([self._claiming])

    # --- claiming -----------------------------------------------------------------------------------------------------

    async def _claim_tasks(self) -> None:
        failures = 0
        while not self._draining:
            room = self._concurrency - len(self._held)
            if room <= 0 or self._isolation.closed:
                self._news.clear()
                await self._news.wait()
                continue
            try:
                claims = await self._claim(room)
                failures = 0
            except FAILURES as error:  # whatever a journal raises: a worker that stops claiming does so in silence
                _raise_cancellation(error)
                failures += 1
                _report(failures, f"no tasks can be claimed from {self._journal.name}", error)
                await asyncio.sleep(_pause(failures))
                continue
            for claim in claims:
                self._begin(claim)

    async def _claim(self, room: int) -> list[Claim]:
        operations = self._served()
        if not operations:
            await asyncio.sleep(_WAIT)
            return []
        if time.monotonic() < self._rest:
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

    def _begin(self, claim: Claim) -> None:
        held = _Held(claim, time.monotonic())
        held.task = asyncio.get_running_loop().create_task(self._serve(held))
        self._held.add(held)
        held.task.add_done_callback(partial(self._ended, held))

    def _ended(self, held: _Held, task: asyncio.Task[None]) -> None:
        self._held.discard(held)
        if held.opening is not None:
            held.opening.cancel()
        self._open(held)
        self._isolation.leave(held)
        self._news.set()
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not (task.cancelled() and self._closing):
            name, key = held.claim.task.operation_id, held.claim.task.key
            logger.error("%s with the key %r comes back when its lease has run out", name, key, exc_info=error)

    # --- running ------------------------------------------------------------------------------------------------------

    async def _serve(self, held: _Held) -> None:
        claim = held.claim
        try:
            await self._settle(claim, await self._run(held))
        except FAILURES as error:
            _raise_cancellation(error)
            if self._closing:
                raise
            # The journal has refused the result. If that goes on, the task ends after as many failures as others.
            name, delay = claim.task.operation_id, self._patience.delay(claim.attempt)
            logger.exception("%s with the key %r has no outcome, and is tried again", name, claim.task.key)
            await self._insist(claim, lambda: self._journal.release(claim, delay, failed=True))

    async def _settle(self, claim: Claim, result: Outcome | Again | None) -> None:
        """Tell the journal what came of an attempt."""
        match result:
            case Outcome():
                await self._record(claim, result)
            case Again():
                logger.info("%s is tried again in %.3g s: %s", claim.task.operation_id, result.delay, result.error)
                await self._insist(claim, lambda: self._journal.release(claim, result.delay, failed=result.failed))
            case None if self._closing:
                await self._end_of_claiming()  # or we would claim it ourselves
                await self._journal.release(claim, 0)
            case None:
                logger.warning("%s was stopped: its lease is lost", claim.task.operation_id)
                # Unless another worker has claimed it, this one lives: no loss is to be counted.
                await self._insist(claim, lambda: self._journal.release(claim, 0))

    async def _run(self, held: _Held) -> Outcome | Again | None:
        """What came of an attempt; None if it was stopped."""
        if self._closing:
            return None
        held.running = True
        try:
            if held.claim.suspect and not self._attempts.given_up(held.claim):
                await self._isolate(held)
            else:
                await self._isolation.enter(held)
            return await self._attempts.run(held.claim)
        except asyncio.CancelledError:
            if held.stopped and held.task is not None and held.task.uncancel() == 0:
                return None
            raise
        finally:
            held.running = False

    async def _isolate(self, held: _Held) -> None:
        """Wait until a suspect can be run, with nothing else in hand if possible, and keep other tasks away."""
        quiet, held.isolated = quiet_time(held.claim.losses), time.monotonic()
        held.alone = await self._isolation.enter_alone(held, quiet)
        if held.alone:
            await self._renew(held)
            await asyncio.sleep(0)  # if the lease was lost, the cancellation comes here and not after the handler
        held.opening = asyncio.get_running_loop().create_task(self._open_after(held, quiet))

    async def _open_after(self, held: _Held, quiet: float) -> None:
        """Let others begin beside a suspect that runs for so long."""
        await asyncio.sleep(quiet)
        held.alone = False
        # From now on its worker may die of others: the journal has to know before they begin, or the lease is over.
        while not await self._renew(held):
            if time.monotonic() > held.renewed + self._lease:
                break
            await asyncio.sleep(_pause(1))
        self._open(held)

    def _open(self, held: _Held) -> None:
        if held.isolated is not None:
            now = time.monotonic()
            self._rest, held.isolated = now + (now - held.isolated), None
            self._isolation.open(held)

    async def _record(self, claim: Claim, outcome: Outcome) -> None:
        try:
            await self._insist(claim, lambda: self._journal.record(claim, outcome))
        except CallError as error:
            if error.code is not ErrorCode.PAYLOAD_TOO_LARGE:
                raise
            # To run it again would lead to the same.
            instead = too_large(claim, outcome, error)
            await self._insist(claim, lambda: self._journal.record(claim, instead))

    async def _insist(self, claim: Claim, act: Callable[[], Awaitable[object]]) -> None:
        """Tell the journal what came of an attempt, however long it cannot be reached: the work is done.

        Raises:
            CallError: the journal has refused it for good.
            Exception: it does not stop to raise what a journal should not.
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
                _report(failures, f"the result of {claim.task.operation_id} cannot be recorded", error)
            await asyncio.sleep(_pause(failures))

    # --- leases -------------------------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        while True:
            next_beat = time.monotonic() + self._lease / 3
            await asyncio.gather(*(self._renew(held) for held in self._held))
            await asyncio.sleep(max(0.0, next_beat - time.monotonic()))

    async def _renew(self, held: _Held) -> bool:
        """Renew a lease, or stop the handler. Return whether the journal has done it."""
        asked = time.monotonic()
        try:
            async with asyncio.timeout(self._lease / 3), held.renewing:
                renewed = kept = await self._journal.renew(held.claim, alone=held.alone)
        except FAILURES as error:  # whatever a journal raises: if this ended, every lease would be lost
            _raise_cancellation(error)
            logger.debug("the lease of %s was not renewed: %s", held.claim.task.operation_id, error)
            # Unless the next beat comes in time, another worker may have the task before we know.
            renewed, kept = False, time.monotonic() + self._lease / 3 < held.renewed + self._lease
        else:
            held.renewed = asked
        if not kept:
            held.stop("the lease was lost")
        return renewed


def _raise_cancellation(error: BaseException) -> None:
    """Raise a CancelledError again that is meant for us, and not one that a journal has let through."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


def _report(failures: int, what: str, error: BaseException) -> None:
    """Say it once, and not again at every attempt."""
    level = logging.WARNING if failures == 1 else logging.DEBUG
    logger.log(level, "%s, and this is tried again: %s", what, error, exc_info=not isinstance(error, CallError))


def _pause(failures: int) -> float:
    """Seconds until a journal is tried again: longer each time, and not the same for all."""
    longest = min(_PAUSE, 0.05 * 2 ** min(failures, 16))
    return random.uniform(longest / 2, longest)  # noqa: S311
