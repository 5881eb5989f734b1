"""Callers in a loop, and the book that is kept of every call."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from secrets import token_hex
from typing import Self

from opwire import CallError, Context, ErrorCode
from opwire.protocol import PendingRequestMap
from tests.properties import is_thorough

PATIENCE = 30.0
"""Seconds within which what a test waits for has to happen."""

ITEMS = 60
"""Items of a subscription."""

CALLERS = 64 if is_thorough() else 8
"""Calls that are open at any time: 64 of them keep a core busy for as long as a test waits for a timeout."""

_WORK = 0.02  # seconds that a call takes at most; some are in flight at any time
_PACE = 0.006  # seconds between two items at most
_NEVER = 60.0  # the deadline of a call: a call that ends by it was lost on all sides
_BREATH = 0.02  # seconds after a failure, so that an outage does not cause a busy loop

Outcome = int | ErrorCode
"""The process that answered a call, or why nobody did."""


class Load:
    """Calls `fault.run` and follows `fault.numbers` from the beginning of the block to its end.

        async with Load(calls) as load:
            await load.until(answers=300)
            server.kill()
            await load.until(failures=1)
        load.check(notes)

    A fixed number of calls and subscriptions is open at any time. The end of the block waits until they have ended.
    """

    def __init__(self, calls: PendingRequestMap, *, callers: int = CALLERS, followers: int = 4) -> None:
        self._calls = calls
        self._callers = callers
        self._followers = followers
        self._name = token_hex(4)
        self._numbers = count(1)
        self._over = False
        self._news = asyncio.Event()
        self.outcomes: dict[str, list[Outcome]] = {}  # by request id, in the order in which they were asked
        self.ended: list[Outcome] = []  # in the order in which they came
        self.streams: list[tuple[list[int], ErrorCode | None]] = []  # the items of a subscription, and how it ended
        self._failures = self._broken = 0  # how many of them ended with an error

    async def __aenter__(self) -> Self:
        workers = [self._call_on_and_on() for _ in range(self._callers)]
        workers += [self._follow_on_and_on() for _ in range(self._followers)]
        self._tasks = [asyncio.create_task(each) for each in workers]
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._over = True
        try:
            if kind is None:
                await self.wait("the last calls end", lambda: all(task.done() for task in self._tasks))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call_on_and_on(self) -> None:
        while not self._over:
            request_id = f"{self._name}-{next(self._numbers)}"
            self.outcomes[request_id] = []
            try:
                input, context = {"delay": random.uniform(0, _WORK)}, Context(request_id=request_id)
                envelope = await self._calls.call("fault.run", input, context=context, timeout=_NEVER)
            except CallError as error:
                self._end(request_id, error.code)
                await asyncio.sleep(_BREATH)
            else:
                mine, server, *_ = envelope.data
                assert mine == request_id, f"{request_id} got the answer of {mine}"
                self._end(request_id, server)
        self._news.set()

    async def _follow_on_and_on(self) -> None:
        while not self._over:
            items: list[int] = []
            end = None
            try:
                input = {"end": ITEMS, "delay": random.uniform(0, _PACE)}
                async for item in self._calls.subscribe("fault.numbers", input):
                    items.append(item.data)
            except CallError as error:
                end = error.code
            self.streams.append((items, end))
            self._broken += end is not None
            self._news.set()
            if end is not None:
                await asyncio.sleep(_BREATH)
        self._news.set()

    def _end(self, request_id: str, outcome: Outcome) -> None:
        self.outcomes[request_id].append(outcome)
        self.ended.append(outcome)
        self._failures += isinstance(outcome, ErrorCode)
        self._news.set()

    # --- while it runs ------------------------------------------------------------------------------------------------

    async def until(self, *, answers: int = 0, failures: int = 0, streams: int = 0, broken: int = 0) -> None:
        """Wait for further calls to be answered and to fail, and for subscriptions to end well and to break."""
        wanted = {"answers": answers, "failures": failures, "streams": streams, "broken": broken}
        before = self._come()

        def has_come() -> bool:
            now = self._come()
            return all(now[what] - before[what] >= number for what, number in wanted.items())

        await self.wait(str(wanted), has_come)

    def _come(self) -> dict[str, int]:
        answered, complete = len(self.ended) - self._failures, len(self.streams) - self._broken
        return {"answers": answered, "failures": self._failures, "streams": complete, "broken": self._broken}

    async def until_served_by(self, *servers: int) -> None:
        """Wait until each of these processes has answered once more."""
        start = len(self.ended)
        await self.wait(f"answers of {servers}", lambda: set(servers) <= set(self.ended[start:]))

    async def until_none_fails(self, *, server: int | None = None) -> int:
        """Wait until no call fails any more, and one process answers all. How many calls were made by then."""

        def calm() -> bool:
            latest = self.ended[-200:]
            return len(latest) == 200 and all(
                not isinstance(end, ErrorCode) and server in (None, end) for end in latest
            )

        await self.wait("200 answers in a row", calm)
        waiting = [outcome for outcome in self.outcomes.values() if not outcome]
        await self.wait("the open calls end", lambda: all(waiting))
        return len(self.outcomes)

    async def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something is true that may change whenever a call ends."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    for task in self._tasks:
                        if task.done():
                            task.result()  # raises what went wrong there
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited {PATIENCE:g} s in vain: {what}; so far: {self}") from None

    # --- what was written ---------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        ends = Counter(str(each[0]) if each else "open" for each in self.outcomes.values())
        return f"{len(self.outcomes)} calls, {dict(ends)}"

    @property
    def answered(self) -> set[str]:
        """Which calls were answered."""
        return {id for id, ends in self.outcomes.items() if any(isinstance(end, int) for end in ends)}

    @property
    def failed(self) -> set[str]:
        """Which calls failed."""
        return {id for id, ends in self.outcomes.items() if any(isinstance(end, ErrorCode) for end in ends)}

    def made_since(self, number: int) -> set[Outcome]:
        """How the calls ended that were made after this number of others."""
        return {end for ends in list(self.outcomes.values())[number:] for end in ends}

    def check(self, notes: Iterable[str]) -> None:
        """Each call ended in one way, no handler ran twice for one call, and no call has a result without a run.

        No subscription has a gap or repeats an item, and one that ended well is complete.
        """
        assert all(len(ends) == 1 for ends in self.outcomes.values()), str(self)
        assert {end for end in self.ended if isinstance(end, ErrorCode)} <= {ErrorCode.UNAVAILABLE}, str(self)
        runs = runs_in(notes)
        assert {id: times for id, times in runs.items() if times > 1} == {}
        assert self.answered <= runs.keys()
        for items, end in self.streams:
            assert items == list(range(1, len(items) + 1))
            assert end is ErrorCode.UNAVAILABLE or (end is None and len(items) == ITEMS)
        assert self._calls.open_calls == 0


def runs_in(notes: Iterable[str]) -> Counter[str]:
    """How often the handler ran, by request id."""
    return Counter(note.removeprefix("ran ") for note in notes if note.startswith("ran "))
