"""Task queues over Redis that keep tasks and results, as durable calls do: arq, taskiq over Redis Streams, and Celery.

Every task has an id that its caller chose, and waits for the upstream. Callers poll for results, and arq's worker for
tasks. They do so every 10 ms here, which gave most calls per second: with the defaults of half a second they would
mostly sleep. Each is imported where it runs, in an environment of its own.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

from benchmarks.transports.messages import NOTE, OPERATION
from benchmarks.transports.scenario import SERVERS, Call, End, Scenario
from benchmarks.upstream import blocking_round_trip, round_trip

_POLL = 0.01  # seconds
_KEEP = 60  # seconds
_AT_ONCE = 64  # tasks of a worker
_POOL = 100  # connections: a command takes one


async def _add(a: int, b: int, note: str) -> int:
    await round_trip()
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
            job = await pool.enqueue_job(OPERATION, a, 1, NOTE, _job_id=token_hex(16))
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
        task = await add.kicker().with_task_id(token_hex(16)).kiq(a, 1, NOTE)
        return (await task.wait_result(check_interval=_POLL, timeout=10)).return_value

    yield call
    await broker.shutdown()


# --- Celery -----------------------------------------------------------------------------------------------------------


def _celery(url: str) -> Any:
    from celery import Celery  # pyright: ignore[reportMissingImports] - its own environment

    app: Any = Celery("benchmark", broker=url, backend=url)
    app.conf.update(
        broker_pool_limit=_POOL,
        redis_max_connections=_POOL,
        result_expires=_KEEP,
        task_acks_late=True,  # a task of a worker that was lost runs again, as durable calls do
        worker_prefetch_multiplier=1,
    )
    return app


@asynccontextmanager
async def _celery_worker(url: str) -> AsyncGenerator[str]:
    from celery.worker import WorkController  # pyright: ignore[reportMissingImports]

    app, connections = _celery(url), threading.local()

    @app.task(name=OPERATION)
    def add(a: int, b: int, note: str) -> int:
        if not hasattr(connections, "near"):
            connections.near, connections.far = socket.socketpair()
            threading.Thread(target=_echo, args=(connections.far,), daemon=True).start()
        blocking_round_trip(connections.near)
        return a + b

    app.set_default()  # the threads of the pool take it from there
    worker: Any = WorkController(app=app, pool_cls="threads", concurrency=_AT_ONCE)
    threading.Thread(target=worker.start, daemon=True).start()
    yield url
    worker.stop()


def _echo(connection: socket.socket) -> None:
    while data := connection.recv(64):
        connection.sendall(data)


@asynccontextmanager
async def _celery_caller(url: str) -> AsyncGenerator[Call]:
    app = _celery(url)
    threads = ThreadPoolExecutor(_AT_ONCE)
    loop = asyncio.get_running_loop()

    def submit(a: int) -> str:
        return app.send_task(OPERATION, (a, 1, NOTE), task_id=token_hex(16)).id

    async def call(a: int) -> int:
        task_id = await loop.run_in_executor(threads, submit, a)
        while True:
            state = await loop.run_in_executor(threads, app.backend.get_task_meta, task_id)
            if state["status"] == "SUCCESS":
                return state["result"]
            await asyncio.sleep(_POLL)

    yield call
    threads.shutdown()


def _scenario(name: str, library: str, worker: End, caller: Any) -> Scenario:
    return Scenario(
        name, __name__, worker, caller, library=library, peer=library, ahead=True, servers=SERVERS, engine="Redis"
    )


ARQ = _scenario("arq", "arq", _arq_worker, _arq_caller)
TASKIQ = _scenario("taskiq, Redis Streams", "taskiq", _taskiq_worker, _taskiq_caller)
CELERY = _scenario("celery, threads", "celery", _celery_worker, _celery_caller)
SCENARIOS = [ARQ, TASKIQ, CELERY]
