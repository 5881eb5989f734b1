"""The changes of a registry as events."""

import asyncio
import threading
from typing import Any

from opwire import OperationRegistry, OperationSpec
from opwire.mcp.server.clients import ListBus
from tests.mcp.server.shop import until


def _change(registry: OperationRegistry, *names: str) -> None:
    for name in names:
        registry.register(OperationSpec(namespace="a", name=name))


async def test_simultaneous_changes_are_one_event_for_every_listener() -> None:
    registry = OperationRegistry()
    changes = ListBus(registry, delay=0.01)
    told: list[Any] = []
    other: list[Any] = []
    ends = [changes.subscribe(told.append), changes.subscribe(other.append)]
    _change(registry, "b", "c", "d")
    await until(lambda: len(other) == 1)
    _change(registry, "e")
    await until(lambda: len(other) == 2)
    assert told == other == ["tools", "tools"]
    for end in ends:
        end()


async def test_a_listener_that_left_hears_nothing_and_without_listeners_nothing_is_watched() -> None:
    registry = OperationRegistry()
    changes = ListBus(registry, delay=0.01)
    told: list[Any] = []
    end = changes.subscribe(told.append)
    _change(registry, "b")
    await asyncio.sleep(0)  # the change is on its way
    end()
    end()
    assert not registry._listeners
    _change(registry, "c")
    await asyncio.sleep(0.03)
    assert told == []


async def test_a_peer_may_reconnect() -> None:
    registry = OperationRegistry()
    changes = ListBus(registry, delay=0.01)
    changes.subscribe(str)()
    told: list[Any] = []
    end = changes.subscribe(told.append)
    _change(registry, "b")
    await until(lambda: bool(told))
    end()


async def test_a_change_may_come_from_another_thread() -> None:
    registry = OperationRegistry()
    changes = ListBus(registry, delay=0.01)
    told: list[Any] = []
    end = changes.subscribe(told.append)
    thread = threading.Thread(target=_change, args=(registry, "b"))
    thread.start()
    await until(lambda: bool(told))
    thread.join()
    end()
