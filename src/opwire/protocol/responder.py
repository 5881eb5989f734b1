"""Run admitted requests, and send their results: `call.responded`, or `call.error`, and nothing afterwards.

A request runs in a task of its own: find its operation, call it, respond. Handlers return values and never publish. An
MCP result with `is_error` is an ordinary response; only raised exceptions become `call.error`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context, Inbound
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationType
from opwire.observe.logs import CANCELLED, OK, begin_access
from opwire.observe.monitor import CallMonitor, json_size, outcome_of
from opwire.protocol.admission import Admission, Refusal, RunningRequest
from opwire.protocol.call_table import Credits
from opwire.protocol.caller_callbacks import ProgressSender, RemoteCaller
from opwire.protocol.discovery import ABOUT, OPERATIONS
from opwire.protocol.events import CallRequested
from opwire.protocol.outbox import Outbox
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import failure
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.loop_lag import LoopLag
from opwire.runtime.tasks import start_eagerly

ITEMS_PER_TURN = 64
"""Items of a stream after which it yields to other tasks, regardless of credits."""


class Responder:
    """Runs admitted requests. `describing` returns the dispatcher for the operations that describe this server."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        calls: PendingRequestMap,
        admission: Admission,
        monitor: CallMonitor,
        *,
        timeout: float,
        describing: Callable[[str, Address], Dispatcher],
    ) -> None:
        self.look_up: Callable[[str], Awaitable[None]] | None = None
        """Awaited before an operation is found, or unknown."""
        self._dispatcher = dispatcher
        self._calls = calls
        self._replies = calls.replies
        self._admission = admission
        self._monitor = monitor
        self._timeout = timeout
        self._describing = describing
        self.outbox = Outbox()
        self._deadlines = Deadlines()
        self._loop_lag = LoopLag()

    def bind(self) -> None:
        """Use the running event loop from now on."""
        self._deadlines.bind()
        if not self._calls.transport.local:  # within one process nothing is buffered in a socket
            self._loop_lag.start()

    def unbind(self) -> None:
        """Stop watching the event loop."""
        self._loop_lag.stop()

    # --- from the request to its response -----------------------------------------------------------------------------

    def start(self, request: RunningRequest) -> None:
        """Run a request in a task of its own.

        A subscription does not begin at once: it would fill the buffer of its consumer before that can read.
        """
        running = self._run(request)
        if request.credits is None:
            request.task = start_eagerly(running)
        else:
            request.task = asyncio.get_running_loop().create_task(running)

    async def _run(self, request: RunningRequest) -> None:
        event = request.event
        request.has_begun, request.task = True, asyncio.current_task()  # an eager task is not known to `start` yet
        try:
            dispatcher = self._dispatcher
            if event.operation_id in (ABOUT, OPERATIONS):
                dispatcher = self._describing(event.operation_id, request.caller)
            else:
                request.access = begin_access("call", operation=event.operation_id, identity=request.identity)
            if self.look_up is not None:
                await self.look_up(event.operation_id)
            spec = dispatcher.find(event.operation_id, request.identity)
            request.is_resumable = spec.resumable
            is_stream = spec.type is OperationType.SUBSCRIPTION
            context = self._context(request, None if is_stream else self._timeout)
            if context.deadline is not None:
                request.deadline_tick = self._deadlines.add(request, context.deadline, self._time_out)
            if is_stream:
                await self._stream(request, dispatcher.subscribe(spec, event.input, context))
            elif event.credits is not None:
                message = f"{event.operation_id} is a {spec.type.value}: use call(), not subscribe()"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)
            else:
                await self._respond(request, await dispatcher.execute(spec, event.input, context))
        except CallError as error:
            self._report_failure(request, error)
            self._monitor.show_values(event.request_id, event.input, error)
        except asyncio.CancelledError as error:
            request.outcome = request.outcome or CANCELLED
            self._replies.stopped(event.request_id, str(error) or "the server stopped the call")
        except Exception as error:
            self._report_failure(request, failure(error, event.operation_id))
        finally:
            self._end(request)

    def _context(self, request: RunningRequest, timeout: float | None) -> Context:
        """Return the context of a request, with its deadline; `timeout` is that of a request without one.

        Raises:
            CallError: TIMEOUT if the deadline has passed: the handler is not started.
        """
        event, arrived = request.event, request.arrived
        loop_lag = 0.0 if arrived < self._loop_lag.calm_until else self._loop_lag.recent(arrived)  # nearly always 0
        seconds = event.seconds_left(timeout, loop_lag)
        if seconds is not None and arrived + seconds <= time.monotonic():
            raise CallError(ErrorCode.TIMEOUT, "the deadline passed before the call was started")
        if event.progress:
            request.progress = ProgressSender(partial(self._replies.report, event.request_id))
        if event.questions:
            request.questions = RemoteCaller(event.request_id, self._replies.ask)
        return Context(
            request_id=event.request_id,
            parent_request_id=event.parent_request_id,
            identity=request.identity,
            deadline=None if seconds is None else arrived + seconds,
            metadata={} if event.traceparent is None else event.trace,
            on_progress=request.progress,
            on_question=request.questions,
            watched=True,
            bind_env=self._dispatcher.registry.bind_env,
            inbound=Inbound(event.request_id, self._calls),
            resume_from=event.resume_from,
        )

    async def _respond(self, request: RunningRequest, envelope: ResponseEnvelope[Any]) -> None:
        """Send the response of a query or mutation."""
        if request.progress is not None:
            request.progress.flush()  # after the response it would be late
        if request.access is not None:
            request.access.measured(envelope)
        event, monitor = request.event, self._monitor
        try:
            self._replies.respond(event.request_id, envelope)
        except CallError as error:
            await self._respond_later(error, request, envelope)
        if monitor.on_values is not None:
            monitor.on_values(event.request_id, event.input, envelope)
        if monitor.watched:
            request.output_bytes = json_size(envelope.data)
            request.outcome = request.outcome or outcome_of(envelope, None)

    async def _stream(self, request: RunningRequest, items: AsyncGenerator[ResponseEnvelope[Any]]) -> None:
        """Send the items of a subscription, as many as the consumer has granted."""
        event, seq = request.event, 0
        resumed = None if event.resume_from is None else True
        credits = request.credits = request.credits or Credits(None)
        async with aclosing(items):
            await credits.ready()
            async for envelope in items:
                request.items = credits.sent = seq = seq + 1
                if request.access is not None:
                    request.access.measured(envelope)
                if self._monitor.watched:
                    request.output_bytes = (request.output_bytes or 0) + (json_size(envelope.data) or 0)
                try:
                    has_consumer = self._replies.respond(event.request_id, envelope, seq, resumed)
                except CallError as error:
                    has_consumer = await self._respond_later(error, request, envelope, seq, resumed)
                if not has_consumer:
                    return
                resumed = None
                await credits.ready()
                if seq % ITEMS_PER_TURN == 0:
                    await asyncio.sleep(0)
        self._replies.complete(event.request_id, seq)

    async def _respond_later(
        self, error: CallError, request: RunningRequest, envelope: ResponseEnvelope[Any], *item: Any
    ) -> bool:
        """Send a response that has failed as soon as the queue of the connection has room.

        Raises:
            CallError: the error, if the queue is not what is wrong.
        """
        send = partial(self._replies.respond, request.event.request_id, envelope, *item)
        return await self.outbox.respond(error, request.caller, request.identity_id, envelope.data, send)

    def _end(self, request: RunningRequest) -> None:
        """Log and count a request, show it to watchers, and forget it."""
        event, monitor = request.event, self._monitor
        seconds = time.monotonic() - request.arrived
        outcome = request.outcome or (OK if request.cancelled is None else CANCELLED)
        if request.access is not None:
            request.access.request_id = event.request_id
            if request.access.outcome == OK:
                request.access.outcome = outcome
            request.access.write()
        monitor.count(event.operation_id, seconds, outcome)
        if monitor.watched:
            monitor.record(
                event.request_id,
                event.operation_id,
                outcome,
                seconds,
                "call",
                caller=request.identity_id,
                input_bytes=json_size(event.input),
                output_bytes=request.output_bytes,
                items=request.items,
                parent_request_id=event.parent_request_id,
            )
        self._forget(request)

    def _forget(self, request: RunningRequest) -> None:
        if request.deadline_tick:
            self._deadlines.discard(request, request.deadline_tick)
        if request.progress is not None:
            request.progress.closed = True
        self._admission.end(request)

    # --- requests that end otherwise ----------------------------------------------------------------------------------

    def refuse(self, event: CallRequested, identity: Identity | None, refusal: Refusal) -> None:
        """Reject a request that may not run."""
        if (error := refusal.error) is None:
            self._replies.forget(event.request_id)
            return
        entry = begin_access("call", operation=event.operation_id, identity=identity)
        if entry is not None:
            entry.request_id = event.request_id
            entry.failed(error)
            entry.write()
        caller_id = None if identity is None else identity.id
        self._monitor.record(event.request_id, event.operation_id, error.code.value, 0.0, "call", caller=caller_id)
        self._replies.fail(event.request_id, error, not_started=refusal.not_started)

    def fail(self, request: RunningRequest, error: CallError) -> None:
        """Respond to a request with an error, and cancel its handler."""
        self._report_failure(request, error)
        request.cancel(error.message)

    def stop(self, request: RunningRequest, reason: str) -> None:
        """Stop a request that its caller or the server has aborted."""
        self._replies.stopped(request.event.request_id, reason)  # at once: the handler may take a while to end
        request.cancel(reason)
        if not request.has_begun:  # a task that is cancelled before its first step never runs its `finally`
            self._forget(request)

    def _time_out(self, request: RunningRequest) -> None:
        message = f"{request.event.operation_id} did not respond before its deadline"
        self.fail(request, CallError(ErrorCode.TIMEOUT, message))

    def _report_failure(self, request: RunningRequest, error: CallError) -> None:
        self._replies.fail(request.event.request_id, error)
        if request.outcome is None:
            request.outcome = error.code.value
            if request.access is not None:
                request.access.failed(error)
