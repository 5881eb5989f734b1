"""Durable calls, beside calls of the same transport that are kept nowhere."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from secrets import token_hex

from benchmarks.transports.ends import add, calling, responding
from benchmarks.transports.messages import NOTE, OPERATION
from benchmarks.transports.scenario import Call, Scenario
from opwire import OperationRegistry
from opwire.durable import DurableCalls, DurableWorker, Journal, MemoryJournal
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.redis import RedisJournal
from opwire.protocol import LOCAL_IDENTITY
from opwire.transports.memory import MemoryBus, MemoryTransport

Opening = Callable[[str], AbstractAsyncContextManager[Journal]]

_KEEP = 60.0  # seconds
_AT_ONCE = 64  # tasks in the hands of the worker: as many as there are calls in flight

_registry = OperationRegistry()
_registry.mutation(OPERATION)(add)


def _working(journal: Journal) -> DurableWorker:
    return DurableWorker(_registry, journal, concurrency=_AT_ONCE, anonymous=LOCAL_IDENTITY)


def _submitting(journal: Journal, *, keys: bool = False) -> Call:
    durable = DurableCalls(journal)

    async def call(a: int) -> int:
        key = token_hex(16) if keys else None
        return (await durable.call(OPERATION, {"a": a, "b": 1, "note": NOTE}, key=key)).data

    return call


def _scenario(engine: str, opened: Opening, *, keys: bool = False) -> Scenario:
    @asynccontextmanager
    async def worker(url: str) -> AsyncGenerator[str]:
        async with opened(url) as journal, _working(journal):
            yield url

    @asynccontextmanager
    async def caller(url: str) -> AsyncGenerator[Call]:
        async with opened(url) as journal:
            yield _submitting(journal, keys=keys)

    name = f"opwire, durable over {engine}{', with keys' if keys else ''}"
    return Scenario(name, __name__, worker, caller, library="opwire")


@asynccontextmanager
async def _in_memory(_: str, *, keys: bool = False) -> AsyncGenerator[Call]:
    async with MemoryJournal(keep=_KEEP) as journal, _working(journal):
        yield _submitting(journal, keys=keys)


@asynccontextmanager
async def _plain_in_memory(_: str) -> AsyncGenerator[Call]:
    bus = MemoryBus(codec=True)
    async with responding(MemoryTransport(bus)), calling(MemoryTransport(bus)) as call:
        yield call


PLAIN_MEMORY = Scenario("opwire, codec=True", __name__, None, _plain_in_memory, library="opwire")
MEMORY = Scenario("opwire, durable in memory", __name__, None, _in_memory, library="opwire")
MEMORY_KEYS = Scenario(
    "opwire, durable in memory, with keys", __name__, None, partial(_in_memory, keys=True), library="opwire"
)


def _over_redis(url: str) -> RedisJournal:
    return RedisJournal(url, keep=_KEEP)


def _over_nats(url: str) -> NatsJournal:
    return NatsJournal(url, keep=_KEEP)


REDIS = _scenario("Redis Streams", _over_redis)
REDIS_KEYS = _scenario("Redis Streams", _over_redis, keys=True)
NATS = _scenario("JetStream", _over_nats)
NATS_KEYS = _scenario("JetStream", _over_nats, keys=True)
SCENARIOS = [PLAIN_MEMORY, MEMORY, MEMORY_KEYS, REDIS, REDIS_KEYS, NATS, NATS_KEYS]
