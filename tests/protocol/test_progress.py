"""Progress over the call protocol: from the handler to a caller that asked for it, bounded and optional."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from opwire import Context, OperationRegistry, Progress, local_envelope
from opwire.model.context import MAX_PROGRESS_MESSAGE
from opwire.protocol import CallProgress, CallRequested, CallResponded, PendingRequestMap
from opwire.protocol.call_table import CallTable
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.chaos.virtual_time import run_virtually
from tests.protocol.harness import connected_ends, peer, settled, until, within


def progress(amount: float = 1, id: str = "r") -> CallProgress:
    return CallProgress(request_id=id, progress=amount)


def open_call(*, peer: str | None = "server", streams: bool = False) -> tuple[CallTable[str], list[Progress]]:
    table: CallTable[str] = CallTable()
    reports: list[Progress] = []
    request = CallRequested(request_id="r", operation_id="a.b", progress=True)
    table.open(request, "sink", streams=streams, on_progress=reports.append)
    if peer is not None:
        table.routed("r", peer)
    return table, reports


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_caller_gets_the_last_report_before_the_response(threaded: bool) -> None:
    registry = OperationRegistry()

    async def work(context: Context) -> str:
        return steps(context)

    def steps(context: Context) -> str:
        for step in (1, 2, 3):
            context.report(step, 3, f"step {step}")
        return "done"

    registry.query("a.work")(steps if threaded else work)
    seen: list[Any] = []
    async with connected_ends(registry, bus=MemoryBus(codec=True)) as ends:
        seen.append(await ends.call("a.work", context=Context(on_progress=seen.append)))
    assert seen[-2:] == [Progress(3, 3, "step 3"), "done"]


def test_a_handler_that_reports_all_the_time_sends_ten_reports_per_second() -> None:
    registry = OperationRegistry()

    @registry.query("a.work")
    async def work(context: Context) -> None:
        for step in range(200):
            context.report(step)
            await asyncio.sleep(0.01)

    async def run() -> list[float]:
        reports: list[Progress] = []
        async with connected_ends(registry) as ends:
            await ends.call("a.work", context=Context(on_progress=reports.append))
        return [each.progress for each in reports]

    amounts = run_virtually(run())
    assert 18 <= len(amounts) <= 22
    assert amounts == sorted(set(amounts))
    assert amounts[-1] == 199


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ((10**400,), []),
        ((float("nan"),), []),
        ((True,), []),
        (("much",), []),
        ((1, float("inf")), [Progress(1)]),
        ((1, 2, "\ud800"), [Progress(1, 2, "\ufffd")]),
        ((1, None, "x" * 10_000), [Progress(1, None, "x" * MAX_PROGRESS_MESSAGE)]),
    ],
)
async def test_a_report_has_finite_numbers_and_a_bounded_message(report: Any, expected: list[Progress]) -> None:
    registry = OperationRegistry()

    @registry.query("a.work")
    async def work(context: Context) -> None:
        context.report(*report)

    reports: list[Progress] = []
    async with connected_ends(registry, bus=MemoryBus(codec=True)) as ends:
        await ends.call("a.work", context=Context(on_progress=reports.append))
    assert reports == expected


async def test_a_request_asks_for_progress_only_if_its_context_wants_it() -> None:
    bus = MemoryBus()
    server, recorder = await peer(bus, "a.work")
    async with PendingRequestMap(MemoryTransport(bus)) as calls:
        made = [asyncio.create_task(calls.call("a.work", context=each)) for each in (None, Context(on_progress=print))]
        await until(lambda: len(recorder.events) == 2)
    await asyncio.gather(*made, return_exceptions=True)
    assert [event.progress for event in recorder.events] == [None, True]
    await server.close()


async def test_the_items_of_a_subscription_are_numbered_without_regard_to_progress() -> None:
    registry = OperationRegistry()

    @registry.subscription("a.stream")
    async def stream(context: Context) -> Any:
        for number in range(5):
            context.report(number)
            await settled()
            yield number

    reports: list[Progress] = []
    async with connected_ends(registry, window=2) as ends:
        assert await ends.items("a.stream", context=Context(on_progress=reports.append)) == [0, 1, 2, 3, 4]
    assert reports[0] == Progress(0)


@pytest.mark.parametrize("forwarded", [False, True])
async def test_what_a_nested_call_reports_is_its_own_unless_the_handler_passes_it_on(forwarded: bool) -> None:
    registry, servers = OperationRegistry(), list[PendingRequestMap]()

    @registry.query("a.inner")
    async def inner(context: Context) -> None:
        context.report(7)

    @registry.query("a.outer")
    async def outer(context: Context) -> None:
        nested = replace(context.child(), on_progress=context.on_progress) if forwarded else context
        await servers[0].call("a.inner", context=nested)

    reports: list[Progress] = []
    async with connected_ends(registry) as ends:
        servers.append(ends.server)
        await ends.call("a.outer", context=Context(on_progress=reports.append))
    assert reports == ([Progress(7)] if forwarded else [])


def test_progress_of_another_peer_or_call_is_dropped_and_counted() -> None:
    """Progress that is late, unknown, unasked or not from the server of its call is dropped, and none ends,
    extends or delays a call or counts as an item."""
    table, reports = open_call()
    assert table.progressed(progress(), "server") == reports.append
    assert table.progressed(progress(), "stranger") is None
    assert table.progressed(progress(id="unknown"), "server") is None
    table.settle("r")
    assert table.progressed(progress(), "server") is None
    assert table.dropped == {"foreign": 1, "unknown": 2}


def test_progress_does_not_decide_which_peer_may_respond() -> None:
    table, reports = open_call(peer=None)
    assert table.progressed(progress(), "former") == reports.append
    response = CallResponded(request_id="r", output=local_envelope(1, "a.b"))
    arrival = table.arrived(response, "server")
    assert arrival is not None
    assert arrival.final


async def test_progress_that_was_not_asked_for_changes_nothing() -> None:
    bus = MemoryBus()
    server, recorder = await peer(bus, "a.work")
    async with PendingRequestMap(MemoryTransport(bus)) as calls:
        call = asyncio.create_task(calls.call("a.work"))
        await until(lambda: bool(recorder.events))
        id = recorder.events[0].request_id
        server.send(progress(id=id), recorder.senders[0])
        server.send(CallResponded(request_id=id, output=local_envelope(1, "a.work")), recorder.senders[0])
        server.send(progress(id=id), recorder.senders[0])  # late
        assert (await within(call)).data == 1
        assert calls.dropped_events == {"unknown": 2}
    await server.close()


async def test_a_report_after_the_end_of_a_call_is_not_sent_to_another_with_its_request_id() -> None:
    registry, contexts, stop = OperationRegistry(), list[Context](), asyncio.Event()

    @registry.query("a.work")
    async def work(wait: bool, context: Context) -> None:
        contexts.append(context)
        if wait:
            await stop.wait()

    reports: list[Progress] = []
    context = Context(request_id="same", on_progress=reports.append)
    async with connected_ends(registry) as ends, PendingRequestMap(MemoryTransport(ends.bus)) as other:
        await ends.call("a.work", {"wait": False}, context=context)
        call = asyncio.create_task(other.call("a.work", {"wait": True}, context=context))
        await until(lambda: len(contexts) == 2)
        contexts[0].report(1)
        contexts[1].report(2)
        await until(lambda: bool(reports))
        stop.set()
        await within(call)
    assert [each.request_id for each in contexts] == ["same", "same"]
    assert reports == [Progress(2)]


async def test_a_callback_that_fails_is_logged_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    registry = OperationRegistry()

    @registry.query("a.work")
    async def work(context: Context) -> str:
        context.report(1)
        return "done"

    def fail(_: Progress) -> None:
        raise ValueError("broken")

    async with connected_ends(registry) as ends:
        with caplog.at_level(logging.ERROR, "opwire.protocol"):
            assert await ends.call("a.work", context=Context(on_progress=fail)) == "done"
    assert "a progress callback failed" in caplog.text


def test_a_deadline_passes_while_a_handler_reports() -> None:
    registry = OperationRegistry()

    @registry.query("a.work")
    async def work(context: Context) -> None:
        while True:
            context.report(1)
            await asyncio.sleep(0.05)

    async def run() -> None:
        async with connected_ends(registry) as ends:
            await ends.client.call("a.work", context=Context(on_progress=lambda _: None), timeout=1)

    with pytest.raises(Exception, match="deadline"):
        run_virtually(run())
