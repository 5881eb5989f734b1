"""What a hub with a console costs, and what an open page costs it: calls per second of spokes, in turn, in one run.

    .venv-bench/bin/python -m benchmarks.console_call_log

The hub, the spokes and the page are processes of their own. Rounds with and without an open page alternate, so that
load on the machine disturbs both alike; the ratio is that of the medians. The CPU time of the hub's process per call is
disturbed least.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from opwire import Identity, OperationRegistry
from opwire.auth import Grant, allow_anonymous
from opwire.console import ConsoleSystem, serve_console
from opwire.hub import Hub, Spoke

ROUNDS, SECONDS, IN_FLIGHT, LIMIT = 9, 1.0, 64, 0.95
EVERYTHING = Identity(id="owner", scopes=("*",))
MODES = ("no console", "console", "page open")


async def hub(has_console: bool) -> None:
    """Run a hub, and print its address, the console's port and its own process id."""
    opened = allow_anonymous(Grant(EVERYTHING, announces=("*",)))
    async with Hub(None, "ws://127.0.0.1:0", authenticate=opened) as running, contextlib.AsyncExitStack() as stack:
        port = "0"
        if has_console:
            system = ConsoleSystem(servers=running.servers)
            monitor = running.handler.monitor
            console = serve_console(running.registry, anonymous=EVERYTHING, monitor=monitor, system=system)
            port = (await stack.enter_async_context(console.listening())).rpartition(":")[2]
        print(running.url, port, os.getpid(), flush=True)
        await asyncio.Event().wait()


async def page(port: int) -> None:
    """Open the page's stream of events whenever a line arrives, and close it with the next; print the records read."""
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b"event: hello")
        print("open", flush=True)
        ending = loop.run_in_executor(None, sys.stdin.readline)
        read = 0
        while not ending.done():
            with contextlib.suppress(TimeoutError):
                read += (await asyncio.wait_for(reader.read(1_000_000), 0.1)).count(b'"requestId"')
        writer.close()
        print(read, flush=True)


class Child:
    """This module as another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def say(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def hear(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), 60)).decode().strip()


@contextlib.asynccontextmanager
async def child(*arguments: str) -> AsyncGenerator[Child]:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.console_call_log", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield Child(process)
    finally:
        process.kill()
        await process.wait()


def cpu_seconds(pid: int) -> float:
    return (
        int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    )  # its only thread; /proc/…/stat counts in 10 ms


class Measured:
    """A hub with a server and a caller."""

    def __init__(self, caller: Spoke, pid: int) -> None:
        self.rates: list[float] = []
        self.cpu: list[float] = []
        self._caller = caller
        self._pid = pid

    async def round(self) -> int:
        count = 0
        until = time.perf_counter() + SECONDS

        async def call() -> None:
            nonlocal count
            while time.perf_counter() < until:
                result = await self._caller.call("math.add", {"a": 1, "b": 2})
                assert result == 3
                count += 1

        began, cpu = time.perf_counter(), cpu_seconds(self._pid)
        await asyncio.gather(*(call() for _ in range(IN_FLIGHT)))
        self.rates.append(count / (time.perf_counter() - began))
        self.cpu.append((cpu_seconds(self._pid) - cpu) / count)
        return count


async def main() -> None:
    registry = OperationRegistry()

    @registry.query("math.add")
    async def add(a: int, b: int) -> int:
        return a + b

    async with contextlib.AsyncExitStack() as stack:
        measured: dict[str, Measured] = {}
        port = "0"
        for modes in (MODES[:1], MODES[1:]):
            started = await stack.enter_async_context(child("hub", *modes[1:]))
            url, port, pid = (await started.hear()).split()
            await stack.enter_async_context(Spoke(registry, url))
            caller = await stack.enter_async_context(Spoke(None, url))
            measured |= {mode: Measured(caller, int(pid)) for mode in modes}
        reader = await stack.enter_async_context(child("page", port))
        read = calls = 0
        for number in range(ROUNDS):
            for mode in MODES if number % 2 else MODES[::-1]:
                is_open = mode == MODES[2]
                if is_open:
                    await reader.say()
                    assert await reader.hear() == "open"
                count = await measured[mode].round()
                if is_open:
                    await reader.say()
                    read, calls = read + int(await reader.hear()), calls + count
    control = measured[MODES[0]]
    for mode, each in measured.items():
        rate, cpu = statistics.median(each.rates), statistics.median(each.cpu) * 1e6
        ratio = rate / statistics.median(control.rates)
        missed = "" if ratio >= LIMIT else f"   MISSED: {LIMIT}"
        print(f"{mode:12} {rate:8,.0f} calls/s   {ratio:.3f} × control   {cpu:5.1f} µs CPU of the hub per call{missed}")
    print(f"records read by the page: {read:,} of {calls:,} calls")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hub", *console]:
            asyncio.run(hub(bool(console)))
        case ["page", number]:
            asyncio.run(page(int(number)))
        case _:
            asyncio.run(main())
