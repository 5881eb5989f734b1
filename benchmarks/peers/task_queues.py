"""Task queues over Redis that keep tasks and results, as durable calls do: arq, and taskiq over Redis Streams.

Callers of both poll for results, and arq's worker for tasks. They do so every 10 ms here, which gave most calls per
second: with the defaults of half a second they would mostly sleep. Both are imported where they run, in environments of
their own.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.transports.messages import NOTE, OPERATION
from benchmarks.transports.scenario import Call, Scenario

_POLL = 0.01  # seconds
_KEEP = 60  # seconds
_AT_ONCE = 64  # tasks of a worker
_POOL = 100  # connections: a command takes one


async def _add(a: int, b: int, note: str) -> int:
    return a + b


# --- arq --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _arq_worker(url: str) -> AsyncGenerator[str]:
    from arq.connections import RedisSettings  # pyright: ignore[reportMissingImports] - its own environment
    from arq.worker import Worker, func  # pyright: ignore[reportMissingImports]

    async def add(_: Any, a: int, b: int, note: str) -> int:
        return await _add(a, b, note)

    worker = Worker(
        [func(add, name=OPERATION)],
        redis_settings=RedisSettings.from_dsn(url),
        handle_signals=False,
        max_jobs=_AT_ONCE,
        poll_delay=_POLL,
        keep_result=_KEEP,
    )
    running = asyncio.create_task(worker.async_run())
    yield url
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def _arq_caller(url: str) -> AsyncGenerator[Call]:
    from arq.connections import RedisSettings, create_pool  # pyright: ignore[reportMissingImports]

    async with await create_pool(RedisSettings.from_dsn(url)) as pool:

        async def call(a: int) -> int:
            job = await pool.enqueue_job(OPERATION, a, 1, NOTE)
            return await job.result(timeout=10, poll_delay=_POLL)

        yield call


# --- taskiq -----------------------------------------------------------------------------------------------------------


def _taskiq(url: str) -> tuple[Any, Any]:
    from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker  # pyright: ignore[reportMissingImports]

    logging.getLogger("taskiq").setLevel(logging.WARNING)  # logging each task would be a third of the cost
    results: Any = RedisAsyncResultBackend(url, result_ex_time=_KEEP, max_connection_pool_size=_POOL)
    broker = RedisStreamBroker(url, max_connection_pool_size=_POOL).with_result_backend(results)
    return broker, broker.register_task(_add, task_name=OPERATION)


@asynccontextmanager
async def _taskiq_worker(url: str) -> AsyncGenerator[str]:
    from taskiq.api import run_receiver_task  # pyright: ignore[reportMissingImports]

    broker, _ = _taskiq(url)
    broker.is_worker_process = True
    running = asyncio.create_task(run_receiver_task(broker, max_async_tasks=_AT_ONCE, run_startup=True))
    yield url
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await broker.shutdown()


@asynccontextmanager
async def _taskiq_caller(url: str) -> AsyncGenerator[Call]:
    broker, add = _taskiq(url)
    await broker.startup()

    async def call(a: int) -> int:
        task = await add.kiq(a, 1, NOTE)
        return (await task.wait_result(check_interval=_POLL, timeout=10)).return_value

    yield call
    await broker.shutdown()


ARQ = Scenario("arq", __name__, _arq_worker, _arq_caller, library="arq", peer="arq", ahead=True)
TASKIQ = Scenario(
    "taskiq, Redis Streams", __name__, _taskiq_worker, _taskiq_caller, library="taskiq", peer="taskiq", ahead=True
)
SCENARIOS = [ARQ, TASKIQ]
