"""Questions and log messages of servers, and who answers or gets them.

Up to revision 2025-11-25 a server sends requests of its own; from 2026-07-28 on it returns input requests as the result
of a call, which is repeated with the responses. `Callbacks` answers both. `ServerQuestions` knows which caller a
question or log message belongs to.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct, field

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import RequestId, RPCCode, RPCError, RPCFailure, RPCMessage, RPCRequest, RPCResponse
from opwire.model.log_message import LOG_LEVELS, LogMessage
from opwire.model.questions import KINDS, QUESTION_TIMEOUT, Question, QuestionCallback, ask
from opwire.runtime.limits import LimitedLog
from opwire.runtime.tasks import reject
from opwire.runtime.text import get_logger, harmless
from opwire.typed.plain import as_dict

logger = get_logger("opwire.mcp.client")

MAX_LOG_LINE_LENGTH = 2000
"""Characters of one server line that the log shows."""

MAX_LOG_LINES_PER_SECOND = 100
"""Lines of one server that the log shows per second."""

MAX_UNHANDLED_LOGS = 100
"""Log messages that a coroutine callback has not finished handling; those above are dropped."""

MAX_QUESTIONS = 100
"""Input requests in one result."""

ProgressCallback = Callable[[dict[str, Any]], object]

_LEVELS = {"debug": logging.DEBUG, "warning": logging.WARNING} | dict.fromkeys(
    ("error", "critical", "alert", "emergency"), logging.ERROR
)


class _Question(Struct):
    method: str
    params: dict[str, Any] | None = None


class _ElicitResult(Struct):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class _SampleResult(Struct):
    role: Literal["user", "assistant"]
    content: dict[str, Any] | list[dict[str, Any]]
    model: str


class _ClientRoot(Struct):
    uri: str
    name: str | None = None


class _RootsResult(Struct):
    roots: list[_ClientRoot]


_RESULTS: dict[str, type[Struct]] = {
    "elicitation/create": _ElicitResult,
    "sampling/createMessage": _SampleResult,
    "roots/list": _RootsResult,
}


class Callbacks(Struct, frozen=True, kw_only=True):
    """The answers to requests of servers. Each may be a coroutine function; missing ones are not announced.

    They take and return what the protocol defines: `elicit` takes the params of `elicitation/create` and returns
    `{"action": "accept", "content": {...}}` (or "decline", "cancel"); `sample` takes those of
    `sampling/createMessage` and returns `{"role": "assistant", "content": {...}, "model": "..."}`; `roots` returns a
    list of URIs or of `{"uri": ..., "name": ...}`; `log` takes the params of `notifications/message`.

    A caller that can be asked (`Context.on_question`) is asked first; these answer what it cannot, and what belongs to
    no call.
    """

    elicit: Callable[[dict[str, Any]], Any] | None = None
    sample: Callable[[dict[str, Any]], Any] | None = None
    roots: Callable[[], Any] | None = None
    log: Callable[[dict[str, Any]], Any] | None = None

    @property
    def capabilities(self) -> dict[str, Any]:
        """The client capabilities without a caller that can be asked: one for each callback."""
        announced: dict[str, tuple[Any, dict[str, Any]]] = {
            "elicitation": (self.elicit, {"form": {}, "url": {}}),
            "sampling": (self.sample, {}),
            "roots": (self.roots, {}),
        }
        return {name: settings for name, (callback, settings) in announced.items() if callback is not None}

    async def answer(
        self, method: str, params: Mapping[str, Any] | None, on_question: QuestionCallback | None = None, key: str = ""
    ) -> dict[str, Any]:
        """Return the result of a request of the server. `on_question` is that of the call it belongs to.

        Raises:
            RPCError: the callback is missing, or failed. The server gets this error.
        """
        if method == "ping":
            return {}
        callbacks = {"elicitation/create": self.elicit, "sampling/createMessage": self.sample, "roots/list": self.roots}
        callback: Callable[..., Any] | None = callbacks.get(method)
        if on_question is not None and method in KINDS:
            try:
                return await ask(Question(KINDS[method], dict(params or {}), key), on_question, QUESTION_TIMEOUT)
            except CallError as error:
                if callback is None:
                    code = as_dict(as_dict(error.details).get("error")).get("code")  # of the client in front
                    raise RPCError(code if isinstance(code, int) else RPCCode.INTERNAL_ERROR, error.message) from error
        if callback is None:
            raise RPCError(RPCCode.METHOD_NOT_FOUND, f"this client does not answer {method}")
        try:
            answer: Any = callback() if method == "roots/list" else callback(dict(params or {}))
            if inspect.isawaitable(answer):
                answer = await answer
            if method == "roots/list":
                answer = {"roots": [{"uri": root} if isinstance(root, str) else root for root in answer]}
            msgspec.convert(answer, _RESULTS[method])  # only checked: unknown fields are sent as well
        except CallError as error:
            raise RPCError(RPCCode.INTERNAL_ERROR, error.message) from error
        except Exception as error:
            logger.exception("the callback for %s raised, or returned an invalid result", method)
            raise RPCError(RPCCode.INTERNAL_ERROR, f"the callback for {method} failed") from error
        return answer

    async def answer_all(
        self, questions: Any, prefix: str, on_question: QuestionCallback | None = None
    ) -> dict[str, Any]:
        """Return the responses to the input requests of a result, by key; `prefix` starts the message of an error.

        Raises:
            CallError: PROTOCOL_ERROR if they are invalid, EXECUTION_ERROR if one of them is rejected.
        """
        try:
            questions_by_key = msgspec.convert(questions, dict[str, _Question])
        except msgspec.ValidationError as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{prefix} that are invalid: {error}") from error
        if len(questions_by_key) > MAX_QUESTIONS:
            message = f"{prefix}: {len(questions_by_key):,} at once, and at most {MAX_QUESTIONS} are answered"
            raise CallError(ErrorCode.PROTOCOL_ERROR, message)
        try:
            async with asyncio.TaskGroup() as group:
                answers = {
                    key: group.create_task(self.answer(question.method, question.params, on_question, key))
                    for key, question in questions_by_key.items()
                }
        except ExceptionGroup as rejected:
            reason = cast("RPCError", rejected.exceptions[0]).message  # `answer` raises nothing else
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{prefix}, and {reason}") from rejected
        return {key: answer.result() for key, answer in answers.items()}


class EscapedLine:
    """A line of a server for the log. It is escaped when it is formatted: 2,000 control characters take 8 ms."""

    def __init__(self, text: str) -> None:
        self._text = text[:MAX_LOG_LINE_LENGTH]

    def __str__(self) -> str:
        return harmless(self._text).replace("\n", "\\n")


class ServerLog:
    """Write the lines of one server to the log: shortened, escaped, and rate-limited."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines = LimitedLog(logger, per_second=MAX_LOG_LINES_PER_SECOND)

    def write(self, level: int, text: str) -> None:
        """Log a line, unless there are too many in this second."""
        self._lines.write(level, "%s: %s", self._name, EscapedLine(text))


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
        reject(self.response, error)


class ServerQuestions:
    """The questions and log messages of one server, and the requests in flight with callers that get them."""

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
        """Register a request: its caller answers questions, or gets log messages."""
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
        with_callers = ((sent, sent.caller) for sent in self._asking.values() if sent.caller is not None)
        candidates = [
            (sent, caller.owner)
            for sent, caller in with_callers
            if (caller.on_log if logs else caller.on_question) is not None
        ]
        return candidates[-1][0] if len({owner for _, owner in candidates}) == 1 else None

    def log(self, params: dict[str, Any], request: RequestId | None) -> None:
        """Pass a log message to the caller that it belongs to, or to the callback, or write it to the log."""
        sent, level, data = self.of(request, logs=True), params.get("level"), params.get("data")
        if sent is not None and sent.caller is not None and sent.caller.on_log is not None and level in LOG_LEVELS:
            name = params.get("logger")
            guarded(sent.caller.on_log, LogMessage(level, data, name if isinstance(name, str) else None))
        elif self._callbacks.log is None:
            text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
            self._log.write(_LEVELS.get(str(level), logging.INFO), text)
        elif len(self._logs) >= MAX_UNHANDLED_LOGS:
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
            failed = RPCError(RPCCode.INTERNAL_ERROR, f"the callback for {request.method} failed")
            await send(RPCFailure.of(request.id, failed))


def guarded(callback: Callable[..., object], *arguments: Any) -> object:
    """Call a user's callback; log what it raises, which must not end the connection."""
    try:
        return callback(*arguments)
    except Exception:
        logger.exception("a callback failed")
        return None
