"""One soak over one engine: start the processes, inject faults, end them, and check the history."""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

from opwire.durable import DurableCalls
from tests.servers.brokers import HOST, PORTS, NatsServer, RedisServer
from tests.servers.faults import FaultProxy
from tests.servers.processes import Worker
from tests.soak.calling import CALLERS, told
from tests.soak.history import Diary, Report, check_history, read_history
from tests.soak.poison import RESTART, Poisoning
from tests.soak.serving import journal

EngineName = Literal["hub", "hubs", "redis", "nats"]
ENGINES: tuple[EngineName, ...] = ("hub", "hubs", "redis", "nats")

Act = Callable[[], Coroutine[Any, Any, None]]

_SPARE = 600.0  # seconds to start, to end the last calls, and to empty the journal
_PAGE = 50  # outcomes that are read at once
_HUBS = 3  # that are run as one


class Actor:
    """A process that is restarted whenever it ends, each time with another name."""

    def __init__(self, role: str, module: str, arguments: Callable[[str], list[str]], folder: Path, diary: Diary):
        self._role = role
        self._module = module
        self._arguments = arguments
        self._folder = folder
        self._diary = diary
        self._lives = 0

    async def start(self) -> None:
        self._lives += 1
        name = f"{self._role}.{self._lives}"
        worker = Worker(self._module, *self._arguments(name), patience=RESTART, is_unmeasured=True)
        await worker.__aenter__()
        self.name, self._worker = name, worker

    async def kill(self) -> None:
        """Kill the process, like a crash; the next one starts at once."""
        self._diary.note("killed", self.name)
        self._worker.kill()
        await self._worker.__aexit__(None)
        self._keep_output()
        await self.start()

    async def drain(self) -> None:
        await self.stop()
        await self.start()

    async def freeze(self) -> None:
        self._worker.freeze()
        await asyncio.sleep(random.uniform(0.1, 4))
        self._worker.thaw()

    async def stop(self) -> None:
        try:
            await self._worker.stop()
        except AssertionError as error:
            self._diary.note("broken", self.name, code=str(error).partition("\n")[0])
        self._keep_output()

    async def close(self) -> None:
        """End the process in any state."""
        self._worker.kill()
        await self._worker.__aexit__(None)
        self._keep_output()

    def measure(self) -> dict[str, int]:
        """Return the resident memory, in kilobytes, and the number of open files."""
        place = Path(f"/proc/{self._worker.pid}")
        return {
            "size": int((place / "statm").read_text().split()[1]) * 4,
            "files": sum(1 for _ in (place / "fd").iterdir()),
        }

    def _keep_output(self) -> None:
        (self._folder / f"{self.name}.log").write_text("\n".join(self._worker.lines))


class Soak:
    """Three processes that serve, two that call, one engine, and the faults.

    With a `rate`, calls per second are limited, and durable mutations beside them. With `calm`, it is so
    many times as long from one fault to the next, and the last server is spared: its memory is measured all the time.
    """

    def __init__(
        self, engine: EngineName, seconds: float, folder: Path, rate: float | None = None, calm: float = 1
    ) -> None:
        self._engine: EngineName = engine
        self._pause = 0.1 if rate is None else 2 * 2 * CALLERS / rate  # two processes; half of it is the mean
        self._calm = calm
        self._seconds = seconds
        self._folder = folder
        self._diary = Diary(folder, "tormentor")
        self._measured: list[Actor] = []

    async def run(self) -> Report:
        try:
            async with asyncio.timeout(self._seconds + _SPARE), AsyncExitStack() as stack:
                await self._play(stack)
        finally:
            self._diary.close()
        report = check_history(read_history(self._folder))
        for path in sorted(self._folder.glob("*.log")):
            if "Traceback" in path.read_text():
                report.violations.append(f"{path.name} has a traceback")
        return report

    async def _play(self, stack: AsyncExitStack) -> None:
        scheme, ports, *kills = await self._start_engine(stack)
        proxy = await stack.enter_async_context(FaultProxy(HOST, ports[0]))
        # Each process prefers another hub, if there are several.
        orders = [[*ports[n:], *ports[:n]] for n in range(len(ports))]
        by_proxy, direct, last = (
            ",".join(f"{scheme}://{HOST}:{port}" for port in order)
            for order in ([proxy.port, *ports[1:]], orders[1 % len(ports)], orders[-1])
        )
        servers = [await self._actor(stack, "serving", n, url) for n, url in enumerate([by_proxy, direct, last])]
        pause = str(self._pause)
        callers = [await self._actor(stack, "calling", n, url, pause) for n, url in enumerate([by_proxy, last])]
        self._measured += [*callers, *servers]
        poisoning = Poisoning(direct, self._folder, self._diary, pause=5 * (self._calm - 1))
        stack.push_async_callback(poisoning.close)

        async def cut() -> None:
            proxy.cut()

        end = time.monotonic() + self._seconds
        measuring = asyncio.create_task(self._measure())
        stack.callback(measuring.cancel)
        async with asyncio.TaskGroup() as group:
            for each in servers if self._calm == 1 else servers[:-1]:
                group.create_task(self._torment("serving", end, 8, each.kill, each.freeze, each.drain))
            group.create_task(self._torment("calling", end, 30, callers[1].kill))
            group.create_task(self._torment("connections", end, 10, cut))
            # A hub that is killed late would have too little time for a measurement of its memory.
            kills_end = end - min(self._seconds / 2, 600) if scheme == "ws" else end
            group.create_task(self._torment(self._engine, kills_end, 20 if len(ports) > 1 else 40, *kills))
            group.create_task(poisoning.go_on(end))
            group.create_task(asyncio.sleep(self._seconds))
        for each in callers:
            await each.stop()
        measuring.cancel()
        await self._settle(direct)
        await poisoning.close()
        for each in servers:
            await each.stop()

    async def _start_engine(self, stack: AsyncExitStack) -> tuple[str, list[int], *tuple[Act, ...]]:
        """Start the engine; return its scheme, its ports, and functions that kill and restart a part of it."""
        if self._engine == "hub":
            port, kill, _ = await self._start_hub(stack, 0)
            return "ws", [port], kill
        durable = {"appendonly": "yes", "appendfsync": "always"}
        broker = stack.enter_context(RedisServer(**durable) if self._engine == "redis" else NatsServer(jetstream=True))

        async def kill_broker() -> None:
            broker.kill()
            await asyncio.sleep(random.uniform(0, 1))
            broker.start()

        if self._engine != "hubs":
            return self._engine, [broker.port], kill_broker
        hubs = [await self._start_hub(stack, number, broker.url, "soak") for number in range(_HUBS)]
        return "ws", [port for port, *_ in hubs], kill_broker, *(act for _, *acts in hubs for act in acts)

    async def _start_hub(self, stack: AsyncExitStack, number: int, *cluster: str) -> tuple[int, Act, Act]:
        port = secrets.choice(PORTS)
        arguments = [str(port), *cluster]
        hub = Actor(f"hub-{number}", "tests.hub.process", lambda _: arguments, self._folder, self._diary)
        await hub.start()
        stack.push_async_callback(hub.close)
        self._measured.append(hub)
        return port, hub.kill, hub.drain

    async def _actor(self, stack: AsyncExitStack, role: str, number: int, url: str, *options: str) -> Actor:
        place = [url, str(self._folder)]
        module = f"tests.soak.{role}"
        actor = Actor(f"{role}-{number}", module, lambda name: [*place, name, *options], self._folder, self._diary)
        await actor.start()
        stack.push_async_callback(actor.close)
        return actor

    async def _torment(self, whom: str, end: float, every: float, *acts: Act) -> None:
        """Inject a fault at random times, about once per this number of seconds, and a few times in a short soak."""
        every = min(every * self._calm, self._seconds / 4)
        while time.monotonic() + (pause := every * random.uniform(0.5, 1.5)) < end:
            await asyncio.sleep(pause)
            act = random.choice(acts)
            self._diary.note("act", whom, code=f"{whom} {act.__name__}")
            await act()

    async def _measure(self) -> None:
        while True:
            for actor in self._measured:
                try:
                    self._diary.note("memory", actor.name, **actor.measure())
                except OSError:
                    pass  # it was killed, and the next one is being started
            await asyncio.sleep(1)

    async def _settle(self, url: str) -> None:
        """Read the outcome of every accepted mutation from the journal."""
        opening = journal(url)
        if opening is None:
            return
        keys = sorted({note.id for note in read_history(self._folder) if note.what == "accepted"})
        async with opening as found:
            durable = DurableCalls(found)
            for start in range(0, len(keys), _PAGE):
                page = keys[start : start + _PAGE]
                for key, code in zip(
                    page, await asyncio.gather(*(_recorded(durable, key) for key in page)), strict=True
                ):
                    if code is not None:
                        self._diary.note("recorded", key, code=code)


async def _recorded(durable: DurableCalls, key: str) -> str | None:
    return await told(durable.outcome(key, timeout=_SPARE / 3))
