"""Serves a few operations over a transport, in a process that tests kill and freeze.

    python -m tests.servers.worker redis|nats|websocket URL [OPTIONS]

OPTIONS are keyword arguments of the transport, as JSON. It prints `ready`, and leaves when its stdin is closed or at
SIGTERM.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from opwire import AccessControl, Context, OperationRegistry, OperationSpec, OperationType
from opwire.protocol import CallHandler, PendingRequestMap, Transport
from opwire.transports.memory import MemoryBus, MemoryTransport

PUBLIC = AccessControl(public=True)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def connect(kind: str, url: str, **options: Any) -> Transport:
    """The transport of this kind, not started yet."""
    match kind:
        case "redis":
            from opwire.transports.redis import RedisTransport

            return RedisTransport(url, **options)
        case "nats":
            from opwire.transports.nats import NatsTransport

            return NatsTransport(url, **options)
        case "websocket":
            from opwire.transports.websocket import WebSocketTransport

            return WebSocketTransport(url, **options)
        case "memory":  # without callers: for tests of the process itself
            return MemoryTransport(MemoryBus())
    raise ValueError(f"there is no transport {kind!r}: say redis, nats, websocket or memory")


async def echo(input: Any, context: Context) -> Any:
    """Its input, after `delay` seconds if the input says so."""
    await asyncio.sleep(input.get("delay", 0) if isinstance(input, dict) else 0)
    return input


def operations() -> OperationRegistry:
    """What is served."""
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="work", name="echo", type=OperationType.QUERY, access=PUBLIC), echo)
    numbers_of_calls = count(1)

    @registry.mutation("work.count", access=PUBLIC)
    async def count_() -> list[int]:
        return [os.getpid(), next(numbers_of_calls)]

    @registry.subscription("work.numbers", access=PUBLIC)
    async def numbers(end: int | None = None, delay: float = 0) -> AsyncIterator[int]:
        try:
            for number in count(1) if end is None else range(1, end + 1):
                yield number
                await asyncio.sleep(delay)
        except (asyncio.CancelledError, GeneratorExit):
            say("stopped")
            raise

    @registry.query("work.hang", access=PUBLIC, timeout=3600)
    async def hang() -> None:
        say("hanging")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            say("stopped")
            raise

    return registry


async def wait_for_the_end() -> None:
    """Return when stdin is closed, or at SIGTERM."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, reader.feed_eof)
    say("ready")
    await reader.read()
    pipe.close()


async def main(kind: str, url: str, options: str = "{}") -> None:
    transport = connect(kind, url, **json.loads(options))
    async with PendingRequestMap(transport) as calls, CallHandler(operations(), calls):
        await wait_for_the_end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
