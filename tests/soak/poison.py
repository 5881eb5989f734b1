"""Durable mutations that kill their worker, beside others.

`python -m tests.soak.poison URL FOLDER NAME` is a worker that kills itself when a mutation says so. `Poisoning` is run
by the soak: it keeps such workers alive, and has mutations done by them. Only those that kill may be given up.
"""

import asyncio
import os
import random
import signal
import sys
import time
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from secrets import token_hex

from opwire import CallError, Context, ErrorCode, OperationRegistry
from opwire.durable import DurableCalls, DurableWorker
from tests.servers.processes import Worker
from tests.servers.worker import PUBLIC, wait_for_the_end
from tests.soak.history import GIVEN_UP, Diary
from tests.soak.serving import opened

_WORKERS = 2
_LEASE = 1.0
_ATTEMPTS = 3  # few, so that poison is buried soon, and so would be its companions
_COMPANIONS = 12  # that are submitted with each poison
_BREATH = 0.1  # seconds after a failure
RESTART = 600.0
"""Seconds for a process to start, on a busy machine; Redis reads its append-only file first."""


class Poisoning:
    """Workers, and the poison that kills them. A hub has no journal, and skips this."""

    def __init__(self, url: str, folder: Path, diary: Diary, pause: float = 0) -> None:
        self._pause = pause  # seconds between two poisons
        self._url = url
        self._folder = folder
        self._diary = diary
        self._workers: list[asyncio.Task[None]] = []

    async def go_on(self, end: float) -> None:
        """Submit poison beside other mutations, each time the last poison was buried, until `end`."""
        async with AsyncExitStack() as stack:
            found = await opened(self._url, stack)
            if found is None:
                return
            durable = DurableCalls(found)
            self._workers += [asyncio.create_task(self._live_and_die(f"dying-{n}")) for n in range(_WORKERS)]
            for number in count(1):
                if time.monotonic() > end:
                    return
                poison = f"poison-{number}"
                keys = [poison, *(f"{poison}-companion-{n}" for n in range(_COMPANIONS))]
                random.shuffle(keys)
                for key in keys:
                    await self._submit(durable, key, fatal=key == poison)
                await self._end_of(durable, poison)
                await asyncio.sleep(min(self._pause, max(0, end - time.monotonic())))

    async def _submit(self, durable: DurableCalls, key: str, *, fatal: bool) -> None:
        input = {"delay": random.choice([0, 0.01, 0.3, 1]), "fatal": fatal}
        while True:
            try:
                await durable.submit("soak.fatal", input, key=key)
                break
            except CallError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(_BREATH)
        self._diary.note("accepted", key, may=(GIVEN_UP,) if fatal else ())

    async def _end_of(self, durable: DurableCalls, key: str) -> None:
        while True:
            try:
                if await durable.outcome(key, timeout=5) is not None:
                    return
            except CallError as error:
                if not error.retryable:
                    return
                await asyncio.sleep(_BREATH)

    async def _live_and_die(self, role: str) -> None:
        for life in count(1):
            name = f"{role}.{life}"
            worker = Worker(
                "tests.soak.poison", self._url, str(self._folder), name, patience=RESTART, is_unmeasured=True
            )
            async with worker:
                try:
                    await worker.death()
                finally:
                    self._diary.note("killed", name)
                    self._diary.note("act", role, code="worker died")
                    worker.kill()  # it has ended; this records that it crashed
                    (self._folder / f"{name}.log").write_text("\n".join(worker.lines))

    async def close(self) -> None:
        """End the workers."""
        for each in self._workers:
            each.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


def mutations(diary: Diary) -> OperationRegistry:
    """Return the registry of a worker."""
    registry = OperationRegistry()

    @registry.mutation("soak.fatal", access=PUBLIC)
    async def fatal(context: Context, delay: float = 0, fatal: bool = False) -> str:
        result = token_hex(8)
        diary.note("ran", context.metadata["idempotency_key"], code=result)
        await asyncio.sleep(delay)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return registry


async def main(url: str, folder: str, name: str) -> None:
    diary = Diary(Path(folder), name)
    async with AsyncExitStack() as stack:
        found = await opened(url, stack)
        assert found is not None
        worker = DurableWorker(mutations(diary), found, lease=_LEASE, max_attempts=_ATTEMPTS, back_off=0.05)
        await stack.enter_async_context(worker)
        await wait_for_the_end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
