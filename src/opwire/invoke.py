"""Running a handler, whatever it is: async or sync, value or generator, within its deadline, its failures named.

An operation bound to its handler: input to arguments, handler to result, result to envelope.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from functools import partial
from typing import Any, cast
from uuid import uuid4

import msgspec
from msgspec import Struct

from opwire.deadlines import Deadlines
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ConversionError, ErrorCode, NotPlainError, SchemaError
from opwire.operation import Context, Handler, Interceptor, OperationSpec
from opwire.pipeline import ResultPipeline
from opwire.schema import Problem
from opwire.typed.plain import MAX_DEPTH, SCALARS, survey, to_plain
from opwire.workers import WorkerPool

logger = logging.getLogger("opwire.invoke")

CLOSE_GRACE = 5.0
"""Seconds that a handler is given to end after it was cancelled, and a subscription's generator to run `finally`."""

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""What a handler may raise that is a failure of the call; a KeyboardInterrupt is none."""

Run = Callable[[Any, Context], Awaitable[Any]]
Open = Callable[[Any, Context], AsyncIterator[Any]]

END = object()
"""Stands for the end of a stream."""

_UNLIMITED = Context()


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a generator, sync or async."""
    target = _unwrapped(function)
    return inspect.isasyncgenfunction(target) or inspect.isgeneratorfunction(target)


def _unwrapped(function: Any) -> Any:
    """What decides how a callable runs: behind a partial, and the `__call__` of an object."""
    if isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function if inspect.isroutine(function) else type(function).__call__


def runner(handler: Handler, function: Callable[..., Any], pool: WorkerPool, label: str, *, inline: bool) -> Run:
    """How to run a handler of a query or mutation. `function` is what the handler calls, and tells its kind."""
    if inspect.iscoroutinefunction(_unwrapped(function)):
        return cast("Run", handler)

    async def run(input: Any, context: Context) -> Any:
        if inline:
            result = handler(input, context)
        else:
            result = await pool.run(lambda: handler(input, context), label)
        return await result if inspect.isawaitable(result) else result

    return run


async def run_within(call: Callable[[], Awaitable[Any]], deadlines: Deadlines, when: float, label: str) -> Any:
    """Run a handler until a monotonic time, and leave it behind if it ignores its cancellation for `CLOSE_GRACE`.

    It runs in a task of its own, which costs 10 µs: a coroutine cannot be taken out of the task that runs it, and there
    it would keep the caller for ever.

    Raises:
        CallError: TIMEOUT.
    """
    seconds = when - time.monotonic()
    if seconds <= 0:
        raise _late(label, seconds)
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    task = loop.create_task(_run_into(outcome, call))
    expired = left = False

    def stop() -> None:
        task.cancel()
        loop.call_later(CLOSE_GRACE, give_up)

    def expire(_: object) -> None:
        nonlocal expired
        expired = True
        stop()

    def give_up() -> None:
        nonlocal left
        if not task.done() and not left:
            left = True
            leave_behind(task, label)
        _settle(outcome, None, asyncio.CancelledError())

    tick = deadlines.add(task, when, expire)
    task.add_done_callback(lambda _: _settle(outcome, None, asyncio.CancelledError()))  # it may end before it began
    try:
        value, error = await outcome
    except asyncio.CancelledError:
        stop()
        await asyncio.wait((task,), timeout=CLOSE_GRACE)
        raise
    finally:
        deadlines.discard(task, tick)
    if error is None:
        return value
    raise _late(label, seconds) if expired and isinstance(error, asyncio.CancelledError) else error


async def _run_into(outcome: asyncio.Future[Any], call: Callable[[], Awaitable[Any]]) -> None:
    """Run a handler, and settle a future with what it gives or raises: SystemExit in a task would end the loop."""
    try:
        value = await call()
    except FAILURES as error:
        _settle(outcome, None, error)
    else:
        _settle(outcome, value, None)


def _settle(outcome: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not outcome.done():
        outcome.set_result((value, error))


def leave_behind(task: asyncio.Task[Any], label: str) -> None:
    """Report a task that does not end, and forget it: `asyncio.run` would wait for it at its end."""
    logger.warning("%s did not stop within %g s of being cancelled, and is left behind", label, CLOSE_GRACE)
    asyncio.tasks._unregister_task(task)  # it is documented, under "Extending asyncio"
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - it was reported


def _late(label: str, seconds: float) -> CallError:
    return CallError(ErrorCode.TIMEOUT, f"{label} did not answer within {max(seconds, 0):.3g} s")


def opener(handler: Handler, pool: WorkerPool, label: str) -> Open:
    """How to open a handler of a subscription."""

    async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
        items = handler(input, context)
        if inspect.isawaitable(items):
            items = await items
        if inspect.isgenerator(items):
            items = _drive(cast("Generator[Any]", items), pool, label)
        if not hasattr(items, "__aiter__"):
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the handler of a subscription has to yield its items")
        try:
            async for item in cast("AsyncIterator[Any]", items):
                yield item
        finally:
            await close_stream(items, label)

    return stream


async def _drive(items: Generator[Any], pool: WorkerPool, label: str) -> AsyncGenerator[Any]:
    """A sync generator, advanced on worker threads and closed where it was last advanced."""
    left = False

    def advance() -> Any:
        item = next(items, END)
        if left:
            items.close()
        return item

    try:
        while (item := await pool.run(advance, label)) is not END:
            yield item
    except asyncio.CancelledError:
        left = True
        raise
    finally:
        if not left:
            await pool.run(items.close, label)


async def close_stream(stream: Any, label: str) -> None:
    """Run a generator's `finally` blocks; one that does not end is left behind, and reported."""
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
    """The next item of a subscription, or END.

    Raises:
        CallError: TIMEOUT, at the deadline of the call or after too long a gap.
    """
    limits = _UNLIMITED if context.watched else context
    try:
        return await deadlines.limit(stream.__anext__, limits.within(idle).deadline, f"{label} gave no item")
    except StopAsyncIteration:
        return END


def failure(error: BaseException, label: str) -> CallError:
    """What the caller is told of a handler's failure: a CallError as it is, anything else as an error id.

    Raises:
        CancelledError: when it is the caller itself who was cancelled.
    """
    if isinstance(error, CallError):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error  # it is the caller who was cancelled
        return CallError(ErrorCode.ABORTED, f"{label} stopped itself")
    error_id = uuid4().hex[:12]
    logger.error("%s failed, error id %s", label, error_id, exc_info=error)
    message = f"{label} failed unexpectedly; the log of its server knows more under error id {error_id}"
    return CallError(ErrorCode.EXECUTION_ERROR, message, {"errorId": error_id})


class InterceptedCall:
    """An operation with interceptors around it; the first one installed is the outermost."""

    def __init__(self, spec: OperationSpec, handler: Handler, interceptors: Iterable[Interceptor]) -> None:
        self.spec = spec
        self._pipeline = ResultPipeline(spec, normalize="off", strip=False)  # for results that are not envelopes yet
        for interceptor in reversed(tuple(interceptors)):
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
        except CallError:
            raise
        except FAILURES as error:
            raise failure(error, self.spec.id) from error

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
        except CallError:
            raise
        except FAILURES as error:
            raise failure(error, self.spec.id) from error
        finally:
            await close_stream(items, self.spec.id)

    def _envelope(self, result: Any) -> ResponseEnvelope[Any]:
        is_envelope = type(result) is ResponseEnvelope
        return cast("ResponseEnvelope[Any]", result) if is_envelope else self._pipeline.envelope(result)


_SHOWN = 3  # problems in the message; all of them are in the details
_UNUSABLE = (
    "{}: its input schema cannot be used, so that no input can be validated: {}; correct the schema, or allow the call "
    "with unchecked_input=True"
)


class BoundOperation:
    """What the registry keeps of an operation."""

    __slots__ = (
        "accepts",
        "convert",
        "exact",
        "flat",
        "handler",
        "intercepted",
        "open",
        "pipeline",
        "prepare",
        "run",
        "spec",
        "timeout",
    )

    def __init__(self, spec: OperationSpec, handler: Handler | None, pipeline: ResultPipeline) -> None:
        self.spec = spec
        self.handler = handler
        self.pipeline = pipeline
        self.timeout = spec.timeout
        self.run: Run | None = None  # of a query or mutation that has a handler
        self.open: Open | None = None  # of a subscription that has a handler
        self.intercepted: InterceptedCall | None = None  # where the registry has interceptors
        self.prepare: Callable[[Any], Any] | None = None  # objects that are not plain -> plain input
        self.convert: Callable[[Any], Any] | None = None  # valid input -> arguments, where a function has types
        self.exact: frozenset[type] = SCALARS  # valid flat input of these types is passed on as it is
        self.flat: type[Struct] | None = None  # input that converts to this is valid, and passed on as it is
        self.accepts: Callable[[Any], bool] = self._compile_and_test

    def arguments(self, input: Any) -> Any:
        """The input, validated and converted to what the handler awaits.

        Raises:
            CallError: VALIDATION_ERROR, with the problems in its details; EXECUTION_ERROR, if the input schema itself
                cannot be used.
        """
        # Nearly all input is a flat object that fits: it leaves by one of these two doors, in 0.2 or 0.4 µs. The
        # survey and the conversion behind `_arguments` take 2 µs and more.
        try:
            if self.flat is not None:
                msgspec.convert(input, self.flat)
                return input
            if self._is_exact(input) and self.accepts(input):
                return input
        except ValueError:  # it does not fit, or is not JSON at all
            pass
        return self._arguments(input)

    def _takes_object(self) -> bool:
        schema = self.spec.input_schema.json
        return isinstance(schema, dict) and schema.get("type") == "object"

    def _is_exact(self, input: Any) -> bool:
        return type(input) is dict and self.exact.issuperset(map(type, cast("dict[str, Any]", input).values()))

    def _arguments(self, input: Any) -> Any:
        if input is None and self._takes_object():
            input = {}
        found = survey(input)
        if found.deep:
            raise self._invalid([Problem("", f"the value is nested deeper than {MAX_DEPTH}")])
        if not found.plain:
            input = self._plain(input)
        if not self._is_accepted(input):
            raise self._invalid(self.spec.input_schema.problems(input))
        try:
            return input if self.convert is None else self.convert(input)
        except ConversionError as error:
            raise self._invalid([Problem("", str(error))]) from error

    def _plain(self, input: Any) -> Any:
        try:
            return to_plain(input if self.prepare is None else self.prepare(input))
        except NotPlainError as error:
            raise self._invalid([Problem("", str(error))]) from error

    def _is_accepted(self, input: Any) -> bool:
        try:
            return self.accepts(input)
        except ValueError:
            return False

    def _compile_and_test(self, input: Any) -> bool:
        """Compile the schema at the first call, and leave the test to it from then on."""
        try:
            self.accepts = self.spec.input_schema.compile().checker()
        except SchemaError as error:
            if not self.spec.unchecked_input:
                raise CallError(ErrorCode.EXECUTION_ERROR, _UNUSABLE.format(self.spec.id, error)) from error
            logger.warning("%s: its input schema is not used: %s", self.spec.id, error)
            self.accepts = _always
        return self.accepts(input)

    def _invalid(self, problems: list[Problem]) -> CallError:
        shown = "; ".join(f"{path or 'the input'}: {message}" for path, message in problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        details = {"problems": [problem._asdict() for problem in problems]}
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self.spec.id}: {shown}{more}", details)


def _always(_: Any) -> bool:
    return True
