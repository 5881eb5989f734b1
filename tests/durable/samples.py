"""What the tests of durable calls are made with: tasks, outcomes, and operations that succeed and fail."""

import asyncio
from typing import Any

from opwire import AccessControl, CallError, Context, OperationRegistry
from opwire.durable import Claim, Journal, Outcome, Task
from opwire.model.envelope import LocalResponseMeta, ResponseEnvelope
from opwire.protocol import CallRequested, CallResponded, encode_event

DEEP = b"\x81\xa1x" + b"\x91" * 5_000
"""MessagePack of another program that is nested too deeply to be decoded."""

NOT_TEXT = b"\x82\xa3key\xa2\xff\xfe\xabfingerprint\xa2\xff\xfe"
"""MessagePack of another program with texts that are not UTF-8."""

PUBLIC = AccessControl(public=True)


def task(key: str = "k", operation_id: str = "shop.order", input: Any = None, fingerprint: str = "f") -> Task:
    request = encode_event(CallRequested(request_id=key, operation_id=operation_id, input=input))
    return Task(key=key, operation_id=operation_id, request=request, fingerprint=fingerprint, submitted=1)


def claim(given: Task | None = None, attempt: int = 1, **past: Any) -> Claim:
    return Claim(task=given or task(), attempt=attempt, lease=30, receipt="", **past)


def outcome(of: Claim, data: Any = "done", *, dead_letter: bool = False, recorded: int = 1) -> Outcome:
    output = ResponseEnvelope(data, LocalResponseMeta(operation_id=of.task.operation_id, timestamp=1))
    event = encode_event(CallResponded(request_id=of.task.key, output=output))
    return Outcome(
        key=of.task.key,
        operation_id=of.task.operation_id,
        event=event,
        attempts=of.attempt,
        recorded=recorded,
        dead_letter=dead_letter,
    )


async def lists_dead_letters_by_pages(journal: Journal, page: int) -> None:
    """Check a list of more than two pages, from which one task is purged while it is read."""
    count = 2 * page + 2
    assert [each async for each in journal.dead_letters()] == []
    for number in range(count):
        await journal.submit(task(f"{number}"))
        async with asyncio.timeout(10):
            while not (claims := await journal.claim(["shop.order"], lease=60, wait=0.2)):
                pass
        await journal.record(claims[0], outcome(claims[0], dead_letter=True, recorded=number))
    assert [each.key async for each in journal.dead_letters()] == [f"{number}" for number in range(count)]
    listed = 0
    async for each in journal.dead_letters():
        listed += 1
        if each.key == "2":
            await journal.purge("5")
    assert listed == count - 1


class Shop:
    """A registry with mutations that record their runs, and fail on command."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.runs: list[tuple[Any, int]] = []  # article and attempt
        self.contexts: list[Context] = []
        self.failures: list[CallError | Exception] = []  # what the next runs raise
        self.gate: asyncio.Event | None = None  # what the runs wait for
        self.stopped = 0
        self.registry.mutation("shop.order", access=PUBLIC)(self.order)
        self.registry.query("shop.look", access=PUBLIC)(self.look)

    async def order(self, article: str, context: Context) -> str:
        self.runs.append((article, context.metadata["attempt"]))
        self.contexts.append(context)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        if self.failures:
            raise self.failures.pop(0)
        return f"{article} is ordered"

    async def look(self) -> None:
        """A query, which no worker serves."""
