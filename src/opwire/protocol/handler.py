"""`CallHandler`: serves a registry over the call protocol.

`Admission` decides which requests run, and `Responder` runs them.
"""

import asyncio
import time
from collections.abc import Callable

from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import Interceptor, OperationSpec, is_own
from opwire.observe.monitor import CallMonitor, ServerStatistics
from opwire.protocol.admission import Admission, Refusal, RunningRequest, server_leaves
from opwire.protocol.description import Description, ServerInfo
from opwire.protocol.discovery import AnnouncedDispatcher, Announcements, SelfDescription
from opwire.protocol.events import CallAborted, CallAnswer, CallCredit, CallRequested
from opwire.protocol.pending import DEFAULT_TIMEOUT, PendingRequestMap
from opwire.protocol.responder import Responder
from opwire.protocol.transport import Address, Announcing
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.tasks import AsyncResource
from opwire.runtime.text import get_logger
from opwire.version import VERSION

logger = get_logger("opwire.protocol")


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
