"""One attempt at a task: how its handler is run, and what the result means. Knows nothing of journals.

What is an outcome: an envelope, and an error that is not retryable. After a retryable error the task is tried again,
each time later than before; when it has been tried often enough it is buried, with the last error. So is a task whose
worker was lost in its last attempt, and one that cannot be read.
"""

import random
import time
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from opwire.access import check_access
from opwire.call import CallEvent, CallFailed, CallRequested, CallResponded, encode_event
from opwire.durable.journal import Claim, Outcome
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.invoke import failure
from opwire.operation import LOCAL_IDENTITY, Context, Identity, Inbound, OperationSpec, OperationType
from opwire.registry import OperationRegistry

_SHORT = 200  # characters of an error's message that fit into any message


class Again(Struct, frozen=True):
    """No outcome yet: to be tried again, after so many seconds, because of an error."""

    delay: float
    error: CallError


class Patience(Struct, frozen=True, kw_only=True):
    """How often a task is tried, and how many seconds lie between two attempts: at first, and at most."""

    max_attempts: int = 5
    back_off: float = 1.0
    max_back_off: float = 300.0

    def delay(self, attempt: int, error: CallError) -> float:
        """Seconds until the next attempt: longer each time, not the same for all, no less than the error asks for."""
        longest = min(self.max_back_off, self.back_off * 2 ** min(attempt - 1, 32))
        return max(error.retry_after or 0.0, random.uniform(longest / 2, longest))  # noqa: S311


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
        """Try once, unless it was tried too often. What a handler raises is part of the result."""
        most = self._patience.max_attempts
        if claim.attempt > most:
            lost = f"{claim.task.operation_id} was given up: its worker was lost in the last of {most} attempts"
            return _buried(claim, CallError(ErrorCode.EXECUTION_ERROR, lost), attempts=most)
        try:
            event = claim.task.read()
        except CallError as error:
            return _buried(claim, error)
        try:
            envelope = await self._execute(event, claim)
            return _outcome(claim, CallResponded(request_id=event.request_id, output=envelope))
        except CallError as error:
            return self._judged(claim, error)

    async def _execute(self, event: CallRequested, claim: Claim) -> ResponseEnvelope[Any]:
        try:
            spec = self._find(event.operation_id)
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
        except CallError:
            raise
        except Exception as unforeseen:
            raise failure(unforeseen, event.operation_id) from unforeseen

    def _identify(self, event: CallRequested) -> Identity | None:
        """Return the caller's identity, as `CallHandler` does."""
        if self._trusted and event.identity is not None:
            return event.identity
        is_nested = event.parent_request_id is not None
        return None if is_nested and self._identity is LOCAL_IDENTITY else self._identity

    def _find(self, operation_id: str) -> OperationSpec:
        """The mutation. If it has left the registry since the task was claimed, another worker may have it."""
        spec = self._registry.get_spec(operation_id)
        if spec is None or spec.type is not OperationType.MUTATION or self._registry.get_handler(operation_id) is None:
            gone = f"this worker does not serve {operation_id} any more"
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, gone, retryable=True)
        return spec

    def _judged(self, claim: Claim, error: CallError) -> Outcome | Again:
        if not error.retryable:
            return _failed(claim, error)
        if claim.attempt < self._patience.max_attempts:
            return Again(self._patience.delay(claim.attempt, error), error)
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
    event = CallFailed.of(claim.task.key, error)
    try:
        return _outcome(claim, event)
    except CallError:  # its details are too large, or its message is
        return _outcome(claim, replace(event, message=event.message[:_SHORT], details=None))


def _outcome(claim: Claim, event: CallEvent) -> Outcome:
    return Outcome(
        key=claim.task.key,
        operation_id=claim.task.operation_id,
        event=encode_event(event),
        attempts=claim.attempt,
        recorded=round(time.time() * 1000),
    )
