"""`RunningRequest`: a request that a `CallHandler` has in flight."""

import asyncio
from typing import Any

from msgspec import Struct

from opwire.model.identity import Identity
from opwire.observe.logs import AccessEntry
from opwire.protocol.call_table import Credits
from opwire.protocol.caller_callbacks import ProgressSender, RemoteCaller
from opwire.protocol.events import CallRequested
from opwire.protocol.transport import Address


class RunningRequest(Struct, eq=False):
    """A request in flight."""

    event: CallRequested
    caller: Address
    identity: Identity | None
    credits: Credits | None  # of a subscription
    arrived: float  # monotonic time
    size: int  # bytes of its input in memory, about; 0 within one process
    task: asyncio.Task[Any] | None = None
    begun: bool = False
    cancelled: str | None = None  # why
    tick: int = 0  # of its deadline
    access: AccessEntry | None = None  # its entry in the access log, if that is enabled
    failed: str | None = None  # the code with which the call was failed here
    items: int | None = None  # of a subscription
    resumable: bool = False  # a subscription that its caller can resume at another server
    output: int | None = None  # bytes, while there is a watcher
    report: ProgressSender | None = None  # if its caller asked for progress
    questions: RemoteCaller | None = None  # if its caller accepts questions

    def begin(self) -> None:
        """Note the task of the request in its first step: if it starts eagerly, its creator does not have it yet."""
        self.begun, self.task = True, asyncio.current_task()

    def cancel(self, reason: str) -> None:
        """Cancel the handler, once: a second cancellation would interrupt its cleanup."""
        if self.cancelled is None:
            self.cancelled = reason
            if self.task is not None:
                self.task.cancel(reason)
