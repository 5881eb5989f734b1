"""What clients are notified of outside of calls: changed lists, updated resources. No I/O.

Many changes of the registry become one notification, and a client that does not read gets each notification once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from opwire.annotations import LogLevel
from opwire.operation import OperationSpec
from opwire.registry import Change, OperationRegistry

MAX_SUBSCRIPTIONS = 1000
"""Resources that one client may be subscribed to."""

UPDATED = "notifications/resources/updated"

_LISTS = {"tool": "tools", "prompt": "prompts", "prompts/list": "prompts"}


def list_of(spec: OperationSpec) -> str:
    """Return the list of MCP that an operation is in: tools, prompts or resources."""
    return _LISTS.get(spec.role, "resources")


class PendingNotifications:
    """Notifications that the client has not read yet; equal ones are one."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], dict[str, Any]] = {}
        self._awake = asyncio.Event()
        self._is_ended = False

    def put(self, method: str, **params: str) -> None:
        """Add a notification."""
        self._pending[method, params.get("uri", "")] = params
        self._awake.set()

    def list_changed(self, name: str) -> None:
        """Add the notification for a changed list."""
        self.put(f"notifications/{name}/list_changed")

    def updated(self, uri: str) -> None:
        """Add the notification for an updated resource."""
        self.put(UPDATED, uri=uri)

    def end(self) -> None:
        """Let `next` return None."""
        self._is_ended = True
        self._awake.set()

    async def next(self) -> tuple[str, dict[str, Any]] | None:
        """Wait for a notification; return its method and params, or None at the end."""
        while not self._pending or self._is_ended:
            if self._is_ended:
                return None
            self._awake.clear()
            await self._awake.wait()
        key = next(iter(self._pending))
        return key[0], self._pending.pop(key)


class ClientState:
    """What a client of the handshake era has set: its log level, and its subscriptions to resources."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self.log_level: LogLevel = "info"
        self.pending = PendingNotifications()
        self.spawn = spawn
        self.watches: dict[str, asyncio.Task[None]] = {}  # by URI

    def close(self) -> None:
        """End the subscriptions."""
        for task in self.watches.values():
            task.cancel()
        self.watches.clear()


class ListBus:
    """The changes of a registry as names of changed lists. It follows the registry while it has listeners.

    Changes of a list within `delay` seconds are one event.
    """

    def __init__(self, registry: OperationRegistry, *, delay: float = 0.05) -> None:
        self._registry = registry
        self._delay = delay
        self._listeners: dict[object, Callable[[str], object]] = {}
        self._changed: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unfollow: Callable[[], None] | None = None

    def subscribe(self, listener: Callable[[str], object]) -> Callable[[], None]:
        """Call a listener for every event; the returned function removes it."""
        key, loop = object(), asyncio.get_running_loop()

        def changed(change: Change) -> None:  # called on the thread that changes the registry
            loop.call_soon_threadsafe(self._schedule, loop, list_of(change.spec))

        self._listeners[key] = listener
        if self._unfollow is None:
            self._unfollow = self._registry.on_change(changed)

        def unsubscribe() -> None:
            self._listeners.pop(key, None)
            if self._listeners:
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._unfollow is not None:
                self._unfollow()
                self._unfollow = None

        return unsubscribe

    def _schedule(self, loop: asyncio.AbstractEventLoop, changed: str) -> None:
        def notify() -> None:
            self._timer = None
            names, self._changed = self._changed, {}
            for listener in tuple(self._listeners.values()):
                for name in names:
                    listener(name)

        self._changed[changed] = None
        if self._timer is None and self._listeners:
            self._timer = loop.call_later(self._delay, notify)
