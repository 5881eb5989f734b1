"""One attempt at a task: run its handler, and interpret the result. Knows no journal.

An envelope, and an error that is not retryable, is an outcome. After a retryable error the task is retried, with a
growing back-off; after too many failures it becomes a dead letter with the last error. So does a task that cannot be
decoded, and one that has lost its worker too often, running alone each time but the first. The loss of a worker that
ran several tasks counts against none.
"""

import time

from msgspec import Struct
from msgspec.structs import replace

from opwire.durable.journal import MAX_SECONDS, Claim, Outcome, seconds_within
from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context, Inbound
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import OperationType
from opwire.protocol.events import CallFailed, CallRequested, CallResponded, encode_event
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import failure
from opwire.runtime.deadlines import back_off

MAX_DELAY_SECONDS = 24 * 3600.0
"""The longest delay before the next attempt, in seconds, even if an error asks for more."""

_SHORT_MESSAGE_CHARACTERS = 200  # fit into any event


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
        """Return the seconds before the next attempt: at least the error's `retry_after`, at most a day."""
        longest_delay = min(self.max_back_off, MAX_DELAY_SECONDS)
        requested_delay = 0.0 if error is None else seconds_within(error.retry_after, MAX_DELAY_SECONDS)
        return max(requested_delay, back_off(attempt, first=self.back_off, longest=longest_delay))


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
        task = claim.task
        if self.given_up(claim):
            reason = (
                f"its worker was lost in the last of {claim.attempt - 1} attempts, {claim.lone_losses} of them alone"
            )
            error = CallError(ErrorCode.EXECUTION_ERROR, f"{task.operation_id} was given up: {reason}")
            return _dead_letter(claim, error, attempts=claim.attempt - 1)
        try:
            event = task.read()
        except Exception as error:  # it stays invalid
            return _dead_letter(claim, failure(error, task.operation_id))
        context = self._context(claim, event)
        try:
            spec = self._dispatcher.find(task.operation_id, context.identity)
        except CallError as error:
            if error.code is not ErrorCode.OPERATION_NOT_FOUND:
                return _failed(claim, error)
            message = f"this worker does not serve {task.operation_id} any more"  # unregistered since the claim
            retryable_error = CallError(ErrorCode.OPERATION_NOT_FOUND, message, retryable=True)
            return Retry(self._policy.delay(claim.attempt, retryable_error), retryable_error, failed=False)
        try:
            envelope = await self._dispatcher.execute(spec, event.input, context)
            return _outcome(claim, encode_event(CallResponded(request_id=event.request_id, output=envelope)))
        except Exception as error:
            return self._failed_attempt(claim, failure(error, task.operation_id))

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

    def _failed_attempt(self, claim: Claim, error: CallError) -> Outcome | Retry:
        """Return the result of an attempt with a failed handler."""
        if not error.retryable:
            return _failed(claim, error)
        failures = claim.failures + 1
        if failures >= self._policy.max_attempts:
            return _dead_letter(claim, error)
        return Retry(self._policy.delay(failures, error), error)

    def given_up(self, claim: Claim) -> bool:
        """Return whether a task is not run again, because it has lost its worker too often.

        Its first loss may have been the fault of another task. All others count only if it ran alone.
        """
        max_losses = self._policy.max_attempts
        return claim.losses >= max_losses and claim.lone_losses >= max(1, max_losses - 1)


def too_large(claim: Claim, outcome: Outcome, error: CallError) -> Outcome:
    """Return what to record instead of an outcome that exceeds the journal's limit."""
    message = f"the outcome of {claim.task.operation_id} is too large to be recorded: {error.message}"
    failure_outcome = _failed(claim, CallError(error.code, message, error.details))
    return replace(failure_outcome, dead_letter=outcome.dead_letter, attempts=outcome.attempts)


def _dead_letter(claim: Claim, error: CallError, attempts: int | None = None) -> Outcome:
    # Not retryable, even if the error was: a retry returns the same outcome.
    outcome = _failed(claim, CallError(error.code, error.message, error.details, retryable=False))
    return replace(outcome, dead_letter=True, attempts=claim.attempt if attempts is None else attempts)


def _failed(claim: Claim, error: CallError) -> Outcome:
    retry_after = None if error.retry_after is None else seconds_within(error.retry_after, MAX_SECONDS)
    error = CallError(error.code, error.message, error.details, retryable=error.retryable, retry_after=retry_after)
    event = CallFailed.of(claim.task.key, error)
    try:
        encoded_event = encode_event(event)
    except Exception:  # its details are too large or not plain, or its message is too large
        short_message = event.message[:_SHORT_MESSAGE_CHARACTERS]
        encoded_event = encode_event(replace(event, message=short_message, details=None))
    return _outcome(claim, encoded_event)


def _outcome(claim: Claim, event: bytes) -> Outcome:
    return Outcome(
        key=claim.task.key,
        operation_id=claim.task.operation_id,
        event=event,
        attempts=claim.attempt,
        recorded=round(time.time() * 1000),
    )
