"""Where tests of crashes happen: a journal of its own in a server, and a file with the traces of the runs."""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, Generic, TypeVar

from opwire import CallError
from opwire.durable import DurableWorker
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.redis import RedisJournal
from opwire.durable.redis.session import RedisSession
from opwire.transports.redis.connection import command
from opwire.transports.redis.servers import parse_servers
from tests.durable.process import LEASE, operations
from tests.servers.processes import Worker

PATIENCE = 20.0
"""Seconds within which what a test waits for has to happen."""

J = TypeVar("J", RedisJournal, NatsJournal)


class Place(ABC, Generic[J]):
    """The journals of one prefix, and what was run."""

    def __init__(self, urls: list[str], file: Path) -> None:
        self.urls = urls
        self.file = file
        self.prefix = token_hex(4)

    def process(self, role: str = "work", **options: Any) -> Worker:
        """A worker or a caller in a process of its own."""
        return Worker("tests.durable.process", role, self.urls[0], self.prefix, str(self.file), json.dumps(options))

    @asynccontextmanager
    async def worker(self, journal: J, **options: Any) -> AsyncIterator[DurableWorker]:
        """A worker in this process."""
        settings = {"lease": LEASE, "back_off": 0.05, "concurrency": 8, **options}
        async with DurableWorker(operations(self.file), journal, **settings) as worker:
            yield worker

    @property
    def runs(self) -> Counter[str]:
        """How often each key was run."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return Counter(line.split()[0] for line in lines)

    @abstractmethod
    def journal(self) -> J:
        """An end of the journal."""

    @abstractmethod
    async def knows(self, journal: J, key: str) -> bool:
        """Whether a task, or its outcome, is in the journal, as soon as that can be said."""

    @abstractmethod
    async def nothing_is_left(self, journal: J) -> None:
        """Only outcomes are in the journal."""


class RedisPlace(Place[RedisJournal]):
    """In a Redis server, or a service of several."""

    def __init__(self, url: str, file: Path) -> None:
        super().__init__([url], file)

    def journal(self) -> RedisJournal:
        return RedisJournal(self.urls[0], prefix=self.prefix)

    async def knows(self, journal: RedisJournal, key: str) -> bool:
        return bool(await self._ask("EXISTS", journal.keys.task(key)))

    async def nothing_is_left(self, journal: RedisJournal) -> None:
        stream = journal.keys.stream("job.run")
        assert await self._ask("XLEN", stream) == 0
        assert (await self._ask("XPENDING", stream, "workers"))[0] == 0
        (info,) = await journal.info()
        assert (info.waiting, info.claimed, info.dead_letters) == (0, 0, 0)

    async def _ask(self, *parts: str | bytes) -> Any:
        session = RedisSession(parse_servers(self.urls[0]))
        try:
            async with asyncio.timeout(2 * PATIENCE):
                while True:
                    try:
                        (reply,) = await session.ask(command(*parts))
                        return reply
                    except CallError:  # the server, or its successor, is not there yet
                        await asyncio.sleep(0.02)
        finally:
            await session.close()


class NatsPlace(Place[NatsJournal]):
    """In a NATS server, or a cluster of them."""

    def __init__(self, urls: list[str], file: Path, replicas: int = 1) -> None:
        super().__init__(urls, file)
        self._replicas = replicas

    def journal(self) -> NatsJournal:
        return NatsJournal(self.urls, prefix=self.prefix, replicas=self._replicas)

    async def knows(self, journal: NatsJournal, key: str) -> bool:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await journal.log.last(key) is not None
                except CallError:  # the server, or its leader, is not there yet
                    await asyncio.sleep(0.02)

    async def nothing_is_left(self, journal: NatsJournal) -> None:
        """What is removed without waiting for it, or forgotten by a server that died, takes a moment."""
        end = time.monotonic() + PATIENCE
        while (rest := await self._rest(journal)) != ([], 0, 0, 0):
            assert time.monotonic() < end, f"{rest} is left"
            await asyncio.sleep(0.05)

    async def _rest(self, journal: NatsJournal) -> tuple[list[str], int, int, int] | None:
        try:
            assert await journal.claim(["job.run"], lease=LEASE, wait=0) == []
            subjects = await journal.log.subjects(">")
            (info,) = await journal.info()
        except CallError:  # a cluster that has lost a server is not back yet
            return None
        left = [subject for subject in subjects if ".since.ended.done." not in subject]
        return left, info.waiting, info.claimed, info.dead_letters
