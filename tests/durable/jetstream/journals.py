"""What the tests of durable calls on JetStream are made with."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import pytest

from opwire.durable import Claim, Task
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.jetstream.session import JetStreamSession
from opwire.errors import CallError, ErrorCode
from opwire_conformance.harness import soon
from tests.servers.brokers import NatsServer

ORDER = "shop.order"


@asynccontextmanager
async def journal(server: NatsServer | str, prefix: str | None = None, **options: Any) -> AsyncIterator[NatsJournal]:
    """An end of a journal of its own, unless a prefix is given."""
    url = server if isinstance(server, str) else server.url
    async with NatsJournal(url, prefix=prefix or token_hex(4), **options) as made:
        yield made


async def claimed(made: NatsJournal, operation: str = ORDER, *, lease: float = 60) -> Claim:
    """The next task, which has to be there soon."""
    async with asyncio.timeout(10):
        while not (claims := await made.claim([operation], lease=lease, wait=0.2)):
            pass
    return claims[0]


async def begun(made: NatsJournal, task: Task, *, lease: float = 60) -> Claim:
    """A task that was submitted and claimed."""
    await made.submit(task)
    return await claimed(made, task.operation_id, lease=lease)


async def entries(made: NatsJournal) -> list[str]:
    """What is in the stream: the key and the kind of each entry."""
    subjects = await made.log.subjects(">")
    return sorted(f"{subject.split('.')[2]} {made.log.names.kind(subject)}" for subject in subjects)


async def until(what: Callable[[], Awaitable[object]], patience: float = 10) -> None:
    """Wait until something is true of a server."""
    async with asyncio.timeout(patience):
        while not await what():
            await asyncio.sleep(0.01)


def drop_acknowledgements(patch: pytest.MonkeyPatch, word: bytes) -> None:
    """Send no acknowledgement of tasks that begins with this word: +ACK removes them, -NAK delays their redelivery."""
    send = JetStreamSession.send

    def drop(session: JetStreamSession, subject: str, payload: bytes, *rest: Any, **options: Any) -> None:
        if not (subject.startswith("$JS.ACK.") and payload.startswith(word)):
            send(session, subject, payload, *rest, **options)

    patch.setattr(JetStreamSession, "send", drop)


async def unavailable(asking: Awaitable[object]) -> str:
    """The message of the error that something has to end with, soon."""
    with pytest.raises(CallError) as caught:
        await soon("it is refused", asking)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    return caught.value.message
