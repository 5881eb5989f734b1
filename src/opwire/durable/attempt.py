"""One attempt at a task: how its handler is run, and what the result means. Knows nothing of journals.

What is an outcome: an envelope, and an error that is not retryable. After a retryable error the task is tried again,
each time later than before; when it has failed often enough it is buried, with the last error. So is a task that cannot
be read, and one that has lost its worker as often, with nothing else in hand each time but the first. A worker that was
lost with several tasks in hand is held against none of them.

Which tasks the workers of one event loop run, and which of them runs alone.

A task whose last attempt was lost may have killed its process, or another task has. Run beside others it could kill
these, too, and its own death would prove nothing. So nothing else begins while such a suspect runs. Neither would it
do to wait for ever, for what runs already or for the suspect itself: a job may take hours. Hence the `quiet` time:

- A suspect begins when each of the others has ended, or has run for that long.
- Others begin again when the suspect has ended, or has run for that long.
- A loss counts against a suspect only while nothing else was running. The quiet time doubles with each loss, so that it
  gets there, however late a task kills its process and however long the others run.

No journal in here. Workers of one event loop share a process, and so they share this.
"""

import asyncio
import random
import time
from collections.abc import Hashable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from opwire.call import CallEvent, CallFailed, CallRequested, CallResponded, encode_event
from opwire.durable.journal import MAX_SECONDS, Claim, Outcome, seconds_within
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.invoke import failure
from opwire.operation import LOCAL_IDENTITY, Context, Identity, Inbound, OperationSpec, OperationType, check_access
from opwire.registry import OperationRegistry

MAX_DELAY = 24 * 3600.0
"""Seconds until the next attempt, at most, whatever an error asks for."""

_SHORT = 200  # characters of an error's message that fit into any message


class Again(Struct, frozen=True):
    """No outcome yet: to be tried again, after so many seconds, because of an error.

    `failed`: the handler has raised it. Otherwise it was not run, which does not count.
    """

    delay: float
    error: CallError
    failed: bool = True


class Patience(Struct, frozen=True, kw_only=True):
    """How often a task may fail or be lost, and how many seconds lie between two attempts: at first, and at most."""

    max_attempts: int = 5
    back_off: float = 1.0
    max_back_off: float = 300.0

    def delay(self, attempt: int, error: CallError | None = None) -> float:
        """Return the seconds until the next attempt: longer each time, not the same for all, `MAX_DELAY` at most.

        No less than the error asks for, unless that is more.
        """
        longest = min(self.max_back_off, self.back_off * 2 ** min(attempt - 1, 32), MAX_DELAY)
        asked = 0.0 if error is None else seconds_within(error.retry_after, MAX_DELAY)
        return max(asked, random.uniform(longest / 2, longest))  # noqa: S311


class Attempts:
    """Runs tasks through a registry, as `CallHandler` runs requests.

    `identity` is whom a caller counts as that has none, or that is not to be believed (`trusted`).
    """

    def __init__(
        self, registry: OperationRegistry, patience: Patience, *, identity: Identity | None, trusted: bool
    ) -> None:
        self._registry = registry
        self._patience = patience
        self._identity = identity
        self._trusted = trusted

    async def run(self, claim: Claim) -> Outcome | Again:
        """Try once, unless the task was lost too often. What a handler raises is part of the result."""
        if self.given_up(claim):
            lost = f"its worker was lost in the last of {claim.attempt - 1} attempts, {claim.lone_losses} of them alone"
            error = CallError(ErrorCode.EXECUTION_ERROR, f"{claim.task.operation_id} was given up: {lost}")
            return _buried(claim, error, attempts=claim.attempt - 1)
        try:
            event = claim.task.read()
        except Exception as error:  # whatever is in it: another run would come to the same
            return _buried(claim, failure(error, claim.task.operation_id))
        spec = self._find(event.operation_id)
        if spec is None:
            gone = f"this worker does not serve {event.operation_id} any more"
            error = CallError(ErrorCode.OPERATION_NOT_FOUND, gone, retryable=True)
            return Again(self._patience.delay(claim.attempt, error), error, failed=False)
        try:
            envelope = await self._execute(event, spec, claim)
            return _outcome(claim, CallResponded(request_id=event.request_id, output=envelope))
        except Exception as error:
            return self._judged(claim, failure(error, claim.task.operation_id))

    def given_up(self, claim: Claim) -> bool:
        """Whether a task is not run again, because it has lost its worker too often.

        Its first loss may have been the fault of another task. All others count only if it was alone.
        """
        most = self._patience.max_attempts
        return claim.losses >= most and claim.lone_losses >= max(1, most - 1)

    async def _execute(self, event: CallRequested, spec: OperationSpec, claim: Claim) -> ResponseEnvelope[Any]:
        identity = self._identify(event)
        check_access(spec, identity)
        context = Context(
            request_id=event.request_id,
            parent_request_id=event.parent_request_id,
            identity=identity,
            metadata={**event.trace, "idempotency_key": claim.task.key, "attempt": claim.attempt},
            bind_env=self._registry.bind_env,
            inbound=Inbound(event.request_id),
        )
        return await self._registry.execute(event.operation_id, event.input, context)

    def _identify(self, event: CallRequested) -> Identity | None:
        """Return the caller's identity, as `CallHandler` does."""
        if self._trusted and event.identity is not None:
            return event.identity
        is_nested = event.parent_request_id is not None
        return None if is_nested and self._identity is LOCAL_IDENTITY else self._identity

    def _find(self, operation_id: str) -> OperationSpec | None:
        """Return the mutation, or None if it has left the registry since the task was claimed."""
        spec = self._registry.get_spec(operation_id)
        served = spec is not None and spec.type is OperationType.MUTATION and self._registry.get_handler(operation_id)
        return spec if served else None

    def _judged(self, claim: Claim, error: CallError) -> Outcome | Again:
        if not error.retryable:
            return _failed(claim, error)
        failures = claim.failures + 1
        if failures < self._patience.max_attempts:
            return Again(self._patience.delay(failures, error), error)
        return _buried(claim, error)


def _buried(claim: Claim, error: CallError, attempts: int | None = None) -> Outcome:
    # Not to be retried, whatever the error was: who asks again is given the same.
    final = CallError(error.code, error.message, error.details, retryable=False)
    outcome = _failed(claim, final)
    return replace(outcome, buried=True, attempts=claim.attempt if attempts is None else attempts)


def too_large(claim: Claim, outcome: Outcome, error: CallError) -> Outcome:
    """What is recorded in the place of an outcome that is too large for a journal: that it is."""
    message = f"what came of {claim.task.operation_id} is too large to be recorded: {error.message}"
    instead = _failed(claim, CallError(error.code, message, error.details))
    return replace(instead, buried=outcome.buried, attempts=outcome.attempts)


def _failed(claim: Claim, error: CallError) -> Outcome:
    after = None if error.retry_after is None else seconds_within(error.retry_after, MAX_SECONDS)
    plain = CallError(error.code, error.message, error.details, retryable=error.retryable, retry_after=after)
    event = CallFailed.of(claim.task.key, plain)
    try:
        return _outcome(claim, event)
    except Exception:  # its details are too large or have no JSON form, or its message is too large
        return _outcome(claim, replace(event, message=event.message[:_SHORT], details=None))


def _outcome(claim: Claim, event: CallEvent) -> Outcome:
    return Outcome(
        key=claim.task.key,
        operation_id=claim.task.operation_id,
        event=encode_event(event),
        attempts=claim.attempt,
        recorded=round(time.time() * 1000),
    )


_FIRST_QUIET = 30.0  # seconds; most jobs are shorter, so that most suspects are alone from the first time on
_MOST_DOUBLINGS = 12  # a day and a half


def quiet_time(losses: int) -> float:
    """Return for how many seconds a task is isolated that was lost so many times."""
    return _FIRST_QUIET * 2 ** min(max(losses - 1, 0), _MOST_DOUBLINGS)


class Isolation:
    """What runs in this event loop. `news` are set whenever something begins or ends."""

    def __init__(self) -> None:
        self.news: set[asyncio.Event] = set()
        self._running: dict[Hashable, float] = {}  # when each began
        self._isolated: Hashable | None = None

    @property
    def closed(self) -> bool:
        """Whether a suspect is isolated, so that nothing else begins."""
        return self._isolated is not None

    async def enter(self, task: Hashable) -> None:
        """Begin a task as soon as no suspect is isolated."""
        while self._isolated is not None:
            await self._change()
        self._running[task] = time.monotonic()

    async def enter_alone(self, task: Hashable, quiet: float) -> bool:
        """Isolate a suspect as soon as no other is, and begin it. Return whether nothing else is running."""
        while self._isolated is not None:
            await self._change()
        self._isolated = task
        while (left := self._unquiet(quiet)) > 0:
            await self._change(left)
        self._running[task] = time.monotonic()
        return len(self._running) == 1

    def open(self, task: Hashable) -> None:
        """Let others begin beside a suspect that was isolated."""
        if self._isolated is task:
            self._isolated = None
            self._notify()

    def leave(self, task: Hashable) -> None:
        """End a task, or stop waiting to begin it."""
        self._running.pop(task, None)
        if self._isolated is task:
            self._isolated = None
        self._notify()

    def _unquiet(self, quiet: float) -> float:
        """Return how many seconds are left until every task has run for the quiet time."""
        return max(self._running.values()) + quiet - time.monotonic() if self._running else 0.0

    async def _change(self, timeout: float | None = None) -> None:
        event = asyncio.Event()
        self.news.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await event.wait()
        finally:
            self.news.discard(event)

    def _notify(self) -> None:
        for event in self.news:
            event.set()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Isolation] = WeakKeyDictionary()


def isolation_here() -> Isolation:
    """Return what all workers of the running event loop share."""
    return _of_loops.setdefault(asyncio.get_running_loop(), Isolation())
