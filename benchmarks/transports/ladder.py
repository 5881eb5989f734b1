"""Calls between processes: the libraries' own request and reply, the peers', and opwire over them."""

import asyncio
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, NamedTuple

from tests.servers.brokers import NatsServer, RedisServer, find_server

from benchmarks.measure import Row, Table
from benchmarks.peers import faststream_rpc, task_queues
from benchmarks.transports import durable, nats, redis, websocket
from benchmarks.transports.run import IN_FLIGHT, Broker, Figures, measure
from benchmarks.transports.scenario import Scenario


class _Engine(NamedTuple):
    """One table: the first scenario is the control, and opwire must reach a multiple of its calls per second, if that
    is promised.
    """

    name: str
    scenarios: Sequence[Scenario]
    opwire: Scenario
    at_least: float | None = None
    broker: type[NatsServer | RedisServer] | None = None
    peers: Sequence[Scenario] = ()
    settings: Mapping[str, Any] = {}


_ENGINES = (
    _Engine("WebSocket", websocket.RAW, websocket.OPWIRE, 0.7),
    _Engine(
        "WebSocket through a relay", [*websocket.RAW_RELAYED, websocket.OPWIRE_RELAYED], websocket.OPWIRE_HUB, 0.75
    ),
    _Engine("Redis", redis.RAW, redis.OPWIRE, 1.5, RedisServer, [faststream_rpc.REDIS]),
    _Engine("NATS", nats.RAW, nats.OPWIRE, 1.5, NatsServer, [faststream_rpc.NATS]),
    _Engine("durable, in one process", [durable.PLAIN_MEMORY, durable.MEMORY_KEYS], durable.MEMORY, 0.5),
    _Engine(
        "durable",
        [redis.OPWIRE, durable.REDIS_KEYS],
        durable.REDIS,
        0.5,
        RedisServer,
        [task_queues.ARQ, task_queues.TASKIQ],
        {"appendonly": "yes"},
    ),
    _Engine(
        "durable",
        [nats.OPWIRE, durable.NATS_KEYS],
        durable.NATS,
        0.5,
        NatsServer,
        settings={"jetstream": True},
    ),
)


def tables() -> Iterator[Table]:
    """One table for each engine and event loop. The peers run on asyncio's."""
    for engine in _ENGINES:
        for loop in ("asyncio", "uvloop"):
            if find_spec(loop) is None:
                print(f"{loop} is not on this machine: skipped\n")
                continue
            scenarios = [*engine.scenarios, engine.opwire, *(engine.peers if loop == "asyncio" else ())]
            figures = _measured(engine, scenarios, loop)
            title = f"{_title(engine)}, {IN_FLIGHT} in flight [{loop}]"
            yield Table(title, "calls/s", "first", _rows(engine, dict(zip(scenarios, figures, strict=True))))


def _measured(engine: _Engine, scenarios: Sequence[Scenario], loop: str) -> list[Figures]:
    serving: AbstractContextManager[NatsServer | RedisServer | None]
    serving = nullcontext() if engine.broker is None else engine.broker(**engine.settings)
    with serving as server:
        broker = None if server is None else Broker(server.url, server.pid)
        return asyncio.run(measure(scenarios, loop, broker))


def _title(engine: _Engine) -> str:
    """With the version of the broker that is about to run."""
    if engine.broker is None:
        return engine.name
    program = engine.broker.program
    printed = subprocess.run([find_server(program), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v=?(\d[\w.]*)", printed)
    return f"{engine.name} ({program} {version[1] if version else printed.strip()})"


def _rows(engine: _Engine, figures: dict[Scenario, Figures]) -> list[Row]:
    control = figures[engine.scenarios[0]].rate
    opwire = figures[engine.opwire].rate
    rows: list[Row] = []
    for scenario, figure in figures.items():
        row = Row(scenario.label(figure.version), figure.rate, figure.rate / control, note=_note(figure))
        if scenario is engine.opwire:
            if engine.at_least is not None:
                row = row._replace(must_reach=f">= {engine.at_least:g}", reached=opwire >= engine.at_least * control)
        elif scenario.ahead:
            row = row._replace(must_reach="opwire ahead", reached=opwire > figure.rate)
        rows.append(row)
    return rows


def _note(figure: Figures) -> str:
    """Processor time of each process; what a call takes when it is the only one."""
    parts = " + ".join(f"{end} {_microseconds(seconds)}" for end, seconds in figure.processor.items())
    used = _microseconds(sum(figure.processor.values()))
    return f"CPU {used} µs = {parts}; alone p50 {_microseconds(figure.p50)}, p99 {_microseconds(figure.p99)} µs"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.3g}"
