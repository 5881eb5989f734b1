"""Tasks of durable mutations: they are stored in a journal, so that no process has to survive.

The id of such a task has everything that is needed to answer for it: the operation, the key in the journal, a digest of
the caller, and an expiry, signed with the `state_key`. Any server with the same key and journal can therefore answer,
and a server that was killed and started again. The worker that runs the mutation may be any process.

A durable call becomes a task as any other, after a while, and goes on in the process that received it: interceptors
wait for the outcome. That is a courtesy to them. What a client reads is always the outcome in the journal.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.durable.calls import MAX_NAME_CHARACTERS, DurableCalls, cancellation, outcome_envelope
from opwire.durable.journal import Journal, Outcome, check_seconds
from opwire.errors import CallError, ErrorCode, UsageError, check_list
from opwire.mcp.messages import ErrorObject, RPCCode, RPCError
from opwire.mcp.server.clients import RequestStates, state_digest
from opwire.mcp.server.tasks import task_fields
from opwire.mcp.server.tools import Result, ResultFormat, Tool, ToolCatalogue, error_result, result_of, rpc_error
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec, OperationType
from opwire.registry.dispatch import Dispatcher
from opwire.registry.invoke import failure
from opwire.runtime.deadlines import CALL_TIMEOUT, MAX_SECONDS
from opwire.runtime.text import get_logger

logger = get_logger("opwire.mcp.server")

KEY_META = "opwire/idempotencyKey"
"""The key of a request's `_meta` with the idempotency key of the call: the same key and input is the same task."""

SUBMISSION = "opwire.submission"
"""The key of the `Submission` in the metadata of a context."""

DURABLE_TASK_LIFETIME = 86_400.0
"""Seconds after its creation in which a durable task can be read, by default."""

MAX_TASK_ID_LENGTH = 4096
"""Characters of the id of a durable task: most have 200, one of an operation with a long name up to 2,000."""

_ID_PREFIX = "d."  # ids of other tasks have no dot
_PURPOSE = b"task\x00"  # a signature of a request state is not one of a task
_MAX_TIMEOUT_MARGIN = 1.0  # seconds before the timeout of the surface, to return an error with the key
_WORKING = "It is stored, and survives a restart of the server. It can be cancelled until a worker begins it."
_encoder = msgspec.json.Encoder()


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

    def __init__(self, journal: Journal, operations: Iterable[str], *, lifetime: float = DURABLE_TASK_LIFETIME) -> None:
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

    def restore_key(self, error: CallError) -> CallError:
        """Return an error with the key of the client; a recorded error as it is."""
        if error.details != {"key": self.key}:
            return error
        message = error.message.replace(self.key, self.client_key)
        details = {"idempotencyKey": self.client_key}
        return CallError(error.code, message, details, retryable=error.retryable, retry_after=error.retry_after)


class TaskClaims(Struct, frozen=True, array_like=True):
    """What the id of a durable task says about it; the signature of the id is verified."""

    created: int  # epoch milliseconds
    expires: int  # epoch milliseconds
    owner: str
    operation_id: str
    key: str

    def fields(self, id: str, status: str, updated: int) -> Result:
        """Return the fields that every status has; `updated` is in epoch milliseconds."""
        created, expires = self.created / 1000, self.expires / 1000
        return task_fields(id, status, created, updated / 1000, expires - created)


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
        for operation_id in sorted(options.operations):
            spec = dispatcher.get_spec(operation_id)
            if spec is None or spec.type is not OperationType.MUTATION or catalogue.tool_of(spec) is None:
                raise UsageError(f"only mutations that are served as tools can be durable tasks, unlike {operation_id}")
            dispatcher.reroute(operation_id, partial(self._run, operation_id))

    def submission(
        self, spec: OperationSpec, identity: Identity | None, meta: Mapping[str, Any], timeout: float | None
    ) -> Submission:
        """Return a call that is not submitted yet; `meta` is the `_meta` of its request.

        Raises:
            RPCError: INVALID_PARAMS, its idempotency key is invalid.
        """
        client_key = meta.get(KEY_META)
        if client_key is None:
            client_key = secrets.token_hex(16)
        if not isinstance(client_key, str) or not 0 < len(client_key) <= MAX_NAME_CHARACTERS:
            raise RPCError(
                RPCCode.INVALID_PARAMS, f"_meta {KEY_META} is a text of 1 to {MAX_NAME_CHARACTERS} characters"
            )
        owner = _owner_digest(identity)
        # A digest: keys of one caller are unknown to others, however simple they are.
        key = f"mcp-{state_digest([owner, spec.id, client_key])}"
        seconds = MAX_SECONDS if timeout is None else timeout
        until = time.monotonic() + seconds - min(_MAX_TIMEOUT_MARGIN, seconds / 4)
        return Submission(spec.id, owner, client_key, key, until)

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
            raise submission.restore_key(error) from error

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
        claims = TaskClaims(now, expires, submission.owner, submission.operation_id, submission.key)
        id = _ID_PREFIX + self._states.seal(_encoder.encode(claims), _PURPOSE)
        return {"resultType": "task", **claims.fields(id, "working", now)}

    def find(self, id: str, identity: Identity | None, format: ResultFormat) -> "DurableTask | None":
        """Return a durable task of a caller; None if it is unknown, forged, has expired, or belongs to another caller.

        So is one of an operation that the caller may not call any more. `format` is that of its result.
        """
        if not id.startswith(_ID_PREFIX) or len(id) > MAX_TASK_ID_LENGTH:
            return None
        body = self._states.unseal(id.removeprefix(_ID_PREFIX), _PURPOSE)
        claims = None if body is None else msgspec.json.decode(body, type=TaskClaims)
        if claims is None or claims.owner != _owner_digest(identity) or claims.expires < self._states.clock() * 1000:
            return None
        try:
            spec = self._dispatcher.find(claims.operation_id, identity)
        except CallError:
            return None
        return DurableTask(id, claims, self._journal, self._catalogue.tool_of(spec), format)


class DurableTask(NamedTuple):
    """A durable task of a caller: its state is in the journal."""

    id: str
    claims: TaskClaims
    journal: Journal
    tool: Tool | None  # None: it is not served any more
    format: ResultFormat

    async def details(self) -> Result:
        """Return the task with its result or its error.

        Raises:
            RPCError: the journal is not available.
        """
        try:
            outcome = await self.journal.outcome(self.claims.key)
        except CallError as error:
            raise rpc_error(error) from error
        if outcome is None:
            return {**self.claims.fields(self.id, "working", self.claims.created), "statusMessage": _WORKING}
        if outcome.cancelled:
            return self.claims.fields(self.id, "cancelled", outcome.recorded)
        if outcome.dead_letter:
            fields = self.claims.fields(self.id, "failed", outcome.recorded)
            return {**fields, "error": ErrorObject.of(rpc_error(_recorded_error(outcome)))}
        if self.tool is None:
            raise RPCError(RPCCode.INVALID_PARAMS, "Unknown task: its tool is not served any more")
        try:
            result = result_of(outcome_envelope(outcome), self.tool, self.format)
        except Exception as raised:
            result = error_result(failure(raised, outcome.operation_id), self.tool, self.format)
        fields = self.claims.fields(self.id, "completed", outcome.recorded)
        return {**fields, "result": {"resultType": "complete", **result}}

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Ignore responses: a task in the journal asks nothing."""

    async def cancel(self) -> None:
        """Cancel the task, unless a worker has begun it: then it goes on.

        Raises:
            RPCError: the journal is not available.
        """
        try:
            await self.journal.cancel(cancellation(self.claims.operation_id, self.claims.key))
        except CallError as error:
            raise rpc_error(error) from error


def _recorded_error(outcome: Outcome) -> CallError:
    try:
        outcome_envelope(outcome)
    except CallError as recorded:
        return recorded
    return CallError(ErrorCode.PROTOCOL_ERROR, f"the recorded error of {outcome.operation_id} is not one")


def _owner_digest(identity: Identity | None) -> str:
    return state_digest([None if identity is None else identity.id])
