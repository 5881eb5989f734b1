"""What the faults happen to: ends in this process, each behind a proxy of its own, or processes that can be killed."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import pytest

from opwire.protocol import CallHandler, PendingRequestMap
from opwire_conformance.harness import soon
from tests.properties import is_thorough
from tests.servers.brokers import HOST, Server
from tests.servers.faults import FaultProxy
from tests.servers.processes import Worker
from tests.transports.engines import ENGINES, Engine, through
from tests.transports.faults.actor import operations

Side = Literal["caller", "server"]


def combined(faults: Iterable[str]) -> list[Any]:
    """Return an engine, a fault and a side for each test.

    With CI=true these are all combinations. Otherwise each fault happens to each engine, at one side or the other in
    turn: a fault at the other side of another engine runs the same code.
    """
    return [
        pytest.param(engine, fault, side, id=f"{name}-{fault}-{side}")
        for row, fault in enumerate(faults)
        for column, (name, engine) in enumerate(ENGINES.items())
        for number, side in enumerate(get_args(Side))
        if is_thorough() or (row + column + number) % 2 == 0
    ]


def engines(*names: str) -> pytest.MarkDecorator:
    """Parametrise with these engines, or with CI=true with all: Redis and NATS share what decides about calls."""
    chosen = [*ENGINES] if is_thorough() else names
    return pytest.mark.parametrize("engine", [ENGINES[name] for name in chosen], ids=chosen, indirect=True)


class Notes:
    """What the handlers in this process say."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = asyncio.Event()

    def add(self, line: str) -> None:
        self.lines.append(line)
        self._news.set()

    async def until(self, line: str, times: int = 1) -> None:
        """Wait until a line was printed this number of times."""

        async def wait() -> None:
            while self.lines.count(line) < times:
                self._news.clear()
                await self._news.wait()

        await soon(f"{line!r}, {times} times", wait())


@dataclass
class Stage:
    """A caller, what is noted by the handlers of a server, and the proxies that both reach the engine through."""

    calls: PendingRequestMap
    proxies: dict[Side, FaultProxy]
    notes: Notes = field(default_factory=Notes)


@asynccontextmanager
async def staged(engine: Engine, server: Server, **options: Any) -> AsyncIterator[Stage]:
    """A caller and a server in this process."""
    async with FaultProxy(HOST, server.port) as near, FaultProxy(HOST, server.port) as far:
        serving = PendingRequestMap(engine.connect(through(far, server.url), **options))
        calling = PendingRequestMap(engine.connect(through(near, server.url), **options))
        stage = Stage(calling, {"caller": near, "server": far})
        async with serving, CallHandler(operations(stage.notes.add), serving), calling:
            yield stage


class Reachable(Protocol):
    """A server, or several behind one URL."""

    @property
    def url(self) -> str: ...


def process(role: Literal["serve", "call"], engine: Engine, server: Reachable) -> Worker:
    """A process that serves, or calls what never ends."""
    return Worker("tests.transports.faults.actor", role, engine.name, server.url)


@asynccontextmanager
async def processes(engine: Engine, server: Reachable) -> AsyncIterator[tuple[PendingRequestMap, Worker, Worker]]:
    """A caller in this process, and two that serve."""
    async with (
        process("serve", engine, server) as one,
        process("serve", engine, server) as other,
        PendingRequestMap(engine.connect(server.url)) as calls,
    ):
        yield calls, one, other
