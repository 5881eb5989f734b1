"""Foreign servers, for opwire's clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tests.servers.brokers import HOST

WELCOME = {"type": "session.welcome", "version": 1, "peer": "c1", "maxMessage": 1_000_000, "heartbeatMs": 10_000}
META = {"source": "local", "operationId": "a.b", "timestamp": 1}

Talk = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def foreign(talk: Talk, *, protocol: str | None = "opwire.v1") -> AsyncIterator[str]:
    """A server made of the `websockets` library, which does with a connection what the test wants."""
    subprotocols = None if protocol is None else [Subprotocol(protocol)]
    async with serve(talk, HOST, 0, subprotocols=subprotocols, compression=None) as server:
        yield f"ws://{HOST}:{next(iter(server.sockets)).getsockname()[1]}"


def saying(*messages: Any) -> Talk:
    """Answers the hello with these messages, and waits until the client leaves."""

    async def talk(connection: ServerConnection) -> None:
        assert json.loads(await connection.recv())["type"] == "session.hello"
        for message in messages:
            await connection.send(message if isinstance(message, str) else json.dumps(message))
        await connection.wait_closed()

    return talk


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A server that accepts connections, and says nothing."""
    writers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: writers.append(writer), HOST, 0) as server:
        yield f"ws://{HOST}:{server.sockets[0].getsockname()[1]}"
        for writer in writers:
            writer.close()
