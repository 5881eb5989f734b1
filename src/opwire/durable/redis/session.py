"""A session with the Redis server of a journal or a stream: commands and scripts, and reconnects."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from opwire.errors import CallError, ErrorCode
from opwire.transports.redis.connection import Part, RedisConnection, RedisServers, Script, command

RESPONSE_TIMEOUT_SECONDS = 5.0  # seconds without a reply, after which a server counts as lost


class RedisSession:
    """A connection that is opened lazily, and opened again after a loss.

    It loads `scripts` beforehand, and subscribes to the optional `channel`: `pushed` receives the messages there, until
    `lost` is called.
    """

    def __init__(
        self,
        servers: RedisServers,
        *,
        scripts: Sequence[Script] = (),
        channel: bytes | None = None,
        pushed: Callable[[bytes], None] | None = None,
        lost: Callable[[CallError], None] | None = None,
    ) -> None:
        self.name = servers.name
        self._servers = servers
        self._scripts = scripts
        self._channel = channel
        self._pushed = pushed
        self._on_loss = lost
        self._connection: RedisConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def ask(self, *commands: bytes, patience: float = RESPONSE_TIMEOUT_SECONDS) -> list[Any]:
        """Send commands and return their replies.

        Raises:
            CallError: UNAVAILABLE, if one is refused, the connection is lost or the server does not answer.
        """
        connection = self._connection or await self._connect()
        try:
            async with asyncio.timeout(patience):
                await connection.link.room()
                return await connection.ask(*commands)
        except TimeoutError:
            self._abandon(connection, "it does not answer")
            raise CallError(ErrorCode.UNAVAILABLE, f"{self._servers.name} does not answer") from None
        except CallError as error:
            if "READONLY" in error.message:  # the address may belong to another server by now
                self._abandon(connection, "it has become a read-only replica")
            raise

    async def run(self, script: Script, keys: Sequence[Part], *arguments: Part) -> Any:
        """Run a script and return its reply."""
        parts = (len(keys), *keys, *arguments)
        try:
            (reply,) = await self.ask(command(b"EVALSHA", script.digest, *parts))
        except CallError as error:
            if "NOSCRIPT" not in error.message:
                raise
            (reply,) = await self.ask(command(b"EVAL", script.text, *parts))  # the script cache was flushed
        return reply

    async def _connect(self) -> RedisConnection:
        async with self._connecting:
            if self._closed:
                raise CallError(ErrorCode.UNAVAILABLE, f"the connection to {self._servers.name} is closed")
            if self._connection is not None:
                return self._connection
            try:
                async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                    self._connection = await self._open()
            except TimeoutError:
                raise CallError(ErrorCode.UNAVAILABLE, f"{self._servers.name} does not answer") from None
            return self._connection

    async def _open(self) -> RedisConnection:
        connection = RedisConnection(
            await self._servers.primary(),
            lambda _, message: self._pushed(message) if self._pushed else None,
            lambda reason: self._lost(connection, reason),
        )
        channel = [] if self._channel is None else [command(b"SUBSCRIBE", self._channel)]
        try:
            await connection.open()
            await connection.greet(*channel, *(command(b"SCRIPT", b"LOAD", script.text) for script in self._scripts))
        except BaseException:
            await connection.close()
            raise
        self._servers.follow(connection)
        return connection

    def _abandon(self, connection: RedisConnection, reason: str) -> None:
        self._lost(connection, reason)
        connection.abort(reason)

    def _lost(self, connection: RedisConnection, reason: str) -> None:
        if self._connection is not connection:
            return  # known already; there may be a new one
        self._connection = None
        if self._on_loss is not None:
            message = f"the connection to {self._servers.name} was lost: {reason}"
            self._on_loss(CallError(ErrorCode.UNAVAILABLE, message))

    async def close(self) -> None:
        """Close the session. A second call is a no-op."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
