"""Progress and questions of calls: the callbacks of a caller, and what a served request sends to its own."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from opwire.errors import CallError
from opwire.model.context import Progress
from opwire.model.questions import (
    METHODS,
    QUESTION_TIMEOUT,
    Question,
    QuestionCallback,
    QuestionKind,
    ask,
    unanswerable,
)
from opwire.protocol.call_table import CallTable
from opwire.protocol.events import CallAnswer, CallEvent, CallProgress, CallQuestion
from opwire.protocol.transport import Address
from opwire.runtime.tasks import resolve, spawn
from opwire.runtime.text import get_logger

logger = get_logger("opwire.protocol")

T = TypeVar("T")

MAX_QUESTIONS = 100
"""Questions of one call that are not answered; those above are rejected."""

_PROGRESS_INTERVAL = 0.1  # seconds between two progress reports of a call

MAX_REASON = 500
"""Characters of the reason for which a question is not answered."""


def _run_callback(what: str, callback: Callable[[T], object], value: T) -> None:
    try:
        callback(value)
    except Exception:
        logger.exception("%s failed on %s", what, type(value).__name__)


class CallerCallbacks:
    """Pass progress and questions of open calls to their callers. `send` sends an event, if that is possible."""

    def __init__(self, table: CallTable[Any], send: Callable[[CallEvent, Address], object]) -> None:
        self._table = table
        self._send = send
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}  # that answer questions, by request id

    def received(self, event: CallProgress | CallQuestion, sender: Address) -> None:
        """Handle an event that does not change its call."""
        if isinstance(event, CallQuestion):
            on_question = self._table.questioned(event, sender)
            if on_question is not None:
                self._start(event, sender, on_question)
            return
        on_progress = self._table.progressed(event, sender)
        progress = Progress(event.progress, event.total, event.message).bounded()
        if on_progress is not None and progress is not None:
            _run_callback("a progress callback", on_progress, progress)

    def _start(self, event: CallQuestion, server: Address, callback: QuestionCallback) -> None:
        """Ask the caller, and send its answer to the server."""
        tasks = self._tasks.setdefault(event.request_id, set())
        if len(tasks) >= MAX_QUESTIONS or event.kind not in METHODS:
            self._send(CallAnswer(request_id=event.request_id, id=event.id, error="it is not answered here"), server)
            return
        spawn(self._answer(event, server, callback), tasks)

    def cancel(self, request_id: str) -> None:
        """Cancel the questions of a call that has ended."""
        for task in self._tasks.pop(request_id, ()):
            task.cancel()

    async def _answer(self, event: CallQuestion, server: Address, callback: QuestionCallback) -> None:
        question = Question(cast("QuestionKind", event.kind), event.params, event.key or "")
        try:
            answer, error = await ask(question, callback, QUESTION_TIMEOUT), None
        except CallError as failed:
            answer, error = None, failed.message[:MAX_REASON]
        except Exception:
            logger.exception("the callback for questions failed")
            answer, error = None, "the callback for questions failed"
        reply = CallAnswer(request_id=event.request_id, id=event.id, answer=answer, error=error)
        if self._send(reply, server) is False:  # it has no JSON form, or is too large
            reply = CallAnswer(request_id=event.request_id, id=event.id, error="the answer cannot be sent")
            self._send(reply, server)


class RemoteCaller:
    """The caller of a served request that accepts questions. `send` returns False if one cannot be sent."""

    def __init__(self, request_id: str, send: Callable[[CallQuestion], bool]) -> None:
        self._request_id = request_id
        self._send = send
        self._last = 0
        self._open: dict[int, asyncio.Future[CallAnswer]] = {}

    async def __call__(self, question: Question) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            CallError: ABORTED, it cannot be sent, or is not answered.
        """
        self._last += 1
        number, answered = self._last, asyncio.get_running_loop().create_future()
        question_event = CallQuestion(
            request_id=self._request_id, id=number, kind=question.kind, params=question.params, key=question.key or None
        )
        if len(self._open) >= MAX_QUESTIONS or not self._send(question_event):
            raise unanswerable(question, "which cannot be sent to its caller")
        self._open[number] = answered
        try:
            event = await answered
        finally:
            del self._open[number]
        if event.answer is None:
            raise unanswerable(question, f"which its caller does not answer: {(event.error or '')[:MAX_REASON]}")
        return event.answer

    def answered(self, event: CallAnswer) -> None:
        """Resolve a question; unknown and repeated answers are ignored."""
        if (waiting := self._open.get(event.id)) is not None:
            resolve(waiting, event)


class ProgressSender:
    """Sends the progress of a handler, at most every `_PROGRESS_INTERVAL`; a newer report replaces a waiting one."""

    def __init__(self, send: Callable[[Progress], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        self._scheduled = False
        self._next = 0.0  # loop time from which a report may be sent
        self.closed = False  # the call has ended; a thread may go on, and another caller may use the request id

    def __call__(self, progress: Progress) -> None:
        """Queue a report, from any thread."""
        self._latest = progress
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        now = self._loop.time()
        if now < self._next:
            self._loop.call_at(self._next, self._wake)
            return
        self._next = now + _PROGRESS_INTERVAL
        self._scheduled = False  # before `_latest` is read: a thread sets them in the other order
        self.flush()

    def flush(self) -> None:
        """Send the waiting report, if any."""
        latest, self._latest = self._latest, None
        if latest is not None and not self.closed:
            self._send(latest)
