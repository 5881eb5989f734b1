"""A worker, or a caller, in a process that kills itself at one step of the protocol.

    python -m tests.durable.process work|call URL PREFIX FILE [OPTIONS]

The mutation `job.run` appends its key and its attempt to FILE: what is in it has begun. OPTIONS, as JSON:

    die     "before|amid|after claim|renew|record|release|submit|wait", or "in handler"
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
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from opwire import AccessControl, CallError, Context, OperationRegistry
from opwire.durable import Claim, DurableCalls, DurableWorker, Outcome, Task
from opwire.transports.redis.streams import RedisJournal
from tests.servers.worker import say, wait_for_the_end

T = TypeVar("T")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


class Deadly(RedisJournal):
    """Kills its process before, amid or after one of its methods. Claims that bring nothing do not count."""

    def __init__(self, url: str, prefix: str, when: str) -> None:
        super().__init__(url, prefix=prefix)
        self._when = when

    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        return await self._at("claim", super().claim(operation_ids, **options), bool)

    async def renew(self, claim: Claim) -> bool:
        return await self._at("renew", super().renew(claim))

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        return await self._at("record", super().record(claim, outcome))

    async def release(self, claim: Claim, delay: float) -> None:
        await self._at("release", super().release(claim, delay))

    async def submit(self, task: Task) -> Outcome | None:
        return await self._at("submit", super().submit(task))

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        return await self._at("wait", super().wait(key, timeout))

    async def _at(
        self, step: str, work: Coroutine[Any, Any, T], counts: Callable[[T], bool] = lambda result: True
    ) -> T:
        if self._when == f"before {step}":
            die()
        working = asyncio.create_task(work)
        if self._when == f"amid {step}":
            for _ in range(5):  # turns of the loop, in which the command leaves, and its reply cannot be read yet
                await asyncio.sleep(0)
            die()
        result = await working
        if self._when == f"after {step}" and counts(result):
            die()
        return result


def operations(file: Path, *, fail: int = 0, take: float = 0, die_in_handler: bool = False) -> OperationRegistry:
    """What is served: a mutation that leaves a trace."""
    registry = OperationRegistry()

    @registry.mutation("job.run", access=AccessControl(public=True))
    async def run(context: Context) -> str:
        key, attempt = context.metadata["idempotency_key"], context.metadata["attempt"]
        with file.open("a") as trace:
            trace.write(f"{key} {attempt}\n")
        await asyncio.sleep(take)
        if die_in_handler:
            die()
        if attempt <= fail:
            raise CallError("UNAVAILABLE", "not yet")
        return f"{key} is done"

    return registry


async def main(role: str, url: str, prefix: str, file: str, options: str = "{}") -> None:
    settings = {
        "die": "",
        "fail": 0,
        "take": 0,
        "lease": 0.5,
        "max_attempts": 5,
        "concurrency": 4,
        **json.loads(options),
    }
    async with Deadly(url, prefix, settings["die"]) as journal:
        say("ready")  # before anything that may be fatal
        if role == "call":
            say((await DurableCalls(journal).call("job.run", {}, key="job")).data)
            return
        in_handler = settings["die"] == "in handler"
        registry = operations(Path(file), fail=settings["fail"], take=settings["take"], die_in_handler=in_handler)
        limits = {name: settings[name] for name in ("lease", "max_attempts", "concurrency")}
        async with DurableWorker(registry, journal, back_off=0.05, **limits):
            await wait_for_the_end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
