"""One call of an operation on behalf of an MCP client: access, context, deadline, progress, log messages. No I/O.

Tools, resources and prompts are called the same way, and differ in their results. A tool that fails returns a result
with `isError`, a resource or prompt raises a JSON-RPC error. An error of another MCP server passes with its code.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from os import urandom
from typing import Any, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from opwire.agents.tools import EncodedData, encode_data
from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import RequestId, RPCError, RPCNotification, RPCRequest
from opwire.mcp.revisions import CONNECTION_META, REQUEST_META, is_reserved_meta
from opwire.mcp.server.clients import ClientState, RequestStates, StatelessQuestions
from opwire.mcp.server.durable_tasks import SUBMISSION, DurableTaskStore, Submission
from opwire.mcp.server.tasks import CallTasks
from opwire.mcp.server.tools import (
    Result,
    ResultFormat,
    Tool,
    ToolCatalogue,
    collected_result,
    error_result,
    result_of,
    rpc_error,
)
from opwire.model.access import check_access
from opwire.model.caller import caller_metadata
from opwire.model.completion import CompletionRequest
from opwire.model.context import Context, Inbound, Progress
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.log_message import LogMessage, severity
from opwire.model.operation import OperationSpec, OperationType
from opwire.model.origin import ITEM_META
from opwire.model.questions import Question
from opwire.model.trace import trace_of
from opwire.observe.logs import CANCELLED, INPUT_REQUIRED, TOOL_ERROR, AccessEntry, begin_access
from opwire.observe.logs import logger as access_logger
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import CLOSE_GRACE, failure, leave_behind, run_within
from opwire.runtime.deadlines import CALL_TIMEOUT, MAX_SECONDS, Deadlines
from opwire.runtime.text import get_logger
from opwire.typed.plain import write_json

logger = get_logger("opwire.mcp.server")

Params = dict[str, Any]

MAX_LOGS = 1000
"""Log messages of one call that the client has not read; those above are dropped."""

MAX_LOG = 64 * 1024
"""Bytes of the data of one log message as JSON; longer data is truncated text."""

_MAX_ITEM_MESSAGE = 200
_MAX_CAUSES = 10
_encoder = msgspec.json.Encoder()


class CallLimits(Struct, frozen=True, kw_only=True):
    """The timeout of a call, and how much of a subscription is collected. Times are in seconds."""

    timeout: float | None = CALL_TIMEOUT  # without progress; default of operations without their own
    max_items: int = 100
    max_seconds: float = 30.0
    max_bytes: int = 4 * 1024 * 1024  # of the items as JSON; the item that exceeds it is the last


class ServedTools(Struct, frozen=True, kw_only=True):
    """The operations of a surface and how they are called; shared by all connections."""

    dispatcher: Dispatcher
    catalogue: ToolCatalogue
    limits: CallLimits
    max_page: int
    tool_envelopes: bool
    states: RequestStates
    tasks: CallTasks
    durable: DurableTaskStore | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)


class ServedRequest(Struct):
    """One request of a client from its message to its response, and the way back to the client. Transports subclass it.

    `client` is None for a request of the stateless era. `send` sends a message that belongs to this request.
    """

    message: RPCRequest
    identity: Identity | None
    client: ClientState | None = None
    token: str | None = None  # of the caller
    label: str = "a request"  # for the log
    meta: Params = {}  # the `_meta` of its params
    progress_token: RequestId | None = None
    log_level: str | None = None  # the least severe level that the client wants; None: no messages
    questions: StatelessQuestions | None = None  # of a request of the stateless era
    submission: Submission | None = None  # of a durable mutation
    task: asyncio.Task[Any] | None = None  # that handles it
    is_detached: bool = False  # it has become a task, which has no notifications
    error_code: int = 0  # of the response, if that is an error

    async def send(self, message: RPCRequest | RPCNotification) -> None:
        """Send a message to the client, as one of this request."""
        raise NotImplementedError

    async def notify(self, method: str, params: Params) -> None:
        """Send a notification."""
        if not self.is_detached:
            await self.send(RPCNotification(method, params))

    async def ask(self, question: Question) -> dict[str, Any]:
        """Ask the client, and return its answer.

        Raises:
            CallError: ABORTED, it cannot answer.
        """
        if self.client is not None:
            return await self.client.ask(question, self.send)
        return await cast("StatelessQuestions", self.questions)(question)

    async def stop(self) -> None:
        """Cancel the request, and abandon it if it ignores that."""
        task = self.task
        if task is None:  # it has ended
            return
        task.cancel()
        await asyncio.wait([task], timeout=1.2 * CLOSE_GRACE)  # a call with a deadline is abandoned before
        if not task.done():
            leave_behind(task, self.label)


class ServedCall(Struct, frozen=True, kw_only=True):
    """One call of an operation."""

    spec: OperationSpec
    request: ServedRequest
    served: ServedTools
    request_id: str = field(default_factory=lambda: urandom(16).hex())  # the client's is unique on its connection only

    async def read(self, input: Any, convert: Callable[[ResponseEnvelope[Any]], Result]) -> Result:
        """Return the result of a resource or prompt.

        Raises:
            RPCError: the call failed, or was denied.
            CancelledError: as `logged`.
        """

        async def run() -> Result:
            return convert(await self.execute(input))

        return await self._found(run)

    async def complete(self, request: CompletionRequest) -> Result:
        """Return the completion of an argument.

        Raises:
            RPCError: as `read`.
        """

        async def run() -> Result:
            context = self.context().within(self.served.limits.timeout)
            completions = await self.served.dispatcher.registry.complete(self.spec.id, request, context)
            completion: Result = {"values": list(completions.values), "hasMore": completions.has_more}
            return {
                "completion": completion if completions.total is None else {**completion, "total": completions.total}
            }

        return await self._found(run)

    async def _found(self, run: Callable[[], Awaitable[Result]]) -> Result:
        """Run the call of an operation that the caller may find, with errors of JSON-RPC."""

        async def checked(entry: AccessEntry | None) -> Result:
            try:
                self.served.dispatcher.find(self.spec.id, self.request.identity)
                return await run()
            except Exception as raised:
                error = failure(raised, self.spec.id)
                if entry is not None:
                    entry.failed(error)
                raise self.forwarded(error) or rpc_error(error) from raised

        return await self.logged(checked)

    async def logged(self, run: Callable[[AccessEntry | None], Awaitable[Result]]) -> Result:
        """Run the call, with an entry of the access log.

        Raises:
            CancelledError: the client cancelled or disconnected; the handler was cancelled.
        """
        self.request.label = self.spec.id
        if not access_logger.isEnabledFor(logging.INFO):
            return await run(None)
        entry = begin_access("mcp", operation=self.spec.id, identity=self.request.identity)
        if entry is None:
            return await run(None)
        try:
            result = await run(entry)
            entry.bytes = len(write_json(_encoder, result))
            return result
        except asyncio.CancelledError:
            questions = self.request.questions
            entry.outcome = INPUT_REQUIRED if questions is not None and questions.is_asking else CANCELLED
            raise
        finally:
            entry.request_id = self.request_id
            entry.write()

    async def execute(self, input: Any) -> ResponseEnvelope[Any]:
        """Call a query or mutation, and wait until its progress and log messages are sent.

        Raises:
            CallError: the call failed.
        """
        spec, timeout, dispatcher = self.spec, self.served.limits.timeout, self.served.dispatcher
        reporter = CallReporter(self.request)
        try:
            if spec.timeout is not None or timeout is None:
                envelope = await dispatcher.execute(spec, input, self.context(reporter).within(spec.timeout))
            else:  # the timeout of the surface is that without progress, so it is enforced here
                ends = reporter.last + MAX_SECONDS
                context = self.context(reporter, watched_until=ends)
                envelope = await run_within(
                    partial(dispatcher.execute, spec, input, context),
                    self.served.deadlines,
                    reporter.last + timeout,
                    spec.id,
                    lambda: min(reporter.latest() + timeout, ends),
                )
            await reporter.flush()
            return envelope
        finally:
            reporter.close()

    def forwarded(self, error: CallError) -> RPCError | None:
        """Return the JSON-RPC error that the client gets as it is, or None.

        It is that of another MCP server to this very call, and not to a nested one, or that for a client which lacks a
        capability to answer a question.
        """
        questions = self.request.questions
        if questions is not None and (refusal := questions.refusal(error)) is not None:
            return refusal
        cause: BaseException | None = error
        for _ in range(_MAX_CAUSES):
            if cause is None or isinstance(cause, RPCError):
                break
            cause = cause.__cause__
        return cause if isinstance(cause, RPCError) and cause.request_id == self.request_id else None

    def context(
        self, reporter: "CallReporter | None" = None, *, reports: bool = True, watched_until: float | None = None
    ) -> Context:
        """Return the context of the call; with `reports`, the progress of its handler is sent.

        `watched_until` is its deadline, which the caller enforces: progress and questions extend the timeout.
        """
        request, on_question = self.request, None
        if request.questions is not None or (request.client is not None and request.client.is_askable):
            on_question = request.ask if watched_until is None or reporter is None else reporter.ask
        metadata: dict[str, Any] = {}
        if request.token is not None:
            metadata.update(caller_metadata(request.identity, request.token))
        if not request.meta.keys() <= CONNECTION_META:
            metadata.update(trace_of(request.meta))
            if custom_meta := {key: value for key, value in request.meta.items() if not is_reserved_meta(key)}:
                metadata[REQUEST_META] = custom_meta
        return Context(
            request_id=self.request_id,
            identity=request.identity,
            metadata=metadata,
            on_progress=reporter.progress if reporter is not None and reports else None,
            on_log=reporter.log if reporter is not None and request.log_level is not None else None,
            on_question=on_question,
            deadline=watched_until,
            watched=watched_until is not None,
            bind_env=self.served.dispatcher.registry.bind_env,
            inbound=Inbound(self.request_id),
        )


class ToolCall(ServedCall, frozen=True, kw_only=True):
    """One `tools/call` request."""

    tool: Tool
    arguments: dict[str, Any]
    format: ResultFormat

    async def run(self, entry: AccessEntry | None) -> Result:
        """Return the result of the call, successful or not; within `logged`.

        Raises:
            RPCError: another MCP server has answered with this error.
        """
        spec = self.spec
        try:
            if spec.access is not None or self.request.identity is None:  # the catalogue has just found it
                check_access(spec, self.request.identity)
            if spec.type is OperationType.SUBSCRIPTION:
                return await self._collect(entry)
            result = result_of(await self.execute(self._input()), self.tool, self.format)
            if entry is not None and result.get("isError"):
                entry.outcome = TOOL_ERROR
            return result
        except Exception as raised:
            error = failure(raised, spec.id)
            if entry is not None:
                entry.failed(error)
            if (forwarded := self.forwarded(error)) is not None:
                raise forwarded from None
            return error_result(error, self.tool, self.format)

    async def _collect(self, entry: AccessEntry | None) -> Result:
        """Collect the items of a subscription until it ends or a limit is reached; each is also sent as progress."""
        items: list[EncodedData] = []
        size, complete, failed = 0, False, None
        reporter = CallReporter(self.request)
        envelopes = self.served.dispatcher.subscribe(self.spec, self._input(), self.context(reporter, reports=False))
        token = self.request.progress_token
        try:
            async with asyncio.timeout(self.served.limits.max_seconds), aclosing(envelopes):
                async for envelope in envelopes:
                    items.append(encode_data(envelope.data, self.spec.id))
                    if token is not None:
                        await send_item(self.request, token, len(items) - 1, items[-1])
                    size += len(items[-1].json)
                    if len(items) >= self.served.limits.max_items or size >= self.served.limits.max_bytes:
                        break
                else:
                    complete = True
            await reporter.flush()
        except TimeoutError:
            pass
        except CallError as error:
            if not items:
                raise
            failed = error
            if entry is not None:
                entry.failed(error)
        finally:
            reporter.close()
        return collected_result(items, self.tool, self.format, complete=complete, error=failed)

    def _input(self) -> Any:
        """Return the operation's input, without its wrapper.

        Raises:
            CallError: VALIDATION_ERROR, for unknown arguments.
        """
        if not self.tool.wraps_input:
            return self.arguments
        unknown = self.arguments.keys() - {"input"}
        if unknown:
            names = ", ".join(sorted(unknown)[:3])
            wrong = f"{self.spec.id}: unknown arguments {names}; the only argument is `input`"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        return self.arguments.get("input")


class DurableToolCall(ToolCall, frozen=True, kw_only=True):
    """One `tools/call` request of a mutation that is submitted to a journal."""

    def context(
        self, reporter: "CallReporter | None" = None, *, reports: bool = True, watched_until: float | None = None
    ) -> Context:
        """Return the context of the call, with its submission."""
        context = super().context(reporter, reports=reports, watched_until=watched_until)
        return replace(context, metadata={**context.metadata, SUBMISSION: self.request.submission})


# --- notifications of a call ------------------------------------------------------------------------------------------


async def send_item(request: ServedRequest, token: RequestId, number: int, item: EncodedData) -> None:
    """Send one item of a subscription as progress; the first is number 0."""
    carried: dict[str, Any] = {"n": number, "data": item.data}
    if item.encoding is not None:
        carried["encoding"] = item.encoding
    preview = item.json[: 4 * _MAX_ITEM_MESSAGE].decode(errors="ignore")
    message = preview if len(preview) <= _MAX_ITEM_MESSAGE else f"{preview[:_MAX_ITEM_MESSAGE]}…"
    params = {"progressToken": token, "progress": number + 1, "message": message, "_meta": {ITEM_META: carried}}
    await request.notify("notifications/progress", params)


class CallReporter:
    """Send the progress and log messages of a handler as fast as the client reads, and see whether it is active.

    A newer report of progress replaces a queued one; log messages are all sent, up to a limit.
    """

    __slots__ = ("_any", "_closed", "_highest", "_latest", "_logs", "_loop", "_open", "_request", "_sending", "last")

    def __init__(self, request: ServedRequest) -> None:
        self.last = time.monotonic()  # when the handler started, reported, or got an answer
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        self._highest = float("-inf")
        self._logs: deque[Params] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._open = 0  # questions without an answer
        self._any = False
        self._closed = False

    def latest(self) -> float:
        """Return the monotonic time of the last activity: a report of progress, or a question that is open."""
        return time.monotonic() if self._open else self.last

    async def ask(self, question: Question) -> dict[str, Any]:
        """Ask the client."""
        self._open += 1
        try:
            return await self._request.ask(question)
        finally:
            self._open -= 1
            self.last = time.monotonic()

    def progress(self, progress: Progress) -> None:
        """Queue a report, from any thread."""
        self.last = time.monotonic()
        if self._request.progress_token is not None:
            self._any = True
            self._loop.call_soon_threadsafe(self._queue_progress, progress)

    def log(self, message: LogMessage) -> None:
        """Queue a log message, from any thread."""
        level = self._request.log_level
        if level is not None and severity(message.level) >= severity(level):
            self._any = True
            self._loop.call_soon_threadsafe(self._queue_log, message)

    def _queue_progress(self, progress: Progress) -> None:
        """Queue the valid part of a report: a value without a JSON form would break the whole connection."""

        valid = progress.bounded()
        if self._closed or valid is None or not valid.progress > self._highest:  # the protocol requires it to increase
            return
        self._latest, self._highest = valid, valid.progress
        self._start()

    def _queue_log(self, message: LogMessage) -> None:
        if self._closed or len(self._logs) >= MAX_LOGS:
            logger.debug("a log message of %s is dropped: the client does not keep up", self._request.label)
            return
        try:
            encoded = encode_data(message.data, "a log message")
        except (CallError, TypeError, ValueError, RecursionError):
            logger.warning("a log message of %s has no JSON form, and is not sent", self._request.label)
            return
        data = encoded.data
        if len(encoded.json) > MAX_LOG:
            data = encoded.json[:MAX_LOG].decode(errors="ignore") + "…"
        params: Params = {"level": message.level, "data": data}
        self._logs.append(params if message.logger is None else {**params, "logger": message.logger[:200]})
        self._start()

    def _start(self) -> None:
        if self._sending is None:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._logs or self._latest is not None:
            if self._logs:
                await self._request.notify("notifications/message", self._logs.popleft())
            elif (latest := self._latest) is not None:
                self._latest = None
                optional_fields = {"total": latest.total, "message": latest.message}
                params: Params = {"progressToken": self._request.progress_token, "progress": latest.progress}
                params |= {key: value for key, value in optional_fields.items() if value is not None}
                await self._request.notify("notifications/progress", params)
        self._sending = None

    async def flush(self) -> None:
        """Wait until everything earlier is sent."""
        if self._any:
            await asyncio.sleep(0)  # it is queued on the loop
        if self._sending is not None:
            await self._sending

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        if self._sending is not None:
            self._sending.cancel()
