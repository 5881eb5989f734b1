"""Calls made on the page: one event stream per call, with its progress, questions, items and result.

Rules: a call ends when the page stops reading. Items are taken from a subscription as fast as the page reads them. A
question is answered by the session that made the call. Large results are not sent in the stream: they are kept for a
minute, for the caller alone, within a limit of bytes.
"""

import asyncio
import contextlib
import time
from collections import deque
from secrets import token_hex
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.responses import Response

from opwire.asgi.problem import MAX_DETAILS, Send
from opwire.asgi.request import App, Receive, Scope
from opwire.console.session import acting
from opwire.console.web import ConsoleEvents, Streams, empty_reply, error_data, read_body, reply
from opwire.errors import CallError, ErrorCode
from opwire.model.caller import caller_metadata
from opwire.model.context import Context, Inbound, Progress
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.log_message import LogMessage
from opwire.model.operation import OperationSpec, OperationType
from opwire.model.questions import Question, unanswerable
from opwire.observe.logs import CANCELLED, OK, begin_access
from opwire.observe.monitor import outcome_of
from opwire.openapi.server.request import Request
from opwire.openapi.server.responses import EncodedResponse, encode_response, encode_whole
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.text import get_logger, one_line
from opwire.typed.plain import write_json

logger = get_logger("opwire.console")

MAX_STREAMED_RESULT_BYTES = 5 * 1024 * 1024
"""Bytes of a result in the stream, as JSON; a larger one is downloaded."""

MAX_DOWNLOAD_BYTES = 256 * 1024 * 1024
"""Bytes of all results that wait for their download."""

DOWNLOAD_LIFETIME = 60.0
"""Seconds for which a result waits for its download."""

_MAX_OPEN_QUESTIONS_OF_CALL = 16
_MAX_UNSENT_LOG_MESSAGES = 100  # the oldest are dropped
_PROGRESS_INTERVAL_SECONDS = 0.1
_ITEMS_BETWEEN_YIELDS = 64  # a producer that never waits would hide a disconnect

_encoder = msgspec.json.Encoder()

Text = Annotated[str, Meta(max_length=1_000)]


class ActAs(Struct, frozen=True):
    """Another identity to call with."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    scopes: Annotated[tuple[Text, ...], Meta(max_length=1_000)] = ()


class CallBody(Struct, frozen=True, rename="camel"):
    """The body of a request to call an operation."""

    operation_id: Text
    input: Any = None
    deadline_ms: Annotated[int, Meta(ge=1, le=24 * 3600 * 1000)] | None = None
    act_as: ActAs | None = None


class QuestionAnswer(Struct, frozen=True):
    """The answer to a question. For a completion or for roots, `content` is the result in the shape of MCP."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class KeptResult(Struct, frozen=True, eq=False):
    """A result that waits for its download by its owner."""

    owner: Identity | None
    response: EncodedResponse
    expires: float


class KeptResults:
    """The results that wait for their download, by the id of their request."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptResult] = {}

    def keep(self, request_id: str, owner: Identity | None, response: EncodedResponse) -> None:
        """Keep a result; the oldest ones make room for it.

        Raises:
            CallError: PAYLOAD_TOO_LARGE.
        """
        size = len(response.body)
        if size > MAX_DOWNLOAD_BYTES:
            wrong = f"the result has {size:,} bytes; the console can deliver {MAX_DOWNLOAD_BYTES:,}"
            message = f"{wrong}: call it over the HTTP API"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
        self._drop_expired()
        while (
            self._kept and size + sum(len(result.response.body) for result in self._kept.values()) > MAX_DOWNLOAD_BYTES
        ):
            del self._kept[next(iter(self._kept))]
        self._kept[request_id] = KeptResult(owner, response, time.monotonic() + DOWNLOAD_LIFETIME)
        asyncio.get_running_loop().call_later(DOWNLOAD_LIFETIME, self._drop_expired)

    def get(self, request_id: str, identity: Identity | None) -> EncodedResponse:
        """Return a result to its owner.

        Raises:
            CallError: OPERATION_NOT_FOUND.
        """
        self._drop_expired()
        result = self._kept.get(request_id)
        if result is None or result.owner != identity:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"no such result: it is kept for {DOWNLOAD_LIFETIME:.0f} s")
        return result.response

    def _drop_expired(self) -> None:
        now = time.monotonic()
        self._kept = {id: result for id, result in self._kept.items() if result.expires > now}


class ConsoleCalls:
    """Runs the calls of a console."""

    def __init__(self, dispatcher: Dispatcher, streams: Streams, *, timeout: float | None, acts: bool) -> None:
        self.results = KeptResults()
        self._dispatcher = dispatcher
        self._streams = streams
        self._timeout = timeout
        self._acts = acts  # calls may have another identity than the caller's
        self._running: dict[str, _RunningCall] = {}

    async def download(self, request: Request) -> Response:
        """Return the result of a call as a file."""
        result = self.results.get(request.path.removeprefix("/api/results/"), request.identity)
        suffix = "json" if result.content_type == b"application/json" else "bin"
        headers = {"content-disposition": f'attachment; filename="result.{suffix}"'}
        return reply(request, result.body, result.content_type.decode(), headers=headers)

    async def answer(self, request: Request) -> Response:
        """Answer a question of a call.

        Raises:
            CallError: OPERATION_NOT_FOUND, the question does not wait for an answer of this caller.
        """
        request_id, _, question_key = request.path.removeprefix("/api/calls/").partition("/")
        question_id = question_key.removeprefix("answers/")
        answer = read_body(request, QuestionAnswer)
        call = self._running.get(request_id)
        if question_id == question_key or call is None or not call.answered(question_id, answer, request.identity):
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "the question does not wait for an answer any more")
        return empty_reply(request)

    async def run(self, request: Request) -> App:
        """Return the call of an operation, as the stream of what happens.

        Raises:
            CallError: the call is not allowed, or the request is invalid.
        """
        body = read_body(request, CallBody)
        identity = request.identity
        if body.act_as is not None:
            if not self._acts:
                wrong = "calls of a server elsewhere have the identity of its token, and no other one"
                raise CallError(ErrorCode.ACCESS_DENIED, wrong)
            identity = acting(identity, Identity(id=body.act_as.id, scopes=body.act_as.scopes))
            caller = request.identity and request.identity.id
            logger.info("%s calls %s as %s", caller, one_line(body.operation_id), one_line(identity.id))
        spec = self._dispatcher.find(body.operation_id, identity)
        # Not the request id of the caller: another call may use it, and results are kept under it.
        call = _RunningCall(self, spec, token_hex(16), request.identity)
        seconds = None if spec.type is OperationType.SUBSCRIPTION else self._timeout
        if body.deadline_ms is not None:
            seconds = body.deadline_ms / 1000
        context = Context(
            request_id=call.request_id,
            identity=identity,
            deadline=None if seconds is None else time.monotonic() + seconds,
            metadata={**request.metadata, **caller_metadata(request.identity, request.admitted.token)},
            on_progress=call.progressed,
            on_question=call.ask,
            on_log=call.logged,
            inbound=Inbound(call.request_id),
        )

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            self._running[call.request_id] = call
            try:
                async with self._streams.writing(request, receive, send) as writer:
                    await call.stream(writer, self._dispatcher, body.input, context)
            finally:
                del self._running[call.request_id]

        return stream


class _RunningCall:
    """One call, from its start to its end."""

    def __init__(self, calls: ConsoleCalls, spec: OperationSpec, request_id: str, owner: Identity | None) -> None:
        self.request_id = request_id
        self._calls = calls
        self._spec = spec
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._progress: Progress | None = None
        self._logged: deque[bytes] = deque(maxlen=_MAX_UNSENT_LOG_MESSAGES)
        self._progressed = asyncio.Event()
        self._items = 0
        self._bytes = 0
        self._writer: ConsoleEvents | None = None
        self._questions: dict[str, tuple[Question, asyncio.Future[QuestionAnswer]]] = {}

    async def ask(self, question: Question) -> dict[str, Any]:
        """Ask the person, and return the answer in the shape of MCP.

        Raises:
            CallError: ABORTED, the person does not answer.
        """
        if self._writer is None or len(self._questions) >= _MAX_OPEN_QUESTIONS_OF_CALL:
            raise unanswerable(question, f"after {_MAX_OPEN_QUESTIONS_OF_CALL} others")
        id, answered = token_hex(8), self._loop.create_future()
        self._questions[id] = question, answered
        try:
            await self._writer.event("question", {"questionId": id, "kind": question.kind, "params": question.params})
            answer: QuestionAnswer = await answered
        finally:
            del self._questions[id]
            await self._writer.event("questionEnded", {"questionId": id})
        if question.kind == "elicit":
            accepted = {"content": answer.content or {}} if answer.action == "accept" else {}
            return {"action": answer.action, **accepted}
        if answer.action != "accept" or answer.content is None:
            raise unanswerable(question, "and the person declined")
        return answer.content

    def answered(self, question_id: str, answer: QuestionAnswer, identity: Identity | None) -> bool:
        """Answer a question; return False if it does not wait for this person's answer."""
        _, answered = self._questions.get(question_id, (None, None))
        if answered is None or answered.done() or identity != self._owner:
            return False
        answered.set_result(answer)
        return True

    def progressed(self, progress: Progress) -> None:
        """Note the progress, from any thread; a newer report replaces one that was not sent yet."""
        self._progress = progress.bounded()
        self._loop.call_soon_threadsafe(self._progressed.set)

    def logged(self, message: LogMessage) -> None:
        """Note a log message of the handler, from any thread; one that is too large or has no JSON form is ignored."""
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            encoded = write_json(_encoder, message)
            if len(encoded) <= MAX_DETAILS:
                self._logged.append(encoded)
                self._loop.call_soon_threadsafe(self._progressed.set)

    async def stream(self, writer: ConsoleEvents, dispatcher: Dispatcher, input: Any, context: Context) -> None:
        """Run the call and write its events."""
        began, outcome = time.perf_counter(), CANCELLED
        access = begin_access("console", operation=self._spec.id, identity=context.identity)
        self._writer = writer
        reporting = asyncio.create_task(self._report(writer))
        try:
            await writer.event("started", {"requestId": self.request_id})
            try:
                if self._spec.type is OperationType.SUBSCRIPTION:
                    async with contextlib.aclosing(dispatcher.subscribe(self._spec, input, context)) as items:
                        async for envelope in items:
                            self._items += 1
                            await writer.event("item", self._delivered(envelope, f"{self.request_id}-{self._items}"))
                            if self._items % _ITEMS_BETWEEN_YIELDS == 0:
                                await asyncio.sleep(0)
                    outcome = OK
                else:
                    envelope = await dispatcher.execute(self._spec, input, context)
                    await self._flush(writer)
                    await writer.event("result", self._delivered(envelope, self.request_id))
                    outcome = outcome_of(envelope, None)
            except CallError as error:
                outcome = error.code.value
                await self._flush(writer)
                await writer.event("error", error_data(error))
                if access is not None:
                    access.failed(error)
            ms = round((time.perf_counter() - began) * 1000, 3)
            items = self._items if self._spec.type is OperationType.SUBSCRIPTION else UNSET
            await writer.event("end", CallEnd(outcome, ms, items))
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting
            if access is not None:
                access.request_id, access.outcome, access.bytes = self.request_id, outcome, self._bytes
                access.write()

    def _delivered(self, envelope: ResponseEnvelope[Any], key: str) -> dict[str, Any]:
        """Return the data of an event with a result or item, or where to download it."""
        whole = encode_whole(envelope)
        self._bytes += len(whole)
        if len(whole) <= MAX_STREAMED_RESULT_BYTES:
            return {"envelope": Raw(whole), "bytes": len(whole)}
        response = encode_response(envelope, whole=False, is_error="return")
        self._calls.results.keep(key, self._owner, response)
        return {"download": f"results/{key}", "bytes": len(response.body)}

    async def _report(self, writer: ConsoleEvents) -> None:
        while True:
            await self._progressed.wait()
            await self._flush(writer)
            await asyncio.sleep(_PROGRESS_INTERVAL_SECONDS)

    async def _flush(self, writer: ConsoleEvents) -> None:
        """Write log messages and the latest progress that were not written yet."""
        self._progressed.clear()
        while self._logged:
            await writer.event("log", self._logged.popleft())
        latest, self._progress = self._progress, None
        if latest is not None:
            await writer.event("progress", latest)


class CallEnd(Struct, frozen=True):
    """The last event of a call."""

    outcome: str
    ms: float
    items: int | UnsetType = UNSET
