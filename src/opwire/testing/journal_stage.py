"""What the checks of the contract are made with: ends of one journal, tasks of their own, and waiting that ends."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import Self

from opwire.durable.journal import Claim, Journal, Outcome, Task
from opwire.errors import CallError, ErrorCode
from opwire.testing.scene import PATIENCE, expect, soon

Connect = Callable[[], Journal]
"""Makes a fresh end of always the same journal, not started yet."""

LONG = 60.0
"""A lease that lasts longer than any check."""
SHORT = 0.3
"""A lease that is over soon."""


async def refused(what: str, awaitable: Awaitable[object], code: ErrorCode) -> None:
    """Something has to raise a `CallError` with this code.

    Raises:
        AssertionError: it does not.
    """
    try:
        await soon(what, awaitable)
    except CallError as error:
        expect(error.code is code, f"{what} raised {error}, and not {code.value}")
    else:
        raise AssertionError(f"{what} was not refused")


class Stage:
    """The ends that one check needs. All are closed when it is over."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._stack = AsyncExitStack()
        self._name = f"contract{token_hex(4)}"  # so that runs on the same engine do not meet

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def end(self) -> Journal:
        """A fresh end of the journal."""
        journal = self._connect()
        self._stack.push_async_callback(journal.close)
        await journal.start()
        return journal

    def id(self, name: str = "do") -> str:
        """The id of an operation of this stage."""
        return f"{self._name}.{name}"

    def task(
        self, key: str, operation: str = "do", *, request: bytes = b'{"no": "matter"}', fingerprint: str = "f1"
    ) -> Task:
        """A task of this stage."""
        return Task(
            key=f"{self._name} {key}",
            operation_id=self.id(operation),
            request=request,
            fingerprint=fingerprint,
            submitted=round(time.time() * 1000),
        )

    def outcome(self, claim: Claim, event: bytes = b'{"done": true}', *, buried: bool = False, age: int = 0) -> Outcome:
        """What came of a task of this stage, `age` milliseconds ago."""
        return Outcome(
            key=claim.task.key,
            operation_id=claim.task.operation_id,
            event=event,
            attempts=claim.attempt,
            recorded=round(time.time() * 1000) - age,
            buried=buried,
        )

    async def claim(self, journal: Journal, operation: str = "do", *, lease: float = LONG) -> Claim:
        """The next task, which has to be there soon."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            claims = await soon("claim returns", journal.claim([self.id(operation)], lease=lease, wait=0.2))
            if claims:
                return claims[0]
        raise AssertionError(f"waited {PATIENCE:g} s in vain for a task to claim")

    async def nothing(self, journal: Journal, operation: str = "do", *, wait: float = 0.0) -> None:
        """There is no task to claim."""
        end = time.monotonic() + wait
        while True:
            left = max(0.0, end - time.monotonic())
            claims = await soon("claim returns", journal.claim([self.id(operation)], lease=LONG, wait=left, limit=9))
            expect(not claims, f"{[claim.task.key for claim in claims]} could be claimed, and should not")
            if not left:
                return
