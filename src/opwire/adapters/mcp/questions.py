"""Requests in flight, and questions of a server: which caller each belongs to, and its answer. No I/O."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context as ContextVars
from typing import Any, TypeVar

from msgspec import Struct, field

from opwire.adapters.mcp.servers import Callbacks
from opwire.annotations import LOG_LEVELS, LogMessage
from opwire.errors import CallError
from opwire.mcp.messages import (
    INTERNAL_ERROR,
    InvalidReply,
    RequestId,
    RPCError,
    RPCFailure,
    RPCMessage,
    RPCRequest,
    RPCResponse,
)
from opwire.questions import QuestionCallback

logger = logging.getLogger("opwire.mcp")

T = TypeVar("T")
ProgressCallback = Callable[[dict[str, Any]], object]


class RequestCaller(Struct, frozen=True):
    """How the caller of a request is asked and gets log messages, and the id of its identity."""

    on_question: QuestionCallback | None
    on_log: Callable[[LogMessage], object] | None = None
    owner: str | None = None


class PromptFuture(asyncio.Future[T]):
    """A future for one task, which continues within `settle` instead of in the next turn of the event loop.

    A turn takes about 10 µs between calls that come alone, a system call included. Any other outcome, such as a
    cancellation, takes the usual way.
    """

    _wake_up: Callable[..., object] | None = None
    _context: ContextVars | None = None

    def add_done_callback(self, fn: Callable[..., object], /, *, context: ContextVars | None = None) -> None:
        """Remember how the task continues, which is the only one that waits."""
        self._wake_up, self._context = fn, context
        super().add_done_callback(fn, context=context)

    def settle(self, result: T) -> None:
        """Set the result, and continue the task, unless this runs in another task."""
        wake_up, context = self._wake_up, self._context
        if wake_up is None or context is None or asyncio.current_task(self.get_loop()) is not None:
            self.set_result(result)
            return
        self.remove_done_callback(wake_up)
        self.set_result(result)
        context.run(wake_up, self)


class SentRequest(Struct, eq=False):
    """A request in flight: the future of its result, and the callback for its progress."""

    method: str
    response: PromptFuture[dict[str, Any]]
    on_progress: ProgressCallback
    caller: RequestCaller | None = None
    answers: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])  # to questions that belong to it

    def fail(self, error: Exception) -> None:
        """Raise an error in the caller, unless it has an outcome or has left."""
        if not self.response.done():
            self.response.set_exception(error)

    def complete(self, answer: RPCResponse | RPCFailure | InvalidReply, server: str) -> None:
        """Return the result in the caller, or raise the error of the server."""
        if isinstance(answer, RPCFailure):
            self.fail(RPCError(answer.error.code, answer.error.message, answer.error.data))
        elif isinstance(answer, InvalidReply):
            self.fail(CallError(answer.code, f"the MCP server {server} answered {self.method} with {answer.reason}"))
        elif not self.response.done():
            self.response.settle(answer.result)


class ServerQuestions:
    """The questions of one server, and the requests in flight whose callers answer them."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._answering: dict[RequestId, asyncio.Task[Any]] = {}
        self._asking: dict[RequestId, SentRequest] = {}

    def add(self, id: RequestId, sent: SentRequest) -> None:
        """Register a request whose caller answers questions, or gets log messages."""
        self._asking[id] = sent

    def discard(self, id: RequestId, sent: SentRequest) -> None:
        """Forget a request that has ended, and cancel the questions that belong to it."""
        self._asking.pop(id, None)
        for answer in sent.answers:
            answer.cancel()

    def of(self, request: RequestId | None, *, logs: bool = False) -> SentRequest | None:
        """Return the request that a question or log message belongs to; `request` is the one of its stream.

        Over stdio, and outside of its stream, a server does not say. Then it is the latest one, if all requests in
        flight are of the same identity: a question must not reach another caller.
        """
        if request is not None and request in self._asking:
            return self._asking[request]
        asking = ((each, each.caller) for each in self._asking.values() if each.caller is not None)
        found = [(each, by.owner) for each, by in asking if (by.on_log if logs else by.on_question) is not None]
        return found[-1][0] if len({owner for _, owner in found}) == 1 else None

    def log(self, params: dict[str, Any], request: RequestId | None) -> bool:
        """Pass a log message to the caller that it belongs to; return False if there is none."""
        sent, level = self.of(request, logs=True), params.get("level")
        if sent is None or sent.caller is None or sent.caller.on_log is None or level not in LOG_LEVELS:
            return False
        name = params.get("logger")
        try:
            sent.caller.on_log(LogMessage(level, params.get("data"), name if isinstance(name, str) else None))
        except Exception:
            logger.exception("a callback failed")
        return True

    def started(self, id: RequestId, sent: SentRequest | None, task: asyncio.Task[Any]) -> None:
        """Register the task that answers a question; it ends with the request that the question belongs to."""
        self._answering[id] = task
        task.add_done_callback(lambda _: self._answering.pop(id, None))
        if sent is not None:
            sent.answers.add(task)
            task.add_done_callback(sent.answers.discard)

    def cancel(self, id: RequestId) -> None:
        """Stop answering: the server does not wait any more."""
        self._answering[id].cancel()

    async def answer(
        self, request: RPCRequest, sent: SentRequest | None, send: Callable[[RPCMessage], Awaitable[None]]
    ) -> None:
        """Answer a request of the server; it counts as open until the server has read the response."""
        on_question = None if sent is None or sent.caller is None else sent.caller.on_question
        try:
            answer = await self._callbacks.answer(request.method, request.params, on_question)
            reply: RPCMessage = RPCResponse(request.id, answer)
        except RPCError as error:
            reply = RPCFailure.of(request.id, error)
        try:
            await send(reply)
        except (TypeError, ValueError, RecursionError):
            logger.exception("the callback for %s returned what has no JSON form", request.method)
            failed = RPCError(INTERNAL_ERROR, f"the callback for {request.method} failed")
            await send(RPCFailure.of(request.id, failed))
