"""The interface between durable calls and their storage: a journal of tasks and of their outcomes.

A task is submitted once for each idempotency key, claimed by one worker at a time while its lease lasts, and ends with
exactly one recorded outcome, which stays until it expires or is purged. A worker that dies loses its lease, and another
one claims the task: a handler runs at least once, and perhaps more often.

    submitted -> cancelled                              before a worker has claimed it
    submitted -> claimed -> recorded                    the outcome of a handler
                    |  \\-> released -> claimed …        retried after a delay
                    |  \\-> (lease expires) -> claimed …
                    \\-> dead letter                     given up; `replay` submits it again

Dead letters do not expire: an operator has to replay or purge them.

A journal counts failures (an attempt was released as failed) apart from losses (its lease expired). A task that lost
its last attempt is a *suspect*: it may have killed its worker. Suspects are claimed one at a time, so that a worker can
run each of them with nothing else in flight. A worker that does so marks the attempt by `renew(claim, alone=True)`:
only a loss that follows such a mark counts against the task (`lone_losses`).

`opwire_conformance.check_journal` is the contract suite for every implementation.

Tasks and outcomes refer to plain data alone, so they need no garbage collector: a journal in memory keeps many.
"""

from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct, field

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.protocol.events import CallFailed, CallRequested, CallResponded, decode_event

DEFAULT_KEEP_SECONDS = 7 * 24 * 3600.0
"""Seconds for which an outcome is kept, by default."""

MAX_SECONDS = 10 * 365 * 24 * 3600.0
"""The longest lease, delay or retention of an outcome: engines count these in 64-bit nanoseconds."""


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """A submitted mutation. `request` is its `call.requested` event as JSON, opaque to the journal."""

    key: str
    """The idempotency key: a second submission with it is the same task."""
    operation_id: str
    request: bytes
    fingerprint: str
    """A digest of the caller and the call: a known key with another fingerprint is rejected."""
    submitted: int
    """Epoch milliseconds."""

    def read(self) -> CallRequested:
        """Decode the request.

        Raises:
            CallError: PROTOCOL_ERROR, it is not a request for this operation.
        """
        event = decode_event(self.request)
        if type(event) is not CallRequested or event.operation_id != self.operation_id:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"the task does not hold a request for {self.operation_id}")
        return event


class Claim(Struct, frozen=True, kw_only=True, gc=False):
    """A task that one worker owns for `lease` seconds. `attempt` counts from 1; `receipt` is opaque to the worker."""

    task: Task
    attempt: int
    lease: float
    receipt: str
    failures: int = 0
    """Attempts that were released as failed."""
    losses: int = 0
    """Attempts with an expired lease."""
    lone_losses: int = 0
    """Those of them in which the worker ran nothing else."""
    suspect: bool = False
    """The last attempt was lost, and none was released as failed since then."""


class Outcome(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, rename="camel"):
    """The outcome of a task. `event` is the `call.responded` or `call.error` that its caller gets, as JSON."""

    key: str
    operation_id: str
    event: bytes
    attempts: int
    recorded: int
    """Epoch milliseconds."""
    dead_letter: bool = field(default=False, name="buried")
    """It was given up: every allowed attempt failed or was lost."""
    cancelled: bool = False
    """It was cancelled before a worker had claimed it; `attempts` are those before."""

    def read(self) -> CallResponded | CallFailed:
        """Decode the event.

        Raises:
            CallError: PROTOCOL_ERROR, it is not a response or an error.
        """
        event = decode_event(self.event)
        if type(event) is not CallResponded and type(event) is not CallFailed:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"the recorded event of {self.operation_id} is not a response")
        return event


class JournalInfo(Struct, frozen=True, kw_only=True):
    """Task counts of one operation; released tasks count as waiting."""

    operation_id: str
    waiting: int
    claimed: int
    dead_letters: int


class PendingTask(Struct, frozen=True, kw_only=True):
    """A task without an outcome. `claimed`: a worker has it, or has lost it and no other one has claimed it yet."""

    key: str
    operation_id: str
    submitted: int
    """Epoch milliseconds."""
    claimed: bool
    attempts: int


class Journal(Protocol):
    """Storage of durable calls.

    Every method may raise `CallError(UNAVAILABLE)`. Whether it took effect is then unknown, and a retry is safe. A
    journal that has lost its engine reconnects when it is next used.

    `DurableCalls` limits the time of each method: a journal need not do so if its engine does not reply.
    """

    @property
    def name(self) -> str:
        """The name in messages, without a password."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether every submitter can be trusted to state its own identity."""
        ...

    async def start(self) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """
        ...

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        """Store a task, unless its key is known; return its outcome, waiting for it up to `wait` seconds.

        When this returns, the task is stored.

        Raises:
            CallError: VALIDATION_ERROR, the key is known with another fingerprint.
        """
        ...

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """Claim the next tasks of these operations for `lease` seconds, at most `limit`, waiting up to `wait` seconds.

        Released tasks are claimed again after their delay, and tasks with an expired lease at once. The latter are
        suspects: at most one is claimed at a time, and none with `suspects=False`. May return an empty list before the
        wait is over. A task that is claimed by a cancelled call returns when its lease expires.
        """
        ...

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Extend the lease of a task. Return False if it was lost: the task has ended, or has another owner.

        `alone` records whether the worker runs nothing else; it holds until the next renewal.
        """
        ...

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """End a task; return its outcome: this one, or the one that any worker recorded before.

        The first outcome counts, even without a valid lease. None: the task does not exist any more.
        """
        ...

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Return a task, to be claimed again after `delay` seconds. No-op if the lease was lost.

        `failed` counts the attempt as a failure, which proves that the task did not kill its worker: it is not a
        suspect any more. Otherwise it stays one if it was.
        """
        ...

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        """End the task with the key of this outcome; return its outcome: this one, or the one that was recorded before.

        None: a worker has claimed it, or it does not exist. A released task is not claimed until its delay is over; one
        with an expired lease is, until another worker claims and releases it.
        """
        ...

    async def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a task, or None."""
        ...

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task; return None after `timeout` seconds."""
        ...

    def dead_letters(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """Iterate over the outcomes of dead letters, the oldest first."""
        ...

    async def pending(self, operation_id: str, *, limit: int = 100) -> list[PendingTask]:
        """Return the tasks of an operation that wait or run, the oldest first, at most `limit`."""
        ...

    async def replay(self, key: str) -> bool:
        """Submit a dead letter again, counting attempts from 1. Return False if it does not exist."""
        ...

    async def purge(self, key: str) -> bool:
        """Delete an ended task with its outcome, so that its key can be reused. Return False if it does not exist."""
        ...

    async def info(self) -> list[JournalInfo]:
        """Return the task counts of each operation."""
        ...

    async def close(self) -> None:
        """Disconnect; idempotent."""
        ...


def seconds_within(value: object, max_seconds: float) -> float:
    """Clamp a number of seconds from a handler or a peer to 0 … `max_seconds`; NaN and invalid types count as 0."""
    try:
        seconds = float(value)  # pyright: ignore[reportArgumentType]
    except OverflowError:  # an int of more than 308 digits
        seconds = inf if value > 0 else 0.0  # pyright: ignore[reportOperatorIssue]
    except (TypeError, ValueError):
        return 0.0
    return min(seconds, max_seconds) if seconds > 0 else 0.0


def check_seconds(option: str, value: float) -> float:
    """Return an option that is a duration, at most `MAX_SECONDS`.

    Raises:
        UsageError: it is invalid.
    """
    if not 0 < value <= MAX_SECONDS:
        raise UsageError(f"{option} is a number of seconds above 0, at most {MAX_SECONDS:g}, not {value!r:.20}")
    return value


def key_in_use(key: str) -> CallError:
    """Return the error for a key that is known with another fingerprint."""
    message = f"the idempotency key {key!r:.80} belongs to another call: give each call a key of its own"
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"key": key})
