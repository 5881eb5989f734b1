"""A process that calls: `python -m tests.soak.calling URL FOLDER NAME PAUSE`. Each of its callers waits up to PAUSE
seconds after a call. It ends when its stdin is closed, after its last calls have ended."""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import count
from pathlib import Path
from typing import Any

from opwire import CallError, ErrorCode
from opwire.durable import DurableCalls
from opwire.hub import Spoke
from opwire.protocol import Address, CallCredit, CallEvent, Transport
from tests.servers.worker import wait_for_the_end
from tests.soak.history import Diary
from tests.soak.serving import BULK, connected, opened

CALLERS = 16
DURABLE_CALLERS = 3

_NEVER = 30.0  # the timeout of most calls: one that reaches it was lost by both sides
_BREATH = 0.1  # seconds after a failure
_RECOVERY = 15.0  # seconds after the last fault in which a call is answered again
_ITEMS = 40
_MANY_ITEMS = 300  # several windows
_LOST = 0.1  # share of the credits that are lost
_OUTAGE = "UNAVAILABLE"  # the error of any call during an outage


async def told(outcome: Awaitable[Any]) -> str | None:
    """Return the recorded result of a durable mutation, or None."""
    try:
        envelope = await outcome
    except CallError as error:
        if error.retryable:
            return None
        return error.message
    return None if envelope is None else envelope.data


class Caller:
    """Makes calls of all kinds, and records their outcomes."""

    def __init__(self, spoke: Spoke, diary: Diary, name: str, pause: float) -> None:
        self._spoke = spoke
        self._diary = diary
        self._name = name
        self._pause = pause
        self._ids = (f"{name}-{number}" for number in count(1))
        self.over = False

    async def go_on(self) -> None:
        calls = [self._short, self._short, self._slow, self._fail, self._cancel, self._hurry, self._bulk]
        kinds = [*calls, self._count, self._leave, self._lose]
        while not self.over:
            await random.choice(kinds)()
            await asyncio.sleep(random.uniform(0, self._pause))
        calm = time.monotonic()
        while await self._short() != "ok":
            if time.monotonic() > calm + _RECOVERY:
                self._diary.note("broken", self._name, code=f"got no answer in {_RECOVERY:g} s without faults")
                return

    async def _short(self) -> str:
        return await self._call("soak.run", "ok", delay=random.uniform(0, 0.02))

    async def _bulk(self) -> None:
        await self._call(f"bulk.run{random.randrange(BULK)}", "ok")

    async def _slow(self) -> None:
        await self._call("soak.run", "ok", delay=random.uniform(0.1, 1.0))

    async def _fail(self) -> None:
        await self._call("soak.fail", "VALIDATION_ERROR")

    async def _hurry(self) -> None:
        await self._call("soak.run", "TIMEOUT", timeout=random.uniform(0.01, 0.3), delay=5)

    async def _cancel(self) -> None:
        calling = asyncio.create_task(self._call("soak.run", "cancelled", delay=5))
        await asyncio.sleep(random.uniform(0, 0.2))
        calling.cancel()
        await asyncio.wait([calling])

    async def _call(self, operation_id: str, end: str, timeout: float = _NEVER, **input: Any) -> str:
        async def answer(id: str, items: list[int]) -> str:
            data = await self._spoke.call(operation_id, {"id": id, **input}, timeout=timeout)
            return "ok" if data == id else "the answer of another call"

        return await self._noted(answer, end, timeout)

    async def _count(self) -> None:
        await self._follow("ok", _ITEMS)

    async def _leave(self) -> None:
        await self._follow("left", _ITEMS, wanted=random.randrange(_ITEMS))

    async def _lose(self) -> None:
        """Consume a long stream without a deadline, over a transport that loses credits, which have to be repeated."""
        await self._follow("ok", _MANY_ITEMS, timeout=None)

    async def _follow(self, end: str, items: int, wanted: int | None = None, timeout: float | None = _NEVER) -> None:
        async def answer(id: str, found: list[int]) -> str:
            input = {"id": id, "end": items, "delay": random.uniform(0, 0.4 / items)}
            async with aclosing(self._spoke.subscribe("soak.count", input, timeout=timeout)) as stream:
                async for item in stream:
                    found.append(item)
                    if wanted is not None and len(found) > wanted:
                        return "left"
            return "ok"

        await self._noted(answer, end, _NEVER, list(range(items)))

    async def _noted(
        self,
        answer: Callable[[str, list[int]], Awaitable[str]],
        end: str,
        timeout: float,
        whole: list[int] | None = None,
    ) -> str:
        id, items = next(self._ids), list[int]()
        self._diary.note("begin", id, deadline=time.monotonic() + timeout, may=(end, _OUTAGE), items=whole)
        code = "an error that is none of ours"
        try:
            code = await answer(id, items)
        except CallError as error:
            code = error.code.value
        except asyncio.CancelledError:
            code = "cancelled"
            raise
        finally:
            self._diary.note("end", id, code=code, items=None if whole is None else items)
        if code == _OUTAGE:
            await asyncio.sleep(_BREATH)  # so that an outage does not become a busy loop
        return code


class LosesCredits:
    """A transport that loses some of the credits, as a broker may."""

    lossy = True

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send(self, event: CallEvent, to: Address | None) -> None:
        if not (isinstance(event, CallCredit) and random.random() < _LOST):
            self._transport.send(event, to)


class DurableCaller:
    """Submits durable mutations: each until it is accepted, some of them twice."""

    def __init__(self, durable: DurableCalls, diary: Diary, name: str, pause: float) -> None:
        self._durable = durable
        self._diary = diary
        self._pause = pause
        self._keys = (f"{name}-job-{number}" for number in count(1))
        self.over = False

    async def go_on(self) -> None:
        while not self.over:
            key, kind = next(self._keys), random.random()
            delay = random.uniform(0, 0.1 if kind < 0.9 else 3)
            input = {"delay": delay, "fail": int(kind < 0.2), "refuse": kind > 0.8}
            await random.choice([self._submit, self._call])(key, input)
            await asyncio.sleep(random.uniform(0, self._pause))

    async def _submit(self, key: str, input: dict[str, Any]) -> None:
        while not self.over:
            try:
                await self._durable.submit("soak.job", input, key=key)
            except CallError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(_BREATH)
            else:
                self._diary.note("accepted", key)
                return

    async def _call(self, key: str, input: dict[str, Any]) -> None:
        for _ in range(random.randint(1, 3)):
            code = await told(self._durable.call("soak.job", input, key=key, timeout=random.uniform(0.1, 5)))
            if code is None:
                await asyncio.sleep(_BREATH)
            else:
                self._diary.note("accepted", key)
                self._diary.note("seen", key, code=code)


class BatchedCaller:
    """Makes durable calls without keys, many at once, and repeats those that fail with the key of the error."""

    def __init__(self, durable: DurableCalls, diary: Diary, pause: float) -> None:
        self._durable = durable
        self._diary = diary
        self._pause = pause
        self.over = False

    async def go_on(self) -> None:
        while not self.over:
            await asyncio.gather(*(self._call() for _ in range(random.randint(1, 40))))
            await asyncio.sleep(random.uniform(0, 10 * self._pause))

    async def _call(self) -> None:
        kind, key = random.random(), None
        input = {"fail": int(kind < 0.05), "refuse": kind > 0.95}
        for _ in range(random.randint(1, 5)):
            timeout = random.uniform(0.1, 5)
            try:
                result = (await self._durable.call("soak.stamp", input, key=key, timeout=timeout)).data
            except CallError as error:
                if error.retryable:
                    key = error.details["key"]
                    await asyncio.sleep(_BREATH)
                    continue
                result = error.message
            known = result.rpartition(" ")[2]
            self._diary.note("accepted", known)
            self._diary.note("seen", known, code=result)


async def main(url: str, folder: str, name: str, pause: str) -> None:
    diary, rest = Diary(Path(folder), name), float(pause)
    async with AsyncExitStack() as stack:
        spoke = await connected(url, wrap=LosesCredits)
        stack.push_async_callback(spoke.close)
        found = await opened(url, stack)
        callers: list[Caller | DurableCaller | BatchedCaller] = [
            Caller(spoke, diary, f"{name}-{n}", rest) for n in range(CALLERS)
        ]
        if found is not None:
            durable = DurableCalls(found)
            callers += [DurableCaller(durable, diary, f"{name}-{n}", rest) for n in range(DURABLE_CALLERS)]
            callers.append(BatchedCaller(durable, diary, rest))
        async with asyncio.TaskGroup() as group:
            for each in callers:
                group.create_task(each.go_on())
            await wait_for_the_end()
            for each in callers:
                each.over = True
    diary.note("left", name, size=len(asyncio.all_tasks()) - 1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
