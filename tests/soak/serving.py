"""A process that serves: `python -m tests.soak.serving URL FOLDER NAME`. It drains when its stdin is closed."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any

from opwire import CallError, Context, ErrorCode, OperationRegistry
from opwire.durable import DurableWorker, Journal
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.redis import RedisJournal
from opwire.hub import Spoke, connect
from opwire.protocol import Transport
from tests.servers.worker import PUBLIC, say, wait_for_the_end
from tests.soak.history import Diary

BEAT = 0.5
"""Seconds between two heartbeats."""

BULK = 1_000
"""Operations beside those of the soak, so that announcements after a restart are large."""

_PATIENCE = 10.0  # seconds for the calls in flight to end
_LEASE = 2.0
_ATTEMPTS = 100  # no mutation is to be buried: each kill is an attempt


def journal(url: str) -> RedisJournal | NatsJournal | None:
    """Return the journal of an engine, or None for a hub."""
    match url.partition("://")[0]:
        case "redis":
            return RedisJournal(url)
        case "nats":
            return NatsJournal(url)
    return None


async def connected(
    url: str, registry: OperationRegistry | None = None, wrap: Callable[[Transport], Any] = lambda transport: transport
) -> Spoke:
    """Start a spoke as soon as the engine can be reached. `url` may be those of several hubs, with commas."""
    urls = url.split(",")
    while True:
        try:
            return await Spoke(registry, wrap(connect(urls if urls[1:] else url, heartbeat=BEAT))).start()
        except CallError as error:
            if error.code is not ErrorCode.UNAVAILABLE:
                raise
            say(f"not yet: {error}")
            await asyncio.sleep(BEAT / 5)


async def opened(url: str, stack: AsyncExitStack) -> Journal | None:
    """Start a journal as soon as the engine can be reached."""
    while (opening := journal(url)) is not None:
        try:
            return await stack.enter_async_context(opening)
        except CallError as error:
            await opening.close()
            if error.code is not ErrorCode.UNAVAILABLE:
                raise
            say(f"not yet: {error}")
            await asyncio.sleep(BEAT / 5)
    return None


def operations(diary: Diary) -> OperationRegistry:
    """Return the registry for calls."""
    registry = OperationRegistry()

    @registry.query("soak.run", access=PUBLIC)
    async def run(id: str, delay: float = 0) -> str:
        diary.note("run", id)
        await asyncio.sleep(delay)
        return id

    for number in range(BULK):
        registry.query(f"bulk.run{number}", access=PUBLIC)(run)

    @registry.query("soak.fail", access=PUBLIC)
    async def fail(id: str) -> None:
        diary.note("run", id)
        raise CallError(ErrorCode.VALIDATION_ERROR, "as it was asked to")

    @registry.subscription("soak.count", access=PUBLIC)
    async def count(id: str, end: int, delay: float = 0) -> AsyncIterator[int]:
        diary.note("run", id)
        for number in range(end):
            yield number
            await asyncio.sleep(delay)

    return registry


def mutations(diary: Diary) -> OperationRegistry:
    """Return the registry for durable calls. Each run has another result, so that outcomes can be distinguished."""
    registry = OperationRegistry()

    @registry.mutation("soak.job", access=PUBLIC)
    async def job(context: Context, delay: float = 0, fail: int = 0, refuse: bool = False) -> str:
        result = token_hex(8)
        diary.note("ran", context.metadata["idempotency_key"], code=result)
        await asyncio.sleep(delay)
        if context.metadata["attempt"] <= fail:
            raise CallError(ErrorCode.UNAVAILABLE, "not yet")
        if refuse:
            raise CallError(ErrorCode.VALIDATION_ERROR, result)
        return result

    @registry.mutation("soak.stamp", access=PUBLIC)
    async def stamp(context: Context, fail: int = 0, refuse: bool = False) -> str:
        """Return a result at once, with the key, which its caller does not know."""
        key = context.metadata["idempotency_key"]
        result = f"{token_hex(8)} {key}"
        diary.note("ran", key, code=result)
        if context.metadata["attempt"] <= fail:
            raise CallError(ErrorCode.UNAVAILABLE, "not yet")
        if refuse:
            raise CallError(ErrorCode.VALIDATION_ERROR, result)
        return result

    return registry


async def main(url: str, folder: str, name: str) -> None:
    diary = Diary(Path(folder), name)
    async with AsyncExitStack() as stack:
        spoke = await connected(url, operations(diary))
        stack.push_async_callback(spoke.drain, _PATIENCE)
        found = await opened(url, stack)
        if found is not None:
            worker = DurableWorker(mutations(diary), found, lease=_LEASE, max_attempts=_ATTEMPTS, back_off=0.05)
            await stack.enter_async_context(worker)
            stack.push_async_callback(worker.drain, _PATIENCE)
        await wait_for_the_end()
    diary.note("left", name, size=len(asyncio.all_tasks()) - 1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
