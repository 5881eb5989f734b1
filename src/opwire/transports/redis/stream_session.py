"""A connection to a Redis server that is made when it is needed, and made again after it was lost."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from ssl import SSLContext, create_default_context
from typing import Any

from opwire.errors import CallError, ErrorCode
from opwire.transports.redis.connection import Connection
from opwire.transports.redis.resp import Part, command
from opwire.transports.redis.stream_scripts import SCRIPTS, Script
from opwire.transports.redis.url import Target

logger = logging.getLogger("opwire.durable")

PATIENCE = 5.0
"""Seconds without an answer, after which a server counts as lost."""


class Session:
    """`channel` is listened to: `pushed` gets what is published there, until `lost` is called."""

    def __init__(
        self,
        target: Target,
        ssl: SSLContext | None,
        *,
        channel: bytes | None = None,
        pushed: Callable[[bytes], None] | None = None,
        lost: Callable[[CallError], None] | None = None,
    ) -> None:
        self._target = target
        self._ssl = create_default_context() if ssl is None and target.tls else ssl
        self._channel = channel
        self._pushed = pushed
        self._on_loss = lost
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def ask(self, *commands: bytes, patience: float = PATIENCE) -> list[Any]:
        """Send commands, and wait for their replies.

        Raises:
            CallError: UNAVAILABLE, if one is refused, or the server is lost or does not answer.
        """
        connection = self._connection or await self._connect()
        try:
            async with asyncio.timeout(patience):
                return await connection.ask(*commands)
        except TimeoutError:
            self._leave(connection, "it does not answer")
            raise CallError(ErrorCode.UNAVAILABLE, f"{self._target.name} does not answer") from None
        except CallError as error:
            if "READONLY" in error.message:  # its address may lead to another server by now
                self._leave(connection, "it has become a read-only replica")
            raise

    async def run(self, script: Script, keys: Sequence[Part], *arguments: Part) -> Any:
        """What a script returns.

        Raises:
            CallError: UNAVAILABLE.
        """
        parts = (len(keys), *keys, *arguments)
        try:
            (reply,) = await self.ask(command(b"EVALSHA", script.digest, *parts))
        except CallError as error:
            if "NOSCRIPT" not in error.message:
                raise
            (reply,) = await self.ask(command(b"EVAL", script.text, *parts))  # somebody has emptied Redis' cache
        return reply

    async def _connect(self) -> Connection:
        async with self._connecting:
            if self._closed:
                raise CallError(ErrorCode.UNAVAILABLE, f"the journal at {self._target.name} is closed")
            if self._connection is not None:
                return self._connection
            connection = Connection(self._target, self._arrived, lambda reason: self._lost(connection, reason))
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._open(connection)
            except TimeoutError:
                await connection.close()
                raise CallError(ErrorCode.UNAVAILABLE, f"{self._target.name} does not answer") from None
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
            return connection

    async def _open(self, connection: Connection) -> None:
        await connection.open(self._ssl)
        channel = [] if self._channel is None else [command(b"SUBSCRIBE", self._channel)]
        await connection.greet(*channel, *(command(b"SCRIPT", b"LOAD", each.text) for each in SCRIPTS))

    def _arrived(self, _: bytes, message: bytes) -> None:
        if self._pushed is not None:
            self._pushed(message)

    def _leave(self, connection: Connection, reason: str) -> None:
        self._lost(connection, reason)
        connection.abort(reason)

    def _lost(self, connection: Connection, reason: str) -> None:
        if self._connection is not connection:
            return  # that was known, and there may be another one
        self._connection = None
        if self._on_loss is not None:
            lost = f"the connection to {self._target.name} was lost: {reason}"
            self._on_loss(CallError(ErrorCode.UNAVAILABLE, lost))

    async def close(self) -> None:
        """End it. Closing again does nothing."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
