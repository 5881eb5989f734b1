"""`DurableCalls`: mutations that must not be lost, and that take effect once however often they are asked for."""

import asyncio
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from math import isnan
from typing import Any, TypeVar, overload
from uuid import uuid4

import msgspec

from opwire.call import CallFailed, CallRequested, encode_event
from opwire.call.pending import DEFAULT_TIMEOUT
from opwire.durable.journal import MAX_SECONDS, Journal, JournalInfo, Outcome, Task, seconds_within
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, trace_of
from opwire.pipeline import typed_envelope
from opwire.typed.plain import json_form, write_json

T = TypeVar("T")

MAX_NAME = 256
"""Characters of an idempotency key, and of the id of an operation that is called durably."""

_NO_CONTEXT = Context()
_plain = msgspec.json.Encoder(enc_hook=json_form)
_sorted = msgspec.json.Encoder(enc_hook=json_form, order="deterministic")


class DurableCalls:
    """Calls that are kept in a journal until they have an outcome, whoever crashes meanwhile.

        durable = DurableCalls(journal)
        envelope = await durable.call("orders.create", {"article": "tea"}, key="order-17")

    The key says what is the same call. A second one with the same key runs nothing, and gets the outcome of the first;
    so whatever goes wrong on this side, asking again is safe. The handler runs at least once: if its worker dies after
    the work and before the outcome is recorded, it runs again, and finds the key in `context.metadata`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @overload
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        *,
        output_type: type[T],
        key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        output_type: Any = None,
        *,
        key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> ResponseEnvelope[Any]: ...
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        output_type: Any = None,
        *,
        key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> ResponseEnvelope[Any]:
        """Have a mutation done, and wait for its outcome. `timeout` limits the waiting, and not the mutation.

        Raises:
            CallError: the recorded one, if the mutation failed. TIMEOUT: it has not ended yet, and goes on.
                UNAVAILABLE: the journal cannot be reached. After both, the same call with the same key (it is in the
                details) is safe. VALIDATION_ERROR: the key stands for another call, or the timeout is NaN.
        """
        timeout = _seconds(timeout)
        remaining = None if context is None else context.remaining
        patience = timeout if remaining is None else min(timeout, remaining)
        if patience <= 0:
            raise CallError(ErrorCode.TIMEOUT, f"the deadline of {operation_id} had passed before it was submitted")
        task = _task(operation_id, input, context or _NO_CONTEXT, key)
        outcome = await self._outcome_of(task, patience)
        if outcome is None:
            late = f"{operation_id} has no outcome after {patience:.3g} s, and goes on: ask again with the same key"
            raise CallError(ErrorCode.TIMEOUT, late, {"key": task.key})
        return _envelope(outcome, output_type)

    async def _outcome_of(self, task: Task, patience: float) -> Outcome | None:
        deadline = time.monotonic() + patience
        try:
            async with asyncio.timeout(patience):
                outcome = await self._journal.submit(task)
                return outcome or await self._journal.wait(task.key, deadline - time.monotonic())
        except TimeoutError:
            return None
        except CallError as error:
            raise _with_key(error, task.key) from error

    async def submit(
        self, operation_id: str, input: Any = None, context: Context | None = None, *, key: str | None = None
    ) -> str:
        """Have a mutation done, without waiting for it. Its key: when this returns, it is in the journal.

        Raises:
            CallError: UNAVAILABLE, and submitting again with the same key (it is in the details) is safe.
                VALIDATION_ERROR: the key stands for another call.
        """
        task = _task(operation_id, input, context or _NO_CONTEXT, key)
        try:
            await self._journal.submit(task)
        except CallError as error:
            raise _with_key(error, task.key) from error
        return task.key

    @overload
    async def outcome(self, key: str, *, output_type: type[T], timeout: float = 0) -> ResponseEnvelope[T] | None: ...
    @overload
    async def outcome(
        self, key: str, output_type: Any = None, *, timeout: float = 0
    ) -> ResponseEnvelope[Any] | None: ...
    async def outcome(self, key: str, output_type: Any = None, *, timeout: float = 0) -> ResponseEnvelope[Any] | None:
        """What came of a mutation; None if there is no outcome yet, or none within `timeout` seconds.

        Raises:
            CallError: the recorded one, if the mutation failed; UNAVAILABLE.
        """
        journal, timeout = self._journal, _seconds(timeout)
        outcome = await (journal.wait(key, timeout) if timeout > 0 else journal.outcome(key))
        return None if outcome is None else _envelope(outcome, output_type)

    # --- looking after it ---------------------------------------------------------------------------------------------

    def buried(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """What was given up, the oldest first: `outcome.read().error()` says why.

        Raises:
            CallError: UNAVAILABLE.
        """
        return self._journal.buried(operation_id)

    async def replay(self, key: str) -> bool:
        """Have something that was given up done again. False if there is no such.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._journal.replay(key)

    async def purge(self, key: str) -> bool:
        """Forget a mutation that has ended, and its outcome: its key can be used anew. False if there is no such.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._journal.purge(key)

    async def info(self) -> list[JournalInfo]:
        """How much is waiting, claimed and buried, by operation.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._journal.info()


def _seconds(timeout: float) -> float:
    if isinstance(timeout, float) and isnan(timeout):
        raise CallError(ErrorCode.VALIDATION_ERROR, "timeout is not a number: give it in seconds")
    return seconds_within(timeout, MAX_SECONDS)


def _task(operation_id: str, input: Any, context: Context, key: str | None) -> Task:
    key = uuid4().hex if key is None else key
    _check("an idempotency key", key)
    _check("the id of an operation", operation_id)
    event = CallRequested(
        request_id=key,
        operation_id=operation_id,
        input=input,
        parent_request_id=context.parent_request_id if context.inbound is None else context.inbound.request_id,
        identity=context.identity,
        **trace_of(context.metadata),
    )
    return Task(
        key=key,
        operation_id=operation_id,
        request=encode_event(event),
        fingerprint=_fingerprint(event),
        submitted=round(time.time() * 1000),
    )


def _check(what: str, name: str) -> None:
    """An engine uses it as a name."""
    try:
        usable = bool(name.encode()) and len(name) <= MAX_NAME
    except UnicodeEncodeError:
        usable = False
    if not usable:
        wrong = f"{what} has 1 to {MAX_NAME} characters, all of which UTF-8 can carry: {name!r:.80} has not"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong)


def _fingerprint(event: CallRequested) -> str:
    """The same for the same call, whatever the order of its input's keys. Another caller's call is another one: whoever
    guesses a key must not be given what was recorded for somebody else."""
    caller = None if event.identity is None else event.identity.id
    return sha256(_canonical((event.operation_id, caller, event.input))).hexdigest()


def _canonical(value: Any) -> bytes:
    try:
        return write_json(_sorted, value)
    except TypeError:  # it sorts no keys that are not strings yet, and no sets of several types
        return _sorted.encode(msgspec.json.decode(write_json(_plain, value)))


def _with_key(error: CallError, key: str) -> CallError:
    """The error of a journal, with what its caller needs to ask again."""
    if not error.retryable:
        return error
    message = f"{error.message}; submitting it again with the same key is safe"
    return CallError(error.code, message, {"key": key}, retry_after=error.retry_after)


def _envelope(outcome: Outcome, output_type: Any) -> ResponseEnvelope[Any]:
    event = outcome.read()
    if isinstance(event, CallFailed):
        raise event.error()
    envelope = event.output
    return envelope if output_type is None else typed_envelope(envelope, output_type, outcome.operation_id)
