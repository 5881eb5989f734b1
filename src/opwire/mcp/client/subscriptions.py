"""Subscriptions to changes of a server: of its lists, and of single resources.

Servers of 2026-07-28 report changes in the stream of a long-running request, `subscriptions/listen`; earlier ones send
notifications. `ListenStreams` reopens broken streams, and both ways end in the same notifications. `ResourceUpdates`
distributes those of resources to watchers.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.negotiation import as_text
from opwire.mcp.revisions import (
    SUBSCRIPTION_META,
)
from opwire.runtime.deadlines import back_off
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict

logger = get_logger("opwire.mcp.client")

MAX_PENDING_UPDATES = 1000
"""Updates of different resources that a watcher has not consumed."""

MAX_URI_LENGTH = 8192
"""Characters of a resource's URI: updates of longer ones are ignored."""

FIRST_REOPEN_PAUSE = 1.0
"""Seconds until an ended stream is reopened; doubled with each attempt."""

LONGEST_REOPEN_PAUSE = 60.0
"""Seconds."""

_LISTS = ("tools", "prompts", "resources")
_ids = itertools.count(1)


def announced_changes(capabilities: Mapping[str, Any]) -> dict[str, bool]:
    """Return the filter of `subscriptions/listen` for the list changes that a server announces."""
    list_settings = {kind: as_dict(capabilities.get(kind)) for kind in _LISTS}
    return {
        f"{kind}ListChanged": True for kind, settings in list_settings.items() if settings.get("listChanged") is True
    }


class ListenStreams:
    """The open `subscriptions/listen` requests. `listen` sends one under an id, and returns when it ends."""

    def __init__(
        self,
        listen: Callable[[dict[str, Any], str], Awaitable[object]],
        notify: Callable[[str, dict[str, Any]], object],
    ) -> None:
        self._listen = listen
        self._notify = notify
        self._unacknowledged: dict[str, Callable[[], object]] = {}
        self._streams: dict[str, asyncio.Task[object]] = {}

    async def run(self, change_filter: Mapping[str, Any], opened: Callable[[], object]) -> None:
        """Listen until cancelled; call `opened` when the server has acknowledged the first stream.

        Raises:
            CallError: the server does not support this, or the connection is lost.
        """
        attempt = 0
        while True:
            attempt += 1
            name = f"listen-{next(_ids)}"
            self._unacknowledged[name] = opened
            # A task of its own, so that a cancelled stream is distinguished from a cancelled caller.
            stream = self._streams[name] = asyncio.ensure_future(
                self._listen({"notifications": dict(change_filter)}, name)
            )
            try:
                await asyncio.wait((stream,))
            finally:
                del self._streams[name]
                stream.cancel()
            error = None if stream.cancelled() else stream.exception()
            if isinstance(error, CallError) and error.code is ErrorCode.UNAVAILABLE and error.retryable:
                logger.debug("a subscription broke: %s", error)
            elif error is not None:
                raise error
            if self._unacknowledged.pop(name, None) is None:  # it was open
                attempt = 1
                opened = partial(
                    self._notify_all, change_filter
                )  # changes before the next stream is open are not reported
            await asyncio.sleep(back_off(attempt, first=FIRST_REOPEN_PAUSE, longest=LONGEST_REOPEN_PAUSE))

    def _notify_all(self, change_filter: Mapping[str, Any]) -> None:
        for kind in _LISTS:
            if change_filter.get(f"{kind}ListChanged"):
                self._notify(f"notifications/{kind}/list_changed", {})
        for uri in change_filter.get("resourceSubscriptions", ()):
            self._notify("notifications/resources/updated", {"uri": uri})

    def acknowledge(self, params: Mapping[str, Any]) -> None:
        """Handle `notifications/subscriptions/acknowledged`."""
        opened = self._unacknowledged.pop(as_text(as_dict(params.get("_meta")).get(SUBSCRIPTION_META)), None)
        if opened is not None:
            opened()

    def end(self, params: Mapping[str, Any]) -> None:
        """Handle `notifications/cancelled`: the server has ended a stream."""
        stream = self._streams.get(as_text(params.get("requestId")))
        if stream is not None:
            stream.cancel()


class ResourceUpdates:
    """Distribute a server's resource updates to watchers."""

    def __init__(self) -> None:
        self._watchers: list[ResourceWatcher] = []

    def of(self, uri: str) -> "ResourceWatcher":
        """Return a watcher of a resource, which receives updates while its context is open."""
        return ResourceWatcher(uri, self._watchers)

    def publish(self, params: Mapping[str, Any]) -> None:
        """Publish an update; `params` are those of the notification."""
        uri = params.get("uri")
        if isinstance(uri, str) and len(uri) <= MAX_URI_LENGTH:
            for watcher in self._watchers:
                watcher.put(uri)

    def missed(self) -> None:
        """Publish an update of every watched resource: without a connection, updates may have been missed."""
        for watcher in self._watchers:
            watcher.put(watcher.uri)

    def close(self) -> None:
        """End all watchers."""
        for watcher in self._watchers:
            watcher.end(CallError(ErrorCode.UNAVAILABLE, "the MCP server was closed", retryable=False))


class ResourceWatcher:
    """The updates that one consumer has not taken yet, each resource once."""

    def __init__(self, uri: str, watchers: "list[ResourceWatcher]") -> None:
        self.uri = uri
        self._below = f"{uri.rstrip('/')}/"  # a server may name resources below a watched one
        self._watchers = watchers
        self._updated: dict[str, None] = {}
        self._changed = asyncio.Event()
        self._end: CallError | None = None

    def __enter__(self) -> "ResourceWatcher":
        self._watchers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watchers.remove(self)

    def put(self, uri: str) -> None:
        """Add an update, if it is of this resource or one below it."""
        if self._end is not None or (uri != self.uri and not uri.startswith(self._below)):
            return
        if uri not in self._updated and len(self._updated) >= MAX_PENDING_UPDATES:
            message = f"the consumer did not keep up: {MAX_PENDING_UPDATES} updates were waiting when the next one came"
            self.end(CallError(ErrorCode.ABORTED, message))
        self._updated[uri] = None
        self._changed.set()

    def end(self, error: CallError) -> None:
        """Raise an error in the consumer; the first one counts."""
        self._end = self._end or error
        self._changed.set()

    async def next(self) -> str:
        """Return the URI of the next updated resource.

        Raises:
            CallError: ABORTED, if too many updates are pending; UNAVAILABLE, if the server was closed.
        """
        while not self._updated and self._end is None:
            self._changed.clear()
            await self._changed.wait()
        if self._end is not None:
            raise self._end
        uri = next(iter(self._updated))
        del self._updated[uri]
        return uri
