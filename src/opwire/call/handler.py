"""`CallHandler`: answers requests out of a registry. The only publisher of `call.responded`.

For each request: look up, check access, validate, run, result pipeline, publish. Handlers return values and never
publish. An MCP result with `is_error` is an answer like any other; only what is raised becomes `call.error`.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from secrets import token_hex

from msgspec import Struct

from opwire.call.call_table import Credits
from opwire.call.description import Description, ServerInfo
from opwire.call.discovery import ABOUT, OPERATIONS, SelfDescription
from opwire.call.events import CallAborted, CallCredit, CallRequested, Milliseconds
from opwire.call.pending import DEFAULT_TIMEOUT, PendingRequestMap
from opwire.call.transport import Address, Announcing
from opwire.deadlines import Deadlines, HoldUps
from opwire.errors import CallError, ErrorCode
from opwire.invoke import failure
from opwire.operation import (
    LOCAL_IDENTITY,
    Context,
    Identity,
    Inbound,
    OperationSpec,
    OperationType,
    check_access,
    may_access,
)
from opwire.registry import Change, OperationRegistry

logger = logging.getLogger("opwire.call")

_REMEMBERED = 10_000  # request ids whose repetition is recognised after they were answered
_BREATH = 64  # items of a stream after which other tasks get a turn, however many credits there are


class _Served(Struct, eq=False):
    """A request that is being answered."""

    event: CallRequested
    caller: Address
    identity: Identity | None
    credits: Credits | None  # of a subscription
    arrived: float  # monotonic time
    task: asyncio.Task[None] | None = None
    begun: bool = False
    cancelled: bool = False
    tick: int = 0  # of its deadline

    def cancel(self, reason: str) -> None:
        """Cancel the handler, but not again: that would hit it while it cleans up."""
        if self.task is not None and not self.cancelled:
            self.cancelled = True
            self.task.cancel(reason)


class CallHandler:
    """Serves a registry on one end of the call protocol.

        async with PendingRequestMap(transport) as calls, CallHandler(registry, calls):
            ...

    `max_calls` bounds the requests in hand at any time, `max_per_identity` those of one caller; what is above is
    refused at once with RATE_LIMITED. `identity` is whom callers without an identity count as: on a transport within
    this process that is `LOCAL_IDENTITY`, elsewhere nobody. `name` and `version` are what `discover` shows of this end;
    `serves` picks the operations of the registry that can be called from here, all of them if it is not given, and
    `announces` those of them that others are told of.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        calls: PendingRequestMap,
        *,
        identity: Identity | None = None,
        max_calls: int = 50_000,
        max_per_identity: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        name: str = "opwire",
        version: str = "0.0.0",
        serves: Callable[[OperationSpec], bool] | None = None,
        announces: Callable[[OperationSpec], bool] | None = None,
    ) -> None:
        self._registry = registry
        self._calls = calls
        self._identity = identity
        self._is_local = identity is None and calls.transport.local  # callers without an identity are this program
        self._max_calls = max_calls
        self._max_per_identity = max_per_identity
        self._timeout = timeout
        self._serves = serves
        self._announces = announces
        self._served: dict[str, _Served] = {}
        self._by_identity: Counter[str | None] = Counter()
        # The latest requests and their deadlines, in the order of their answers.
        # To find the oldest key of a dict means to search past all
        # that were deleted before: 3 µs a call.
        self._answered: OrderedDict[tuple[Address, str], Milliseconds | None] = OrderedDict()
        self._deadlines = Deadlines()
        self._hold_ups = HoldUps()
        self._changes: dict[str, bool] = {}  # ids to be announced (True) or withdrawn
        self._announcing: asyncio.Task[None] | None = None
        self._end_watch = _nothing
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event | None = None  # set when nothing is in hand, once somebody waits for that
        self._instance = (token_hex(8), name, version, round(time.time() * 1000))
        self._about = SelfDescription(registry, self.about, self._is_announced)

    async def start(self) -> "CallHandler":
        """Take requests from now on, and announce the registry's operations.

        Raises:
            CallError: UNAVAILABLE; ACCESS_DENIED or VALIDATION_ERROR, if some of them are refused: none is served then.
        """
        self._draining = False
        self._loop = asyncio.get_running_loop()  # asked for once: that is a system call on Python 3.11
        self._calls.serve_with(self)
        if not self._calls.transport.local:  # within one process nothing waits in a socket
            self._hold_ups.start()
        self._end_watch = self._registry.on_change(self._changed)
        try:
            await self._calls.transport.announce(self._announced_ids())
        except CallError as error:
            self._end_watch()
            if error.code is not ErrorCode.UNAVAILABLE:
                await self._calls.transport.withdraw(self._announced_ids())
            raise
        return self

    async def __aenter__(self) -> "CallHandler":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __len__(self) -> int:
        """How many requests are being answered."""
        return len(self._served)

    @property
    def registry(self) -> OperationRegistry:
        """What is served here."""
        return self._registry

    def about(self) -> ServerInfo:
        """Who serves here, and how busy it is."""
        id, name, version, started = self._instance
        status = "draining" if self._draining else "serving"
        in_hand = len(self._served)
        return ServerInfo(id=id, name=name, version=version, started=started, status=status, in_hand=in_hand)

    def describe(self) -> Description:
        """Who serves here, and what."""
        return self._about.describe()

    async def drain(self, timeout: float = 30.0) -> bool:
        """Take no more requests, and let those in hand finish, in so many seconds; False if some did not.

        What still arrives is handed on: its caller asks another server. `close` stops what is left.
        """
        await self._withdraw(timeout)
        self._idle = self._idle or asyncio.Event()  # two may wait for it
        self._idle.clear()
        if not self._served:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d calls were not finished after %g s of draining", len(self._served), timeout)
        return not self._served

    async def _withdraw(self, grace: float) -> None:
        self._draining = True
        self._end_watch()
        if self._announcing is not None:  # what is announced after the withdrawal would stay
            await asyncio.wait([self._announcing], timeout=grace)
        await self._calls.transport.withdraw(self._announced_ids())

    def _announced_ids(self) -> list[str]:
        return [spec.id for spec in self._registry.list() if self._is_announced(spec)]

    def _is_announced(self, spec: OperationSpec) -> bool:
        return (self._serves is None or self._serves(spec)) and (self._announces is None or self._announces(spec))

    async def close(self, *, grace: float = 5.0) -> None:
        """Take no more requests, and stop those in hand. A handler that ignores that is left behind after `grace`."""
        await self._withdraw(grace)
        self._hold_ups.stop()
        self._calls.serve_with(None)
        tasks = [served.task for served in self._served.values() if served.task is not None]
        for request_id, served in list(self._served.items()):
            self._stop(request_id, served, "the server is closing")
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=grace)
            if stuck:
                logger.warning("%d handlers ignored their cancellation and are left behind", len(stuck))

    # --- what arrives -------------------------------------------------------------------------------------------------

    def requested(self, event: CallRequested, caller: Address) -> None:
        """Begin to answer a request."""
        key = caller, event.request_id
        if event.deadline is not None and self._answered.get(key) == event.deadline:
            self._calls.forget(event.request_id)  # the medium delivered it twice: it has had its answer
            return
        if key in self._answered or event.request_id in self._served:
            # It was answered, or given up while its handler is still ending. Run nothing twice.
            used = CallError(ErrorCode.PROTOCOL_ERROR, "the request id was used before: make a new one for each call")
            self._calls.fail(event.request_id, used)
            return
        if self._draining and event.operation_id not in (ABOUT, OPERATIONS):
            leaving = CallError(ErrorCode.UNAVAILABLE, "the server is about to leave, and takes no new calls")
            self._calls.fail(event.request_id, leaving, not_started=True)
            return
        identity = self._identify(event)
        refusal = self._refusal(identity)
        if refusal is not None:
            self._calls.fail(event.request_id, refusal)
            return
        credits = None if event.credits is None else Credits(event.credits)
        served = self._served[event.request_id] = _Served(event, caller, identity, credits, time.monotonic())
        if self._max_per_identity is not None:
            self._by_identity[_id_of(identity)] += 1
        served.task = (self._loop or asyncio.get_running_loop()).create_task(self._serve(event, served))

    def credited(self, event: CallCredit, caller: Address) -> None:
        """A consumer takes more items."""
        served = self._served.get(event.request_id)
        if served is None or served.caller != caller or served.credits is None:
            return
        served.credits.grant(event)
        lost = served.credits.lost_item(event)
        if lost is not None:
            gap = f"item {lost} of {served.event.operation_id} was lost on its way to the consumer"
            self._calls.fail(event.request_id, CallError(ErrorCode.UNAVAILABLE, gap))
            served.cancel(gap)

    def aborted(self, event: CallAborted, caller: Address) -> None:
        """A caller gives up: stop the handler."""
        served = self._served.get(event.request_id)
        if served is not None and served.caller == caller:
            self._stop(event.request_id, served, event.reason or "the caller gave up")

    def lost(self, caller: Address | None) -> None:
        """A caller is gone: stop all that it asked for."""
        for request_id, served in list(self._served.items()):
            if caller is None or served.caller == caller:
                self._stop(request_id, served, "the caller is gone")

    def _stop(self, request_id: str, served: _Served, reason: str) -> None:
        self._calls.stopped(request_id, reason)  # at once: the handler may take its time to end
        served.cancel(reason)
        if not served.begun:  # a task that is cancelled before its first step never runs its `finally`
            self._done(request_id, served)

    def _identify(self, event: CallRequested) -> Identity | None:
        """Return the caller's identity. A call on behalf of an anonymous caller is not one of the program itself."""
        if event.identity is not None and self._calls.transport.trusted:
            return event.identity
        return LOCAL_IDENTITY if self._is_local and event.parent_request_id is None else self._identity

    def _refusal(self, identity: Identity | None) -> CallError | None:
        if len(self._served) >= self._max_calls:
            return CallError(ErrorCode.RATE_LIMITED, f"{self._max_calls} calls are in hand already")
        most = self._max_per_identity
        if most is not None and self._by_identity[_id_of(identity)] >= most:
            return CallError(ErrorCode.RATE_LIMITED, f"this caller has {most} calls in hand already")
        return None

    # --- answering ----------------------------------------------------------------------------------------------------

    async def _serve(self, event: CallRequested, served: _Served) -> None:
        served.begun = True
        began, error = time.perf_counter(), None
        try:
            registry, spec = self._find(event.operation_id, served)
            check_access(spec, served.identity)
            streams = spec.type is OperationType.SUBSCRIPTION
            context = Context(
                request_id=event.request_id,
                parent_request_id=event.parent_request_id,
                identity=served.identity,
                deadline=self._watch(served, None if streams else self._timeout),
                metadata=event.trace,
                watched=True,
                bind_env=self._registry.bind_env,
                inbound=Inbound(event.request_id, self._calls),
            )
            if streams:
                await self._stream(registry, event, served, context)
            elif event.credits is not None:
                wrong = f"{event.operation_id} is a {spec.type.value}: use call(), not subscribe()"
                raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
            else:
                envelope = await registry.execute(event.operation_id, event.input, context)
                self._calls.respond(event.request_id, envelope)
        except CallError as failed:
            error = failed
            self._calls.fail(event.request_id, failed)
        except asyncio.CancelledError as cancelled:
            self._calls.stopped(event.request_id, str(cancelled) or "the server stopped the call")
        except Exception as unforeseen:
            error = failure(unforeseen, event.operation_id)
            self._calls.fail(event.request_id, error)
        finally:
            self._about.count(event.operation_id, time.perf_counter() - began, error)
            error = None  # its traceback holds this frame: only the garbage collector would free what failed
            self._done(event.request_id, served)

    def _watch(self, served: _Served, default: float | None) -> float | None:
        """Enforce the deadline of a request, and return it as a monotonic time.

        Raises:
            CallError: TIMEOUT, if it has passed: what nobody waits for is not started.
        """
        held_up = 0.0 if self._calls.transport.local else self._hold_ups.recent(served.arrived)
        seconds = served.event.seconds_left(default, held_up)
        if seconds is None:
            return None
        deadline = served.arrived + seconds
        if deadline <= time.monotonic():
            raise CallError(ErrorCode.TIMEOUT, "the deadline had passed before the call could be started")
        served.tick = self._deadlines.add(served, deadline, self._time_is_up)
        return deadline

    def _time_is_up(self, served: _Served) -> None:
        late = f"{served.event.operation_id} did not answer before its deadline"
        self._calls.fail(served.event.request_id, CallError(ErrorCode.TIMEOUT, late))
        served.cancel(late)

    async def _stream(
        self, registry: OperationRegistry, event: CallRequested, served: _Served, context: Context
    ) -> None:
        seq = 0
        credits = served.credits = served.credits or Credits(None)
        items = registry.subscribe(event.operation_id, event.input, context)
        try:
            await credits.take()
            async for envelope in items:
                seq += 1
                if not self._calls.respond(event.request_id, envelope, seq):
                    return
                await credits.take()
                if seq % _BREATH == 0:
                    await asyncio.sleep(0)
        finally:
            await items.aclose()
        self._calls.complete(event.request_id, seq)

    def _find(self, operation_id: str, served: _Served) -> tuple[OperationRegistry, OperationSpec]:
        registry = self._registry
        spec = registry.get_spec(operation_id)
        if spec is None and operation_id in (ABOUT, OPERATIONS):
            transport = self._calls.transport
            hub = isinstance(transport, Announcing) and transport.hub == served.caller
            registry = self._about.announced if hub else self._about.operations
            spec = registry.get_spec(operation_id)
        elif spec is not None and self._serves is not None and not self._serves(spec):
            spec = None
        if spec is None:
            raise self._registry.not_found(
                operation_id, visible=lambda spec: self._is_announced(spec) and may_access(spec, served.identity)
            )
        if registry.get_handler(operation_id) is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"No handler registered for operation: {operation_id}")
        return registry, spec

    def _done(self, request_id: str, served: _Served) -> None:
        del self._served[request_id]
        if self._idle is not None and not self._served:
            self._idle.set()
        if served.tick:
            self._deadlines.discard(served, served.tick)
        if self._max_per_identity is not None:
            identity = _id_of(served.identity)
            self._by_identity[identity] -= 1
            if not self._by_identity[identity]:
                del self._by_identity[identity]
        self._answered[served.caller, request_id] = served.event.deadline
        if len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)

    def _changed(self, change: Change) -> None:
        """Keep the announcement true while the registry changes; what changes together is announced together."""
        if not self._is_announced(change.spec):
            return
        self._changes[change.spec.id] = change.kind != "removed"
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.get_running_loop().create_task(self._announce_changes())

    async def _announce_changes(self) -> None:
        transport = self._calls.transport
        while self._changes:
            changes, self._changes = self._changes, {}
            try:
                if gone := [each for each, there in changes.items() if not there]:
                    await transport.withdraw(gone)
                if new := [each for each, there in changes.items() if there]:
                    await transport.announce(new)
            except Exception as error:
                logger.warning("a change of the registry could not be announced: %s", error)


def _id_of(identity: Identity | None) -> str | None:
    return None if identity is None else identity.id


def _nothing() -> None:
    """Stands for a watch that has not begun."""
