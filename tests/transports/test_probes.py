"""The timer of probes. What is probed, and when, is in test_leases.py; what comes of it in test_broker.py."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.model.envelope import local_envelope
from opwire.protocol import Address, CallResponded
from opwire.transports.leases import MOMENT, Asked, Leases, Probes
from tests.chaos.virtual_time import run_virtually


class Recorder:
    """What is sent: servers or operations, and tokens."""

    def __init__(self) -> None:
        self.leases = Leases(3.0)
        self.sent: list[tuple[str, str]] = []
        self.named: list[Mapping[Address, list[str]]] = []
        self.probes = Probes(self.leases, lambda asked: self.send(asked), self.name)  # noqa: PLW0108 - tests replace it

    def name(self, in_hand: Mapping[Address, list[str]]) -> None:
        if in_hand:
            self.named.append(in_hand)

    def send(self, asked: Asked) -> None:
        self.sent.append((asked.server or asked.operation_id, asked.token))


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_server_of_a_call_is_probed_until_the_call_has_ended() -> None:
    async def watched() -> None:
        end = Recorder()
        token = end.leases.ask("r", "math.add", now(), streams=False, server="server").token
        end.probes.soon(now())
        await asyncio.sleep(3 * MOMENT)
        assert set(end.sent) == {("server", token)}
        end.leases.end(token)
        end.sent.clear()
        await asyncio.sleep(1)
        assert end.sent == []

    run_virtually(watched())


def test_calls_in_flight_are_named_once_and_then_no_timer_is_left() -> None:
    async def named() -> None:
        end = Recorder()
        end.leases.hold("ann", "r", "t", now())
        end.probes.soon(now())
        await asyncio.sleep(1)
        assert end.named == [{"ann": ["t"]}]
        assert end.probes._timer is None

    run_virtually(named())


def test_a_new_call_is_looked_at_in_a_moment_however_rarely_the_old_ones_are() -> None:
    async def joined() -> None:
        end = Recorder()
        end.leases.ask("old", "math.add", now(), streams=False, server="server")
        end.probes.soon(now())
        await asyncio.sleep(60.1)
        end.sent.clear()
        new = end.leases.ask("new", "math.add", now(), streams=False, server="other").token
        end.probes.soon(now())
        await asyncio.sleep(2.5 * MOMENT)
        assert ("other", new) in end.sent
        end.probes.stop()
        end.sent.clear()
        await asyncio.sleep(1)
        assert end.sent == []

    run_virtually(joined())


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_is_probed_every_25_ms_for_a_minute_whether_or_not_it_sends_something(streams: bool) -> None:
    async def noted() -> list[float]:
        end, times = Recorder(), [now()]
        end.send = lambda asked: times.append(now())  # type: ignore[method-assign]
        token = end.leases.ask("r", "math.add", now(), streams=streams, server="server").token
        end.probes.soon(now())
        for _ in range(400):
            await asyncio.sleep(0.15)
            if streams:
                item = CallResponded(request_id="r", output=local_envelope(1, "math.add"), seq=1)
                assert end.leases.authenticates(item, "server", token, now())
                times.append(now())
        end.probes.stop()
        return times

    times = run_virtually(noted())
    assert max(after - before for before, after in pairwise(times)) < 0.0305, "an interval, and a quarter of a moment"


@pytest.mark.parametrize("error", [CallError(ErrorCode.RATE_LIMITED, "full"), KeyError("a bug")])
def test_a_probe_that_fails_is_not_the_last_one(error: Exception) -> None:
    async def failing() -> None:
        end, tries = Recorder(), list[str]()

        def send(asked: Asked) -> None:
            tries.append(asked.token)
            raise error

        end.send = send  # type: ignore[method-assign]
        end.leases.ask("r", "math.add", now(), streams=False, server="server")
        end.probes.soon(now())
        await asyncio.sleep(10 * MOMENT)
        assert len(tries) > 3
        end.probes.stop()

    run_virtually(failing())
