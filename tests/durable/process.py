"""A worker, or a caller, in a process that kills itself at one step of the protocol.

    python -m tests.durable.process work|call URL PREFIX FILE [OPTIONS]

The URL is that of Redis or of NATS. The mutation `job.run` appends its key and its attempt to FILE: what is in it has
begun. OPTIONS, as JSON:

    die     "before|amid|after claim|renew|record|release|submit", "in handler", or "of poison": in the
            handler, if the key begins with "poison"
    fail    how many attempts fail with an error that is worth a retry
    take    seconds that the mutation takes
    lease, max_attempts, concurrency    of the worker

It prints `ready`. A worker leaves when its stdin is closed; a caller prints its answer.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from opwire import AccessControl, CallError, Context, OperationRegistry
from opwire.durable import DurableCalls, DurableWorker, Journal
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.redis import RedisJournal
from tests.servers.worker import say, wait_for_the_end

LEASE = 0.5
"""Seconds for which a task belongs to a worker that gives no sign of life."""

STEPS = ("claim", "renew", "record", "release", "submit")
"""What a journal does for workers and callers."""


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


class Deadly:
    """A journal that kills its process before, amid or after one of its methods. Claims of nothing do not count."""

    def __init__(self, journal: Journal, when: str) -> None:
        self._journal = journal
        self._when = when

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._journal, name)
        return partial(self._do, name, found) if name in STEPS else found

    async def _do(self, step: str, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
        if self._when == f"before {step}":
            die()
        working = asyncio.create_task(method(*args, **options))
        if self._when == f"amid {step}":
            for _ in range(5):  # turns of the loop, in which the message leaves, and its answer cannot be read yet
                await asyncio.sleep(0)
            die()
        result = await working
        if self._when == f"after {step}" and (step != "claim" or result):
            die()
        return result


def operations(file: Path, *, fail: int = 0, take: float = 0, fatal: str | None = None) -> OperationRegistry:
    """What is served: a mutation that leaves a trace, and kills its process if its key begins with `fatal`."""
    registry = OperationRegistry()

    @registry.mutation("job.run", access=AccessControl(public=True))
    async def run(context: Context) -> str:
        key, attempt = context.metadata["idempotency_key"], context.metadata["attempt"]
        with file.open("a") as trace:
            trace.write(f"{key} {attempt}\n")
        await asyncio.sleep(take)
        if fatal is not None and key.startswith(fatal):
            die()
        if attempt <= fail:
            raise CallError("UNAVAILABLE", "not yet")
        return f"{key} is done"

    return registry


async def main(role: str, url: str, prefix: str, file: str, options: str = "{}") -> None:
    settings = {"die": "", "fail": 0, "take": 0, "lease": LEASE, "max_attempts": 5, "concurrency": 4}
    settings |= json.loads(options)
    kind = NatsJournal if url.startswith("nats://") else RedisJournal
    async with kind(url, prefix=prefix) as made:
        journal = cast("Journal", Deadly(made, settings["die"]))
        say("ready")  # before anything that may be fatal
        if role == "call":
            say((await DurableCalls(journal).call("job.run", {}, key="job")).data)
            return
        fatal = {"in handler": "", "of poison": "poison"}.get(settings["die"])
        registry = operations(Path(file), fail=settings["fail"], take=settings["take"], fatal=fatal)
        limits = {name: settings[name] for name in ("lease", "max_attempts", "concurrency")}
        async with DurableWorker(registry, journal, back_off=0.05, **limits):
            await wait_for_the_end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
