"""Run handlers, sync or async, functions or generators: validate input, enforce deadlines, map exceptions."""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, NoReturn, TypeVar, cast
from uuid import uuid4

from opwire.errors import CallError, ErrorCode, RegistrationError
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import Handler, Interceptor, OperationSpec, OperationType, split_id
from opwire.names import limit_text
from opwire.registry.pipeline import ResultPipeline
from opwire.registry.signature import unwrapped
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import resolve, start_eagerly
from opwire.runtime.text import get_logger
from opwire.runtime.workers import WorkerPool

logger = get_logger("opwire.registry")

T = TypeVar("T")

CLOSE_GRACE = 5.0
"""Seconds for a cancelled handler to return, and for a subscription's generator to run `finally`."""

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""Exceptions of a handler that fail the call; a KeyboardInterrupt ends the process."""

Run = Callable[[Any, Context], Awaitable[Any]]
Open = Callable[[Any, Context], AsyncGenerator[Any]]
_Outcome = tuple[Any, BaseException | None]

END = object()
"""The end of a stream."""

_UNLIMITED = Context()


def runner(handler: Handler, function: Callable[..., Any], pool: WorkerPool, label: str, *, inline: bool) -> Run:
    """Return the coroutine function that runs a handler; whether `function` is async decides where it runs."""
    if inspect.iscoroutinefunction(unwrapped(function)):
        return cast("Run", handler)

    async def run(input: Any, context: Context) -> Any:
        if inline:
            result = handler(input, context)
        else:
            result = await pool.run(lambda: handler(input, context), label, _remote_caller(context))
        return await result if inspect.isawaitable(result) else result

    return run


def _remote_caller(context: Context) -> str | None:
    """Return whose call this is, for a fair share of the worker threads; None: of this process."""
    if context.inbound is None:
        return None
    return "" if context.identity is None else context.identity.id


def eager_task(work: Coroutine[Any, Any, T], _loop: asyncio.AbstractEventLoop) -> asyncio.Task[T]:
    """Start a task, see `start_eagerly`."""
    return start_eagerly(work)


async def run_within(
    call: Callable[[], Awaitable[Any]],
    deadlines: Deadlines,
    when: float,
    label: str,
    renewed: Callable[[], float] | None = None,
) -> Any:
    """Run a handler until a monotonic time, and abandon it if it ignores its cancellation for `CLOSE_GRACE`.

    `renewed` is called at that time, and returns a later one if the handler may go on.

    It runs in its own task: a coroutine cannot be removed from the task that runs it, and would block the caller
    forever.

    Raises:
        CallError: TIMEOUT.
    """
    seconds = when - time.monotonic()
    if seconds > 0:
        run = _LimitedRun(call, deadlines, when, label, renewed)
        if run.outcome is None:
            await run.wait()
        (value, error), run.outcome = cast("_Outcome", run.outcome), None  # which the traceback of an error refers to
        if error is None:
            return value
        if not (run.expired and isinstance(error, asyncio.CancelledError)):
            raise error
    raise CallError(ErrorCode.TIMEOUT, f"{label} did not answer within {limit_text(seconds)} s")


class _LimitedRun:
    """A handler in its own task until a time, see `run_within`. Closures that refer to each other would be garbage."""

    __slots__ = ("_deadlines", "_label", "_left", "_renewed", "_tick", "_waiter", "_when", "expired", "outcome", "task")

    def __init__(
        self,
        call: Callable[[], Awaitable[Any]],
        deadlines: Deadlines,
        when: float,
        label: str,
        renewed: Callable[[], float] | None,
    ) -> None:
        self.outcome: _Outcome | None = None
        self.expired = self._left = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadlines = deadlines
        self._when = when
        self._label = label
        self._renewed = renewed
        self._tick = 0
        self.task = start_eagerly(self._run(call))

    async def _run(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Run the handler and keep its result or exception: SystemExit in a task would stop the loop."""
        try:
            outcome = await call(), None
        except FAILURES as error:
            outcome = None, error
        if self._waiter is None:  # this is its first step
            self.outcome = outcome
        else:
            self._settle(outcome)

    async def wait(self) -> None:
        """Wait for the outcome; if that is cancelled, cancel the handler."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._tick = self._deadlines.add(self, self._when, _LimitedRun.expire)
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait((self.task,), timeout=CLOSE_GRACE)
            raise
        finally:
            self._deadlines.discard(self, self._tick)

    def expire(self) -> None:
        later = self._when if self._renewed is None else self._renewed()
        if later > time.monotonic():
            self._tick = self._deadlines.add(self, later, _LimitedRun.expire)
            return
        self.expired = True
        self.stop()

    def stop(self) -> None:
        self.task.cancel()
        # It may not have started.
        self.task.add_done_callback(lambda _: self._settle((None, asyncio.CancelledError())))
        asyncio.get_running_loop().call_later(CLOSE_GRACE, self._give_up)

    def _give_up(self) -> None:
        if not self.task.done() and not self._left:
            self._left = True
            leave_behind(self.task, self._label)
        self._settle((None, asyncio.CancelledError()))

    def _settle(self, outcome: _Outcome) -> None:
        if self._waiter is not None and not self._waiter.done():
            self.outcome = outcome
            self._waiter.set_result(None)


def leave_behind(task: asyncio.Task[Any], label: str) -> None:
    """Log and abandon a task that ignores its cancellation: `asyncio.run` would wait for it at exit."""
    logger.warning("%s did not stop within %g s of being cancelled, and is abandoned", label, CLOSE_GRACE)
    asyncio.tasks._unregister_task(task)  # documented under "Extending asyncio"
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - it was logged above


async def isolated(items: AsyncGenerator[Any], label: str) -> AsyncGenerator[Any]:
    """Yield the items of a generator that runs in its own task, so that it can be abandoned like a handler.

    One task advances and closes it, since timeouts and cancel scopes that are open at a `yield` belong to one task.
    That costs 10 µs per item; the next one is requested only when the consumer asks for it.
    """
    loop = asyncio.get_running_loop()
    wanted, given = loop.create_future(), loop.create_future()

    async def advance() -> None:
        nonlocal wanted
        try:
            async for item in items:
                wanted = loop.create_future()
                resolve(given, (item, None))
                await wanted
            resolve(given, (END, None))
        except FAILURES as error:
            resolve(given, (END, error))
        await items.aclose()

    def give_up() -> None:
        if not task.done():
            leave_behind(task, label)

    task = loop.create_task(advance())
    try:
        while True:
            item, error = await given
            if error is not None:
                raise error
            if item is END:
                return
            yield item
            given = loop.create_future()
            wanted.set_result(None)
    finally:
        if not task.done():
            task.cancel()
            grace = 1.2 * CLOSE_GRACE  # a `finally` that takes too long is cancelled before
            loop.call_later(grace, give_up)
            await asyncio.wait((task,), timeout=grace)


def opener(handler: Handler, pool: WorkerPool, label: str) -> Open:
    """Return the function that opens the stream of a subscription's handler."""

    async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
        items = handler(input, context)
        if inspect.isawaitable(items):
            items = await items
        if inspect.isgenerator(items):
            run = partial(pool.run, label=label, caller=_remote_caller(context))
            items = _drive(cast("Generator[Any]", items), run)
        if not hasattr(items, "__aiter__"):
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the handler of a subscription must yield its items")
        try:
            async for item in cast("AsyncIterator[Any]", items):
                yield item
        finally:
            await close_stream(items, label)

    return stream


async def _drive(items: Generator[Any], run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> AsyncGenerator[Any]:
    """Advance a sync generator on worker threads, and close it on one."""
    left = False

    def advance() -> Any:
        item = next(items, END)
        if left:
            items.close()
        return item

    try:
        while (item := await run(advance)) is not END:
            yield item
    except asyncio.CancelledError:
        left = True
        raise
    finally:
        if not left:
            await run(items.close)


async def close_stream(stream: Any, label: str) -> None:
    """Close a generator; if that fails or times out, log a warning."""
    aclose = getattr(stream, "aclose", None)
    if aclose is None:
        return
    try:
        async with asyncio.timeout(CLOSE_GRACE):
            await aclose()
    except Exception:
        logger.warning("%s: the subscription's generator did not close cleanly", label, exc_info=True)


async def next_item(
    stream: AsyncIterator[Any], deadlines: Deadlines, context: Context, idle: float | None, label: str
) -> Any:
    """Return the next item of a subscription, or END.

    Raises:
        CallError: TIMEOUT, at the deadline of the call or after `idle` seconds without an item.
    """
    limits = _UNLIMITED if context.watched else context
    try:
        return await deadlines.limit(stream.__anext__, limits.within(idle).deadline, f"{label} gave no item")
    except StopAsyncIteration:
        return END


def failure(error: BaseException, label: str) -> CallError:
    """Return the `CallError` for an exception of a handler: unexpected ones are logged, and become an error id.

    Raises:
        CancelledError: the caller itself was cancelled.
    """
    if isinstance(error, CallError):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error  # the caller was cancelled
        return CallError(ErrorCode.ABORTED, f"{label} stopped itself")
    error_id = uuid4().hex[:12]
    logger.error("%s failed, error id %s", label, error_id, exc_info=error)
    message = f"{label} failed unexpectedly; see error id {error_id} in the log of its server"
    return CallError(ErrorCode.EXECUTION_ERROR, message, {"errorId": error_id})


def fail(error: BaseException, label: str) -> NoReturn:
    """Raise an exception of a handler as a `CallError`; see `failure`."""
    if isinstance(error, CallError):
        raise error
    raise failure(error, label) from error


class Interceptors:
    """The interceptors of a registry, a surface or a client; the first one installed is the outermost."""

    def __init__(self) -> None:
        self.installed: list[Interceptor] = []
        self._calls: dict[str, tuple[OperationSpec, InterceptedCall]] = {}

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor, inside those already installed; the returned function removes it."""
        self.installed.append(interceptor)
        self._calls.clear()

        def remove() -> None:
            if interceptor in self.installed:
                self.installed.remove(interceptor)
                self._calls.clear()

        return remove

    def cached(self, spec: OperationSpec, handler: Handler) -> "InterceptedCall":
        """Return the intercepted call of a spec, built once: an interceptor may keep state per operation."""
        known = self._calls.get(spec.id)
        if known is None or known[0] is not spec:
            known = self._calls[spec.id] = (spec, InterceptedCall(spec, handler, self.installed))
        return known[1]

    def remote(self, operation_id: str, type: OperationType, handler: Handler) -> "InterceptedCall":
        """Wrap every interceptor around one call of an operation at a peer.

        Raises:
            CallError: OPERATION_NOT_FOUND, if the id is invalid.
        """
        return InterceptedCall(remote_spec(operation_id, type), handler, self.installed)

    def around(self, spec: OperationSpec, handler: Handler) -> "InterceptedCall | None":
        """Wrap every interceptor around an operation's handler; return None without interceptors."""
        return InterceptedCall(spec, handler, self.installed) if self.installed else None


def remote_spec(operation_id: str, type: OperationType) -> OperationSpec:
    """Return the spec of an operation at a peer, for interceptors: its id and type.

    Raises:
        CallError: OPERATION_NOT_FOUND, if the id is invalid.
    """
    try:
        namespace, name = split_id(operation_id)
        return OperationSpec(namespace=namespace, name=name, type=type)
    except RegistrationError as error:
        raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"Operation not found: {operation_id[:200]}") from error


class InterceptedCall:
    """One operation with interceptors around it."""

    def __init__(self, spec: OperationSpec, handler: Handler, interceptors: list[Interceptor]) -> None:
        self._operation_id = spec.id
        self._pipeline = ResultPipeline(spec, normalize="off", strip=False)  # for results that are not envelopes yet
        for interceptor in reversed(interceptors):
            handler = interceptor(spec, handler)
        self._handler = handler

    async def execute(self, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation.

        Raises:
            CallError: the call failed, or an interceptor rejected it.
        """
        try:
            result = self._handler(input, context)
            return self._envelope(await result if inspect.isawaitable(result) else result)
        except FAILURES as error:
            fail(error, self._operation_id)

    async def subscribe(self, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Return the envelopes of a subscription, one per item.

        Raises:
            CallError: the call failed, or an interceptor rejected it.
        """
        items: Any = None
        try:
            items = self._handler(input, context)
            if inspect.isawaitable(items):
                items = await items
            async for item in items:
                yield self._envelope(item)
        except FAILURES as error:
            fail(error, self._operation_id)
        finally:
            await close_stream(items, self._operation_id)

    def _envelope(self, result: Any) -> ResponseEnvelope[Any]:
        is_envelope = type(result) is ResponseEnvelope
        return cast("ResponseEnvelope[Any]", result) if is_envelope else self._pipeline.envelope(result)
