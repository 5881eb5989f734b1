"""The contract checks that make calls: the promises of the call protocol hold on the transport."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

from opwire.errors import CallError, ErrorCode, is_resume_error
from opwire.model.context import Context, Progress
from opwire.model.envelope import MAX_CURSOR, Item, ResponseEnvelope
from opwire.model.operation import Handler
from opwire.model.questions import Question
from opwire.protocol.discovery import discover
from opwire.protocol.events import CallAborted, CallCompleted, CallCredit, CallFailed, CallProgress
from opwire.protocol.pending import PendingRequestMap
from opwire_conformance.harness import PATIENCE, TransportHarness, expect, item, soon

_GONE = (ErrorCode.UNAVAILABLE, ErrorCode.ABORTED)
_NOBODY = (ErrorCode.UNAVAILABLE, ErrorCode.OPERATION_NOT_FOUND, ErrorCode.TIMEOUT)


async def _echo(input: Any, _: Context) -> Any:
    return input


async def _numbers(input: Any, _: Context) -> AsyncGenerator[Any]:
    for number in range(input["items"]):
        yield [input["name"], number]


class _BlockingHandlers:
    """Handlers that block until they are cancelled, and signal when they begin and when they are stopped."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()
        self.remaining: float | None = None

    async def call(self, _: Any, context: Context) -> Any:
        self.remaining = context.remaining
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    async def stream(self, _: Any, context: Context) -> AsyncGenerator[Any]:
        yield 0
        await self.call(None, context)


async def _error(what: str, call: Any) -> CallError:
    """Return the error that a call raises.

    Raises:
        AssertionError: it is answered, or does not end.
    """
    try:
        answer = await soon(what, call)
    except CallError as error:
        return error
    raise AssertionError(f"{what}, but it was answered with {answer}")


async def _answered(what: str, call: Awaitable[ResponseEnvelope[Any]], data: Any) -> None:
    """Check that a call returns this data."""
    answer = await soon(what, call)
    expect(answer.data == data, f"the answer was {answer.data}")


def _finishing(event: asyncio.Event) -> Handler:
    """Return a handler that waits for an event."""

    async def finish(*_: Any) -> str:
        await event.wait()
        return "finished"

    return finish


async def a_call_is_answered(harness: TransportHarness) -> None:
    """Call an operation; the response is the envelope with the data that its handler returns."""
    await harness.server(echo=_echo)
    caller = await harness.caller()
    envelope = await soon("the call is answered", caller.call(harness.id("echo"), {"a": 1}))
    expect(envelope.data == {"a": 1}, f"the answer was {envelope.data}")
    expect(getattr(envelope.meta, "operation_id", "") == harness.id("echo"), f"the answer was of {envelope.meta}")


async def an_error_arrives_whole(harness: TransportHarness) -> None:
    """Raise an error with every field; the caller decodes the same code, message, details and retry hints."""
    sent = CallError("RATE_LIMITED", "slow down", {"limit": [1, None]}, retryable=False, retry_after=1.5)

    async def fail(*_: Any) -> Any:
        raise sent

    await harness.server(fail=fail)
    caller = await harness.caller()
    error = await _error("the call fails", caller.call(harness.id("fail")))
    arrived, expected = (
        (call_error.code, call_error.message, call_error.details, call_error.retryable, call_error.retry_after)
        for call_error in (error, sent)
    )
    expect(arrived == expected, f"{expected} arrived as {arrived}")


async def progress_arrives_before_the_outcome(harness: TransportHarness) -> None:
    """Report progress; a caller that asked for it gets the last report before the outcome, and another gets none."""

    async def work(input: Any, context: Context) -> Any:
        context.report(1, 2, "half")
        context.report(2, 2, "done")
        return context.on_progress is not None

    await harness.server(work=work)
    caller = await harness.caller()
    reports: list[Progress] = []
    context = Context(on_progress=reports.append)
    await soon("the call is answered", caller.call(harness.id("work"), context=context))
    expect(reports[-1:] == [Progress(2, 2, "done")], f"the reports were {reports}")
    unasked = await soon("the call is answered", caller.call(harness.id("work")))
    expect(unasked.data is False, "progress was requested by a caller that does not want it")


async def questions_reach_the_caller(harness: TransportHarness) -> None:
    """Ask the caller; its answer arrives, and a caller that accepts no questions gets an error that has them."""

    async def confirm(input: Any, context: Context) -> Any:
        return (await context.elicit(bool, f"Delete {input}?")).action

    await harness.server(confirm=confirm)
    caller = await harness.caller()

    async def answer(question: Question) -> dict[str, Any]:
        expect(question.params["message"] == "Delete 3?", f"the question was {question}")
        return {"action": "decline"}

    call = caller.call(harness.id("confirm"), 3, context=Context(on_question=answer))
    await _answered("the question is answered", call, "decline")
    error = await _error("a caller that cannot be asked gets an error", caller.call(harness.id("confirm"), 3))
    expect(error.code is ErrorCode.ABORTED and "Delete 3?" in error.message, f"the error was {error}")


async def many_calls_at_once_are_not_mixed_up(harness: TransportHarness) -> None:
    """Keep many calls in flight before the first returns; each gets its own response."""
    number, began, all_began = 200, 0, asyncio.Event()

    async def meet(input: Any, _: Context) -> Any:
        nonlocal began
        began += 1
        if began == number:
            all_began.set()
        await all_began.wait()
        return input

    await harness.server(meet=meet)
    caller = await harness.caller()
    calls = asyncio.gather(*(caller.call(harness.id("meet"), index) for index in range(number)))
    answers = await soon("all calls are answered", calls)
    expect([answer.data for answer in answers] == list(range(number)), "answers went to other calls")


async def items_arrive_in_order(harness: TransportHarness) -> None:
    """Stream many subscriptions at once; each receives all of its own items in order, and the end."""
    await harness.server(numbers=_numbers)
    caller = await harness.caller()

    async def follow(name: int) -> None:
        data = [
            stream_item.data
            async for stream_item in caller.subscribe(harness.id("numbers"), {"name": name, "items": 200})
        ]
        expected = [[name, number] for number in range(200)]
        expect(data == expected, f"subscription {name} gave {len(data)} items: {data[:5]}…")

    await soon("the subscriptions end", asyncio.gather(*map(follow, range(20))))


async def a_slow_consumer_slows_its_producer(harness: TransportHarness) -> None:
    """Consume slowly; the producer never buffers more than the window, and other calls still return."""
    window, produced = 8, 0

    async def produce(*_: Any) -> AsyncGenerator[Any]:
        nonlocal produced
        while True:
            produced += 1
            yield produced

    await harness.server(produce=produce, echo=_echo)
    caller = await harness.caller(window=window)
    async with aclosing(caller.subscribe(harness.id("produce"))) as items:
        for consumed in range(1, 5 * window):
            stream_item = await soon("an item arrives", anext(items))
            expect(stream_item.data == consumed, f"item {consumed} was {stream_item.data}")
            await soon("another call is answered", caller.call(harness.id("echo")))
            ahead = produced - consumed
            expect(ahead <= window, f"the producer was {ahead} items ahead, the window is {window}")


async def a_subscription_is_resumed_at_another_server(harness: TransportHarness) -> None:
    """Close the server of a subscription; another one continues behind the last item that arrived."""

    async def follow(_: Any, context: Context) -> AsyncGenerator[Item[int]]:
        for number in range(int(context.resume_from or 0) + 1, 5):
            yield Item(number, cursor=str(number))
            if number == 2 and context.resume_from is None:
                await asyncio.Event().wait()

    _, handler = await harness.server(follow=follow)
    caller = await harness.caller()
    got: list[Any] = []
    items = caller.subscribe(harness.id("follow"))
    got += [await soon("an item arrives", anext(items)), await soon("an item arrives", anext(items))]
    await harness.server(follow=follow)
    await handler.close()
    error = await _error("the stream ends", anext(items))
    expect(error.code is ErrorCode.UNAVAILABLE and error.retryable, f"the stream ended with {error}")
    resumed = caller.subscribe(harness.id("follow"), context=Context(resume_from=got[-1].cursor))
    got += [await soon("an item arrives", anext(resumed)), await soon("an item arrives", anext(resumed))]
    await resumed.aclose()
    expect(
        [stream_item.data for stream_item in got] == [1, 2, 3, 4],
        f"the items were {[stream_item.data for stream_item in got]}",
    )
    invalid = caller.subscribe(harness.id("follow"), context=Context(resume_from="x" * (MAX_CURSOR + 1)))
    error = await _error("an invalid cursor is rejected", anext(invalid))
    expect(is_resume_error(error), f"an invalid cursor was rejected with {error}")


async def leaving_a_subscription_stops_its_producer(harness: TransportHarness) -> None:
    """Leave the stream after the first item."""
    waiting = _BlockingHandlers()
    await harness.server(wait=_streaming(waiting))
    caller = await harness.caller()
    async with aclosing(caller.subscribe(harness.id("wait"))) as items:
        await soon("an item arrives", anext(items))
        await soon("the producer goes on", waiting.began.wait())
    await soon("the producer is stopped", waiting.stopped.wait())


def _streaming(waiting: _BlockingHandlers) -> Handler:
    async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
        async for stream_item in waiting.stream(input, context):
            yield stream_item

    return stream


async def cancelling_a_caller_stops_its_handler(harness: TransportHarness) -> None:
    """Cancel the task that awaits the response."""
    waiting = _BlockingHandlers()
    await harness.server(wait=waiting.call)
    caller = await harness.caller()
    task = harness.begin(caller.call(harness.id("wait")))
    await soon("the handler begins", waiting.began.wait())
    task.cancel()
    await soon("the caller ends", asyncio.wait([task]))
    expect(task.cancelled(), "a caller that was cancelled got an answer")
    await soon("the handler is stopped", waiting.stopped.wait())


async def deadlines_travel(harness: TransportHarness) -> None:
    """Call with a timeout; the handler sees the time left and is stopped at the deadline; the caller gets TIMEOUT."""
    waiting, seconds = _BlockingHandlers(), 0.5
    await harness.server(wait=waiting.call)
    caller = await harness.caller()
    error = await _error("the call times out", caller.call(harness.id("wait"), timeout=seconds))
    expect(error.code is ErrorCode.TIMEOUT, f"the call ended with {error}")
    await soon("the handler is stopped", waiting.stopped.wait())
    remaining_seconds = waiting.remaining
    expect(
        remaining_seconds is not None and 0 < remaining_seconds <= seconds,
        f"of {seconds} s the handler had {remaining_seconds} s",
    )


async def servers_share_the_calls(harness: TransportHarness) -> None:
    """Call several servers; each call runs once, every server gets some, and one that withdraws or closes no more."""
    served: Counter[int] = Counter()

    def numbered(number: int) -> Handler:
        async def serve(*_: Any) -> int:
            served[number] += 1
            return number

        return serve

    ends = [await harness.server(serve=numbered(number)) for number in range(3)]
    caller = await harness.caller()

    async def calls(number: int) -> Counter[int]:
        answers = await asyncio.gather(*(caller.call(harness.id("serve")) for _ in range(number)))
        return Counter(answer.data for answer in answers)

    answers = await soon("all calls are answered", calls(60))
    expect(answers == served and served.total() == 60, f"60 calls were served {served}, and answered {answers}")
    expect(len(answers) == 3, f"only the servers {sorted(answers)} got calls")
    await ends[0][1].close()
    answers = await soon("all calls are answered", calls(30))
    expect(0 not in answers, f"a server that withdrew got {answers[0]} calls")
    await ends[1][0].transport.close()
    answers = await soon("all calls are answered", calls(30))
    expect(1 not in answers, f"a server that closed got {answers[1]} calls")


async def an_end_may_call_while_it_serves(harness: TransportHarness) -> None:
    """Dispatch nested calls from a handler to the end that called it, and to its own end."""
    ends: dict[str, PendingRequestMap] = {}

    async def nested(input: Any, context: Context) -> Any:
        inner = await ends["server"].call(harness.id("echo"), input, context=context.child())
        outer = await ends["server"].call(harness.id("back"), input, context=context.child())
        return [inner.data, outer.data]

    ends["server"], _ = await harness.server(nested=nested, echo=_echo)
    caller, _ = await harness.server(back=_echo)
    await _answered("the nested calls are answered", caller.call(harness.id("nested"), 7), [7, 7])


async def all_servers_are_found(harness: TransportHarness) -> None:
    """Discover all servers with their operations; ends that only call are ignored."""
    ends = [await harness.server(echo=_echo), await harness.server(echo=_echo, numbers=_numbers)]
    caller = await harness.caller()
    await soon("a call is answered", caller.call(harness.id("echo")))
    servers = await soon("the servers are found", discover(caller))
    here = {handler.about().id for _, handler in ends}
    operations_by_server = {
        server.server.id: sorted(operation.id for operation in server.operations) for server in servers
    }
    operations_by_server = {
        id: operations for id, operations in operations_by_server.items() if id in here
    }  # other runs may use the same broker
    expect(set(operations_by_server) == here, f"of {len(here)} servers {len(operations_by_server)} were found")
    expected_ids = [[harness.id("echo")], [harness.id("echo"), harness.id("numbers")]]
    expect(sorted(operations_by_server.values()) == expected_ids, f"they serve {operations_by_server}")


async def draining_loses_no_call(harness: TransportHarness) -> None:
    """Drain one of two servers during calls; those in flight finish, and the other server handles the rest."""
    waiting, began = asyncio.Event(), asyncio.Event()

    async def slow(*_: Any) -> str:
        began.set()
        await waiting.wait()
        return "finished"

    _, leaving = await harness.server(slow=slow, echo=_echo)
    await harness.server(echo=_echo)
    caller = await harness.caller()
    in_flight = harness.begin(caller.call(harness.id("slow")))
    await soon("the handler begins", began.wait())
    calls = [harness.begin(caller.call(harness.id("echo"), number)) for number in range(100)]
    draining = harness.begin(leaving.drain(PATIENCE))
    await asyncio.sleep(0)
    calls += [harness.begin(caller.call(harness.id("echo"), number)) for number in range(100, 200)]
    answers = await soon("every call is answered", asyncio.gather(*calls))
    expect([answer.data for answer in answers] == list(range(200)), "calls were lost while a server was draining")
    waiting.set()
    await _answered("the call in flight is finished", in_flight, "finished")
    expect(await soon("the server has drained", draining), "the server did not finish what it had")


async def a_call_without_a_server_fails_in_time(harness: TransportHarness) -> None:
    """Call a missing operation; it fails at once if the transport can know, otherwise at its deadline."""
    caller = await harness.caller()
    for _ in range(2):
        error = await _error("the call fails", caller.call(harness.id("absent"), timeout=1.0))
        expect(error.code in _NOBODY, f"the call failed with {error}")
        await harness.server(echo=_echo)


async def closing_a_server_ends_its_calls(harness: TransportHarness) -> None:
    """Close a server with calls and streams in flight; they fail at once, and the next server is found."""
    waiting, streaming = _BlockingHandlers(), _BlockingHandlers()
    server, _ = await harness.server(wait=waiting.call, stream=_streaming(streaming))
    caller = await harness.caller()
    call = harness.begin(caller.call(harness.id("wait"), timeout=10 * PATIENCE))
    async with aclosing(caller.subscribe(harness.id("stream"))) as items:
        await soon("an item arrives", anext(items))
        await soon("the handler begins", waiting.began.wait())
        await server.transport.close()
        ends = [await _error("the call ends", call), await _error("the subscription ends", anext(items))]
        expect(all(error.code in _GONE for error in ends), f"they ended with {ends}")
    await harness.server(wait=_echo)
    await _answered("the next server answers", caller.call(harness.id("wait"), 1), 1)


async def closing_a_caller_stops_its_handlers(harness: TransportHarness) -> None:
    """Close a caller; its handlers are stopped, and those of other callers are not."""
    waiting, streaming = _BlockingHandlers(), _BlockingHandlers()
    other = asyncio.Event()
    await harness.server(wait=waiting.call, stream=_streaming(streaming), finish=_finishing(other))
    leaving, staying = await harness.caller(), await harness.caller()
    stays = harness.begin(staying.call(harness.id("finish")))
    call = harness.begin(leaving.call(harness.id("wait")))
    async with aclosing(leaving.subscribe(harness.id("stream"))) as items:
        await soon("an item arrives", anext(items))
        await soon("the handlers begin", asyncio.gather(waiting.began.wait(), streaming.began.wait()))
        await leaving.close()
        error = await _error("the call ends", call)
        expect(error.code in _GONE, f"the call ended with {error}")
    await soon("the handlers are stopped", asyncio.gather(waiting.stopped.wait(), streaming.stopped.wait()))
    other.set()
    await _answered("the other caller is answered", stays, "finished")


async def unknown_request_ids_are_ignored(harness: TransportHarness) -> None:
    """Send events with unknown request ids; calls in flight are not affected."""
    await harness.server(echo=_echo, numbers=_numbers)
    talk = await harness.conversation()
    strays = (
        item("unknown", 1),
        CallCompleted(request_id="unknown"),
        CallFailed(request_id="unknown", code="INTERNAL", message="no"),
        CallAborted(request_id="unknown"),
        CallCredit(request_id="unknown", n=1),
    )
    for stray in strays:
        talk.caller.transport.send(stray, talk.server_address)
        talk.server.transport.send(stray, talk.caller_address)
    await talk.caller.count(1 + len(strays))
    await talk.server.count(1 + len(strays))
    caller = await harness.caller()
    await _answered("a call is answered", caller.call(harness.id("echo"), 1), 1)


async def a_stranger_cannot_answer(harness: TransportHarness) -> None:
    """Forge a response with a known request id and address; only the server of the call can reply."""
    server, stranger = await harness.probe("talk"), await harness.probe()
    caller = await harness.caller()
    reports: list[Progress] = []
    call = harness.begin(caller.call(harness.id("talk"), context=Context(on_progress=reports.append)))
    await server.count(1)
    request_id, address = server.events[0].request_id, server.senders[0]
    for forged in (CallProgress(request_id=request_id, progress=1), item(request_id, "forged")):
        try:
            stranger.transport.send(forged, address)
        except CallError as refused:
            expect(refused.code in (ErrorCode.UNAVAILABLE, ErrorCode.ACCESS_DENIED), f"the stranger got {refused}")
    server.transport.send(item(request_id, "genuine"), address)
    await _answered("the call is answered", call, "genuine")
    expect(not reports, f"the stranger reported {reports}")


async def no_task_is_left_behind(harness: TransportHarness) -> None:
    """Close every end after calls that returned, were cancelled or left; no task remains."""
    before = asyncio.all_tasks()
    waiting = _BlockingHandlers()
    server, handler = await harness.server(echo=_echo, numbers=_numbers, wait=waiting.call)
    caller = await harness.caller()
    await soon("the calls are answered", asyncio.gather(*(caller.call(harness.id("echo"), n) for n in range(20))))
    async with aclosing(caller.subscribe(harness.id("numbers"), {"name": "", "items": 100})) as items:
        await soon("an item arrives", anext(items))
    task = harness.begin(caller.call(harness.id("wait")))
    await soon("the handler begins", waiting.began.wait())
    task.cancel()
    await soon("the caller ends", asyncio.wait([task]))
    await caller.close()
    await handler.close()
    await server.close()
    leftover_tasks = asyncio.all_tasks() - before
    if leftover_tasks:
        _, leftover_tasks = await asyncio.wait(leftover_tasks, timeout=PATIENCE)
    expect(not leftover_tasks, f"{len(leftover_tasks)} tasks are left behind: {leftover_tasks}")


async def too_large_messages_fail_alone(harness: TransportHarness, limit: int) -> None:
    """Encode an input, a response and an item above the limit; each fails only its own call."""
    waiting = asyncio.Event()

    async def large(*_: Any) -> str:
        return "x" * limit

    async def large_item(*_: Any) -> AsyncGenerator[str]:
        yield "x" * limit

    async def large_error(*_: Any) -> str:
        raise CallError(ErrorCode.EXECUTION_ERROR, "the details are large", "x" * limit)

    await harness.server(echo=_echo, finish=_finishing(waiting), large=large, stream=large_item, error=large_error)
    caller = await harness.caller()
    stays = harness.begin(caller.call(harness.id("finish")))
    errors = [
        await _error("a large input fails", caller.call(harness.id("echo"), "x" * limit)),
        await _error("a large answer fails", caller.call(harness.id("large"))),
        await _error("a large item fails", anext(caller.subscribe(harness.id("stream")))),
    ]
    codes = [error.code.value for error in errors]
    expect(codes == 3 * [ErrorCode.PAYLOAD_TOO_LARGE], f"input, answer and item failed with {codes}")
    error = await _error("a large error arrives without its details", caller.call(harness.id("error")))
    expect(error.code is ErrorCode.EXECUTION_ERROR, f"a large error arrived as {error}")
    waiting.set()
    await _answered("the other call is answered", stays, "finished")


async def large_messages_below_the_limit_pass(harness: TransportHarness, limit: int) -> None:
    """Send and return a value that leaves one kilobyte for the rest of the event."""
    await harness.server(echo=_echo)
    caller = await harness.caller()
    sent = "x" * (limit - 1024)
    answer = await soon("the call is answered", caller.call(harness.id("echo"), sent))
    expect(answer.data == sent, f"{len(sent):,} bytes arrived as {len(answer.data):,}")
