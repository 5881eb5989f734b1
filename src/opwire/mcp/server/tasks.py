"""Calls that outlive their request: the extension `io.modelcontextprotocol/tasks` of revision 2026-07-28. No I/O.

A call of a client that declares the extension becomes a task if it takes longer than a while. Its result is then a
handle, and the client polls for its status, answers its questions, or cancels it, over any connection. A task belongs
to the identity that made the call; its id is random, so that anonymous clients cannot guess those of others.

Tasks are kept by the process that runs the call, and end with it: behind a load balancer, requests have to be routed by
the header `Mcp-Name`, which has the id of the task. Those of `durable_tasks` do not need the process.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast

import msgspec

from opwire.mcp.messages import ErrorObject, RPCCode, RPCError
from opwire.mcp.server.clients import (
    LARGE_INPUT,
    MAX_INPUTS,
    MAX_QUESTIONS,
    StatelessQuestions,
    answer_capabilities,
    can_answer,
)
from opwire.mcp.server.tools import Result
from opwire.model.identity import Identity
from opwire.model.questions import Question, unanswerable
from opwire.registry.invoke import CLOSE_GRACE
from opwire.runtime.bounded import SharedLimit
from opwire.typed.plain import as_dict, memory_of, write_json

TASKS = "io.modelcontextprotocol/tasks"
"""The name of the extension."""

TASK_AFTER = 10.0
"""Seconds after which a call becomes a task, by default."""

TASK_LIFETIME = 3_600.0
"""Seconds after its creation in which a task can be read; then it is cancelled and forgotten."""

MAX_TASKS = 1_000
"""Tasks of a surface; further calls do not become tasks, and their clients wait."""

MAX_TASKS_EACH = 100
"""Tasks of one identity, and of all anonymous clients together."""

MAX_RESULT_BYTES = 64 * 1024 * 1024
"""Bytes of the results that a surface keeps; above it, the oldest tasks that have ended are forgotten."""

MAX_RESULT_BYTES_EACH = 16 * 1024 * 1024
"""Bytes of the results of one identity, and of all anonymous clients together."""

_POLL_INTERVAL_MS = 1_000
_QUESTION_ROUND_STEP = 0.01  # seconds
_encoder = msgspec.json.Encoder()


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a client has declared the extension."""
    return isinstance(as_dict(capabilities.get("extensions")).get(TASKS), dict)


def check_declared(capabilities: Mapping[str, Any]) -> None:
    """Reject a request of a client that has not declared the extension.

    Raises:
        RPCError: MISSING_CAPABILITY.
    """
    if not declares_tasks(capabilities):
        data: Result = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise RPCError(RPCCode.MISSING_CAPABILITY, "Missing required client capability", data)


def task_fields(id: str, status: str, created: float, updated: float, lifetime: float) -> Result:
    """Return the fields of a task that every status has; times are epoch seconds."""
    return {
        "taskId": id,
        "status": status,
        "createdAt": _timestamp(created),
        "lastUpdatedAt": _timestamp(updated),
        "ttlMs": round(lifetime * 1000),
        "pollIntervalMs": _POLL_INTERVAL_MS,
    }


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- one task ---------------------------------------------------------------------------------------------------------


class OpenQuestion(NamedTuple):
    """A question that a client finds when it polls."""

    question: Question
    answer: asyncio.Future[dict[str, Any]]


class CallTask:
    """A call that goes on without its request."""

    def __init__(self, owner: str | None, call: asyncio.Task[Result], capabilities: Mapping[str, Any]) -> None:
        self.id = secrets.token_urlsafe(24)
        self.owner = owner
        self.call = call
        self.result_bytes = 0
        self.expiry: asyncio.TimerHandle | None = None
        self._capabilities = answer_capabilities(capabilities)
        self._created = self._updated = time.time()
        self._is_cancelled = False
        self._open_questions: dict[str, OpenQuestion] = {}
        self._question_count = 0

    @property
    def status(self) -> Literal["working", "input_required", "completed", "failed", "cancelled"]:
        """The status, as the protocol names it."""
        if not self.call.done():
            return "input_required" if self._open_questions else "working"
        if self.call.cancelled() or self._is_cancelled:
            return "cancelled"
        return "completed" if self.call.exception() is None else "failed"

    def fields(self) -> Result:
        """Return the fields of the task that every status has."""
        return task_fields(self.id, self.status, self._created, self._updated, TASK_LIFETIME)

    async def details(self) -> Result:
        """Return the task with its questions, its result or its error."""
        fields = self.fields()
        match fields["status"]:
            case "input_required":
                questions = {key: entry.question for key, entry in self._open_questions.items()}
                return {**fields, "inputRequests": {key: _as_request(question) for key, question in questions.items()}}
            case "completed":
                return {**fields, "result": {"resultType": "complete", **self.call.result()}}
            case "failed":
                error = self.call.exception()
                return {
                    **fields,
                    "error": ErrorObject.of(error if isinstance(error, RPCError) else RPCError.internal()),
                }
            case _:
                return fields

    async def ask(self, question: Question) -> dict[str, Any]:
        """Ask the client, which finds the question when it polls.

        Raises:
            CallError: ABORTED, the client has not declared the capability, or too many questions are open.
        """
        if not can_answer(self._capabilities, question) or len(self._open_questions) >= MAX_QUESTIONS:
            raise unanswerable(question)
        self._question_count += 1
        key = f"{question.key or question.kind}-{self._question_count}"  # unique for the lifetime of the task
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open_questions[key] = OpenQuestion(question, answer)
        self.touch()
        try:
            return await answer
        finally:
            del self._open_questions[key]
            self.touch()

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Answer open questions; responses to others are ignored."""
        for key, response in responses.items():
            entry = self._open_questions.get(key)
            if entry is not None and isinstance(response, dict) and not entry.answer.done():
                entry.answer.set_result(cast("dict[str, Any]", response))

    async def cancel(self) -> None:
        """Cancel the call, unless it has ended."""
        self.stop()

    def stop(self) -> None:
        """Cancel the call now, unless it has ended."""
        if not self.call.done():
            self._is_cancelled = True
            self.call.cancel()

    def touch(self) -> None:
        """Set the time of the last change to now."""
        self._updated = time.time()


def _as_request(question: Question) -> Result:
    return {"method": question.method, "params": question.params}


# --- all tasks --------------------------------------------------------------------------------------------------------


async def _not_stored() -> Result | None:
    return None


class TaskRequest(NamedTuple):
    """The request of a call that may become a task.

    `questions` returns those of the request itself, which end it. `detach` is called before the call becomes a task.
    `store` returns the handle of a task that is stored elsewhere, and not answered for by this process.
    """

    identity: Identity | None
    capabilities: Mapping[str, Any]
    params: Mapping[str, Any] | None = None
    questions: Callable[[], StatelessQuestions | None] = lambda: None
    detach: Callable[[CallTask], None] = lambda task: None
    store: Callable[[], Awaitable[Result | None]] = _not_stored

    @property
    def owner(self) -> str | None:
        """The id of the caller; None: it is anonymous."""
        return None if self.identity is None else self.identity.id


class CallTasks:
    """The tasks of a surface. `after` are the seconds after which a call becomes one; None: never."""

    def __init__(self, after: float | None) -> None:
        self.after = after
        self._tasks: dict[str, CallTask] = {}  # the oldest first
        self._places: SharedLimit[str | None] = SharedLimit(MAX_TASKS, MAX_TASKS_EACH)
        self._input_bytes: SharedLimit[str | None] = SharedLimit(MAX_INPUTS, MAX_INPUTS // 2)

    async def run(self, work: Coroutine[Any, Any, Result], request: TaskRequest) -> Result:
        """Return the result of a call, or the handle of a task if it takes too long."""
        call = asyncio.ensure_future(work)
        try:
            await self._wait(call, request)
            if call.done():
                return call.result()
            handle = await request.store()
            task = CallTask(request.owner, call, request.capabilities if handle is None else {})
            is_kept = not call.done() and self._add(task, request.params)
            if not is_kept and handle is None:  # there is no room for it: the client waits
                await asyncio.wait((call,))
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait((call,), timeout=CLOSE_GRACE)
            raise
        if call.done():
            return call.result()
        request.detach(task)
        if handle is None:
            return {"resultType": "task", **task.fields()}
        if is_kept:  # it goes on for its interceptors, and is not answered for
            call.add_done_callback(lambda _: self._forget(task))
        else:
            task.stop()
        return handle

    async def _wait(self, call: asyncio.Task[Result], request: TaskRequest) -> None:
        """Wait until a call has ended, or takes too long; while its request asks questions, it is no task."""
        await asyncio.wait((call,), timeout=self.after)
        while not call.done() and (questions := request.questions()) is not None and questions.is_asking:
            await asyncio.wait((call,), timeout=_QUESTION_ROUND_STEP)

    def _add(self, task: CallTask, params: Mapping[str, Any] | None) -> bool:
        """Keep a task; return False if there is no room for it, or for the input of its call."""
        owner, input_bytes = task.owner, memory_of(params)
        is_large = input_bytes > LARGE_INPUT
        if not self._places.take(owner, 1):
            return False
        if is_large and not self._input_bytes.take(owner, input_bytes):
            self._places.give_back(owner, 1)
            return False
        self._tasks[task.id] = task
        task.expiry = asyncio.get_running_loop().call_later(TASK_LIFETIME, self._forget, task)
        if is_large:
            task.call.add_done_callback(lambda _: self._input_bytes.give_back(owner, input_bytes))
        task.call.add_done_callback(lambda _: self._end(task))
        return True

    def _end(self, task: CallTask) -> None:
        """Keep the result of a call that has ended; the oldest results make room for it."""
        task.touch()
        if task.call.cancelled() or task.call.exception() is not None:  # retrieved here: the client may never ask
            return
        task.result_bytes = len(write_json(_encoder, task.call.result()))
        of_owner = [other for other in self._tasks.values() if other.owner == task.owner]
        self._make_room(task, of_owner, MAX_RESULT_BYTES_EACH)
        self._make_room(task, [*self._tasks.values()], MAX_RESULT_BYTES)

    def _make_room(self, newest: CallTask, tasks: list[CallTask], max_bytes: int) -> None:
        """Forget the oldest results until the others fit; the newest stays, however large it is."""
        total = sum(task.result_bytes for task in tasks)
        for task in tasks:
            if total > max_bytes and task.result_bytes and task is not newest:
                total -= task.result_bytes
                self._forget(task)

    def _forget(self, task: CallTask) -> None:
        """Cancel a call, unless it has ended, and let go of its result."""
        task.stop()
        if task.expiry is not None:
            task.expiry.cancel()
        if self._tasks.pop(task.id, None) is not None:
            self._places.give_back(task.owner, 1)

    def find(self, id: str, identity: Identity | None) -> CallTask:
        """Return a task of a caller.

        Raises:
            RPCError: INVALID_PARAMS, it is unknown, has expired, or belongs to another caller.
        """
        task = self._tasks.get(id)
        if task is None or task.owner != (None if identity is None else identity.id):
            raise RPCError(RPCCode.INVALID_PARAMS, "Unknown task: it may have expired")
        return task

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            self._forget(task)
        running = [task.call for task in tasks if not task.call.done()]
        if running:
            await asyncio.wait(running, timeout=CLOSE_GRACE)
