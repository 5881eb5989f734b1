"""Limits of calls: rate, concurrency, calls per request, and a circuit breaker for what keeps failing."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, TypeVar, Unpack, cast

from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import (
    CallError,
    ErrorCode,
    UsageError,
    check_above_zero,
    check_counts,
    check_not_below_zero,
)
from opwire.model.context import REQUEST_STATE, Context
from opwire.model.operation import OperationSpec
from opwire.policies.policy import Policy, PolicyCall, PolicyOptions
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.limits import TokenBucket

T = TypeVar("T")
Key = Literal["identity", "operation", "namespace"]
"""What calls are counted by."""
_MAX_COUNTED_KEYS = 10_000  # the least recently used ones are dropped
_CLOCK_TOLERANCE_SECONDS = 0.05  # the clock of timeouts is not that of the day
_PATIENT_CALLER_SECONDS = 30.0  # the timeout of a `Client`: a caller that waits for less says nothing of the service
_SERVICE_FAULTS = frozenset({ErrorCode.PROTOCOL_ERROR, ErrorCode.INTERNAL})  # though they are not retryable


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
        self._by = _check_keys(by)
        self._summary = f": {self._rate}"
        self._clock = clock
        self._buckets = _ValuesByKey(lambda: TokenBucket(calls / per, calls))

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
        self._by = _check_keys(by)
        self._semaphores: dict[tuple[str, ...], asyncio.Semaphore] = {}
        self._calls_by_key: dict[tuple[str, ...], int] = {}

    @property
    def active(self) -> dict[tuple[str, ...], int]:
        """The number of calls that run or wait, by what they are counted by."""
        return dict(self._calls_by_key)

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        key = _key(self._by, spec, context)
        semaphore = self._semaphores.setdefault(key, asyncio.Semaphore(self._calls))
        self._calls_by_key[key] = self._calls_by_key.get(key, 0) + 1
        try:
            seconds = self._wait if context.remaining is None else min(self._wait, context.remaining)
            try:
                async with asyncio.timeout(max(seconds, 0) if semaphore.locked() else None):
                    await semaphore.acquire()
            except TimeoutError:
                message = f"{spec.id}: {self._calls} calls are running already"
                raise CallError(ErrorCode.RATE_LIMITED, message) from None
            try:
                yield PolicyCall(context)
            finally:
                semaphore.release()
        finally:
            self._calls_by_key[key] -= 1
            if not self._calls_by_key[key]:  # nothing of an idle key is kept
                del self._calls_by_key[key], self._semaphores[key]


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
        self._by = _check_keys(by)
        self._clock = clock
        self._circuits = _ValuesByKey(_Circuit)

    @asynccontextmanager
    async def _around(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[PolicyCall]:
        circuit, now = self._circuits[_key(self._by, spec, context)], self._clock()
        remaining_seconds = context.remaining
        patience = min(spec.timeout or _PATIENT_CALLER_SECONDS, _PATIENT_CALLER_SECONDS) - _CLOCK_TOLERANCE_SECONDS
        is_impatient = remaining_seconds is not None and remaining_seconds < patience
        is_trial = circuit.failures >= self._failures
        if is_trial and (now < circuit.open_until or circuit.is_tried):
            wait = max(circuit.open_until - now, 0.0)
            message = f"{spec.id}: the last {circuit.failures} calls failed; no further one is made for {wait:.3g} s"
            raise CallError(ErrorCode.UNAVAILABLE, message, retry_after=wait)
        circuit.is_tried = circuit.is_tried or is_trial
        try:
            yield PolicyCall(context)
        except CallError as error:
            if error.code is ErrorCode.TIMEOUT and is_impatient and (context.remaining or 0) <= 0:
                pass  # the caller did not wait
            elif error.code in _SERVICE_FAULTS or (error.retryable and error.code is not ErrorCode.RATE_LIMITED):
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
        calls_left = state.get(self, self._calls)
        if calls_left < 1:
            message = f"{spec.id}: the request has made {self._calls} calls, and may not make more"
            raise CallError(ErrorCode.RATE_LIMITED, message, retryable=False)
        state[self] = calls_left - 1
        yield PolicyCall(context)


class _ValuesByKey(Generic[T]):
    """Values by key, the least recently used ones dropped."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._values: BoundedDict[tuple[str, ...], T] = BoundedDict(_MAX_COUNTED_KEYS)

    def __getitem__(self, key: tuple[str, ...]) -> T:
        value = self._values[key] = self._values.pop(key, None) or self._create()
        return value


def _key(by: tuple[Key, ...], spec: OperationSpec, context: Context) -> tuple[str, ...]:
    parts = {
        "identity": "" if context.identity is None else context.identity.id,
        "operation": spec.id,
        "namespace": spec.namespace,
    }
    return tuple(parts[part] for part in by)


def _check_keys(by: Iterable[Key]) -> tuple[Key, ...]:
    allowed_keys = ("identity", "operation", "namespace")
    keys = (by,) if isinstance(by, str) else tuple(by)
    for key in keys:
        if key not in allowed_keys:
            raise UsageError(f"by is some of {', '.join(allowed_keys)}; {key!r} is none of them")
    return cast("tuple[Key, ...]", keys)
