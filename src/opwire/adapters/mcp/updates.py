"""Who waits for updates of which resource."""

import asyncio
from collections.abc import Mapping
from typing import Any

from opwire.errors import CallError, ErrorCode

MAX_WAITING = 1000
"""Updates of different resources that a watcher has not taken yet."""

MAX_URI = 8192
"""Characters of a resource's URI: updates of longer ones are ignored."""


class ResourceUpdates:
    """The updates that a server tells of, for whoever waits for them."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    def of(self, uri: str) -> "Watcher":
        """A watcher of a resource, which is told while its context is open."""
        return Watcher(uri, self._watchers)

    def tell(self, params: Mapping[str, Any]) -> None:
        """A resource was updated; `params` are those of the notification."""
        uri = params.get("uri")
        if isinstance(uri, str) and len(uri) <= MAX_URI:
            for each in self._watchers:
                each.tell(uri)

    def missed(self) -> None:
        """There was no connection for a while: whatever is watched may have been updated."""
        for each in self._watchers:
            each.tell(each.uri)

    def close(self) -> None:
        """There will be no more updates."""
        for each in self._watchers:
            each.end(CallError(ErrorCode.UNAVAILABLE, "the MCP server was closed", retryable=False))


class Watcher:
    """The updates that one consumer has not taken yet, each resource once."""

    def __init__(self, uri: str, among: "list[Watcher]") -> None:
        self.uri = uri
        self._under = f"{uri.rstrip('/')}/"  # the protocol lets a server name what lies under a watched resource
        self._among = among
        self._updated: dict[str, None] = {}
        self._told = asyncio.Event()
        self._end: CallError | None = None

    def __enter__(self) -> "Watcher":
        self._among.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._among.remove(self)

    def tell(self, uri: str) -> None:
        """A resource was updated."""
        if self._end is not None:
            return
        if uri != self.uri and not uri.startswith(self._under):
            return
        if uri not in self._updated and len(self._updated) >= MAX_WAITING:
            message = f"the consumer did not keep up: {MAX_WAITING} updates were waiting when the next one came"
            self.end(CallError(ErrorCode.ABORTED, message))
        self._updated[uri] = None
        self._told.set()

    def end(self, error: CallError) -> None:
        """Nothing more is told, and why; the first reason stands."""
        self._end = self._end or error
        self._told.set()

    async def next(self) -> str:
        """The URI of the next that was updated.

        Raises:
            CallError: ABORTED, if there were more than can wait; UNAVAILABLE, if the server was closed.
        """
        while not self._updated and self._end is None:
            self._told.clear()
            await self._told.wait()
        if self._end is not None:
            raise self._end
        uri = next(iter(self._updated))
        del self._updated[uri]
        return uri
