"""Many large inputs and outcomes at once, in the engines that send them over a network."""

import asyncio
from secrets import token_hex

import pytest

from opwire import OperationRegistry
from opwire.durable import DurableCalls, DurableWorker
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.redis import RedisJournal
from opwire.model.identity import LOCAL_IDENTITY

LARGE = "x" * 900_000
CALLS = 40  # which take more than Redis buffers for a subscriber, and than is queued for a server


@pytest.mark.parametrize("engine", ["redis", "jetstream"])
async def test_many_large_inputs_and_outcomes_at_once_all_arrive(engine: str, request: pytest.FixtureRequest) -> None:
    url, prefix = request.getfixturevalue(f"{engine}_server").url, token_hex(4)
    registry = OperationRegistry()

    @registry.mutation("large.length")
    async def length(text: str) -> int:
        await asyncio.sleep(0)
        return len(text)

    @registry.mutation("large.text")
    async def text() -> str:
        await asyncio.sleep(0)
        return LARGE

    kind = RedisJournal if engine == "redis" else NatsJournal
    async with (
        kind(url, prefix=prefix) as there,
        kind(url, prefix=prefix) as here,
        DurableWorker(registry, there, concurrency=CALLS, anonymous=LOCAL_IDENTITY),
    ):
        calls, timeout = DurableCalls(here), 60.0
        sent = (calls.call("large.length", {"text": LARGE}, timeout=timeout) for _ in range(CALLS))
        assert [each.data for each in await asyncio.gather(*sent)] == [len(LARGE)] * CALLS
        fetched = (calls.call("large.text", timeout=timeout) for _ in range(CALLS))
        assert all(each.data == LARGE for each in await asyncio.gather(*fetched))
