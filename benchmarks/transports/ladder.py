"""Calls between processes: the libraries' own request and reply, the peers', and opwire over them."""

import asyncio
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, NamedTuple

from tests.servers.brokers import NatsServer, RedisServer, find_server

from benchmarks.measure import Row, Table
from benchmarks.peers import faststream_rpc, task_queues
from benchmarks.transports import durable, nats, redis, websocket
from benchmarks.transports.run import IN_FLIGHT, Broker, Figures, measure
from benchmarks.transports.scenario import Scenario

_SERVERS: Mapping[str, type[NatsServer | RedisServer]] = {"NATS": NatsServer, "Redis": RedisServer}


class _Ladder(NamedTuple):
    """One table. The first of the `controls` that is fastest is the control; opwire must reach multiples of it."""

    title: str
    controls: Sequence[Scenario]
    limits: Mapping[Scenario, float]  # of opwire
    others: Sequence[Scenario] = ()
    loops: Sequence[str] = ("asyncio", "uvloop")
    settings: Mapping[str, Mapping[str, Any]] = {}  # of the brokers

    @property
    def scenarios(self) -> list[Scenario]:
        return [*self.controls, *self.others, *self.limits]


_LADDERS = (
    _Ladder("WebSocket", websocket.RAW[:1], {websocket.OPWIRE: 0.6}, websocket.RAW[1:]),
    _Ladder(
        "WebSocket through a relay",
        websocket.RAW_RELAYED[:1],
        {websocket.OPWIRE_HUB: 0.7},
        [*websocket.RAW_RELAYED[1:], websocket.OPWIRE_RELAYED],
    ),
    _Ladder("Redis, two servers", redis.RAW[:1], {redis.OPWIRE: 1.5}, [*redis.RAW[1:], faststream_rpc.REDIS]),
    _Ladder("NATS, two servers", nats.RAW[:1], {nats.OPWIRE: 1.2}, [*nats.RAW[1:], faststream_rpc.NATS]),
    _Ladder(
        "durable mutations with a key, two workers",
        task_queues.SCENARIOS,
        {durable.REDIS: 8, durable.JETSTREAM: 4},
        loops=("asyncio",),
        settings={"Redis": {"appendonly": "yes"}, "NATS": {"jetstream": True}},
    ),
)


def tables() -> Iterator[Table]:
    """One table for each engine and event loop. The peers run on asyncio's."""
    for ladder in _LADDERS:
        for loop in ladder.loops:
            if find_spec(loop) is None:
                print(f"{loop} is not on this machine: skipped\n")
                continue
            scenarios = [scenario for scenario in ladder.scenarios if loop == "asyncio" or scenario.peer is None]
            figures = dict(zip(scenarios, _measured(ladder, scenarios, loop), strict=True))
            control = max((scenario for scenario in ladder.controls), key=lambda scenario: figures[scenario].rate)
            word = "first" if len(ladder.controls) == 1 else "best peer"
            yield Table(
                f"{_title(ladder)}, {IN_FLIGHT} in flight [{loop}]", "calls/s", word, _rows(ladder, figures, control)
            )


def _engines(ladder: _Ladder) -> list[str]:
    return sorted({scenario.engine for scenario in ladder.scenarios if scenario.engine is not None})


def _measured(ladder: _Ladder, scenarios: Sequence[Scenario], loop: str) -> list[Figures]:
    with ExitStack() as stack:
        brokers: dict[str, Broker] = {}
        for engine in _engines(ladder):
            server = stack.enter_context(_SERVERS[engine](**ladder.settings.get(engine, {})))
            brokers[engine] = Broker(server.url, server.pid)
        return asyncio.run(measure(scenarios, loop, brokers))


def _title(ladder: _Ladder) -> str:
    """The title with the versions of the brokers that are about to run."""
    programs = [_SERVERS[engine].program for engine in _engines(ladder)]
    versions = ", ".join(f"{program} {_version(program)}" for program in programs)
    return f"{ladder.title} ({versions})" if versions else ladder.title


def _version(program: str) -> str:
    printed = subprocess.run([find_server(program), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v=?(\d[\w.]*)", printed)
    return version[1] if version else printed.strip()


def _rows(ladder: _Ladder, figures: Mapping[Scenario, Figures], control: Scenario) -> list[Row]:
    rows: list[Row] = []
    for scenario, figure in figures.items():
        ratio = figure.rate / figures[control].rate
        row = Row(scenario.label(figure.version), figure.rate, ratio, note=_note(figure))
        if (limit := ladder.limits.get(scenario)) is not None:
            row = row._replace(must_reach=f">= {limit:g}", reached=ratio >= limit)
        elif scenario.ahead:
            behind = all(figures[opwire].rate > figure.rate for opwire in ladder.limits)
            row = row._replace(must_reach="opwire ahead", reached=behind)
        rows.append(row)
    return rows


def _note(figure: Figures) -> str:
    """Processor time of each process; what a call takes when it is the only one."""
    parts = " + ".join(f"{end} {_microseconds(seconds)}" for end, seconds in figure.processor.items())
    total = _microseconds(sum(figure.processor.values()))
    return f"CPU {total} µs = {parts}; alone p50 {_microseconds(figure.p50)}, p99 {_microseconds(figure.p99)} µs"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.3g}"
