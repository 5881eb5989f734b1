"""Calls that outlive their request: the extension `io.modelcontextprotocol/tasks` of revision 2026-07-28. No I/O.

A call of a client that declares the extension becomes a task if it takes longer than a while. Its result is then a
handle, and the client polls for its status, answers its questions, or cancels it, over any connection. A task belongs
to the identity that made the call; its id is random, so that anonymous clients cannot guess those of others.

Tasks are kept by the process that runs the call, and end with it: behind a load balancer, requests have to be routed by
the header `Mcp-Name`, which has the id of the task. Those of durable mutations are stored in a journal, so that no
process has to survive. The id of such a task has everything that is needed to answer for it: the operation, the key in
the journal, a digest of the caller, and an expiry, signed with the `state_key`. Any server with the same key and
journal can therefore answer, and a server that was killed and started again. The worker that runs the mutation may be
any process.

A durable call becomes a task as any other, after a while, and goes on in the process that received it: interceptors
wait for the outcome. That is a courtesy to them. What a client reads is always the outcome in the journal.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.durable.calls import MAX_NAME_CHARACTERS, DurableCalls, cancellation, outcome_envelope
from opwire.durable.journal import Journal, check_seconds
from opwire.errors import CallError, ErrorCode, UsageError, check_list
from opwire.mcp.messages import ErrorObject, RPCCode, RPCError
from opwire.mcp.server.clients import (
    LARGE_INPUT,
    MAX_INPUTS,
    MAX_QUESTIONS,
    RequestStates,
    StatelessQuestions,
    answer_capabilities,
    can_answer,
    state_digest,
)
from opwire.mcp.server.tools import Result, ResultFormat, ToolCatalogue, error_result, result_of, rpc_error
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec, OperationType
from opwire.model.questions import Question, unanswerable
from opwire.protocol.outbox import memory_of
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import CLOSE_GRACE, failure
from opwire.runtime.bounded import SharedLimit, Tally
from opwire.runtime.deadlines import CALL_TIMEOUT, MAX_SECONDS
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict, write_json

logger = get_logger("opwire.mcp.server")

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

KEY_META = "opwire/idempotencyKey"
"""The key of a request's `_meta` with the idempotency key of the call: the same key and input is the same task."""

SUBMISSION = "opwire.submission"
"""The key of the `Submission` in the metadata of a context."""

LIFETIME = 86_400.0
"""Seconds after its creation in which a durable task can be read, by default."""

MAX_TASK_ID = 4096
"""Characters of the id of a durable task: most have 200, one of an operation with a long name up to 2,000."""

_PREFIX = "d."  # ids of other tasks have no dot
_PURPOSE = b"task\x00"  # a signature of a request state is not one of a task
_MAX_MARGIN = 1.0  # seconds before the timeout of the surface, to return an error with the key
_WORKING = "It is stored, and survives a restart of the server. It can be cancelled until a worker begins it."
_encoder = msgspec.json.Encoder()
_POLL = 1_000  # milliseconds between two requests for the status
_STEP = 0.01  # seconds to wait for the end of a round of questions


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


class CallTask:
    """A call that goes on without its request."""

    def __init__(self, owner: str | None, running: asyncio.Task[Result], capabilities: Mapping[str, Any]) -> None:
        self.id = secrets.token_urlsafe(24)
        self.owner = owner
        self.running = running
        self._capabilities = answer_capabilities(capabilities)
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
                return {**found, "error": ErrorObject.of(error if isinstance(error, RPCError) else RPCError.internal())}
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
        self._count: Tally[str | None] = Tally()
        self._inputs: SharedLimit[str | None] = SharedLimit(MAX_INPUTS, MAX_INPUTS // 2)

    async def run(
        self,
        work: Coroutine[Any, Any, Result],
        identity: Identity | None,
        capabilities: Mapping[str, Any],
        asked: Callable[[], StatelessQuestions | None],
        detach: Callable[[CallTask], None],
        *,
        stored: Callable[[], Awaitable[Result | None]] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Result:
        """Return the result of a call with these params, or the handle of a task if it takes too long.

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
            if not running.done() and handle is None and not self._admits(running, owner, params):
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
            if not self._admits(running, owner, params):
                task.cancel()
            else:  # it goes on for its interceptors, as long as there is room
                self._add(task)
                running.add_done_callback(lambda _: self._forget(task))
            return handle
        self._add(task)
        return {"resultType": "task", **task.seed()}

    def _admits(self, running: asyncio.Task[Result], owner: str | None, params: Mapping[str, Any] | None) -> bool:
        """Count the input of a call that goes on, until it has ended; return False if there is no room for the call."""
        if len(self._tasks) >= MAX_TASKS or self._count[owner] >= MAX_TASKS_EACH:
            return False
        size = memory_of(params)
        if size > LARGE_INPUT:
            if not self._inputs.take(owner, size):
                return False
            running.add_done_callback(lambda _: self._inputs.give_back(owner, size))
        return True

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
            self._count.subtract(task.owner)

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
        tasks, self._tasks = [*self._tasks.values()], {}
        self._count.clear()
        for task in tasks:
            task.forget()
        running = [task.running for task in tasks if not task.running.done()]
        if running:
            await asyncio.wait(running, timeout=CLOSE_GRACE)


# --- tasks of durable mutations ---------------------------------------------------------------------------------------


class DurableTasks:
    """The mutations with durable calls over MCP: each is submitted to a journal, which workers serve.

        async with RedisJournal(url, trusted=True) as journal:
            server = serve_mcp(registry, state_key=key, durable_tasks=DurableTasks(journal, ["shop.order"]))

    A `DurableWorker` of the same registry has to serve these `operations`, in this process or in others. It acts with
    the identity of the caller, so the journal is trusted, at both ends. The task of a call that takes longer than
    `task_after` can be read for `lifetime` seconds; the journal has to keep outcomes at least as long.

    Raises:
        UsageError: the journal is not trusted, or an option is invalid.
    """

    def __init__(self, journal: Journal, operations: Iterable[str], *, lifetime: float = LIFETIME) -> None:
        check_list("ids", operations=operations)
        if not journal.trusted:
            wrong = f"{journal.name} does not vouch for the identities of callers, and a worker would act with another"
            raise UsageError(f"{wrong}: pass trusted=True to the journal, here and at the worker")
        self.journal = journal
        self.operations = frozenset(operations)
        self.lifetime = check_seconds("lifetime", lifetime)

    def __repr__(self) -> str:
        return f"<DurableTasks of {', '.join(sorted(self.operations))} in {self.journal!r}>"


class Submission(Struct, eq=False):
    """One call of a durable mutation: its keys at the client and in the journal, and how long it is awaited."""

    operation_id: str
    owner: str
    client_key: str
    key: str
    until: float  # monotonic time
    call: tuple[Any, Context] | None = None  # input and context, once the interceptors have let it pass

    def own(self, error: CallError) -> CallError:
        """Return an error with the key of the client; a recorded error as it is."""
        if error.details != {"key": self.key}:
            return error
        message = error.message.replace(self.key, self.client_key)
        details = {"idempotencyKey": self.client_key}
        return CallError(error.code, message, details, retryable=error.retryable, retry_after=error.retry_after)


class TaskId(Struct, frozen=True, array_like=True):
    """What the id of a durable task says, once its signature is verified."""

    created: int  # epoch milliseconds
    expires: int  # epoch milliseconds
    owner: str
    operation_id: str
    key: str


class DurableTask(NamedTuple):
    """A durable task of a caller, found by its id."""

    id: str
    says: TaskId

    def fields(self, status: str, updated: int) -> Result:
        """Return the fields that every status has; `updated` is in epoch milliseconds."""
        created, expires = self.says.created / 1000, self.says.expires / 1000
        return task_fields(self.id, status, created, updated / 1000, expires - created)


class DurableTaskStore:
    """The durable tasks of a surface. Nothing is kept here: the ids are signed, and outcomes are in the journal.

    Raises:
        UsageError: the surface has no `state_key`, or an operation is not a mutation that it serves.
    """

    def __init__(
        self, options: DurableTasks, states: RequestStates, dispatcher: Dispatcher, catalogue: ToolCatalogue
    ) -> None:
        if not states.is_shared:
            raise UsageError("durable_tasks need a state_key: it signs their ids, for all servers and after a restart")
        self.operations = options.operations
        self._journal = options.journal
        self._lifetime = options.lifetime
        self._calls = DurableCalls(options.journal)
        self._states = states
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        for each in sorted(options.operations):
            spec = dispatcher.get_spec(each)
            if spec is None or spec.type is not OperationType.MUTATION or catalogue.tool_of(spec) is None:
                raise UsageError(f"only mutations that are served as tools can be durable tasks, unlike {each}")
            dispatcher.reroute(each, partial(self._run, each))

    # --- calls --------------------------------------------------------------------------------------------------------

    def submission(
        self, spec: OperationSpec, identity: Identity | None, meta: Mapping[str, Any], timeout: float | None
    ) -> Submission:
        """Return a call that is not submitted yet; `meta` is the `_meta` of its request.

        Raises:
            RPCError: INVALID_PARAMS, its idempotency key is invalid.
        """
        given = meta.get(KEY_META)
        if given is None:
            given = secrets.token_hex(16)
        if not isinstance(given, str) or not 0 < len(given) <= MAX_NAME_CHARACTERS:
            raise RPCError(
                RPCCode.INVALID_PARAMS, f"_meta {KEY_META} is a text of 1 to {MAX_NAME_CHARACTERS} characters"
            )
        owner = _owner(identity)
        # A digest: keys of one caller are unknown to others, however simple they are.
        key = f"mcp-{state_digest([owner, spec.id, given])}"
        seconds = MAX_SECONDS if timeout is None else timeout
        until = time.monotonic() + seconds - min(_MAX_MARGIN, seconds / 4)
        return Submission(spec.id, owner, given, key, until)

    async def _run(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Submit a call and wait for its outcome: in place of the handler, within the interceptors of the surface."""
        spec = self._dispatcher.find(operation_id, context.identity)  # an interceptor may have changed the identity
        submission = context.metadata.get(SUBMISSION)
        if not isinstance(submission, Submission):  # an interceptor has made a context of its own
            submission = self.submission(spec, context.identity, {}, CALL_TIMEOUT)
        self._dispatcher.registry.check_input(operation_id, input, context)
        if spec.timeout is not None:  # that of each attempt, which the worker enforces
            context = replace(context, deadline=None)
        submission.call = (input, context)
        wait = max(0.001, submission.until - time.monotonic())
        try:
            return await self._calls.call(operation_id, input, context=context, key=submission.key, timeout=wait)
        except CallError as error:
            raise submission.own(error) from error

    async def handle(self, submission: Submission) -> Result | None:
        """Return the task of a call that has no outcome yet; None if it is not stored in the journal."""
        if submission.call is None:
            return None
        input, context = submission.call
        try:  # a second time, which stores nothing: the first one returns with the outcome
            await self._calls.submit(submission.operation_id, input, context=context, key=submission.key)
        except CallError as error:
            logger.warning("a call of %s does not become a task: %s", submission.operation_id, error)
            return None
        now = round(self._states.clock() * 1000)
        expires = now + round(self._lifetime * 1000)
        task = TaskId(now, expires, submission.owner, submission.operation_id, submission.key)
        id = _PREFIX + self._states.seal(_encoder.encode(task), _PURPOSE)
        return {"resultType": "task", **DurableTask(id, task).fields("working", now)}

    # --- tasks --------------------------------------------------------------------------------------------------------

    def find(self, id: str, identity: Identity | None) -> DurableTask | None:
        """Return a durable task of a caller; None if it is unknown, forged, has expired, or belongs to another caller.

        So is one of an operation that the caller may not call any more.
        """
        if not id.startswith(_PREFIX) or len(id) > MAX_TASK_ID:
            return None
        body = self._states.unseal(id.removeprefix(_PREFIX), _PURPOSE)
        task = None if body is None else msgspec.json.decode(body, type=TaskId)
        if task is None or task.owner != _owner(identity) or task.expires < self._states.clock() * 1000:
            return None
        try:
            self._dispatcher.find(task.operation_id, identity)
        except CallError:
            return None
        return DurableTask(id, task)

    async def details(self, task: DurableTask, format: ResultFormat) -> Result:
        """Return a task with its result or its error.

        Raises:
            RPCError: the journal is not available.
        """
        try:
            outcome = await self._journal.outcome(task.says.key)
        except CallError as error:
            raise rpc_error(error) from error
        if outcome is None:
            return {**task.fields("working", task.says.created), "statusMessage": _WORKING}
        if outcome.cancelled:
            return task.fields("cancelled", outcome.recorded)
        if outcome.dead_letter:
            cause = CallError(ErrorCode.PROTOCOL_ERROR, f"the recorded error of {outcome.operation_id} is not one")
            try:
                outcome_envelope(outcome)
            except CallError as recorded:
                cause = recorded
            return {**task.fields("failed", outcome.recorded), "error": ErrorObject.of(rpc_error(cause))}
        spec = self._dispatcher.get_spec(outcome.operation_id)
        tool = None if spec is None else self._catalogue.tool_of(spec)
        if tool is None:  # unregistered since `find`
            raise RPCError(RPCCode.INVALID_PARAMS, "Unknown task: its tool is not served any more")
        try:
            result = result_of(outcome_envelope(outcome), tool, format)
        except Exception as raised:
            result = error_result(failure(raised, outcome.operation_id), tool, format)
        completed = {"resultType": "complete", **result}
        return {**task.fields("completed", outcome.recorded), "result": completed}

    async def cancel(self, task: DurableTask) -> None:
        """Cancel a task, unless a worker has begun it: then it goes on.

        Raises:
            RPCError: the journal is not available.
        """
        try:
            await self._journal.cancel(cancellation(task.says.operation_id, task.says.key))
        except CallError as error:
            raise rpc_error(error) from error


def _owner(identity: Identity | None) -> str:
    return state_digest([None if identity is None else identity.id])
