"""A worker, or a caller, on JetStream, in a process that kills itself at one step of the protocol.

    python -m tests.transports.nats.jetstream_process work|call URL PREFIX FILE [OPTIONS]

The arguments, and what is served and printed, are those of `tests.durable.process`.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

from opwire.durable import DurableCalls, DurableWorker, Journal
from opwire.transports.nats.jetstream import NatsJournal
from tests.durable.process import die, operations
from tests.servers.worker import say, wait_for_the_end

STEPS = ("claim", "renew", "record", "release", "submit", "wait")


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


async def main(role: str, url: str, prefix: str, file: str, options: str = "{}") -> None:
    settings = {"die": "", "fail": 0, "take": 0, "lease": 0.5, "max_attempts": 5, "concurrency": 4}
    settings |= json.loads(options)
    async with NatsJournal(url, prefix=prefix) as made:
        journal = cast("Journal", Deadly(made, settings["die"]))
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
