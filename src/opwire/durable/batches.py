"""Batches: concurrent calls without a key of their own, submitted as one task.

A task costs its engine more than the call in it: 22 µs over Redis and 60 over JetStream, where a plain call takes 3 to
4. A call with a key needs an entry of its own, in which a later call with that key finds the outcome. Other calls of a
turn of the event loop can share one.

Rules:

1. The request of a batch, and its outcome, is an array of `[token, event]` (`protocol.batch`). The key of a call in it
   is `<key of the batch>-<token>`.
2. The outcome of a batch decides. A call without an event in it is a task of its own, under its own key: the worker has
   submitted it, and a caller that waits for it submits it as well, with the same fingerprint, so that it exists once.
   An outcome that is a single event is that of each call.
3. A batch is run at its first attempt only, by handlers that cannot suspend. All else becomes tasks: calls that were
   not run, because of the handler, the time, or a lost worker; and calls that were run, together with their result, if
   they failed and are retried, or if the result is large.
4. Calls of an operation are batched while others of it are in flight, and while workers run most calls of a batch.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from os import urandom
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.durable.journal import SEPARATOR, Outcome, Task
from opwire.errors import CallError, ErrorCode
from opwire.protocol.batch import decode_batch, encode_batch
from opwire.protocol.events import MAX_MESSAGE, CallFailed, CallRequested, CallResponded, encode_event
from opwire.registry.invoke import eager_task
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import reject, resolve

logger = logging.getLogger("opwire.durable")

SMALL = 1024
"""Bytes of a request or result in a batch: larger ones gain little."""

_MAX_CALLS = 32  # of a batch, which has less than 64 KiB then: the limit of `decode_batch`
_TOKENS = tuple(map(str, range(_MAX_CALLS)))
_PAUSE = 60.0  # seconds for which calls are not batched after workers have not run them
_OPERATIONS = 1024  # with calls in flight
_DIGITS = 16  # of a digest
_KEY = re.compile(rf"(batch-[0-9a-f]{{32}})-([12]?[0-9]|3[01])(?:-([0-9a-f]{{{_DIGITS}}}))?")

Response = CallResponded | CallFailed

# --- keys and tasks ---------------------------------------------------------------------------------------------------


class BatchedKey(NamedTuple):
    """The key of a call in a batch. In errors it ends with the beginning of the call's fingerprint."""

    batch: str
    token: str
    digest: str = ""

    @classmethod
    def parse(cls, key: str) -> "BatchedKey | None":
        """Parse a key; return None if it is not that of a call in a batch."""
        found = _KEY.fullmatch(key)
        return None if found is None else cls(found[1], found[2], found[3] or "")

    @property
    def own(self) -> str:
        """The key of a task of its own."""
        return own_key(self.batch, self.token)


def task_key(key: str) -> str:
    """Return the key of the task of a call; of a call in a batch, that of a task of its own."""
    batched = BatchedKey.parse(key)
    return key if batched is None else batched.own


def own_key(batch: str, token: str) -> str:
    """Return the key of a call in a batch."""
    return f"{batch}-{token}"


def own_task(batch: Task, token: str, request: CallRequested, result: bytes = b"") -> Task:
    """Return a call in a batch as a task of its own, with its encoded result if it was run."""
    key = own_key(batch.key, token)
    event = encode_event(replace(request, request_id=key))
    return replace(batch, key=key, request=event + SEPARATOR + result if result else event)


def is_batch(task: Task) -> bool:
    """Return whether a task is a batch."""
    return task.request.startswith(b"[")


def batch_requests(batch: Task) -> list[tuple[str, CallRequested]]:
    """Decode the requests of a batch.

    Raises:
        CallError: PROTOCOL_ERROR, it does not hold requests for its operation.
    """
    requests: list[tuple[str, CallRequested]] = []
    for token, event in decode_batch(batch.request, MAX_MESSAGE):
        if type(event) is not CallRequested or event.operation_id != batch.operation_id or token not in _TOKENS:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"the batch does not hold requests for {batch.operation_id}")
        requests.append((token, event))
    return requests


def batch_responses(outcome: Outcome) -> Mapping[str, Response]:
    """Decode the outcome of a batch: the responses by token.

    Raises:
        CallError: PROTOCOL_ERROR, it is invalid.
    """
    if not outcome.event.startswith(b"["):
        return dict.fromkeys(_TOKENS, outcome.read())
    responses: dict[str, Response] = {}
    for token, event in decode_batch(outcome.event, MAX_MESSAGE):
        if type(event) is not CallResponded and type(event) is not CallFailed:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"a recorded event of {outcome.operation_id} is not a response")
        responses[token] = event
    return responses


def call_outcome(outcome: Outcome, key: BatchedKey) -> Outcome | None:
    """Return the outcome of a call from that of its batch; None if it is a task of its own.

    Raises:
        CallError: PROTOCOL_ERROR, it is invalid.
    """
    response = batch_responses(outcome).get(key.token)
    return None if response is None else replace(outcome, key=key.own, event=encode_event(response))


# --- the caller's side ------------------------------------------------------------------------------------------------


class SharedCall(Struct, eq=False):
    """A call in a batch. `response` is None if it is a task of its own."""

    batch: str  # its key
    token: str
    request: CallRequested
    end: float  # the monotonic time until which its caller waits
    response: asyncio.Future[Response | None]

    @property
    def seconds_left(self) -> float:
        """The seconds for which its caller still waits."""
        return self.end - time.monotonic()

    def key(self, fingerprint: str) -> str:
        """Return its key for a caller, given its fingerprint."""
        return f"{own_key(self.batch, self.token)}-{fingerprint[:_DIGITS]}"

    def batch_task(self, requests: bytes = b"") -> Task:
        """Return its batch as a task. The caller is part of the fingerprint, as in those of other calls."""
        operation_id, identity = self.request.operation_id, self.request.identity
        caller = msgspec.json.encode((operation_id, None if identity is None else identity.id))
        return Task(
            key=self.batch,
            operation_id=operation_id,
            request=requests,
            fingerprint=sha256(caller).hexdigest(),
            submitted=round(time.time() * 1000),
        )

    def task(self) -> Task:
        """Return it as a task of its own."""
        return own_task(self.batch_task(), self.token, self.request)

    def expire(self) -> None:
        """End the wait."""
        self.fail(CallError(ErrorCode.TIMEOUT, "the batch has no outcome"))

    def fail(self, error: Exception) -> None:
        """Raise an error in the caller."""
        reject(self.response, error)


class _CallBatch(Struct, eq=False):
    """Calls of one operation and identity."""

    loop: asyncio.AbstractEventLoop
    key: str
    identity: str | None = None
    requests: list[tuple[str, bytes]] = []
    calls: list[SharedCall] = []
    is_submitted: bool = False

    def join(self, token: str, request: CallRequested, event: bytes, end: float) -> SharedCall:
        """Add a call, and its encoded request."""
        shared = SharedCall(self.key, token, request, end, self.loop.create_future())
        self.requests.append((token, event))
        self.calls.append(shared)
        return shared


class OperationCalls(Struct, eq=False):
    """The calls of one operation at this end."""

    in_flight: int = 0
    batch: _CallBatch | None = None  # that is not submitted yet
    is_proven: bool = False  # workers run its batches
    on_trial: bool = False  # the batch in flight shows whether they do
    paused_until: float = 0.0  # a monotonic time

    def batches(self, now: float) -> bool:
        """Return whether the next call may be batched. The first batch of an operation is alone in flight."""
        if self.batch is not None:
            return True
        return self.in_flight > 0 and now >= self.paused_until and (self.is_proven or not self.on_trial)


class CallBatches:
    """The batches of one `DurableCalls`. `submit` stores a task, and waits for its outcome for some seconds."""

    def __init__(self, submit: Callable[[Task, float], Awaitable[Outcome | None]]) -> None:
        self._submit = submit
        self._operations: BoundedDict[str, OperationCalls] = BoundedDict(_OPERATIONS)
        self._deadlines = Deadlines()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[None]] = set()

    def of(self, operation_id: str) -> OperationCalls:
        """Return the calls of an operation."""
        calls = self._operations.get(operation_id)
        if calls is None:
            calls = self._operations[operation_id] = OperationCalls()
        return calls

    def add(self, calls: OperationCalls, request: CallRequested, wait: float) -> SharedCall | None:
        """Submit a call with others of this turn; return None if it has to be a task of its own.

        Raises:
            CallError: it cannot be encoded.
        """
        now = time.monotonic()
        if not calls.batches(now):
            return None
        identity, batch = None if request.identity is None else request.identity.id, calls.batch
        if batch is not None and batch.identity != identity:
            self._begin(calls, batch)
            batch = None
        event = encode_event(request)
        if len(event) > SMALL:
            return None
        if batch is None:
            batch = calls.batch = self._new(f"batch-{urandom(16).hex()}", identity)
            calls.on_trial = True
            batch.loop.call_soon(self._begin, calls, batch)
        shared = batch.join(_TOKENS[len(batch.calls)], request, event, now + wait)
        if len(batch.calls) == _MAX_CALLS:
            self._begin(calls, batch)
        return shared

    def again(self, calls: OperationCalls, key: BatchedKey, request: CallRequested, wait: float) -> SharedCall:
        """Submit the batch of an earlier call again, with this call alone. If it is known, the first one counts.

        Raises:
            CallError: it cannot be encoded.
        """
        batch = self._new(key.batch)
        shared = batch.join(key.token, request, encode_event(request), time.monotonic() + wait)
        self._begin(calls, batch)
        return shared

    def _new(self, key: str, identity: str | None = None) -> _CallBatch:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the journal was started again in another one
            self._loop = loop
            self._deadlines.bind()
        return _CallBatch(loop, key, identity)

    async def response(self, shared: SharedCall) -> Response | None:
        """Wait for the response to a call; return None if it is a task of its own.

        Raises:
            CallError: TIMEOUT, or the error of the journal.
        """
        tick = self._deadlines.add(shared, shared.end, SharedCall.expire)
        try:
            return await shared.response
        finally:
            self._deadlines.discard(shared, tick)

    def _begin(self, calls: OperationCalls, batch: _CallBatch) -> None:
        if batch.is_submitted:
            return
        batch.is_submitted = True
        if calls.batch is batch:
            calls.batch = None
        task = eager_task(self._run(calls, batch), batch.loop)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, calls: OperationCalls, batch: _CallBatch) -> None:
        end = max(shared.end for shared in batch.calls)
        task = batch.calls[0].batch_task(encode_batch(batch.requests))
        responses: Mapping[str, Response] = {}
        try:
            outcome = await self._submit(task, end - time.monotonic())
            if outcome is None:
                return  # the callers have reached their deadlines, or are about to
            responses = batch_responses(outcome)
        except Exception as error:  # of any kind: no caller may be left waiting
            if not isinstance(error, CallError) or error.code is not ErrorCode.PAYLOAD_TOO_LARGE:
                for shared in batch.calls:
                    shared.fail(error)
                return
        finally:
            calls.on_trial = False
        calls.is_proven = len(responses) * 2 >= len(batch.calls)
        if not calls.is_proven:
            logger.debug("calls of %s are not batched for %g s", task.operation_id, _PAUSE)
            calls.paused_until = time.monotonic() + _PAUSE
        for shared in batch.calls:
            resolve(shared.response, responses.get(shared.token))
