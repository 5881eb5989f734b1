"""`RemoteServer`: the operations, calls and figures of a server elsewhere, as a registry and a monitor here.

A console, or another surface, of a hub that runs on another machine:

    async with RemoteServer("ws://hub.example:8700", token=…) as remote:
        console = serve_console(remote.registry, monitor=remote.monitor, system=ConsoleSystem(servers=remote.servers))

Rules: calls are made with the authority of the connection, by any caller here. What the connection may not observe
is missing, and `monitor.problem` says why.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Self, Unpack

from msgspec.structs import replace

from opwire.client.client import Client, ConnectionOptions, shown_target
from opwire.errors import CallError, ErrorCode, RegistrationError, SchemaError, check_instance
from opwire.hub.observer import Observer
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import Handler, OperationSpec, OperationType
from opwire.names import counted
from opwire.observe.monitor import OBSERVE, OUTCOMES, CallMonitor, CallRecord, ServerStatistics
from opwire.protocol.pending import PendingRequestMap
from opwire.registry import OperationRegistry
from opwire.runtime.text import get_logger

logger = get_logger("opwire.hub")

RATE = 1_500
"""Records per second, beside those of errors, that are requested of the server."""

_SECONDS_BETWEEN_FIGURES = 2.0
_SECONDS_BETWEEN_LISTINGS = 30.0  # unless the number of operations changes before
_RETRY_PAUSE = 1.0  # seconds after a lost connection
_CALL_TIMEOUT = 24 * 3600.0  # seconds: the surface of a call has a timeout of its own
_DENIED = (ErrorCode.ACCESS_DENIED, ErrorCode.UNAUTHENTICATED)


class RemoteMonitor(CallMonitor):
    """The calls and figures of the remote server. Calls that are made here are among them, and not counted twice."""

    servers: Sequence[ServerStatistics] = ()
    """The latest figures: of a hub and its spokes, of all servers on a broker, or of one server."""

    @property
    def has_figures(self) -> bool:
        """Whether the remote server has sent figures."""
        return bool(self.servers)

    def count(self, operation_id: str, seconds: float, outcome: str) -> None:
        """No-op: the remote server counts the call."""

    def record(self, *call: Any, **details: Any) -> None:
        """No-op: the remote server records the call."""

    def show(self, record: CallRecord) -> None:
        """Show and time a record; a server that makes up outcomes or durations adds no counters."""
        outcome = record.outcome if record.outcome in OUTCOMES else ErrorCode.EXECUTION_ERROR.value
        self.time(record.operation_id, max(record.ms, 0.0) / 1000, outcome)
        super().show(record)

    def snapshot(self) -> ServerStatistics:
        """Return the figures of the remote server; without any yet, an empty one."""
        return self.servers[0] if self.servers else super().snapshot()


class RemoteServer:
    """Keeps a registry and a monitor up to date with a hub, a broker or an HTTP API, while it is open.

    `options` are those of `Client`.

    Raises:
        UsageError: the URL or an option is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "remote",
        token: str | Callable[[], str] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        check_instance(str, url=url)
        self.registry = OperationRegistry(normalize="off")
        self.monitor = RemoteMonitor(self.registry, name=name, kind="remote")
        self.monitor.remote = shown_target(url)
        self._observer = Observer(url, token=token, **options)
        if isinstance(self._observer.target, PendingRequestMap):
            self._client = Client(self._observer.target, timeout=_CALL_TIMEOUT, is_error="return")
        else:
            self._client = Client(url, token=token, timeout=_CALL_TIMEOUT, is_error="return", **options)
        self._stack = AsyncExitStack()
        self._problems: dict[str, CallError] = {}  # by what is missing
        self._rejected: set[str] = set()  # logged already

    def __repr__(self) -> str:
        return f"<RemoteServer {self.monitor.remote}, {counted(len(self.registry), 'operation')}>"

    async def __aenter__(self) -> Self:
        """Connect, and list the operations.

        Raises:
            CallError: UNAVAILABLE, UNAUTHENTICATED.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._observer)
            await stack.enter_async_context(self._client)
            await self._list()
            await self._measure()
            for loop in (self._follow_calls(), self._follow_figures()):
                stack.push_async_callback(_cancelled, asyncio.create_task(loop))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def servers(self) -> Sequence[ServerStatistics]:
        """Return the latest figures of all servers."""
        return self.monitor.servers

    # --- operations ---------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        specs = {spec.id: spec for spec in await self._client.operations()}
        for listed_spec in self.registry.list():
            if specs.get(listed_spec.id) != listed_spec:
                self.registry.unregister(listed_spec.id)
        for id, spec in specs.items():
            if id not in self.registry and id not in self._rejected:
                try:
                    self.registry.register(spec, self._handler(spec))
                except (RegistrationError, SchemaError) as error:
                    self._rejected.add(id)
                    logger.warning("ignoring an operation of the remote server: %s", error)

    def _handler(self, spec: OperationSpec) -> Handler:
        async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
            return await self._client.call_envelope(spec.id, input, context=_forwarded(context))

        async def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
            async with aclosing(self._client.subscribe_envelopes(spec.id, input, context=_forwarded(context))) as items:
                async for item in items:
                    yield item

        return stream if spec.type is OperationType.SUBSCRIPTION else call

    # --- calls and figures --------------------------------------------------------------------------------------------

    async def _follow_figures(self) -> None:
        def served() -> int:  # changes when a server begins or ceases to serve operations
            return sum(server.operations for server in self.monitor.servers)

        listed_at, served_before = time.monotonic(), served()
        while True:
            await self._pause("figures", _SECONDS_BETWEEN_FIGURES)
            try:
                await self._measure()
                if served() != served_before or time.monotonic() - listed_at >= _SECONDS_BETWEEN_LISTINGS:
                    served_before = served()
                    await self._list()
                    listed_at = time.monotonic()
                self._note("operations", None)
            except CallError as error:
                self._note("operations", error)

    async def _pause(self, part: str, seconds: float) -> None:
        """Wait for the next attempt; what is not allowed is tried rarely, since the server logs it."""
        error = self._problems.get(part)
        await asyncio.sleep(_SECONDS_BETWEEN_LISTINGS if error is not None and error.code in _DENIED else seconds)

    async def _measure(self) -> None:
        try:
            observed = await self._observer.servers()
        except CallError:
            self.monitor.servers = ()  # they would be shown as if they were current
            raise
        errors = [server.error for server in observed if server.error is not None]
        statistics = [server.statistics for server in observed if server.statistics is not None]
        # The hub first. Servers on a broker answer in any order, and the page compares the first with itself.
        self.monitor.servers = sorted(
            statistics, key=lambda server: (server.kind == "spoke", server.started, server.id)
        )
        self.monitor.measured = time.time()
        self._note("figures", errors[0] if errors and not statistics else None)

    async def _follow_calls(self) -> None:
        while True:
            self._note("calls", None)  # whether it works is known only by an error
            try:
                async with aclosing(self._observer.calls(rate=RATE)) as records:
                    async for record in records:
                        self.monitor.show(record)
            except CallError as error:
                self._note("calls", error)
            await self._pause("calls", _RETRY_PAUSE)

    def _note(self, part: str, error: CallError | None) -> None:
        """Note that a part is missing, or not any more."""
        self._problems.pop(part, None)
        if error is not None:
            self._problems[part] = error
        missing: dict[str, list[str]] = {}
        for missing_part, problem in self._problems.items():
            is_denied = problem.code is ErrorCode.ACCESS_DENIED
            reason = f"the token needs the scope {OBSERVE} at the server" if is_denied else problem.message
            missing.setdefault(reason, []).append(missing_part)
        problems = (f"no new {' and '.join(names)}: {reason}" for reason, names in missing.items())
        self.monitor.problem = "; ".join(problems) or None


def _forwarded(context: Context) -> Context:
    """Return the context of a call without its identity; progress, questions and log messages reach its caller."""
    return replace(
        context.detached(), on_progress=context.on_progress, on_question=context.on_question, on_log=context.on_log
    )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
