"""Handlers that never come back."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

from opwire import Context, OperationRegistry
from tests.hostile.limits import Case, outcome, registry_of, run


def forever(input: Any, context: Context) -> None:
    threading.Event().wait()


def busy(input: Any, context: Context) -> None:
    while True:
        pass


def stuck_items(input: Any, context: Context) -> Iterator[int]:
    yield 1
    threading.Event().wait()
    yield 2


async def never_returns() -> Any:
    registry = registry_of(forever, timeout=0.5)
    registry.query("hostile.quick")(lambda: "quick")
    stuck = await outcome(registry.execute("hostile.it"))
    return [stuck, await outcome(registry.execute("hostile.quick"))]


async def busy_loop() -> Any:
    return await outcome(registry_of(busy, timeout=0.5).execute("hostile.it"))


async def all_stuck() -> Any:
    registry = registry_of(forever, timeout=0.5)
    return [await outcome(registry.execute("hostile.it")) for _ in range(3)]


async def stuck_generator() -> Any:
    registry = registry_of(stuck_items, subscription=True, idle_timeout=0.5)
    stream = registry.subscribe("hostile.it")
    return [await outcome(anext(stream)), await outcome(anext(stream))]


async def exits() -> Any:
    registry = OperationRegistry()
    registry.query("hostile.exit")(lambda: sys.exit(3))
    return await outcome(registry.execute("hostile.exit"))


CASES: dict[str, Case] = {
    "never returns": never_returns,
    "busy loop": busy_loop,
    "all stuck": all_stuck,
    "stuck generator": stuck_generator,
    "exits": exits,
}

if __name__ == "__main__":
    run(CASES)
