"""Calls that outlive their request: the extension `io.modelcontextprotocol/tasks` of revision 2026-07-28. No I/O.

A call of a client that declares the extension becomes a task if it takes longer than a while. Its result is then a
handle, and the client polls for its status, answers its questions, or cancels it, over any connection. A task belongs
to the identity that made the call; its id is random, so that anonymous clients cannot guess those of others.

Tasks are kept by the process that runs the call, and end with it: behind a load balancer, requests have to be routed by
the header `Mcp-Name`, which has the id of the task. Tasks of durable mutations are in `durable_tasks`.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from opwire.invoke import CLOSE_GRACE
from opwire.mcp.messages import INTERNAL_ERROR, INVALID_PARAMS, MISSING_CAPABILITY, RPCError
from opwire.operation import Identity
from opwire.questions import Question, unanswerable
from opwire.serve.mcp.questions import MAX_QUESTIONS, StatelessQuestions, can_answer
from opwire.typed.plain import as_dict, write_json

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

MAX_KEPT = 64 * 1024 * 1024
"""Bytes of the results that a surface keeps; above it, the oldest tasks that have ended are forgotten."""

MAX_KEPT_EACH = 16 * 1024 * 1024
"""Bytes of the results of one identity, and of all anonymous clients together."""

_encoder = msgspec.json.Encoder()
_POLL = 1_000  # milliseconds between two requests for the status
_STEP = 0.01  # seconds to wait for the end of a round of questions

Result = dict[str, Any]


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
        raise RPCError(MISSING_CAPABILITY, "Missing required client capability", data)


class CallTask:
    """A call that goes on without its request."""

    def __init__(self, owner: str | None, running: asyncio.Task[Result], capabilities: Mapping[str, Any]) -> None:
        self.id = secrets.token_urlsafe(24)
        self.owner = owner
        self.running = running
        self._capabilities = capabilities
        self._created = self._updated = time.time()
        self.size = 0  # bytes of the result
        self.expiry: asyncio.TimerHandle | None = None
        self._is_cancelled = False
        self._open: dict[str, tuple[Question, asyncio.Future[dict[str, Any]]]] = {}
        self._asked = 0

    @property
    def status(self) -> Literal["working", "input_required", "completed", "failed", "cancelled"]:
        """The status, as the protocol names it."""
        if not self.running.done():
            return "input_required" if self._open else "working"
        if self.running.cancelled() or self._is_cancelled:
            return "cancelled"
        return "completed" if self.running.exception() is None else "failed"

    def touch(self) -> None:
        """Set the time of the last change to now."""
        self._updated = time.time()

    async def ask(self, question: Question) -> dict[str, Any]:
        """Ask the client, which finds the question when it polls.

        Raises:
            CallError: ABORTED, the client has not declared the capability, or too many questions are open.
        """
        if not can_answer(self._capabilities, question) or len(self._open) >= MAX_QUESTIONS:
            raise unanswerable(question)
        self._asked += 1
        key = f"{question.key or question.kind}-{self._asked}"  # unique for the lifetime of the task
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[key] = (question, answered)
        self.touch()
        try:
            return await answered
        finally:
            del self._open[key]
            self.touch()

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Answer open questions; responses to others are ignored."""
        for key, response in responses.items():
            found = self._open.get(key)
            if found is not None and isinstance(response, dict) and not found[1].done():
                found[1].set_result(cast("dict[str, Any]", response))

    def forget(self) -> None:
        """Cancel the call, unless it has ended, and let go of its result."""
        self.cancel()
        if self.expiry is not None:
            self.expiry.cancel()

    def cancel(self) -> None:
        """Cancel the call, unless it has ended."""
        if not self.running.done():
            self._is_cancelled = True
            self.running.cancel()

    def seed(self) -> Result:
        """Return the fields of the task that every status has."""
        return task_fields(self.id, self.status, self._created, self._updated, TASK_LIFETIME)

    def details(self) -> Result:
        """Return the task with its questions, its result or its error."""
        found = self.seed()
        match found["status"]:
            case "input_required":
                asked = {key: {"method": each.method, "params": each.params} for key, (each, _) in self._open.items()}
                return {**found, "inputRequests": asked}
            case "completed":
                return {**found, "result": {"resultType": "complete", **self.running.result()}}
            case "failed":
                error = self.running.exception()
                if not isinstance(error, RPCError):
                    error = RPCError(INTERNAL_ERROR, "Internal server error")
                data = {} if error.data is None else {"data": error.data}
                return {**found, "error": {"code": error.code, "message": error.message, **data}}
            case _:
                return found


def task_fields(id: str, status: str, created: float, updated: float, lifetime: float) -> Result:
    """Return the fields of a task that every status has; times are epoch seconds."""
    times = (datetime.fromtimestamp(each, UTC).isoformat(timespec="milliseconds") for each in (created, updated))
    created_at, updated_at = (each.replace("+00:00", "Z") for each in times)
    return {
        "taskId": id,
        "status": status,
        "createdAt": created_at,
        "lastUpdatedAt": updated_at,
        "ttlMs": round(lifetime * 1000),
        "pollIntervalMs": _POLL,
    }


class CallTasks:
    """The tasks of a surface. `after` are the seconds after which a call becomes one; None: never."""

    def __init__(self, after: float | None) -> None:
        self.after = after
        self._tasks: dict[str, CallTask] = {}
        self._count: Counter[str | None] = Counter()

    async def run(
        self,
        work: Coroutine[Any, Any, Result],
        identity: Identity | None,
        capabilities: Mapping[str, Any],
        asked: Callable[[], StatelessQuestions | None],
        detach: Callable[[CallTask], None],
        *,
        stored: Callable[[], Awaitable[Result | None]] | None = None,
    ) -> Result:
        """Return the result of a call, or the handle of a task if it takes too long.

        `asked` returns the questions of the request itself, which end it; `detach` is called before it becomes a task.
        `stored` returns the handle of a task that is stored elsewhere, and not answered for by this process.
        """
        running = asyncio.ensure_future(work)
        owner = None if identity is None else identity.id
        try:
            await asyncio.wait((running,), timeout=self.after)
            while not running.done() and (round := asked()) is not None and round.is_asking:
                await asyncio.wait((running,), timeout=_STEP)
            handle = None if running.done() or stored is None else await stored()
            if not running.done() and handle is None and self._is_full(owner):
                await asyncio.wait((running,))
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait((running,), timeout=CLOSE_GRACE)
            raise
        if running.done():
            return running.result()
        task = CallTask(owner, running, capabilities if handle is None else {})
        detach(task)
        if handle is not None:
            if self._is_full(owner):
                task.cancel()
            else:  # it goes on for its interceptors, as long as there is room
                self._add(task)
                running.add_done_callback(lambda _: self._forget(task))
            return handle
        self._add(task)
        return {"resultType": "task", **task.seed()}

    def _is_full(self, owner: str | None) -> bool:
        return len(self._tasks) >= MAX_TASKS or self._count[owner] >= MAX_TASKS_EACH

    def _add(self, task: CallTask) -> None:
        def ended(running: asyncio.Task[Result]) -> None:
            task.touch()
            if not running.cancelled() and running.exception() is None:  # retrieved here: the client may never ask
                task.size = len(write_json(_encoder, running.result()))
                # Forget the oldest results of the owner, then of all, that exceed what is kept; never the newest.
                kept = [each for each in self._tasks.values() if each.size and each is not task]
                own = [each for each in kept if each.owner == task.owner]
                for limit, oldest_first in ((MAX_KEPT_EACH, own), (MAX_KEPT, kept)):
                    total = task.size + sum(each.size for each in oldest_first)
                    for each in oldest_first:
                        if total <= limit:
                            break
                        total -= each.size
                        each.size = 0
                        self._forget(each)

        self._tasks[task.id] = task
        self._count[task.owner] += 1
        task.running.add_done_callback(ended)
        task.expiry = asyncio.get_running_loop().call_later(TASK_LIFETIME, self._forget, task)

    def _forget(self, task: CallTask) -> None:
        task.forget()
        if self._tasks.pop(task.id, None) is not None:
            self._count[task.owner] -= 1

    def find(self, id: str, identity: Identity | None) -> CallTask:
        """Return a task of a caller.

        Raises:
            RPCError: INVALID_PARAMS, it is unknown, has expired, or belongs to another caller.
        """
        task = self._tasks.get(id)
        if task is None or task.owner != (None if identity is None else identity.id):
            raise RPCError(INVALID_PARAMS, "Unknown task: it may have expired")
        return task

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks, self._tasks = [*self._tasks.values()], {}
        self._count.clear()
        for task in tasks:
            task.forget()
        running = [task.running for task in tasks if not task.running.done()]
        if running:
            await asyncio.wait(running, timeout=CLOSE_GRACE)
