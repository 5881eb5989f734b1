"""A proxy between two peers that changes what they send: it makes a peer that breaks one promise out of a good one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

Event = dict[str, Any]
Change = Callable[[Event], list[Event]]
"""What is passed on instead of an event."""


def unchanged(event: Event) -> list[Event]:
    return [event]


def drop(type: str, **fields: Any) -> Change:
    """Drop events of this type with these fields."""
    return on(type, lambda event: [], **fields)


def on(type: str, change: Change, **fields: Any) -> Change:
    """Change events of this type with these fields."""

    def changed(event: Event) -> list[Event]:
        is_meant = event.get("type") == type and all(event.get(name) == value for name, value in fields.items())
        return change(event) if is_meant else [event]

    return changed


def setting(type: str, **fields: Any) -> Change:
    """Overwrite fields of events of this type."""
    return on(type, lambda event: [{**event, **fields}])


def without(type: str, *names: str) -> Change:
    """Remove fields of events of this type."""
    return on(type, lambda event: [{name: value for name, value in event.items() if name not in names}])


@asynccontextmanager
async def proxied(
    url: str, *, to_caller: Change = unchanged, to_server: Change = unchanged, close_code: int | None = None
) -> AsyncIterator[str]:
    """Listen in front of a peer; events that come from it pass `to_caller`, those to it `to_server`.

    `close_code` replaces the code with which the peer closes.
    """

    async def carry(source: Connection, target: Connection, change: Change, code: int | None) -> None:
        try:
            async for message in source:
                try:
                    event = json.loads(message) if isinstance(message, str) else None
                except ValueError:
                    event = None
                if not isinstance(event, dict):
                    await target.send(message)
                    continue
                for each in change(event):
                    await target.send(json.dumps(each))
        except ConnectionClosed:
            pass
        lost = source.close_code in (None, 1005, 1006)
        await target.close(code or 1011 if lost else code or source.close_code or 1011, source.close_reason or "")

    async def accept(caller: ServerConnection) -> None:
        options: dict[str, Any] = {"subprotocols": [Subprotocol("opwire.v1")], "compression": None, "max_size": None}
        async with connect(url, ping_interval=None, close_timeout=1, **options) as server:
            back = asyncio.create_task(carry(server, caller, to_caller, close_code))
            await carry(caller, server, to_server, None)
            await back

    options: dict[str, Any] = {"subprotocols": [Subprotocol("opwire.v1")], "compression": None, "max_size": None}
    async with serve(accept, "127.0.0.1", 0, ping_interval=None, close_timeout=1, **options) as listener:
        yield f"ws://127.0.0.1:{next(iter(listener.sockets)).getsockname()[1]}"
