"""One attempt at a task: running its handler, interpreting the result, and isolating suspects. Knows no journal.

An envelope, and an error that is not retryable, is an outcome. After a retryable error the task is retried, with a
growing back-off; after too many failures it is buried with the last error. So is a task that cannot be decoded, and one
that has lost its worker too often, running alone each time but the first. The loss of a worker that ran several tasks
counts against none.

A task that lost its last attempt may have killed its process, or another task has. Run beside others it could kill
these, too, and its own death would prove nothing. So no other task begins while such a suspect runs. Waiting forever,
for running tasks or for the suspect itself, is not an option either: a job may take hours. Hence the `quiet` time:

- A suspect begins when each of the others has ended, or has run for the quiet time.
- Others begin again when the suspect has ended, or has run for the quiet time.
- A loss counts against a suspect only while no other task was running. The quiet time doubles with each loss, so that
  this happens eventually, however late a task kills its process and however long the others run.

Workers of one event loop share a process, and therefore one `Isolation`.
"""

import asyncio
import time
from collections.abc import Hashable
from contextlib import suppress
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from opwire.durable.journal import MAX_SECONDS, Claim, Outcome, seconds_within
from opwire.errors import CallError, ErrorCode
from opwire.model.operation import LOCAL_IDENTITY, Context, Identity, Inbound, OperationType
from opwire.protocol.events import CallFailed, CallRequested, CallResponded, encode_event
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import failure
from opwire.runtime.deadlines import back_off

MAX_DELAY = 24 * 3600.0
"""The longest delay before the next attempt, in seconds, even if an error asks for more."""

_SHORT = 200  # characters of an error's message that fit into any event
_FIRST_QUIET = 30.0  # seconds; most jobs are shorter, so that most suspects run alone from the first time on
_MAX_DOUBLINGS = 12  # a day and a half


class Retry(Struct, frozen=True):
    """An attempt without an outcome: the task is retried after `delay` seconds because of an error.

    `failed`: the handler raised it. Otherwise the handler did not run, which does not count as a failure.
    """

    delay: float
    error: CallError
    failed: bool = True


class AttemptPolicy(Struct, frozen=True, kw_only=True):
    """How often a task may fail or be lost, and the back-off between two attempts in seconds: at first, and at most."""

    max_attempts: int = 5
    back_off: float = 1.0
    max_back_off: float = 300.0

    def delay(self, attempt: int, error: CallError | None = None) -> float:
        """Return the seconds before the next attempt, at least the error's `retry_after`, at most `MAX_DELAY`."""
        longest = min(self.max_back_off, MAX_DELAY)
        requested = 0.0 if error is None else seconds_within(error.retry_after, MAX_DELAY)
        return max(requested, back_off(attempt, first=self.back_off, longest=longest))


class TaskRunner:
    """Runs claimed tasks out of a registry, as `CallHandler` runs requests.

    `anonymous` is the identity of callers without one, and of all callers unless the journal is `trusted`.
    """

    def __init__(
        self, registry: OperationRegistry, policy: AttemptPolicy, *, anonymous: Identity | None, trusted: bool
    ) -> None:
        self._dispatcher = Dispatcher(registry, serves=lambda spec: spec.type is OperationType.MUTATION)
        self._policy = policy
        self._anonymous = anonymous
        self._trusted = trusted

    async def run(self, claim: Claim) -> Outcome | Retry:
        """Run a task once, unless it was lost too often. Errors of its handler are part of the result."""
        task, policy = claim.task, self._policy
        if self.given_up(claim):
            lost = f"its worker was lost in the last of {claim.attempt - 1} attempts, {claim.lone_losses} of them alone"
            error = CallError(ErrorCode.EXECUTION_ERROR, f"{task.operation_id} was given up: {lost}")
            return _buried(claim, error, attempts=claim.attempt - 1)
        try:
            event = task.read()
        except Exception as error:  # it stays invalid
            return _buried(claim, failure(error, task.operation_id))
        context = self._context(claim, event)
        try:
            spec = self._dispatcher.find(task.operation_id, context.identity)
        except CallError as error:
            if error.code is not ErrorCode.OPERATION_NOT_FOUND:
                return _failed(claim, error)
            message = f"this worker does not serve {task.operation_id} any more"  # unregistered since the claim
            gone = CallError(ErrorCode.OPERATION_NOT_FOUND, message, retryable=True)
            return Retry(policy.delay(claim.attempt, gone), gone, failed=False)
        try:
            envelope = await self._dispatcher.execute(spec, event.input, context)
            return _ended(claim, encode_event(CallResponded(request_id=event.request_id, output=envelope)))
        except Exception as error:
            return self._after(claim, failure(error, task.operation_id))

    def _context(self, claim: Claim, event: CallRequested) -> Context:
        identity = event.identity if self._trusted else None
        if identity is None and (event.parent_request_id is None or self._anonymous is not LOCAL_IDENTITY):
            identity = self._anonymous  # a call on behalf of an anonymous caller is not made by this process
        return Context(
            request_id=event.request_id,
            parent_request_id=event.parent_request_id,
            identity=identity,
            metadata={**event.trace, "idempotency_key": claim.task.key, "attempt": claim.attempt},
            bind_env=self._dispatcher.registry.bind_env,
            inbound=Inbound(event.request_id),
        )

    def _after(self, claim: Claim, error: CallError) -> Outcome | Retry:
        """Return the result of an attempt with a failed handler."""
        if not error.retryable:
            return _failed(claim, error)
        failures, policy = claim.failures + 1, self._policy
        return Retry(policy.delay(failures, error), error) if failures < policy.max_attempts else _buried(claim, error)

    def given_up(self, claim: Claim) -> bool:
        """Return whether a task is not run again, because it has lost its worker too often.

        Its first loss may have been the fault of another task. All others count only if it ran alone.
        """
        most = self._policy.max_attempts
        return claim.losses >= most and claim.lone_losses >= max(1, most - 1)


def too_large(claim: Claim, outcome: Outcome, error: CallError) -> Outcome:
    """Return what to record instead of an outcome that exceeds the journal's limit."""
    message = f"the outcome of {claim.task.operation_id} is too large to be recorded: {error.message}"
    instead = _failed(claim, CallError(error.code, message, error.details))
    return replace(instead, buried=outcome.buried, attempts=outcome.attempts)


def _buried(claim: Claim, error: CallError, attempts: int | None = None) -> Outcome:
    # Not retryable, even if the error was: a retry returns the same outcome.
    outcome = _failed(claim, CallError(error.code, error.message, error.details, retryable=False))
    return replace(outcome, buried=True, attempts=claim.attempt if attempts is None else attempts)


def _failed(claim: Claim, error: CallError) -> Outcome:
    after = None if error.retry_after is None else seconds_within(error.retry_after, MAX_SECONDS)
    plain = CallError(error.code, error.message, error.details, retryable=error.retryable, retry_after=after)
    event = CallFailed.of(claim.task.key, plain)
    try:
        encoded = encode_event(event)
    except Exception:  # its details are too large or not plain, or its message is too large
        encoded = encode_event(replace(event, message=event.message[:_SHORT], details=None))
    return _ended(claim, encoded)


def _ended(claim: Claim, event: bytes) -> Outcome:
    return Outcome(
        key=claim.task.key,
        operation_id=claim.task.operation_id,
        event=event,
        attempts=claim.attempt,
        recorded=round(time.time() * 1000),
    )


def quiet_time(losses: int) -> float:
    """Return the seconds for which a task with this number of losses is isolated."""
    return _FIRST_QUIET * 2 ** min(max(losses - 1, 0), _MAX_DOUBLINGS)


class Isolation:
    """The running tasks of one event loop. `changed` events are set whenever a task begins or ends."""

    def __init__(self) -> None:
        self.changed: set[asyncio.Event] = set()
        self._running: dict[Hashable, float] = {}  # with the time of its start
        self._isolated: Hashable | None = None

    @property
    def closed(self) -> bool:
        """Whether a suspect is isolated, so that no other task begins."""
        return self._isolated is not None

    async def enter(self, task: Hashable) -> None:
        """Begin a task as soon as no suspect is isolated."""
        while self._isolated is not None:
            await self._change()
        self._running[task] = time.monotonic()

    async def enter_alone(self, task: Hashable, quiet: float) -> bool:
        """Isolate a suspect as soon as no other is, and begin it. Return whether no other task is running."""
        while self._isolated is not None:
            await self._change()
        self._isolated = task
        while self._running and (left := max(self._running.values()) + quiet - time.monotonic()) > 0:
            await self._change(left)
        self._running[task] = time.monotonic()
        return len(self._running) == 1

    def open(self, task: Hashable) -> None:
        """Let others begin beside a suspect that was isolated."""
        if self._isolated is task:
            self._isolated = None
            self._notify()

    def leave(self, task: Hashable) -> None:
        """End a task, or stop waiting for its turn."""
        self._running.pop(task, None)
        if self._isolated is task:
            self._isolated = None
        self._notify()

    async def _change(self, timeout: float | None = None) -> None:
        event = asyncio.Event()
        self.changed.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await event.wait()
        finally:
            self.changed.discard(event)

    def _notify(self) -> None:
        for event in self.changed:
            event.set()


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Isolation] = WeakKeyDictionary()


def isolation_of_loop() -> Isolation:
    """Return the isolation that all workers of the running event loop share."""
    return _by_loop.setdefault(asyncio.get_running_loop(), Isolation())
