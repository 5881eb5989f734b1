"""Which received requests run. No I/O and no tasks.

1. No request runs twice, however often it is delivered: ids are remembered after their requests have ended.
2. A server that drains starts no more requests; their callers may call another server.
3. The number of requests in flight is limited, in all and for one caller, and so is the memory of their inputs.
"""

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity
from opwire.model.operation import is_own
from opwire.observe.logs import AccessEntry
from opwire.protocol.call_table import Credits
from opwire.protocol.caller_callbacks import ProgressSender, RemoteCaller
from opwire.protocol.events import CallRequested, Milliseconds
from opwire.protocol.transport import Address
from opwire.runtime.bounded import SharedLimit, Tally
from opwire.typed.plain import memory_of

MAX_INPUT_BYTES = 256 * 1024 * 1024
"""Memory of the large inputs of requests in flight; one identity may take half of it."""

LARGE_INPUT_BYTES = 16 * 1024
"""The number of requests bounds the memory of smaller inputs."""

MIN_REMEMBERED_IDS = 10_000
"""Ids of ended requests that are remembered, at least, to detect duplicates."""

_NOT_STARTED = -1.0  # instead of the deadline of a request that was rejected


class RunningRequest(Struct, eq=False):
    """A request in flight."""

    event: CallRequested
    caller: Address
    identity: Identity | None
    arrived: float  # monotonic time
    input_bytes: int  # of a large input
    credits: Credits | None  # of a subscription
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    cancelled: str | None = None  # why
    outcome: str | None = None  # decided by the first response, error or cancellation
    deadline_tick: int = 0
    access: AccessEntry | None = None  # its entry in the access log, if that is enabled
    items: int | None = None  # of a subscription
    is_resumable: bool = False  # at another server
    output_bytes: int | None = None  # while there is a watcher
    progress: ProgressSender | None = None  # if its caller asked for progress
    questions: RemoteCaller | None = None  # if its caller accepts questions

    @property
    def identity_id(self) -> str | None:
        """The id of the caller's identity."""
        return None if self.identity is None else self.identity.id

    def cancel(self, reason: str) -> None:
        """Cancel the handler, once: a second cancellation would interrupt its cleanup."""
        if self.cancelled is None:
            self.cancelled = reason
            if self.task is not None:
                self.task.cancel(reason)


class Refusal(Struct, frozen=True):
    """Why a request does not run. `not_started`: its caller may retry at another server."""

    error: CallError | None  # None: it was delivered twice, and gets no second response
    not_started: bool = False


class Admission:
    """The requests in flight, and the limits for new ones. `measures_inputs` is for peers in other processes.

    `other_version` returns the error for an operation that is not served in the version of a request.
    """

    def __init__(
        self,
        other_version: Callable[[str, str], CallError | None],
        *,
        max_calls: int,
        max_calls_per_identity: int | None,
        measures_inputs: bool,
    ) -> None:
        self.running: dict[str, RunningRequest] = {}
        self.is_draining = False
        self._other_version = other_version
        self._max_calls = max_calls
        self._max_calls_per_identity = max_calls_per_identity
        self._measures_inputs = measures_inputs
        self.calls_by_identity: Tally[str | None] = Tally()
        self.input_bytes: SharedLimit[str | None] = SharedLimit(MAX_INPUT_BYTES, MAX_INPUT_BYTES // 2)
        # The deadlines of the latest ended requests, and of those that ended before. Two generations, since removing
        # the oldest one with each call takes 0.5 µs, and 3 µs in a dict, which skips over all deleted keys.
        self._ended: dict[tuple[Address, str], Milliseconds | None] = {}
        self._ended_before: dict[tuple[Address, str], Milliseconds | None] = {}

    def admit(self, event: CallRequested, caller: Address, identity: Identity | None) -> RunningRequest | Refusal:
        """Count a request that may run as one in flight, until `end`; or return why it may not."""
        key = caller, event.request_id
        if key in self._ended or key in self._ended_before or event.request_id in self.running:
            return self._refuse_repeated(event, key)
        if self.is_draining and not is_own(event.operation_id):
            self._remember(key, _NOT_STARTED)
            return Refusal(server_leaves(), not_started=True)
        if event.version is not None and (error := self._other_version(event.operation_id, event.version)):
            return Refusal(error, not_started=True)
        if len(self.running) >= self._max_calls:
            return _rate_limited(f"{self._max_calls} calls are already in flight")
        owner = None if identity is None else identity.id
        limit = self._max_calls_per_identity
        if limit is not None and self.calls_by_identity[owner] >= limit:
            return _rate_limited(f"this caller already has {limit} calls in flight")
        input_bytes = memory_of(event.input) if self._measures_inputs else 0
        if input_bytes <= LARGE_INPUT_BYTES:
            input_bytes = 0
        elif not self.input_bytes.take(owner, input_bytes):
            return _rate_limited("large inputs of other calls are in flight: call again when some of them have ended")
        if limit is not None:
            self.calls_by_identity[owner] += 1
        credits = None if event.credits is None else Credits(event.credits)
        request = RunningRequest(event, caller, identity, time.monotonic(), input_bytes, credits)
        self.running[event.request_id] = request
        return request

    def end(self, request: RunningRequest) -> None:
        """Forget a request that has ended, except for its id."""
        event = request.event
        del self.running[event.request_id]
        if request.input_bytes:
            self.input_bytes.give_back(request.identity_id, request.input_bytes)
        if self._max_calls_per_identity is not None:
            self.calls_by_identity.subtract(request.identity_id)
        self._remember((request.caller, event.request_id), event.deadline)

    def _refuse_repeated(self, event: CallRequested, key: tuple[Address, str]) -> Refusal:
        deadline = self._ended.get(key, self._ended_before.get(key))
        if deadline == _NOT_STARTED:
            # Its caller has sent it to another server, so that it is rejected after a restart too.
            return Refusal(server_leaves(), not_started=True)
        if deadline is not None and deadline == event.deadline:
            return Refusal(None)
        # It has ended, or was aborted while its handler cleans up.
        message = "the request id was used before: use a new one for each call"
        return Refusal(CallError(ErrorCode.PROTOCOL_ERROR, message))

    def _remember(self, key: tuple[Address, str], deadline: Milliseconds | None) -> None:
        self._ended[key] = deadline
        if len(self._ended) >= MIN_REMEMBERED_IDS:
            self._ended, self._ended_before = {}, self._ended


def server_leaves() -> CallError:
    """Return the error for a request to a server that drains."""
    return CallError(ErrorCode.UNAVAILABLE, "the server is shutting down and accepts no new calls")


def _rate_limited(message: str) -> Refusal:
    return Refusal(CallError(ErrorCode.RATE_LIMITED, message))
