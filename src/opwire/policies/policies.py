"""Audit log, approval, limits, circuit breaker and budgets."""

import asyncio
import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from math import ceil
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, Unpack, cast
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import (
    CallError,
    ErrorCode,
    UsageError,
    check_above_zero,
    check_counts,
    check_keywords,
    check_not_below_zero,
)
from opwire.model.context import REQUEST_STATE, Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import Handler, OperationSpec, OperationType
from opwire.names import limit_text
from opwire.observe.logs import masked
from opwire.registry.view import Pattern, Selection
from opwire.runtime.bounded import BoundedDict, SharedLimit
from opwire.runtime.limits import TokenBucket
from opwire.runtime.text import get_logger, harmless
from opwire.typed.plain import replace_surrogates, survey, to_plain, write_json

logger = get_logger("opwire.policies")

T = TypeVar("T")

Key = Literal["identity", "operation", "namespace"]
"""What calls are counted by."""

_MAX_KEYS = 10_000  # identities or operations with a count; the least recently used ones are dropped
_MAX_VALUES = 16 * 1024  # bytes of an input in an audit log
_MAX_SHOWN = 2_000  # characters of an input that a person is asked about
_CLOCK_ERROR = 0.05  # seconds between the clock of timeouts and that of the day
_PATIENCE = 30.0  # seconds, the timeout of a `Client`: a caller that waits for less says nothing of the service
_FAULTS = frozenset({ErrorCode.PROTOCOL_ERROR, ErrorCode.INTERNAL})  # of a service, though they are not retryable
_encoder = msgspec.json.Encoder(enc_hook=repr)


class PolicyOptions(TypedDict, total=False):
    """Patterns of the operations that a policy applies to, as those of a view; all by default."""

    include: Iterable[Pattern]
    exclude: Iterable[Pattern]


class PolicyCall(Struct, frozen=True):
    """A call inside a policy: the context of its handler, and what is called with each of its results."""

    context: Context
    on_result: Callable[[ResponseEnvelope[Any]], object] | None = None


class Policy(ABC):
    """An interceptor that does something before and after each call, or around a whole subscription."""

    _summary = ""  # of the options, for the repr

    def __init__(self, **options: Unpack[PolicyOptions]) -> None:
        check_keywords(self, options, PolicyOptions)
        self._selection = Selection(options.get("include", ()), options.get("exclude", ()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self._summary}{self._selection}>"

    def __call__(self, spec: OperationSpec, handler: Handler) -> Handler:
        """Return the handler with this policy around it."""
        if not self._selection.selects(spec):
            return handler

        async def call(input: Any, context: Context) -> Any:
            async with self._around(spec, input, context) as inner:
                envelope = await cast("Awaitable[Any]", handler(input, inner.context))
                if inner.on_result is not None:
                    inner.on_result(envelope)
                return envelope

        async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
            async with (
                self._around(spec, input, context) as inner,
                aclosing(cast("AsyncGenerator[Any]", handler(input, inner.context))) as envelopes,
            ):
                async for envelope in envelopes:
                    if inner.on_result is not None:
                        inner.on_result(envelope)
                    yield envelope

        return stream if spec.type is OperationType.SUBSCRIPTION else call

    @abstractmethod
    def _around(self, spec: OperationSpec, input: Any, context: Context) -> AbstractAsyncContextManager[PolicyCall]:
        """Return the context manager of a call."""


class _ByKey(Generic[T]):
    """Values by key, the least recently used ones dropped."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._values: BoundedDict[tuple[str, ...], T] = BoundedDict(_MAX_KEYS)

    def __getitem__(self, key: tuple[str, ...]) -> T:
        value = self._values[key] = self._values.pop(key, None) or self._create()
        return value


def _key(by: tuple[Key, ...], spec: OperationSpec, context: Context) -> tuple[str, ...]:
    parts = {
        "identity": "" if context.identity is None else context.identity.id,
        "operation": spec.id,
        "namespace": spec.namespace,
    }
    return tuple(parts[each] for each in by)


def _checked_by(by: Iterable[Key]) -> tuple[Key, ...]:
    known = ("identity", "operation", "namespace")
    given = (by,) if isinstance(by, str) else tuple(by)
    for each in given:
        if each not in known:
            raise UsageError(f"by is some of {', '.join(known)}; {each!r} is none of them")
    return cast("tuple[Key, ...]", given)


# --- audit ------------------------------------------------------------------------------------------------------------


class AuditLog(Policy):
    """Write a line of JSON for each call: time, caller, operation, request id, outcome, duration and sizes in bytes.

    `target` is the path of a file, which is created for its owner alone, or a function that takes each line. With
    `values`, lines have the input, with the values of secret names (`password`, `token`, … and those in `redact`)
    replaced by "***". A subscription has one line, with the number of its items. `include` and `exclude` select
    operations. A call that succeeded but cannot be recorded, as on a full disk, fails with EXECUTION_ERROR.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Callable[[bytes], object],
        *,
        values: bool = False,
        redact: Iterable[str] = (),
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(**options)
        self._values = values
        self._redacted = frozenset(name.lower() for name in redact)
        self._write = target if callable(target) else partial(_append, Path(target))
        if not callable(target):
            _append(Path(target), b"")  # fails now rather than at the first call
            self._summary = f": {os.fspath(target)}"

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        start = time.perf_counter()
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "identity": None if context.identity is None else context.identity.id,
            "operation": spec.id,
            "requestId": context.request_id,
            "parentRequestId": context.parent_request_id,
            "outcome": "OK",
            "ms": 0.0,
            "inputBytes": _size(input),
            "outputBytes": 0,
        }
        if self._values:
            if (line["inputBytes"] or 0) > _MAX_VALUES:
                line["input"] = "(too long)"
            elif _encoded_plain(input) is None:  # which must not prevent the line
                line["input"] = "(no JSON form)"
            else:
                line["input"] = masked(to_plain(input), self._redacted)
        if spec.type is OperationType.SUBSCRIPTION:
            line["items"] = 0

        def count(envelope: ResponseEnvelope[Any]) -> None:
            line["outputBytes"] += _size(envelope.data) or 0
            if "items" in line:
                line["items"] += 1

        try:
            yield PolicyCall(context, count)
        except BaseException as error:
            line["outcome"] = error.code.value if isinstance(error, CallError) else "CANCELLED"
            raise
        finally:
            line["ms"] = round(1_000 * (time.perf_counter() - start), 3)
            self._record(line)

    def _record(self, line: dict[str, Any]) -> None:
        """Write a line. A call that succeeded and cannot be recorded fails; other outcomes are kept."""
        try:
            self._write(write_json(_encoder, line) + b"\n")
        except OSError as error:
            operation, outcome = line["operation"], line["outcome"]
            problem = f"cannot write the audit log{self._summary}: {error.strerror}"
            logger.error("%s; %s ended with %s", problem, operation, outcome)
            if outcome == "OK":
                message = f"{operation} ran, but cannot be recorded: cannot write the audit log: {error.strerror}"
                raise CallError(ErrorCode.EXECUTION_ERROR, message) from error


def _append(path: Path, line: bytes) -> None:
    """Append in one write, so that processes may share a file; open it each time, so that it may be rotated."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # it had room for a part of the line
    finally:
        os.close(descriptor)


def _size(value: Any) -> int | None:
    try:
        return len(value if isinstance(value, bytes) else write_json(_encoder, value))
    except (TypeError, ValueError, RecursionError):
        return None


def _encoded_plain(value: Any) -> bytes | None:
    """Return plain data as JSON; None if it has no JSON form, such as an integer of 5,000 digits, or is too deep."""
    try:
        return None if survey(value).deep else write_json(_encoder, to_plain(value))
    except (TypeError, ValueError, RecursionError):
        return None


# --- approval ---------------------------------------------------------------------------------------------------------


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that waits for the decision of a person. `since` and `expires` are seconds since 1970."""

    spec: OperationSpec
    input: Any
    context: Context
    id: str
    since: float
    expires: float

    @property
    def identity(self) -> Identity | None:
        """The caller."""
        return self.context.identity

    @property
    def shown_input(self) -> Any:
        """The input, with the values of secret names replaced; as text that is cut off if it is too long to show."""
        given = replace_surrogates(masked(to_plain(self.input)))
        text = _encoder.encode(given).decode()
        more = len(text) - _MAX_SHOWN
        return given if more <= 0 else f"{text[:_MAX_SHOWN]}… ({more:,} more characters)"

    def __str__(self) -> str:
        caller = "an anonymous caller" if self.identity is None else self.identity.id
        shown = self.shown_input
        text = shown if isinstance(shown, str) else _encoder.encode(shown).decode()
        return harmless(f"{caller} calls {self.spec.id} with {text}")  # a person decides by what is displayed


Decision = bool | str
"""True approves a call; False, or a reason, denies it."""


async def ask_caller(request: ApprovalRequest) -> Decision:
    """Ask the person behind a call, through the client that made it. Pass it as the `ask` of an `Approval`:

        registry.use(Approval(ask_caller))

    It works where the caller can be asked (`Context.elicit`): clients of MCP, `Client(on_question=…)`, the console.
    """
    try:
        return bool(await request.context.elicit(bool, f"{request}. Approve?")) or "declined"
    except CallError as error:
        if error.code is not ErrorCode.ABORTED:
            raise
        return error.message


class ApprovalChange(NamedTuple):
    """A call has begun to wait for approval, or has stopped waiting. `by` names the person that decided, if known."""

    kind: Literal["waiting", "approved", "denied", "expired", "cancelled"]
    request: ApprovalRequest
    reason: str = ""
    by: str = ""


class ApprovalQueue:
    """Calls that wait until a person decides about them, such as in the console: the `ask` of an `Approval`.

        queue = ApprovalQueue()
        registry.use(Approval(queue))
        for request in queue.waiting:
            queue.approve(request.id, by="ann")

    The policy bounds how many calls wait, and for how long; a call that is cancelled leaves the queue. Use it on the
    event loop of the calls.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[ApprovalRequest, asyncio.Future[ApprovalChange]]] = {}
        self._listeners: list[Callable[[ApprovalChange], object]] = []

    def __repr__(self) -> str:
        return f"<ApprovalQueue, {len(self._waiting)} waiting>"

    async def __call__(self, request: ApprovalRequest) -> Decision:
        """Wait for the decision about a call."""
        decided: asyncio.Future[ApprovalChange] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = request, decided
        self._tell(ApprovalChange("waiting", request))
        try:
            change = await decided
        except asyncio.CancelledError:
            self._waiting.pop(request.id, None)
            if decided.cancelled():  # otherwise the listeners have been called with a decision
                is_late = time.time() >= request.expires - _CLOCK_ERROR
                self._tell(ApprovalChange("expired" if is_late else "cancelled", request))
            raise
        return change.kind == "approved" or change.reason

    @property
    def waiting(self) -> tuple[ApprovalRequest, ...]:
        """The calls that wait, the oldest first."""
        return tuple(request for request, _ in self._waiting.values())

    def approve(self, id: str, *, by: str = "") -> bool:
        """Let a call continue; return False if it does not wait any more."""
        return self._decide(id, "approved", "", by)

    def deny(self, id: str, reason: str = "", *, by: str = "") -> bool:
        """Reject a call with a reason, which its caller reads; return False if it does not wait any more."""
        return self._decide(id, "denied", reason, by)

    def on_change(self, listener: Callable[[ApprovalChange], object]) -> Callable[[], None]:
        """Call the listener on every change; the returned function removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _decide(self, id: str, kind: Literal["approved", "denied"], reason: str, by: str) -> bool:
        request, decided = self._waiting.pop(id, (None, None))
        if request is None or decided is None or decided.done():
            return False
        change = ApprovalChange(kind, request, reason, by)
        decided.set_result(change)
        logger.info("%s was %s%s", request.spec.id, kind, f" by {by}" if by else "")
        self._tell(change)
        return True

    def _tell(self, change: ApprovalChange) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                logger.exception("a listener failed on an approval of %s", change.request.spec.id)


class Approval(Policy):
    """Ask a person before each call; by default before mutations.

        async def ask(request: ApprovalRequest) -> bool | str:
            return await send_to_chat(f"{request}. Approve?")

        registry.use(Approval(ask))

    `ask` returns True to approve, and False or a reason to deny; a plain function runs on the event loop. The caller of
    a denied call gets ACCESS_DENIED with the reason. A decision takes at most `timeout` seconds, and no longer than the
    deadline of the call; at most `max_waiting` calls wait at the same time, half of them of one caller.
    `include`, by default mutations, and `exclude` select operations.
    """

    def __init__(
        self,
        ask: Callable[[ApprovalRequest], Decision | Awaitable[Decision]],
        *,
        timeout: float = 300.0,
        max_waiting: int = 100,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(**{"include": ("type:mutation",), **options})
        check_above_zero(timeout=timeout)
        check_counts(max_waiting=max_waiting)
        self._ask = ask
        self._timeout = timeout
        self._places: SharedLimit[str | None] = SharedLimit(max_waiting, ceil(max_waiting / 2))  # by identity

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        caller = None if context.identity is None else context.identity.id
        shown = _encoded_plain(input)
        if shown is None:  # what a person does not see is not approved
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{spec.id}: the input has no JSON form to ask a person about")
        if not self._places.take(caller, 1):
            waiting = self._places.held
            message = f"{sum(waiting.values())} calls wait for approval already, {waiting[caller]} of this caller"
            raise CallError(ErrorCode.RATE_LIMITED, message)
        try:
            decision = await self._decide(spec, input, context)
        finally:
            self._places.give_back(caller, 1)
        if decision is True and _encoded_plain(input) != shown:
            decision = "its input has changed since the person was asked"
        if decision is not True:
            reason = f": {decision[:500]}" if isinstance(decision, str) and decision else ""
            raise CallError(ErrorCode.ACCESS_DENIED, f"{spec.id} was not approved{reason}")
        yield PolicyCall(context)

    async def _decide(self, spec: OperationSpec, input: Any, context: Context) -> Decision:
        remaining, now = context.remaining, time.time()
        seconds = max(self._timeout if remaining is None else min(remaining, self._timeout), 0)
        request = ApprovalRequest(
            spec=spec, input=input, context=context, id=uuid4().hex, since=now, expires=now + seconds
        )
        try:
            async with asyncio.timeout(seconds):
                decision = self._ask(request)
                return await decision if isawaitable(decision) else decision
        except TimeoutError:
            return f"no decision within {limit_text(seconds)} s"


# --- limits -----------------------------------------------------------------------------------------------------------


class RateLimit(Policy):
    """Reject calls above a rate: at most `calls` in `per` seconds, for each identity by default.

    Short bursts of `calls` are allowed. `by` names what is limited separately: "identity", "operation", "namespace";
    () limits all calls together. `include` and `exclude` select operations. The error is RATE_LIMITED, with the time
    after which a call is possible.

    Raises:
        UsageError: a number is not above zero, or `by` is unknown.
    """

    def __init__(
        self,
        calls: int,
        *,
        per: float = 1.0,
        by: Iterable[Key] = ("identity",),
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(**options)
        check_counts(calls=calls)
        check_above_zero(per=per)
        self._rate = f"{calls} calls in {per:g} s"
        self._by = _checked_by(by)
        self._summary = f": {self._rate}"
        self._clock = clock
        self._buckets = _ByKey(lambda: TokenBucket(calls / per, calls))

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        if wait := self._buckets[_key(self._by, spec, context)].take(self._clock()):
            raise CallError(ErrorCode.RATE_LIMITED, f"{spec.id}: more than {self._rate}", retry_after=wait)
        yield PolicyCall(context)


class ConcurrencyLimit(Policy):
    """Run at most `calls` at the same time, for each operation by default.

    A further call waits for up to `wait` seconds, or its deadline, and is then rejected as RATE_LIMITED. A subscription
    counts until it ends. `by`, `include` and `exclude` are as for `RateLimit`.

    Raises:
        UsageError: a number is out of range, or `by` is unknown.
    """

    def __init__(
        self, calls: int, *, wait: float = 0.0, by: Iterable[Key] = ("operation",), **options: Unpack[PolicyOptions]
    ) -> None:
        super().__init__(**options)
        check_counts(calls=calls)
        check_not_below_zero(wait=wait)
        self._calls = calls
        self._summary = f": {calls} calls at a time"
        self._wait = wait
        self._by = _checked_by(by)
        self._running: dict[tuple[str, ...], asyncio.Semaphore] = {}
        self._users: dict[tuple[str, ...], int] = {}

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        key = _key(self._by, spec, context)
        running = self._running.setdefault(key, asyncio.Semaphore(self._calls))
        self._users[key] = self._users.get(key, 0) + 1  # with those that wait
        try:
            seconds = self._wait if context.remaining is None else min(self._wait, context.remaining)
            try:
                async with asyncio.timeout(max(seconds, 0) if running.locked() else None):
                    await running.acquire()
            except TimeoutError:
                message = f"{spec.id}: {self._calls} calls are running already"
                raise CallError(ErrorCode.RATE_LIMITED, message) from None
            try:
                yield PolicyCall(context)
            finally:
                running.release()
        finally:
            self._users[key] -= 1
            if not self._users[key]:  # nothing of an idle key is kept
                del self._users[key], self._running[key]


class _Circuit(Struct):
    failures: int = 0
    open_until: float = 0.0
    is_tried: bool = False


class CircuitBreaker(Policy):
    """Stop calling what keeps failing: after `failures` in a row, calls fail at once for `pause` seconds.

    Then one call is let through: if it succeeds, all are again. Failures are those of the service: errors that may be
    retried, except RATE_LIMITED, and PROTOCOL_ERROR and INTERNAL. A call that was not answered by its deadline counts
    if its caller waited for 30 seconds, or the timeout of the operation: others could open the circuit for everyone.
    `by`, `include` and `exclude` are as for `RateLimit`; the default of `by` is the namespace, which is one source. The
    error is UNAVAILABLE, with the remaining time.

    Raises:
        UsageError: a number is not above zero, or `by` is unknown.
    """

    def __init__(
        self,
        failures: int = 5,
        *,
        pause: float = 30.0,
        by: Iterable[Key] = ("namespace",),
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(**options)
        check_counts(failures=failures)
        check_above_zero(pause=pause)
        self._failures = failures
        self._pause = pause
        self._summary = f": {failures} failures"
        self._by = _checked_by(by)
        self._clock = clock
        self._circuits = _ByKey(_Circuit)

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        circuit, now = self._circuits[_key(self._by, spec, context)], self._clock()
        given = context.remaining
        is_short = given is not None and given < min(spec.timeout or _PATIENCE, _PATIENCE) - _CLOCK_ERROR
        is_trial = circuit.failures >= self._failures
        if is_trial and (now < circuit.open_until or circuit.is_tried):
            left = max(circuit.open_until - now, 0.0)
            message = f"{spec.id}: the last {circuit.failures} calls failed; no further one is made for {left:.3g} s"
            raise CallError(ErrorCode.UNAVAILABLE, message, retry_after=left)
        circuit.is_tried = circuit.is_tried or is_trial
        try:
            yield PolicyCall(context)
        except CallError as error:
            if error.code is ErrorCode.TIMEOUT and is_short and (context.remaining or 0) <= 0:
                pass  # the caller did not wait
            elif error.code in _FAULTS or (error.retryable and error.code is not ErrorCode.RATE_LIMITED):
                circuit.failures += 1
                circuit.open_until = self._clock() + self._pause
            else:
                circuit.failures = 0
            raise
        else:
            circuit.failures = 0
        finally:
            if is_trial:  # also if it was cancelled, which says nothing
                circuit.is_tried = False


class CallBudget(Policy):
    """Allow at most `calls` for one request: the call itself and all calls that are made for it in this process.

    This ends loops of operations that call each other, and programs of a model that call too much. The error is
    RATE_LIMITED, and may not be retried. `include` and `exclude` select operations.

    Raises:
        UsageError: `calls` is not above zero.
    """

    def __init__(self, calls: int = 100, **options: Unpack[PolicyOptions]) -> None:
        super().__init__(**options)
        check_counts(calls=calls)
        self._calls = calls
        self._summary = f": {calls} calls"

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        state: dict[Policy, int] | None = context.metadata.get(REQUEST_STATE)
        if state is None:  # the first call of a request
            state = {}
            context = replace(context, metadata={**context.metadata, REQUEST_STATE: state})
        left = state.get(self, self._calls)
        if left < 1:
            message = f"{spec.id}: the request has made {self._calls} calls, and may not make more"
            raise CallError(ErrorCode.RATE_LIMITED, message, retryable=False)
        state[self] = left - 1
        yield PolicyCall(context)
