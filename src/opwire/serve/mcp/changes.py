"""Tells connected clients that the list of tools has changed: once for many changes that come together."""

import asyncio
from collections.abc import Callable

from mcp.server.subscriptions import ServerEvent, ToolsListChanged

from opwire.registry import Change, OperationRegistry

Listener = Callable[[ServerEvent], None]


class Changes:
    """The changes of a registry as events; the SDK's `SubscriptionBus`. It watches while somebody listens.

    `delay` is the time in seconds that further changes have to be told of together.
    """

    def __init__(self, registry: OperationRegistry, *, delay: float = 0.05) -> None:
        self._registry = registry
        self._delay = delay
        self._listeners: dict[object, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._end_watch: Callable[[], None] | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of changes; the function that is returned ends it."""
        key = object()
        self._listeners[key] = listener
        if self._end_watch is None:
            self._end_watch = self._watch(asyncio.get_running_loop())

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if not self._listeners:
                self._stop()

        return unsubscribe

    async def publish(self, event: ServerEvent) -> None:
        """Tell everybody."""
        for listener in tuple(self._listeners.values()):
            listener(event)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        def changed(_: Change) -> None:  # called by whatever thread changes the registry
            loop.call_soon_threadsafe(self._wait, loop)

        return self._registry.on_change(changed)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._listeners:
            self._timer = loop.call_later(self._delay, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for listener in tuple(self._listeners.values()):
            listener(ToolsListChanged())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
