"""`CallHandler`: serves a registry over the call protocol. The only publisher of `call.responded`.

Each request is looked up, checked for access, validated, run, and its result published. Handlers return values and
never publish. An MCP result with `is_error` is an ordinary response; only raised exceptions become `call.error`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context, Inbound
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import Interceptor, OperationSpec, OperationType, is_own
from opwire.observe.logs import CANCELLED, OK, begin_access
from opwire.observe.monitor import CallMonitor, ServerStatistics, json_size, outcome_of
from opwire.protocol.call_table import Credits
from opwire.protocol.caller_callbacks import ProgressSender, RemoteCaller
from opwire.protocol.description import Description, ServerInfo
from opwire.protocol.discovery import ABOUT, OPERATIONS, AnnouncedDispatcher, Announcements, SelfDescription
from opwire.protocol.events import CallAborted, CallAnswer, CallCredit, CallRequested, Milliseconds
from opwire.protocol.outbox import Outbox, memory_of
from opwire.protocol.pending import DEFAULT_TIMEOUT, PendingRequestMap
from opwire.protocol.running import RunningRequest
from opwire.protocol.transport import Address, Announcing
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import failure
from opwire.runtime.bounded import SharedLimit, Tally
from opwire.runtime.deadlines import Deadlines, HoldUps
from opwire.runtime.tasks import AsyncResource, start_eagerly
from opwire.runtime.text import get_logger
from opwire.version import VERSION

logger = get_logger("opwire.protocol")

_REMEMBERED = 10_000  # ended requests, at least, that are remembered to detect duplicates
_NOT_STARTED = -1.0  # instead of the deadline of a request that was rejected
_leaving = partial(CallError, ErrorCode.UNAVAILABLE, "the server is shutting down and accepts no new calls")
_expired = partial(CallError, ErrorCode.TIMEOUT, "the deadline passed before the call was started")
_MAX_INPUTS = 256 * 1024 * 1024  # bytes of the large inputs of requests in flight; half of them for one identity
_LARGE_INPUT = 16 * 1024  # bytes; the number of requests bounds smaller ones
_BREATH = 64  # items of a stream after which it yields to other tasks, regardless of credits


class CallHandler(AsyncResource):
    """Serves a registry at one end of the call protocol.

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
        self.monitor = CallMonitor(registry, name=name, version=version, kind=kind)
        self.monitor.amend = self._amend_statistics
        self._dispatcher = AnnouncedDispatcher(registry, serves, announces, lambda: self.monitor.operations)
        self._anonymous = anonymous
        self._is_local = anonymous is None and calls.transport.local  # callers without an identity are this process
        self._max_calls = max_calls
        self._max_calls_per_identity = max_calls_per_identity
        self._timeout = timeout
        self._served: dict[str, RunningRequest] = {}
        self._by_identity: Tally[str | None] = Tally()
        self._inputs: SharedLimit[str | None] = SharedLimit(_MAX_INPUTS, _MAX_INPUTS // 2)  # by identity
        # The latest ended requests and their deadlines, and those that ended before. Two generations, since removing
        # the oldest one with each call takes 0.5 µs, and 3 µs in a dict, which skips over all deleted keys.
        self._ended: dict[tuple[Address, str], Milliseconds | None] = {}
        self._ended_before: dict[tuple[Address, str], Milliseconds | None] = {}
        self._outbox = Outbox()
        self._deadlines = Deadlines()
        self._hold_ups = HoldUps()
        self._announcements = Announcements(self._dispatcher, calls.transport)
        self._draining = False
        self._idle: asyncio.Event | None = None  # set when no request is in flight; created by `drain`
        self._about = SelfDescription(registry, self.about, self._dispatcher.is_announced, self.monitor.statistics)
        self.look_up: Callable[[str], Awaitable[None]] | None = None  # awaited before an operation is found, or unknown
        self.describe_to: Callable[[SelfDescription, Address], SelfDescription | None] = lambda _about, _caller: None

    async def start(self) -> "CallHandler":
        """Accept requests, and announce the operations of the registry.

        Raises:
            CallError: UNAVAILABLE; ACCESS_DENIED or VALIDATION_ERROR if some operations are rejected: none is served
                then.
        """
        self._draining = False
        self._deadlines.bind()
        self._calls.serve_with(self)
        if not self._calls.transport.local:  # within one process nothing is buffered in a socket
            self._hold_ups.start()
        await self._announcements.start()
        return self

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self._served)

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call of this handler. Return a function that removes it."""
        return self._dispatcher.use(interceptor)

    def about(self) -> ServerInfo:
        """Return the name, status and load of this server."""
        known = self.monitor
        return ServerInfo(
            id=known.id,
            name=known.name,
            version=known.version,
            started=known.started,
            status="draining" if self._draining else "serving",
            in_flight=len(self._served),
        )

    def _amend_statistics(self, found: ServerStatistics) -> ServerStatistics:
        in_flight = sum(not is_own(served.event.operation_id) for served in self._served.values())
        status = "draining" if self._draining else "serving"
        return replace(found, in_flight=in_flight, status=status, operations=len(self._announcements.ids()))

    def describe(self) -> Description:
        """Return the description of this server and its operations."""
        return self._about.describe()

    async def drain(self, timeout: float = 30.0) -> bool:
        """Reject new requests, and wait for those in flight. Return False if some did not end in time.

        A rejected request is retried by its caller at another server. Subscriptions that can be resumed end at once
        with UNAVAILABLE, so that they are resumed there. `close` stops the remaining ones.
        """
        await self._withdraw(timeout)
        self._idle = self._idle or asyncio.Event()  # several tasks may wait for it
        self._idle.clear()
        if not self._served:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d calls did not end within %g s of draining", len(self._served), timeout)
        return not self._served

    async def _withdraw(self, grace: float) -> None:
        self._draining = True
        self.monitor.close()
        await self._announcements.stop(grace)
        for served in list(self._served.values()):
            if served.resumable:
                self._fail_served(served, _leaving())

    async def close(self, *, grace: float = 5.0) -> None:
        """Reject new requests, and cancel those in flight. Handlers that ignore it are abandoned after `grace` s."""
        await self._withdraw(grace)
        self._hold_ups.stop()
        self._calls.serve_with(None)
        tasks = [served.task for served in self._served.values() if served.task is not None]
        for request_id, served in list(self._served.items()):
            self._stop(request_id, served, "the server is closing")
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=grace)
            if stuck:
                logger.warning("%d handlers ignored their cancellation and were abandoned", len(stuck))

    # --- events -------------------------------------------------------------------------------------------------------

    def requested(self, event: CallRequested, caller: Address) -> None:
        """Start to handle a request."""
        key = caller, event.request_id
        if key in self._ended or key in self._ended_before or event.request_id in self._served:
            self._repeated(event, key)
            return
        if self._draining and not is_own(event.operation_id):
            self._remember(key, _NOT_STARTED)
            self._reject(event, _leaving(), not_started=True)
            return
        if event.version is not None and (other := self._dispatcher.other_version(event.operation_id, event.version)):
            self._reject(event, other, not_started=True)
            return
        # As `_identify`, for callers of another process without an identity.
        identity = self._anonymous if event.identity is None and not self._is_local else self._identify(event)
        if len(self._served) >= self._max_calls:
            self._reject(event, CallError(ErrorCode.RATE_LIMITED, f"{self._max_calls} calls are already in flight"))
            return
        if (most := self._max_calls_per_identity) is not None and self._by_identity[_id_of(identity)] >= most:
            self._reject(event, CallError(ErrorCode.RATE_LIMITED, f"this caller already has {most} calls in flight"))
            return
        size = 0 if self._calls.transport.local else memory_of(event.input)
        if size > _LARGE_INPUT and not self._inputs.take(_id_of(identity), size):
            full = "large inputs of other calls are in flight: call again when some of them have ended"
            self._reject(event, CallError(ErrorCode.RATE_LIMITED, full))
            return
        self._start(event, self._admit(event, caller, identity, size))

    def _admit(self, event: CallRequested, caller: Address, identity: Identity | None, size: int) -> RunningRequest:
        if self._max_calls_per_identity is not None:
            self._by_identity[_id_of(identity)] += 1
        credits = None if event.credits is None else Credits(event.credits)
        served = RunningRequest(event, caller, identity, credits, time.monotonic(), size)
        self._served[event.request_id] = served
        return served

    def _start(self, event: CallRequested, served: RunningRequest) -> None:
        """Run a request in a task of its own.

        A subscription does not begin at once: it would fill the buffer of its consumer before that can read.
        """
        work = self._serve(event, served)
        served.task = start_eagerly(work) if served.credits is None else asyncio.get_running_loop().create_task(work)

    def _repeated(self, event: CallRequested, key: tuple[Address, str]) -> None:
        """Respond to a request with an id that was used before. No request runs twice."""
        ended = self._ended.get(key, self._ended_before.get(key))
        if ended == _NOT_STARTED:
            # Its caller has sent it to another server, so that it is rejected after a restart too.
            self._reject(event, _leaving(), not_started=True)
        elif ended is not None and ended == event.deadline:
            self._calls.forget(event.request_id)  # delivered twice
        else:  # it has ended, or was aborted while its handler cleans up
            used = CallError(ErrorCode.PROTOCOL_ERROR, "the request id was used before: use a new one for each call")
            self._reject(event, used)

    def _reject(self, event: CallRequested, error: CallError, *, not_started: bool = False) -> None:
        entry = begin_access("call", operation=event.operation_id, identity=self._identify(event))
        if entry is not None:
            entry.request_id = event.request_id
            entry.failed(error)
            entry.write()
        caller = _id_of(self._identify(event))
        self.monitor.record(event.request_id, event.operation_id, error.code.value, 0.0, "call", caller=caller)
        self._calls.fail(event.request_id, error, not_started=not_started)

    def steered(self, event: CallCredit | CallAnswer, caller: Address) -> None:
        """Grant a producer more items, or give a handler the answer to its question."""
        served = self._served.get(event.request_id)
        if served is None or served.caller != caller:
            return
        if isinstance(event, CallAnswer):
            if served.questions is not None:
                served.questions.answered(event)
        elif served.credits is not None:
            served.credits.grant(event)
            lost = served.credits.lost_item(event)
            if lost is not None:
                gap = f"item {lost} of {served.event.operation_id} was lost in transit to the consumer"
                self._fail_served(served, CallError(ErrorCode.UNAVAILABLE, gap))

    def aborted(self, event: CallAborted, caller: Address) -> None:
        """Stop the handler of a request that its caller aborted."""
        served = self._served.get(event.request_id)
        if served is not None and served.caller == caller:
            self._stop(event.request_id, served, event.reason or "the caller aborted the call")

    def _stop(self, request_id: str, served: RunningRequest, reason: str) -> None:
        self._calls.stopped(request_id, reason)  # at once: the handler may take a while to end
        served.cancel(reason)
        if not served.begun:  # a task that is cancelled before its first step never runs its `finally`
            self._done(request_id, served)

    def _identify(self, event: CallRequested) -> Identity | None:
        """Return the identity of the caller. A call on behalf of an anonymous caller is not made by this process."""
        if event.identity is not None and self._calls.transport.trusted:
            return event.identity
        return LOCAL_IDENTITY if self._is_local and event.parent_request_id is None else self._anonymous

    # --- execution ----------------------------------------------------------------------------------------------------

    async def _send(self, envelope: ResponseEnvelope[Any], served: RunningRequest, **item: Any) -> bool:
        """Send a response or an item, waiting while the queue of the connection is full. Return False if it is gone."""
        try:
            return self._calls.respond(served.event.request_id, envelope, **item)
        except CallError as error:
            send = partial(self._calls.respond, served.event.request_id, envelope, **item)
            return await self._outbox.respond(error, served.caller, _id_of(served.identity), envelope.data, send)

    def _context(
        self,
        event: CallRequested,
        identity: Identity | None,
        arrived: float,
        timeout: float | None,
        served: RunningRequest | None = None,
    ) -> Context:
        """Return the context of a call, with its deadline; `timeout` is that of a request without one.

        Raises:
            CallError: TIMEOUT if the deadline has passed.
        """
        held_up = 0.0 if arrived < self._hold_ups.calm_until else self._hold_ups.recent(arrived)  # nearly always 0
        seconds = event.seconds_left(timeout, held_up)
        if seconds is not None and seconds <= 0:
            raise _expired()
        return Context(
            request_id=event.request_id,
            parent_request_id=event.parent_request_id,
            identity=identity,
            deadline=None if seconds is None else arrived + seconds,
            metadata={} if event.traceparent is None else event.trace,
            on_progress=None if served is None else served.report,
            on_question=None if served is None else served.questions,
            watched=True,
            bind_env=self.registry.bind_env,
            inbound=Inbound(event.request_id, self._calls),
            resume_from=event.resume_from,
        )

    async def _serve(self, event: CallRequested, served: RunningRequest) -> None:
        served.begin()
        began, outcome, error = time.perf_counter(), OK, None
        try:
            dispatcher = self._dispatcher
            if event.operation_id in (ABOUT, OPERATIONS):
                dispatcher = self._describing(event.operation_id, served.caller)
            else:
                served.access = begin_access("call", operation=event.operation_id, identity=served.identity)
            if self.look_up is not None:
                await self.look_up(event.operation_id)
            spec = dispatcher.find(event.operation_id, served.identity)
            streams, served.resumable = spec.type is OperationType.SUBSCRIPTION, spec.resumable
            self._accept_callbacks(event, served)
            timeout = None if streams else self._timeout
            context = self._context(event, served.identity, served.arrived, timeout, served)
            self._watch(served, context.deadline)
            if streams:
                await self._stream(dispatcher.subscribe(spec, event.input, context), event, served)
            elif event.credits is not None:
                wrong = f"{event.operation_id} is a {spec.type.value}: use call(), not subscribe()"
                raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
            else:
                envelope = await dispatcher.execute(spec, event.input, context)
                outcome = await self._respond(envelope, served)
        except CallError as failed:
            error = failed
            self._calls.fail(event.request_id, failed)
            self.monitor.show_values(event.request_id, event.input, failed)
        except asyncio.CancelledError as cancelled:
            outcome = CANCELLED
            self._calls.stopped(event.request_id, str(cancelled) or "the server stopped the call")
        except Exception as unforeseen:
            error = failure(unforeseen, event.operation_id)
            self._calls.fail(event.request_id, error)
        finally:
            outcome = served.failed or (outcome if error is None else error.code.value)
            self._end_call(served, outcome, error, time.perf_counter() - began)
            error = None  # its traceback refers to this frame: a cycle that only the garbage collector would free

    def _accept_callbacks(self, event: CallRequested, served: RunningRequest) -> None:
        if event.progress:
            served.report = ProgressSender(partial(self._calls.report, event.request_id))
        if event.questions:
            served.questions = RemoteCaller(event.request_id, self._calls.ask)

    async def _respond(self, envelope: ResponseEnvelope[Any], served: RunningRequest) -> str:
        """Send the response of a query or mutation. Return its outcome for watchers."""
        if served.report is not None:
            served.report.flush()  # after the response it would be late
        if served.access is not None:
            served.access.measured(envelope)
        event, monitor = served.event, self.monitor
        await self._send(envelope, served)
        if monitor.on_values is not None:
            monitor.on_values(event.request_id, event.input, envelope)
        if not monitor.watched:
            return OK
        served.output = json_size(envelope.data)
        return outcome_of(envelope, None)

    def _end_call(self, served: RunningRequest, outcome: str, error: CallError | None, seconds: float) -> None:
        """Log and count a call, show it to watchers, and forget it."""
        event, monitor = served.event, self.monitor
        if (entry := served.access) is not None:
            entry.request_id = event.request_id
            if error is not None:
                entry.failed(error)
            elif served.cancelled is not None and entry.outcome == OK:
                entry.outcome = CANCELLED
            entry.write()
        monitor.count(event.operation_id, seconds, outcome)
        if monitor.watched:
            monitor.record(
                event.request_id,
                event.operation_id,
                outcome,
                seconds,
                "call",
                caller=_id_of(served.identity),
                input_bytes=json_size(event.input),
                output_bytes=served.output,
                items=served.items,
                parent_request_id=event.parent_request_id,
            )
        self._done(event.request_id, served)

    def _watch(self, served: RunningRequest, deadline: float | None) -> None:
        """Enforce the deadline of a request.

        Raises:
            CallError: TIMEOUT if it has passed: the handler is not started.
        """
        if deadline is not None:
            if deadline <= time.monotonic():
                raise _expired()
            served.tick = self._deadlines.add(served, deadline, self._time_out)

    def _time_out(self, served: RunningRequest) -> None:
        late = f"{served.event.operation_id} did not respond before its deadline"
        self._fail_served(served, CallError(ErrorCode.TIMEOUT, late))

    def _fail_served(self, served: RunningRequest, error: CallError) -> None:
        if served.access is not None:
            served.access.failed(error)
        served.failed = error.code.value
        self._calls.fail(served.event.request_id, error)
        served.cancel(error.message)

    async def _stream(
        self, items: AsyncGenerator[ResponseEnvelope[Any]], event: CallRequested, served: RunningRequest
    ) -> None:
        seq, resumed = 0, None if event.resume_from is None else True
        credits = served.credits = served.credits or Credits(None)
        async with aclosing(items):
            await credits.ready()
            async for envelope in items:
                served.items = credits.sent = seq = seq + 1
                if served.access is not None:
                    served.access.measured(envelope)
                if self.monitor.watched:
                    served.output = (served.output or 0) + (json_size(envelope.data) or 0)
                if not await self._send(envelope, served, seq=seq, resumed=resumed):
                    return
                resumed = None
                await credits.ready()
                if seq % _BREATH == 0:
                    await asyncio.sleep(0)
        self._calls.complete(event.request_id, seq)

    def _describing(self, operation_id: str, caller: Address) -> Dispatcher:
        """Return the dispatcher of an operation that describes this server; the registry may override it."""
        if self.registry.get_spec(operation_id) is not None:
            return self._dispatcher
        if (other := self.describe_to(self._about, caller)) is not None:
            return other.operations
        transport = self._calls.transport
        is_hub = isinstance(transport, Announcing) and transport.hub == caller
        return self._about.announced if is_hub else self._about.operations

    def _done(self, request_id: str, served: RunningRequest) -> None:
        del self._served[request_id]
        if self._idle is not None and not self._served:
            self._idle.set()
        if served.tick:
            self._deadlines.discard(served, served.tick)
        if served.report is not None:
            served.report.closed = True
        if served.size > _LARGE_INPUT:
            self._inputs.give_back(_id_of(served.identity), served.size)
        if self._max_calls_per_identity is not None:
            self._by_identity.subtract(_id_of(served.identity))
        self._remember((served.caller, request_id), served.event.deadline)

    def _remember(self, key: tuple[Address, str], deadline: Milliseconds | None) -> None:
        self._ended[key] = deadline
        if len(self._ended) >= _REMEMBERED:
            self._ended, self._ended_before = {}, self._ended


def _id_of(identity: Identity | None) -> str | None:
    return None if identity is None else identity.id
