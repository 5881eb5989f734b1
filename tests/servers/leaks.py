"""Whether a test leaves something behind."""

import asyncio
import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Self

PATIENCE = 20.0


class Leaks:
    """Asserts that tasks, file descriptors and child processes are as few at the end as they were at the beginning.

        async with Leaks():
            ...

    What is on its way out has five seconds to go. Without `/proc`, only tasks are counted.
    """

    async def __aenter__(self) -> Self:
        # What earlier tests left to the collector is not to hide what this one leaves. What lives on is not looked at
        # again: among all that is imported by then, a collection takes 15 ms, and a thousand tests begin with one.
        gc.collect()
        gc.freeze()
        self._before = {kind: look() for kind, look in _LOOKS.items()}
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return  # the test has failed already, and that is what is to be seen
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while leaks := self._leaks():
            assert asyncio.get_running_loop().time() < deadline, "; ".join(leaks)
            await asyncio.sleep(0.01)

    def _leaks(self) -> list[str]:
        leaks: list[str] = []
        for kind, look in _LOOKS.items():
            before, now = self._before[kind], look()
            if len(now) > len(before):
                leaks.append(f"{kind}: {len(now)} instead of {len(before)}, among them {now - before}")
        return leaks


def _tasks() -> set[str]:
    return {f"{task.get_name()} {task.get_coro()}" for task in asyncio.all_tasks()}


def _descriptors() -> set[str]:
    """Each with what it stands for. One that closes while we look is not counted."""
    found: set[str] = set()
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{descriptor.name} {descriptor.readlink()}")
    return found


def _children() -> set[str]:
    """The child processes of each thread. A thread that ends while the list is read has none."""
    found: set[str] = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(thread.read_text().split())
    return found


_LOOKS: dict[str, Callable[[], set[str]]] = {
    "tasks": _tasks,
    "file descriptors": _descriptors,
    "child processes": _children,
}
