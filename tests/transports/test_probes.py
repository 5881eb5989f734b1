"""Which servers are probed, when, and the timer. What comes of it is in test_broker.py."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.model.envelope import local_envelope
from opwire.protocol import Address, CallFailed, CallResponded
from opwire.transports.broker import Probes
from opwire.transports.leases import MAX_PROBES_AT_ONCE, MOMENT, Leases, OutgoingCall, ProbeSchedule
from tests.chaos.virtual_time import run_virtually


def response(request_id: str, seq: int | None = None) -> CallResponded:
    return CallResponded(request_id=request_id, output=local_envelope(1, "math.add"), seq=seq)


# --- the schedule -----------------------------------------------------------------------------------------------------


class Caller:
    """The leases of a caller, and its schedule."""

    def __init__(self, patience: float = 3.0) -> None:
        self.leases = Leases(patience)
        self.calls = self.leases.calls
        self.schedule = ProbeSchedule(self.calls)

    def start(self, request_id: str, now: float, server: str | None = None, operation_id: str = "math.add") -> str:
        """Start a call, and return its token."""
        return self.calls.start(request_id, operation_id, now, server=server).token

    def respond(self, request_id: str, now: float, server: str = "server", operation_id: str = "math.add") -> None:
        """Make a call that a server responds to at once."""
        token = self.start(request_id, now, operation_id=operation_id)
        assert self.leases.accept(response(request_id), server, token, now)

    def probed(self, now: float) -> list[str]:
        """The ids of the calls that are probed now."""
        return [call.request_id for call in self.schedule.due(now)]


def test_the_server_of_a_call_that_takes_long_is_probed_once_for_all_of_its_calls() -> None:
    caller = Caller()
    for number in range(4):
        caller.start(f"r{number}", 0.0, "server")
    caller.start("r4", 0.0, "other")
    assert caller.probed(MOMENT / 2) == []
    assert caller.probed(1.1 * MOMENT) == ["r3", "r4"]
    assert caller.probed(1.2 * MOMENT) == [], "not again at once"
    assert caller.probed(2.4 * MOMENT) == ["r3", "r4"]


def test_probes_become_rarer_the_longer_a_call_takes_until_a_younger_one_joins_it() -> None:
    caller = Caller(1e9)
    caller.start("old", 0.0, "server")
    first_second = sum(len(caller.probed(tick * MOMENT)) for tick in range(50))
    assert first_second == 25, "at every other check"
    later = sum(len(caller.probed(1000 + tick * MOMENT)) for tick in range(50))
    assert later == 4
    caller.start("young", 1001.0, "server")
    assert 24 <= sum(len(caller.probed(1001 + tick * MOMENT)) for tick in range(50)) <= 26


def test_a_server_that_has_just_sent_something_is_not_probed() -> None:
    caller = Caller()
    token = caller.calls.start("stream", "math.count", 0.0, streams=True, server="server").token
    for tick in range(1, 20):
        assert caller.leases.accept(response("stream", tick), "server", token, tick * MOMENT)
        assert caller.probed(tick * MOMENT + MOMENT / 4) == []
    caller.start("hanging", 1.0, "server")
    for tick in range(1, 20):  # a response to another call is a sign of life, too
        caller.respond("quick", 1.0 + tick * MOMENT)
        assert caller.probed(1.0 + tick * MOMENT + MOMENT / 4) == []


def test_a_limited_number_of_servers_are_probed_at_once_and_none_is_forgotten() -> None:
    caller = Caller()
    for number in range(200):
        caller.start(f"r{number}", 0.0, f"server{number}")
    probed: set[str] = set()
    for tick in range(1, 5):
        request_ids = caller.probed(1.5 * tick * MOMENT)
        assert len(request_ids) <= MAX_PROBES_AT_ONCE
        probed.update(request_ids)
    assert len(probed) == 200


def test_a_call_that_no_server_has_reported_is_probed_by_its_operation_if_an_opwire_server_has_answered_that() -> None:
    caller = Caller()
    for operation_id, server in (("plain.add", ""), ("math.add", "server")):
        caller.respond("before", 0.0, server, operation_id)
        caller.start(f"{operation_id} 1", 1.0, operation_id=operation_id)
        caller.start(f"{operation_id} 2", 1.0, operation_id=operation_id)
    assert caller.probed(1.0 + 1.1 * MOMENT) == ["math.add 2"]


def test_a_probe_that_no_server_got_ends_the_calls_before_it_that_no_server_has_reported() -> None:
    caller = Caller()
    caller.respond("before", 0.0)
    caller.start("reported", 0.0, "server")
    caller.start("lost", 0.0)
    token = caller.start("last", 0.0)
    caller.start("other", 0.0, operation_id="math.mul")
    assert "last" in caller.probed(0.1)
    caller.start("late", 0.2)
    failures = [action.event for action in caller.calls.undelivered(token, "no server")]
    assert {failure.request_id for failure in failures} == {"lost", "last"}
    assert {failure.message for failure in failures if isinstance(failure, CallFailed)} == {
        "math.add: no server is left; it may have run"
    }
    assert caller.calls.undelivered(token, "no server") == []
    assert len(caller.calls) == 3


def test_a_probe_that_no_server_got_does_not_end_a_call_that_was_reported_meanwhile() -> None:
    caller = Caller()
    caller.respond("before", 0.0)
    token = caller.start("r", 0.0)
    assert caller.probed(0.1) == ["r"]
    caller.calls.routed(token, "draining")
    assert caller.calls.undelivered(token, "no server") == []
    assert len(caller.calls) == 1


def test_checks_become_rarer_the_longer_calls_take_and_the_more_there_are() -> None:
    caller = Caller()
    caller.start("r", 0.0)

    def pause(now: float) -> float:
        caller.probed(now)
        return caller.schedule.next_check(now) - now

    assert pause(0.0) <= MOMENT
    assert pause(59.0) == pytest.approx(0.025)
    assert pause(1000.0) == pytest.approx(0.25)
    for number in range(50_000):
        caller.start(f"r{number}", 1000.0)
    assert pause(1000.0) > 5 * MOMENT


def test_the_more_servers_are_probed_the_rarer_each_of_them_is() -> None:
    caller = Caller(1e9)
    for number in range(1_000):
        caller.start(f"r{number}", 0.0, f"server{number}")
    probes = [len(caller.probed(1.0 + tick / 100)) for tick in range(100)]
    assert max(probes) <= MAX_PROBES_AT_ONCE
    assert 5_000 <= sum(probes) <= 10_000


# --- the timer --------------------------------------------------------------------------------------------------------


class Recorder:
    """What is sent: servers or operations, and tokens."""

    def __init__(self, send: Callable[[OutgoingCall], None] | None = None) -> None:
        self.leases = Leases(3.0)
        self.sent: list[tuple[str, str]] = []
        self.reports: list[Mapping[Address, list[str]]] = []
        self.probes = Probes(self.leases, send or self.send, self.report)

    def report(self, tokens_by_caller: Mapping[Address, list[str]]) -> None:
        if tokens_by_caller:
            self.reports.append(tokens_by_caller)

    def send(self, call: OutgoingCall) -> None:
        self.sent.append((call.server or call.operation_id, call.token))

    def start(self, request_id: str, server: str, *, streams: bool = False) -> OutgoingCall:
        call = self.leases.calls.start(request_id, "math.add", now(), streams=streams, server=server)
        self.probes.check_soon(now())
        return call


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_server_of_a_call_is_probed_until_the_call_has_ended() -> None:
    async def watched() -> None:
        recorder = Recorder()
        call = recorder.start("r", "server")
        await asyncio.sleep(3 * MOMENT)
        assert set(recorder.sent) == {("server", call.token)}
        recorder.leases.calls.end(call)
        recorder.sent.clear()
        await asyncio.sleep(1)
        assert recorder.sent == []
        assert recorder.probes.is_idle

    run_virtually(watched())


def test_requests_in_flight_are_reported_once_and_then_no_timer_is_left() -> None:
    async def reported() -> None:
        recorder = Recorder()
        recorder.leases.requests.add("ann", "r", "t", now())
        recorder.probes.check_soon(now())
        assert not recorder.probes.is_idle
        await asyncio.sleep(1)
        assert recorder.reports == [{"ann": ["t"]}]
        assert recorder.probes.is_idle

    run_virtually(reported())


def test_a_new_call_is_checked_in_a_moment_however_rarely_the_old_ones_are() -> None:
    async def joined() -> None:
        recorder = Recorder()
        recorder.start("old", "server")
        await asyncio.sleep(60.1)
        recorder.sent.clear()
        call = recorder.start("new", "other")
        await asyncio.sleep(2.5 * MOMENT)
        assert ("other", call.token) in recorder.sent
        recorder.probes.stop()
        recorder.sent.clear()
        await asyncio.sleep(1)
        assert recorder.sent == []

    run_virtually(joined())


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_is_probed_every_25_ms_for_a_minute_whether_or_not_it_sends_something(streams: bool) -> None:
    async def noted() -> list[float]:
        times: list[float] = []
        recorder = Recorder(lambda call: times.append(now()))
        times.append(now())
        call = recorder.start("r", "server", streams=streams)
        for _ in range(400):
            await asyncio.sleep(0.15)
            if streams:
                assert recorder.leases.accept(response("r", 1), "server", call.token, now())
                times.append(now())
        recorder.probes.stop()
        return times

    times = run_virtually(noted())
    assert max(after - before for before, after in pairwise(times)) < 0.0305, "an interval, and a quarter of a moment"


@pytest.mark.parametrize("error", [CallError(ErrorCode.RATE_LIMITED, "full"), KeyError("a bug")])
def test_a_probe_that_fails_is_not_the_last_one(error: Exception) -> None:
    async def failing() -> None:
        tokens: list[str] = []

        def send(call: OutgoingCall) -> None:
            tokens.append(call.token)
            raise error

        recorder = Recorder(send)
        recorder.start("r", "server")
        await asyncio.sleep(10 * MOMENT)
        assert len(tokens) > 3
        recorder.probes.stop()

    run_virtually(failing())
