"""`CallbackHandler`: answers requests by a callback, without a registry."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from opwire.protocol.events import CallAborted, CallAnswer, CallCredit, CallRequested
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address
from opwire.registry.invoke import failure

RequestCallback = Callable[[CallRequested], Awaitable[object] | None]
"""Handles a request, and answers it by `respond`, `complete` or `fail`, then or later."""


class CallbackHandler:
    """Calls a callback with each request that arrives; the callback answers it by the methods of `PendingRequestMap`.

        async def answer(request: CallRequested) -> None:
            price = await look_up(request.input)
            calls.respond(request.request_id, local_envelope(price, request.operation_id))

        CallbackHandler(calls, answer)
        await calls.transport.announce(["shop.price"])

    It gets every request, also those of `opwire.operations`, by which a hub asks for descriptions. Nothing is checked
    before: neither access, nor input, nor the deadline, which the caller enforces. `CallHandler` does all of that. An
    exception fails the request. A coroutine is cancelled when its caller aborts or is lost.
    """

    def __init__(self, calls: PendingRequestMap, callback: RequestCallback) -> None:
        self._calls = calls
        self._callback = callback
        self._tasks: dict[str, asyncio.Future[object]] = {}
        calls.serve_with(self)

    def requested(self, event: CallRequested, caller: Address) -> None:
        """Call the callback."""
        try:
            work = self._callback(event)
        except Exception as error:
            self._calls.fail(event.request_id, failure(error, event.operation_id))
            return
        if work is not None:
            task = asyncio.ensure_future(work)
            self._tasks[event.request_id] = task
            task.add_done_callback(partial(self._done, event))

    def _done(self, event: CallRequested, task: asyncio.Future[object]) -> None:
        if self._tasks.get(event.request_id) is task:
            del self._tasks[event.request_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._calls.fail(event.request_id, failure(error, event.operation_id))

    def granted(self, event: CallCredit, caller: Address) -> None:
        """Ignore credits: items are sent when the callback sends them."""

    def answered(self, event: CallAnswer, caller: Address) -> None:
        """Ignore answers: the callback asks nothing."""

    def aborted(self, event: CallAborted, caller: Address) -> None:
        """Cancel the coroutine of a request that its caller aborted."""
        if event.request_id in self._tasks:
            self._tasks[event.request_id].cancel()

    def describe(self) -> None:
        """Return None: only the callback knows what it serves."""
