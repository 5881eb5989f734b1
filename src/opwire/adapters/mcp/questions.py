"""Requests in flight, and the questions and log messages of a server: which caller each belongs to. No I/O."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
from msgspec import Struct, field

from opwire.adapters.mcp.errors import ServerLog
from opwire.adapters.mcp.servers import Callbacks
from opwire.annotations import LOG_LEVELS, LogMessage
from opwire.mcp.messages import (
    INTERNAL_ERROR,
    RequestId,
    RPCError,
    RPCFailure,
    RPCMessage,
    RPCRequest,
    RPCResponse,
)
from opwire.questions import QuestionCallback

logger = logging.getLogger("opwire.mcp")

ProgressCallback = Callable[[dict[str, Any]], object]


MAX_LOGS = 100
"""Log messages that a coroutine callback has not finished handling; those above are dropped."""

_LEVELS = {"debug": logging.DEBUG, "warning": logging.WARNING} | dict.fromkeys(
    ("error", "critical", "alert", "emergency"), logging.ERROR
)


class RequestCaller(Struct, frozen=True):
    """How the caller of a request is asked and gets log messages, and the id of its identity."""

    on_question: QuestionCallback | None
    on_log: Callable[[LogMessage], object] | None = None
    owner: str | None = None


class SentRequest(Struct, eq=False):
    """A request in flight: the future of its result, and the callback for its progress."""

    method: str
    response: asyncio.Future[RPCResponse]
    on_progress: ProgressCallback
    caller: RequestCaller | None = None
    answers: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])  # to questions that belong to it

    def fail(self, error: Exception) -> None:
        """Raise an error in the caller, unless it has an outcome or has left."""
        if not self.response.done():
            self.response.set_exception(error)


class ServerQuestions:
    """The questions and log messages of one server, and the requests in flight whose callers get them."""

    def __init__(
        self, callbacks: Callbacks, server: str, spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
    ) -> None:
        self._callbacks = callbacks
        self._spawn = spawn
        self._log = ServerLog(server)
        self._logs: set[asyncio.Task[Any]] = set()  # of `log` callbacks
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

    def log(self, params: dict[str, Any], request: RequestId | None) -> None:
        """Pass a log message to the caller that it belongs to, or to the callback, or write it to the log."""
        sent, level, data = self.of(request, logs=True), params.get("level"), params.get("data")
        if sent is not None and sent.caller is not None and sent.caller.on_log is not None and level in LOG_LEVELS:
            name = params.get("logger")
            guarded(sent.caller.on_log, LogMessage(level, data, name if isinstance(name, str) else None))
        elif self._callbacks.log is None:
            text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
            self._log.write(_LEVELS.get(str(level), logging.INFO), text)
        elif len(self._logs) >= MAX_LOGS:
            self._log.write(logging.WARNING, "a log message is dropped: the log callback does not keep up")
        else:
            written = guarded(self._callbacks.log, params)
            if inspect.iscoroutine(written):
                task = self._spawn(written)
                self._logs.add(task)
                task.add_done_callback(self._logs.discard)

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


def guarded(callback: Callable[..., object], *arguments: Any) -> object:
    """Call a user's callback; log what it raises, which must not end the connection."""
    try:
        return callback(*arguments)
    except Exception:
        logger.exception("a callback failed")
        return None
