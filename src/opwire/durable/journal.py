"""The one interface between durable calls and whatever keeps them: a journal of tasks, and of what came of them.

A task is submitted once for each idempotency key, claimed by one worker at a time for as long as its lease lasts, and
ends with exactly one recorded outcome, which stands until it has expired or is purged. A worker that dies loses its
lease, and another one claims the task: a handler runs at least once, and perhaps more often.

    submitted -> claimed -> recorded                    the outcome of a handler
                    |  \\-> released -> claimed …        to be tried again, after a while
                    |  \\-> (lease runs out) -> claimed …
                    \\-> buried                          it was given up; `replay` submits it again

What is buried does not expire: nobody has seen to it yet.

A journal counts failures (an attempt was released as failed) apart from losses (its lease ran out). A task whose last
attempt was lost is a *suspect*: perhaps it has killed its worker. Suspects are claimed one at a time, so that a worker
can run each of them with nothing else in hand. A worker that does so marks the attempt by `renew(claim, alone=True)`:
only a loss that follows such a mark counts against the task (`lone_losses`).

`opwire.testing.check_journal` is the contract that every implementation passes.
"""

from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct

from opwire.call import CallFailed, CallRequested, CallResponded, decode_event
from opwire.errors import CallError, ErrorCode

KEEP = 7 * 24 * 3600.0
"""Seconds for which an outcome is kept, unless a journal is told otherwise."""

MAX_SECONDS = 10 * 365 * 24 * 3600.0
"""The longest lease, delay or time to keep an outcome: engines count these in 64-bit nanoseconds."""


class Task(Struct, frozen=True, kw_only=True):
    """Something to be done. `request` is the `call.requested` event as JSON; a journal does not look into it."""

    key: str
    """The idempotency key: what is submitted again under it is the same task."""
    operation_id: str
    request: bytes
    fingerprint: str
    """A digest of who asks for what: a key that is known with another one is refused."""
    submitted: int
    """Epoch milliseconds."""

    def read(self) -> CallRequested:
        """The request.

        Raises:
            CallError: PROTOCOL_ERROR, if there is none for this operation in it.
        """
        event = decode_event(self.request)
        if not isinstance(event, CallRequested) or event.operation_id != self.operation_id:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"the task holds no request for {self.operation_id}")
        return event


class Claim(Struct, frozen=True, kw_only=True):
    """A task in the hands of one worker for `lease` seconds. `attempt` counts from 1; `receipt` is for the journal."""

    task: Task
    attempt: int
    lease: float
    receipt: str
    failures: int = 0
    """Attempts that were released as failed."""
    losses: int = 0
    """Attempts whose lease ran out."""
    lone_losses: int = 0
    """Those of them in which the worker had nothing else in hand."""
    suspect: bool = False
    """The last attempt was lost, or the task was released without a failure since then."""


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What came of a task. `event` is the `call.responded` or `call.error` that its caller gets, as JSON."""

    key: str
    operation_id: str
    event: bytes
    attempts: int
    recorded: int
    """Epoch milliseconds."""
    buried: bool = False
    """It was given up: no attempt of as many as are allowed has led to an outcome of its own."""

    def read(self) -> CallResponded | CallFailed:
        """The answer.

        Raises:
            CallError: PROTOCOL_ERROR, if there is none in it.
        """
        event = decode_event(self.event)
        if not isinstance(event, CallResponded | CallFailed):
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"what was recorded for {self.operation_id} is no answer")
        return event


class JournalInfo(Struct, frozen=True, kw_only=True):
    """How much there is of an operation. What was released waits, too."""

    operation_id: str
    waiting: int
    claimed: int
    buried: int


class Journal(Protocol):
    """Where durable calls are kept.

    Every method may raise `CallError(UNAVAILABLE)`. It is then not known whether anything has happened, and doing it
    again is safe. A journal that has lost its engine connects again when it is next used.
    """

    @property
    def name(self) -> str:
        """What messages to people call it: no password in it."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether only those can submit who can be believed about the identity that they state."""
        ...

    async def start(self) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """
        ...

    async def submit(self, task: Task) -> Outcome | None:
        """Keep a task, unless its key is known. When this returns, the task is in the journal. Its outcome, if any.

        Raises:
            CallError: VALIDATION_ERROR, if the key is known with another fingerprint.
        """
        ...

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """Claim the next tasks of these operations, `limit` at most, for `lease` seconds; none if none come in time.

        Released tasks whose delay is over are claimed like new ones. So are tasks whose lease has run out, but they are
        suspects: at most one of them is claimed at a time, and none if `suspects` is false. May return without a task
        before `wait` seconds are over. A task that a cancelled claim was given comes back when its lease has run out.
        """
        ...

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Keep a task for another lease. False if the lease was lost: the task has ended, or has another owner.

        `alone` says whether the worker has nothing else in hand; it holds until the next renewal.
        """
        ...

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """End a task. The outcome that stands: this one, or one that was recorded before, by whomever.

        A lost lease is no obstacle: the first outcome counts. None: there is no such task any more.
        """
        ...

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Give a task back, to be claimed again after `delay` seconds. Does nothing if the lease was lost.

        `failed` counts the attempt as a failure, which shows that the task did not kill its worker: it is no suspect
        any more. Otherwise it stays one if it was.
        """
        ...

    async def outcome(self, key: str) -> Outcome | None:
        """What came of a task, if anything yet."""
        ...

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task; None if there is none within `timeout` seconds."""
        ...

    def buried(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """The tasks that were given up, the oldest first."""
        ...

    async def replay(self, key: str) -> bool:
        """Submit a buried task again, with its attempts counted from 1. False if there is no such."""
        ...

    async def purge(self, key: str) -> bool:
        """Forget a task that has ended, and its outcome: its key can be used anew. False if there is no such."""
        ...

    async def info(self) -> list[JournalInfo]:
        """How much there is of each operation."""
        ...

    async def close(self) -> None:
        """Disconnect. Closing again does nothing."""
        ...


def seconds_within(value: object, most: float) -> float:
    """Return a number of seconds between 0 and `most`, whatever a handler or a peer gave: NaN and text count as 0."""
    try:
        seconds = float(value)  # pyright: ignore[reportArgumentType]
    except OverflowError:  # an int of more than 308 digits
        seconds = inf if value > 0 else 0.0  # pyright: ignore[reportOperatorIssue]
    except (TypeError, ValueError):
        return 0.0
    return min(seconds, most) if seconds > 0 else 0.0


def check_seconds(what: str, value: float) -> float:
    """Return a duration that was configured, if it is longer than 0 and no longer than `MAX_SECONDS`.

    Raises:
        CallError: VALIDATION_ERROR, if it is not.
    """
    if not 0 < value <= MAX_SECONDS:
        wrong = f"{what} is {value!r:.20}: give a number of seconds above 0, at most {MAX_SECONDS:g}"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
    return value


def key_in_use(key: str) -> CallError:
    """The error for a key that is known with another fingerprint."""
    message = f"the idempotency key {key!r:.80} stands for another call: give each call a key of its own"
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"key": key})
