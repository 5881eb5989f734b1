"""`DurableCalls`: mutations that survive crashes, and take effect once however often they are called."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from hashlib import sha256
from math import isnan
from os import urandom
from typing import Any, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec.structs import replace

from opwire.durable.journal import MAX_SECONDS, Journal, JournalInfo, Outcome, Task, seconds_within
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.trace import trace_of
from opwire.names import limit_text
from opwire.protocol.events import CallFailed, CallRequested, encode_event
from opwire.protocol.pending import DEFAULT_TIMEOUT
from opwire.registry.pipeline import typed_envelope
from opwire.runtime.deadlines import Deadlines
from opwire.typed.plain import json_form, write_json

T = TypeVar("T")

MAX_NAME_CHARACTERS = 256
"""Characters of an idempotency key, and of the id of an operation that is called durably."""

_NO_CONTEXT = Context()
_encoder = msgspec.json.Encoder(enc_hook=json_form)
_sorting_encoder = msgspec.json.Encoder(enc_hook=json_form, order="deterministic")


class DurableCallOptions(TypedDict, total=False):
    """Keyword arguments of `DurableCalls.call`, except for `output_type`."""

    context: Context | None
    key: str | None
    timeout: float


class DurableCalls:
    """Calls that are stored in a journal until they have an outcome, even if caller or worker crash meanwhile.

        durable = DurableCalls(journal)
        envelope = await durable.call("orders.create", {"article": "tea"}, key="order-17")

    The key identifies the call. A second call with the same key runs nothing, and returns the outcome of the first, so
    that a caller can always retry. The handler runs at least once: if its worker dies after the work and before the
    outcome is recorded, it runs again, and finds the key in `context.metadata`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._deadlines = Deadlines()

    def __repr__(self) -> str:
        return f"<DurableCalls in {self._journal!r}>"

    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[DurableCallOptions]
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[DurableCallOptions]
    ) -> ResponseEnvelope[Any]: ...
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        *,
        context: Context | None = None,
        output_type: Any = None,
        key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> ResponseEnvelope[Any]:
        """Submit a mutation, and wait for its outcome. `timeout` limits the wait, not the mutation.

        Raises:
            CallError: the recorded error of the mutation. TIMEOUT: it has not ended yet, and continues. UNAVAILABLE:
                the journal cannot be reached. After both, a retry with the same key (it is in the details) is safe.
                VALIDATION_ERROR: the key belongs to another call, or is invalid.
            UsageError: the timeout is NaN.
        """
        timeout = _seconds(timeout)
        remaining = None if context is None else context.remaining
        wait = timeout if remaining is None else min(timeout, remaining)
        if wait <= 0:
            raise CallError(ErrorCode.TIMEOUT, f"the deadline of {operation_id} had passed before it was submitted")
        request = _request(operation_id, input, context or _NO_CONTEXT, _new_key() if key is None else key)
        task = _task(request)
        try:
            outcome = await self._within(wait, partial(self._journal.submit, task, wait=wait))
        except CallError as error:
            raise _with_key(error, task.key) from error
        if outcome is None:
            message = (
                f"{operation_id} has no outcome after {limit_text(wait)} s, and continues: retry with the same key"
            )
            raise CallError(ErrorCode.TIMEOUT, message, {"key": task.key})
        return outcome_envelope(outcome, output_type)

    async def submit(
        self, operation_id: str, input: Any = None, *, context: Context | None = None, key: str | None = None
    ) -> str:
        """Submit a mutation without waiting for it; return its key. When this returns, it is in the journal.

        Raises:
            CallError: UNAVAILABLE; a retry with the same key (it is in the details) is safe. VALIDATION_ERROR: the key
                belongs to another call, or is invalid.
        """
        request = _request(operation_id, input, context or _NO_CONTEXT, _new_key() if key is None else key)
        task = _task(request)
        try:
            await self._reply(self._journal.submit(task))
        except CallError as error:
            raise _with_key(error, task.key) from error
        return task.key

    @overload
    async def outcome(self, key: str, *, output_type: type[T], timeout: float = 0) -> ResponseEnvelope[T] | None: ...
    @overload
    async def outcome(
        self, key: str, *, output_type: Any = None, timeout: float = 0
    ) -> ResponseEnvelope[Any] | None: ...
    async def outcome(self, key: str, *, output_type: Any = None, timeout: float = 0) -> ResponseEnvelope[Any] | None:
        """Return the outcome of a mutation; None if it is missing, or missing after `timeout` seconds.

        Raises:
            CallError: the recorded error of the mutation; UNAVAILABLE.
            UsageError: the timeout is NaN.
        """
        timeout = _seconds(timeout)
        if timeout > 0:
            outcome = await self._within(timeout, partial(self._journal.wait, key, timeout))
        else:
            outcome = await self._reply(self._journal.outcome(key))
        return None if outcome is None else outcome_envelope(outcome, output_type)

    async def cancel(self, operation_id: str, key: str) -> bool:
        """Cancel a mutation that no worker has begun; its outcome is then ABORTED, and it never runs.

        Return False if a worker has begun it, which cannot be cancelled, if it has ended, or if it does not exist.

        Raises:
            CallError: UNAVAILABLE.
        """
        outcome = await self._journal.cancel(cancellation(operation_id, key))
        return outcome is not None and outcome.cancelled

    async def _within(self, seconds: float, wait: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Return what the journal returns in time, and None otherwise."""
        try:
            return await self._deadlines.limit(wait, time.monotonic() + seconds, "no outcome")
        except CallError as error:
            if error.code is not ErrorCode.TIMEOUT:
                raise
            return None

    async def _reply(self, reply: Awaitable[T]) -> T:
        """Return the reply of the journal, which may never come."""
        try:
            async with asyncio.timeout(DEFAULT_TIMEOUT):
                return await reply
        except TimeoutError:
            message = f"{self._journal.name} did not return within {limit_text(DEFAULT_TIMEOUT)} s"
            raise CallError(ErrorCode.UNAVAILABLE, message) from None

    # --- maintenance --------------------------------------------------------------------------------------------------

    def dead_letters(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """Iterate over the mutations that were given up, the oldest first: `outcome.read().error()` is the reason.

        Raises:
            CallError: UNAVAILABLE.
        """
        return self._journal.dead_letters(operation_id)

    async def replay(self, key: str) -> bool:
        """Submit a mutation that was given up again. Return False if it does not exist.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._journal.replay(key)

    async def purge(self, key: str) -> bool:
        """Delete an ended mutation with its outcome, so that its key can be reused. Return False if it does not exist.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._journal.purge(key)

    async def info(self) -> list[JournalInfo]:
        """Return how many mutations wait, are claimed, or are dead letters, by operation.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._journal.info()


def _seconds(timeout: float) -> float:
    if isinstance(timeout, float) and isnan(timeout):
        raise UsageError("timeout is a number of seconds, not NaN")
    return seconds_within(timeout, MAX_SECONDS)


def _new_key() -> str:
    return urandom(16).hex()


def _request(operation_id: str, input: Any, context: Context, key: str) -> CallRequested:
    _check_name(operation_id, "the id of an operation")
    _check_name(key, "an idempotency key")
    request = CallRequested(
        request_id=key,
        operation_id=operation_id,
        input=input,
        parent_request_id=context.parent_request_id if context.inbound is None else context.inbound.request_id,
        identity=context.identity,
    )
    if context.metadata and (trace := trace_of(context.metadata)):
        request = replace(request, **trace)
    return request


def _task(request: CallRequested) -> Task:
    return Task(
        key=request.request_id,
        operation_id=request.operation_id,
        request=encode_event(request),
        fingerprint=fingerprint(request),
        submitted=round(time.time() * 1000),
    )


def _check_name(name: str, kind: str) -> None:
    """Check a name that the engine stores.

    Raises:
        CallError: VALIDATION_ERROR.
    """
    try:
        is_usable = 0 < len(name) <= MAX_NAME_CHARACTERS and (name.isascii() or bool(name.encode()))
    except UnicodeEncodeError:
        is_usable = False
    if not is_usable:
        message = f"{kind} has 1 to {MAX_NAME_CHARACTERS} characters that UTF-8 can encode; {name!r:.80} is invalid"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)


def fingerprint(event: CallRequested) -> str:
    """Return a digest of the operation, the caller and the input, independent of the order of the input's keys.

    The caller is part of it: a caller that guesses a key must not get the outcome of another caller's call.
    """
    identifying_parts = (event.operation_id, None if event.identity is None else event.identity.id, event.input)
    try:
        canonical_form = write_json(_sorting_encoder, identifying_parts)
    except TypeError:  # it sorts neither keys that are not strings nor sets of several types
        canonical_form = _sorting_encoder.encode(msgspec.json.decode(write_json(_encoder, identifying_parts)))
    return sha256(canonical_form).hexdigest()


def cancellation(operation_id: str, key: str) -> Outcome:
    """Return the outcome of a mutation that is cancelled before a worker has begun it."""
    error = CallError(ErrorCode.ABORTED, f"{operation_id} was cancelled before it began")
    return Outcome(
        key=key,
        operation_id=operation_id,
        event=encode_event(CallFailed.of(key, error)),
        attempts=0,
        recorded=round(time.time() * 1000),
        cancelled=True,
    )


def _with_key(error: CallError, key: str) -> CallError:
    """Return the error of a journal, with the key that its caller needs to retry."""
    if not error.retryable:
        return error
    message = f"{error.message}; a retry with the same key is safe"
    return CallError(error.code, message, {"key": key}, retry_after=error.retry_after)


def outcome_envelope(outcome: Outcome, output_type: Any = None) -> ResponseEnvelope[Any]:
    """Return the envelope of an outcome, with `output_type` as that type.

    Raises:
        CallError: the recorded error.
    """
    response = outcome.read()
    if isinstance(response, CallFailed):
        raise response.error()
    envelope = response.output
    return envelope if output_type is None else typed_envelope(envelope, output_type, outcome.operation_id)
