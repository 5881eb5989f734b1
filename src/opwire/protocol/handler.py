"""`CallHandler`: serves a registry over the call protocol.

`Admission` decides which received requests run, with no I/O and no tasks:

1. No request runs twice, however often it is delivered: ids are remembered after their requests have ended.
2. A server that drains starts no more requests; their callers may call another server.
3. The number of requests in flight is limited, in all and for one caller, and so is the memory of their inputs.

`Responder` runs them, and sends their results: `call.responded`, or `call.error`, and nothing afterwards. A request
runs in a task of its own: find its operation, call it, respond. Handlers return values and never publish. An MCP result
with `is_error` is an ordinary response; only raised exceptions become `call.error`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context, Inbound
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import Interceptor, OperationSpec, OperationType, is_own
from opwire.observe.logs import CANCELLED, OK, AccessEntry, begin_access
from opwire.observe.monitor import CallMonitor, ServerStatistics, json_size, outcome_of
from opwire.protocol.call_table import Credits
from opwire.protocol.caller_callbacks import ProgressSender, RemoteCaller
from opwire.protocol.description import Description, ServerInfo
from opwire.protocol.discovery import ABOUT, OPERATIONS, AnnouncedDispatcher, Announcements, SelfDescription
from opwire.protocol.events import CallAborted, CallAnswer, CallCredit, CallRequested, Milliseconds
from opwire.protocol.outbox import Outbox
from opwire.protocol.pending import DEFAULT_TIMEOUT, PendingRequestMap
from opwire.protocol.transport import Address, Announcing
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import failure
from opwire.runtime.bounded import SharedLimit, Tally
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.loop_lag import LoopLag
from opwire.runtime.tasks import AsyncResource, start_eagerly
from opwire.runtime.text import get_logger
from opwire.typed.plain import memory_of
from opwire.version import VERSION

logger = get_logger("opwire.protocol")

MAX_INPUT_BYTES = 256 * 1024 * 1024
"""Memory of the large inputs of requests in flight; one identity may take half of it."""

LARGE_INPUT_BYTES = 16 * 1024
"""The number of requests bounds the memory of smaller inputs."""

MIN_REMEMBERED_IDS = 10_000
"""Ids of ended requests that are remembered, at least, to detect duplicates."""

_NOT_STARTED = -1.0  # instead of the deadline of a request that was rejected

ITEMS_PER_TURN = 64
"""Items of a stream after which it yields to other tasks, regardless of credits."""


# --- which requests run -----------------------------------------------------------------------------------------------


class RunningRequest(Struct, eq=False):
    """A request in flight."""

    event: CallRequested
    caller: Address
    identity: Identity | None
    arrived: float  # monotonic time
    input_bytes: int  # of a large input
    credits: Credits | None  # of a subscription
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    cancelled: str | None = None  # why
    outcome: str | None = None  # decided by the first response, error or cancellation
    deadline_tick: int = 0
    access: AccessEntry | None = None  # its entry in the access log, if that is enabled
    items: int | None = None  # of a subscription
    is_resumable: bool = False  # at another server
    output_bytes: int | None = None  # while there is a watcher
    progress: ProgressSender | None = None  # if its caller asked for progress
    questions: RemoteCaller | None = None  # if its caller accepts questions

    @property
    def identity_id(self) -> str | None:
        """The id of the caller's identity."""
        return None if self.identity is None else self.identity.id

    def cancel(self, reason: str) -> None:
        """Cancel the handler, once: a second cancellation would interrupt its cleanup."""
        if self.cancelled is None:
            self.cancelled = reason
            if self.task is not None:
                self.task.cancel(reason)


class Refusal(Struct, frozen=True):
    """Why a request does not run. `not_started`: its caller may retry at another server."""

    error: CallError | None  # None: it was delivered twice, and gets no second response
    not_started: bool = False


class Admission:
    """The requests in flight, and the limits for new ones. `measures_inputs` is for peers in other processes.

    `other_version` returns the error for an operation that is not served in the version of a request.
    """

    def __init__(
        self,
        other_version: Callable[[str, str], CallError | None],
        *,
        max_calls: int,
        max_calls_per_identity: int | None,
        measures_inputs: bool,
    ) -> None:
        self.running: dict[str, RunningRequest] = {}
        self.is_draining = False
        self._other_version = other_version
        self._max_calls = max_calls
        self._max_calls_per_identity = max_calls_per_identity
        self._measures_inputs = measures_inputs
        self.calls_by_identity: Tally[str | None] = Tally()
        self.input_bytes: SharedLimit[str | None] = SharedLimit(MAX_INPUT_BYTES, MAX_INPUT_BYTES // 2)
        # The deadlines of the latest ended requests, and of those that ended before. Two generations, since removing
        # the oldest one with each call takes 0.5 µs, and 3 µs in a dict, which skips over all deleted keys.
        self._ended: dict[tuple[Address, str], Milliseconds | None] = {}
        self._ended_before: dict[tuple[Address, str], Milliseconds | None] = {}

    def admit(self, event: CallRequested, caller: Address, identity: Identity | None) -> RunningRequest | Refusal:
        """Count a request that may run as one in flight, until `end`; or return why it may not."""
        key = caller, event.request_id
        if key in self._ended or key in self._ended_before or event.request_id in self.running:
            return self._refuse_repeated(event, key)
        if self.is_draining and not is_own(event.operation_id):
            self._remember(key, _NOT_STARTED)
            return Refusal(server_leaves(), not_started=True)
        if event.version is not None and (error := self._other_version(event.operation_id, event.version)):
            return Refusal(error, not_started=True)
        if len(self.running) >= self._max_calls:
            return _rate_limited(f"{self._max_calls} calls are already in flight")
        owner = None if identity is None else identity.id
        limit = self._max_calls_per_identity
        if limit is not None and self.calls_by_identity[owner] >= limit:
            return _rate_limited(f"this caller already has {limit} calls in flight")
        input_bytes = memory_of(event.input) if self._measures_inputs else 0
        if input_bytes <= LARGE_INPUT_BYTES:
            input_bytes = 0
        elif not self.input_bytes.take(owner, input_bytes):
            return _rate_limited("large inputs of other calls are in flight: call again when some of them have ended")
        if limit is not None:
            self.calls_by_identity[owner] += 1
        credits = None if event.credits is None else Credits(event.credits)
        request = RunningRequest(event, caller, identity, time.monotonic(), input_bytes, credits)
        self.running[event.request_id] = request
        return request

    def end(self, request: RunningRequest) -> None:
        """Forget a request that has ended, except for its id."""
        event = request.event
        del self.running[event.request_id]
        if request.input_bytes:
            self.input_bytes.give_back(request.identity_id, request.input_bytes)
        if self._max_calls_per_identity is not None:
            self.calls_by_identity.subtract(request.identity_id)
        self._remember((request.caller, event.request_id), event.deadline)

    def _refuse_repeated(self, event: CallRequested, key: tuple[Address, str]) -> Refusal:
        deadline = self._ended.get(key, self._ended_before.get(key))
        if deadline == _NOT_STARTED:
            # Its caller has sent it to another server, so that it is rejected after a restart too.
            return Refusal(server_leaves(), not_started=True)
        if deadline is not None and deadline == event.deadline:
            return Refusal(None)
        # It has ended, or was aborted while its handler cleans up.
        message = "the request id was used before: use a new one for each call"
        return Refusal(CallError(ErrorCode.PROTOCOL_ERROR, message))

    def _remember(self, key: tuple[Address, str], deadline: Milliseconds | None) -> None:
        self._ended[key] = deadline
        if len(self._ended) >= MIN_REMEMBERED_IDS:
            self._ended, self._ended_before = {}, self._ended


def server_leaves() -> CallError:
    """Return the error for a request to a server that drains."""
    return CallError(ErrorCode.UNAVAILABLE, "the server is shutting down and accepts no new calls")


def _rate_limited(message: str) -> Refusal:
    return Refusal(CallError(ErrorCode.RATE_LIMITED, message))


# --- running them -----------------------------------------------------------------------------------------------------


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
            self._calls.stopped(event.request_id, str(error) or "the server stopped the call")
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
            request.progress = ProgressSender(partial(self._calls.send_progress, event.request_id))
        if event.questions:
            request.questions = RemoteCaller(event.request_id, self._calls.send_question)
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
            self._calls.respond(event.request_id, envelope)
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
                    has_consumer = self._calls.respond(event.request_id, envelope, seq, resumed)
                except CallError as error:
                    has_consumer = await self._respond_later(error, request, envelope, seq, resumed)
                if not has_consumer:
                    return
                resumed = None
                await credits.ready()
                if seq % ITEMS_PER_TURN == 0:
                    await asyncio.sleep(0)
        self._calls.complete(event.request_id, seq)

    async def _respond_later(
        self, error: CallError, request: RunningRequest, envelope: ResponseEnvelope[Any], *item: Any
    ) -> bool:
        """Send a response that has failed as soon as the queue of the connection has room.

        Raises:
            CallError: the error, if the queue is not what is wrong.
        """
        send = partial(self._calls.respond, request.event.request_id, envelope, *item)
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
            self._calls.drop(event.request_id)
            return
        entry = begin_access("call", operation=event.operation_id, identity=identity)
        if entry is not None:
            entry.request_id = event.request_id
            entry.failed(error)
            entry.write()
        caller_id = None if identity is None else identity.id
        self._monitor.record(event.request_id, event.operation_id, error.code.value, 0.0, "call", caller=caller_id)
        self._calls.fail(event.request_id, error, not_started=refusal.not_started)

    def fail(self, request: RunningRequest, error: CallError) -> None:
        """Respond to a request with an error, and cancel its handler."""
        self._report_failure(request, error)
        request.cancel(error.message)

    def stop(self, request: RunningRequest, reason: str) -> None:
        """Stop a request that its caller or the server has aborted."""
        self._calls.stopped(request.event.request_id, reason)  # at once: the handler may take a while to end
        request.cancel(reason)
        if not request.has_begun:  # a task that is cancelled before its first step never runs its `finally`
            self._forget(request)

    def _time_out(self, request: RunningRequest) -> None:
        message = f"{request.event.operation_id} did not respond before its deadline"
        self.fail(request, CallError(ErrorCode.TIMEOUT, message))

    def _report_failure(self, request: RunningRequest, error: CallError) -> None:
        self._calls.fail(request.event.request_id, error)
        if request.outcome is None:
            request.outcome = error.code.value
            if request.access is not None:
                request.access.failed(error)


# --- the handler ------------------------------------------------------------------------------------------------------


class CallHandler(AsyncResource):
    """Serves a registry at one peer of the call protocol.

        async with PendingRequestMap(transport) as calls, CallHandler(registry, calls):
            ...

    `max_calls` limits the requests in flight, `max_calls_per_identity` those of one caller; requests above a limit are
    rejected at once with RATE_LIMITED. So are large inputs, if those in flight take 256 MiB, or those of one identity
    half of that. `anonymous` is the identity of callers without one; the default is `LOCAL_IDENTITY` on a transport
    within this process, and None elsewhere. `name` and `version` are shown by `discover`. `serves` selects the
    operations that can be called, by default all, and `announces` those of them that are announced to peers. `monitor`
    counts the calls and shows them to watchers.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        calls: PendingRequestMap,
        *,
        anonymous: Identity | None = None,
        max_calls: int = 50_000,
        max_calls_per_identity: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        name: str = "opwire",
        version: str = VERSION,
        kind: str = "spoke",
        serves: Callable[[OperationSpec], bool] | None = None,
        announces: Callable[[OperationSpec], bool] | None = None,
    ) -> None:
        self.registry = registry
        self._calls = calls
        self._anonymous = anonymous
        self._is_local = anonymous is None and calls.transport.local  # callers without an identity are this process
        self.monitor = CallMonitor(registry, name=name, version=version, kind=kind)
        self.monitor.amend = self._amend_statistics
        self._dispatcher = AnnouncedDispatcher(registry, serves, announces, lambda: self.monitor.operations)
        self._announcements = Announcements(self._dispatcher, calls.transport)
        self._self_description = SelfDescription(
            registry, self.about, self._dispatcher.is_announced, self.monitor.statistics
        )
        self.describe_to: Callable[[SelfDescription, Address], SelfDescription | None] = lambda _self, _peer: None
        """Returns another description of this server for a peer, or None."""
        self.admission = Admission(
            self._dispatcher.other_version,
            max_calls=max_calls,
            max_calls_per_identity=max_calls_per_identity,
            measures_inputs=not calls.transport.local,
        )
        self.responder = Responder(
            self._dispatcher, calls, self.admission, self.monitor, timeout=timeout, describing=self._describing
        )

    async def start(self) -> "CallHandler":
        """Accept requests, and announce the operations of the registry.

        Raises:
            CallError: UNAVAILABLE; ACCESS_DENIED or VALIDATION_ERROR if some operations are rejected: none is served
                then.
        """
        self.admission.is_draining = False
        self.responder.bind()
        self._calls.serve_with(self)
        await self._announcements.start()
        return self

    async def drain(self, timeout: float = 30.0) -> bool:
        """Reject new requests, and wait for those in flight. Return False if some did not end in time.

        A rejected request is retried by its caller at another server. Subscriptions that can be resumed end at once
        with UNAVAILABLE, so that they are resumed there. `close` stops the remaining ones.
        """
        await self._withdraw(timeout)
        deadline = time.monotonic() + timeout
        while (tasks := self._tasks()) and (remaining := deadline - time.monotonic()) > 0:
            await asyncio.wait(tasks, timeout=remaining)
        if tasks:
            logger.warning("%d calls did not end within %g s of draining", len(tasks), timeout)
        return not tasks

    async def close(self, *, grace: float = 5.0) -> None:
        """Reject new requests, and cancel those in flight. Handlers that ignore it are abandoned after `grace` s."""
        await self._withdraw(grace)
        self.responder.unbind()
        self._calls.serve_with(None)
        tasks = self._tasks()
        for request in self._requests():
            self.responder.stop(request, "the server is closing")
        if tasks:
            _, stuck_tasks = await asyncio.wait(tasks, timeout=grace)
            if stuck_tasks:
                logger.warning("%d handlers ignored their cancellation and were abandoned", len(stuck_tasks))

    async def _withdraw(self, grace: float) -> None:
        self.admission.is_draining = True
        self.monitor.close()
        await self._announcements.stop(grace)
        for request in self._requests():
            if request.is_resumable:
                self.responder.fail(request, server_leaves())

    def _requests(self) -> list[RunningRequest]:
        return list(self.admission.running.values())

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [request.task for request in self._requests() if request.task is not None]

    # --- events -------------------------------------------------------------------------------------------------------

    def requested(self, event: CallRequested, caller: Address) -> None:
        """Start to handle a request."""
        identity = self._identify(event)
        admitted = self.admission.admit(event, caller, identity)
        if isinstance(admitted, Refusal):
            self.responder.refuse(event, identity, admitted)
        else:
            self.responder.start(admitted)

    def granted(self, event: CallCredit, caller: Address) -> None:
        """Grant the producer of a subscription more items."""
        request = self._request_of(event.request_id, caller)
        if request is None or request.credits is None:
            return
        request.credits.grant(event)
        lost_item = request.credits.lost_item(event)
        if lost_item is not None:
            message = f"item {lost_item} of {request.event.operation_id} was lost in transit to the consumer"
            self.responder.fail(request, CallError(ErrorCode.UNAVAILABLE, message))

    def answered(self, event: CallAnswer, caller: Address) -> None:
        """Give a handler the answer to its question."""
        request = self._request_of(event.request_id, caller)
        if request is not None and request.questions is not None:
            request.questions.answered(event)

    def aborted(self, event: CallAborted, caller: Address) -> None:
        """Stop the handler of a request that its caller aborted."""
        request = self._request_of(event.request_id, caller)
        if request is not None:
            self.responder.stop(request, event.reason or "the caller aborted the call")

    def _request_of(self, request_id: str, caller: Address) -> RunningRequest | None:
        request = self.admission.running.get(request_id)
        return request if request is not None and request.caller == caller else None

    def _identify(self, event: CallRequested) -> Identity | None:
        """Return the identity of the caller. A call on behalf of an anonymous caller is not made by this process."""
        if event.identity is not None and self._calls.transport.trusted:
            return event.identity
        return LOCAL_IDENTITY if self._is_local and event.parent_request_id is None else self._anonymous

    # --- description --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self.admission.running)

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call of this handler. Return a function that removes it."""
        return self._dispatcher.use(interceptor)

    def about(self) -> ServerInfo:
        """Return the name, status and load of this server."""
        monitor = self.monitor
        return ServerInfo(
            id=monitor.id,
            name=monitor.name,
            version=monitor.version,
            started=monitor.started,
            status="draining" if self.admission.is_draining else "serving",
            in_flight=len(self),
        )

    def describe(self) -> Description:
        """Return the description of this server and its operations."""
        return self._self_description.describe()

    def _amend_statistics(self, statistics: ServerStatistics) -> ServerStatistics:
        in_flight = sum(not is_own(request.event.operation_id) for request in self.admission.running.values())
        status = "draining" if self.admission.is_draining else "serving"
        operations = len(self._announcements.ids())
        return replace(statistics, in_flight=in_flight, status=status, operations=operations)

    def _describing(self, operation_id: str, caller: Address) -> Dispatcher:
        """Return the dispatcher of an operation that describes this server; the registry may override it."""
        if self.registry.get_spec(operation_id) is not None:
            return self._dispatcher
        if (description := self.describe_to(self._self_description, caller)) is not None:
            return description.operations
        transport = self._calls.transport
        is_hub = isinstance(transport, Announcing) and transport.hub == caller
        return self._self_description.announced if is_hub else self._self_description.operations
