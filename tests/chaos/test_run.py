"""Calls keep their guarantees under injected faults; a damaged protocol fails the run."""

import asyncio
import sys
from collections import defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from opwire.protocol import CallHandler, PendingRequestMap
from opwire.protocol.call_table import Arrival, CallTable
from opwire.protocol.events import CallResponded
from opwire.protocol.handler import Admission, RunningRequest
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.chaos.run import ChaosReport, run_chaos
from tests.chaos.transport import FAULTS, Chaos
from tests.chaos.virtual_time import run_virtually


def storm(seed: int = 1, calls: int = 600) -> ChaosReport:
    return run_virtually(run_chaos(Chaos.storm(seed), calls=calls, slack=0.02))


@pytest.mark.slow
def test_thousands_of_calls_through_a_storm_keep_every_promise() -> None:
    report = storm(calls=3_000)
    sys.stdout.write(f"{report}\n")
    assert report.outcomes.total() == report.calls == 3_000
    assert all(report.faults[fault] > 0 for fault in FAULTS)
    # A run in which most calls fail would prove little.
    assert report.outcomes["answered"] > 800
    assert {"TIMEOUT", "UNAVAILABLE", "ABORTED", "EXECUTION_ERROR", "cancelled", "left early"} <= set(report.outcomes)
    assert report.reconnections > 0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = storm(5), storm(5), storm(6)
    assert (first.outcomes, first.faults, first.reconnections) == (second.outcomes, second.faults, second.reconnections)
    assert first.faults != other.faults


@pytest.mark.slow
async def test_a_storm_in_real_time_on_another_bus() -> None:
    bus = MemoryBus()
    chaos = Chaos(1, drop=0.01, duplicate=0.05, delay=0.05, reorder=0.01, close=0.002)
    report = await run_chaos(chaos, calls=600, connect=lambda: MemoryTransport(bus), slack=5.0)
    assert report.outcomes.total() == 600


@pytest.mark.parametrize("missing", FAULTS)
def test_a_run_fails_that_never_injects_one_of_the_faults(missing: Any) -> None:
    chances = {"drop": 0.01, "duplicate": 0.05, "delay": 0.05, "reorder": 0.01, "close": 0.005, missing: 0.0}
    with pytest.raises(AssertionError, match=f"never injected: {missing}"):
        run_virtually(run_chaos(Chaos(1, **chances), calls=400, slack=0.02))


def test_a_report_says_how_many_faults_there_were_and_how_the_calls_ended() -> None:
    report = storm(calls=1_000)
    text = str(report)
    assert text.startswith("1,000 calls: ")
    for fault in FAULTS:
        assert f"{fault} {report.faults[fault]:,}" in text
    assert f"answered {report.outcomes['answered']:,}" in text


# --- a damaged protocol fails the run ---------------------------------------------------------------------------------


def complaint() -> str:
    with pytest.raises((AssertionError, BaseExceptionGroup)) as failure:
        storm()
    error: BaseException = failure.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AssertionError), error
    return str(error)


def test_a_call_that_outlives_its_deadline_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any faults of the transport each call has one outcome, and none waits past its deadline."""
    monkeypatch.setattr(PendingRequestMap, "_time_out", lambda self, request_id: None)
    assert "did not end by its deadline" in complaint()


def test_a_handler_that_runs_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any faults of the transport a handler runs at most once for a request."""

    def forget(self: Admission, request: RunningRequest) -> None:
        del self.running[request.event.request_id]

    monkeypatch.setattr(Admission, "end", forget)
    assert "handlers ran twice" in complaint()


def test_an_answer_to_another_question_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    received = PendingRequestMap.received
    last: dict[int, Any] = {}

    def confused(self: PendingRequestMap, event: Any, sender: str) -> None:
        if isinstance(event, CallResponded) and event.seq is None:
            output, last[0] = last.get(0, event.output), event.output
            event = replace(event, output=output)
        received(self, event, sender)

    monkeypatch.setattr(PendingRequestMap, "received", confused)
    assert "got another's answer" in complaint()


def test_a_lost_item_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any faults of the transport responses belong to their requests and items come in order."""

    def careless(self: CallTable[Any], event: Any, entry: Any) -> Any:
        entry.last_seq = event.seq
        return Arrival(entry.sink, event.output, False)

    monkeypatch.setattr(CallTable, "_item", careless)
    assert "expected" in complaint() or "went back" in complaint()


def test_a_request_that_stays_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingRequestMap, "open_calls", property(lambda self: 1))
    assert "1 calls are still open" in complaint()


def test_a_handler_that_is_never_done_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallHandler, "__len__", lambda self: 2)
    assert "2 requests are still being answered" in complaint()


def test_a_task_that_is_left_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    start = MemoryTransport.start

    async def leaky(self: MemoryTransport, receiver: Any) -> None:
        await start(self, receiver)
        self.reader = asyncio.get_running_loop().create_task(asyncio.sleep(1_000))  # pyright: ignore

    monkeypatch.setattr(MemoryTransport, "start", leaky)
    assert "tasks were left behind" in complaint()


def test_memory_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: defaultdict[str, list[Any]] = defaultdict(list)
    send = MemoryTransport.send

    def hoarding(self: MemoryTransport, event: Any, to: str | None) -> None:
        kept["events"].append(event)
        send(self, event, to)

    monkeypatch.setattr(MemoryTransport, "send", hoarding)
    assert "memory has grown" in complaint()


def test_an_error_that_no_fault_explains_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("books")

    monkeypatch.setattr(PendingRequestMap, "complete", broken)
    assert "failed with EXECUTION_ERROR" in complaint()
