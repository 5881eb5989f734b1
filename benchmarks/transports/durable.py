"""Durable mutations with a key each, served by two workers over Redis Streams and over JetStream."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from secrets import token_hex

from benchmarks.transports.ends import add
from benchmarks.transports.messages import NOTE, OPERATION
from benchmarks.transports.scenario import SERVERS, Call, Scenario
from opwire import OperationRegistry
from opwire.durable import DurableCalls, DurableWorker, Journal
from opwire.durable.jetstream import NatsJournal
from opwire.durable.redis import RedisJournal
from opwire.protocol import LOCAL_IDENTITY

_KEEP_SECONDS = 60.0
_CONCURRENCY = 64  # tasks of a worker: as many as there are calls in flight

_registry = OperationRegistry()
_registry.mutation(OPERATION)(add)


def _scenario(name: str, engine: str, open_journal: Callable[[str], AbstractAsyncContextManager[Journal]]) -> Scenario:
    @asynccontextmanager
    async def worker(url: str) -> AsyncGenerator[str]:
        async with (
            open_journal(url) as journal,
            DurableWorker(_registry, journal, concurrency=_CONCURRENCY, anonymous=LOCAL_IDENTITY),
        ):
            yield url

    @asynccontextmanager
    async def caller(url: str) -> AsyncGenerator[Call]:
        async with open_journal(url) as journal:
            durable = DurableCalls(journal)

            async def call(a: int) -> int:
                envelope = await durable.call(OPERATION, {"a": a, "b": 1, "note": NOTE}, key=token_hex(16))
                return envelope.data

            yield call

    return Scenario(name, __name__, worker, caller, library="opwire", servers=SERVERS, engine=engine)


REDIS = _scenario("opwire, Redis Streams", "Redis", lambda url: RedisJournal(url, keep=_KEEP_SECONDS))
JETSTREAM = _scenario("opwire, JetStream", "NATS", lambda url: NatsJournal(url, keep=_KEEP_SECONDS))
SCENARIOS = [REDIS, JETSTREAM]
