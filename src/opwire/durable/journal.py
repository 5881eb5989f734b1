"""The one interface between durable calls and whatever keeps them: a journal of tasks, and of what came of them.

A task is submitted once for each idempotency key, claimed by one worker at a time for as long as its lease lasts, and
ends with exactly one recorded outcome, which stands until it has expired or is purged. A worker that dies loses its
lease, and another one claims the task: a handler runs at least once, and perhaps more often.

    submitted -> claimed -> recorded                    the outcome of a handler
                    |  \\-> released -> claimed …        to be tried again, after a while
                    |  \\-> (lease runs out) -> claimed …
                    \\-> buried                          it was given up; `replay` submits it again

What is buried does not expire: nobody has seen to it yet.

`opwire.testing.check_journal` is the contract that every implementation passes.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from opwire.call import CallFailed, CallRequested, CallResponded, decode_event
from opwire.errors import CallError, ErrorCode

KEEP = 7 * 24 * 3600.0
"""Seconds for which an outcome is kept, unless a journal is told otherwise."""


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

    async def claim(self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1) -> list[Claim]:
        """The next tasks of these operations, `limit` at most, for `lease` seconds; none if `wait` seconds bring none.

        Tasks whose lease has run out, and released ones whose delay is over, are claimed like new ones. May return
        without a task before the time is over. Whoever cancels it waits for the lease to run out, at worst.
        """
        ...

    async def renew(self, claim: Claim) -> bool:
        """Keep a task for another lease. False if the lease was lost: the task has ended, or is not ours any more."""
        ...

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """End a task. The outcome that stands: this one, or one that was recorded before, by whomever.

        A lost lease is no obstacle: the first outcome counts. None: there is no such task any more.
        """
        ...

    async def release(self, claim: Claim, delay: float) -> None:
        """Give a task back, to be claimed again after `delay` seconds. Does nothing if the lease was lost."""
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


def key_in_use(key: str) -> CallError:
    """The error for a key that is known with another fingerprint."""
    message = f"the idempotency key {key!r:.80} stands for another call: give each call a key of its own"
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"key": key})
