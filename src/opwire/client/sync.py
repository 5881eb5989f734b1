"""`SyncClient`: a blocking client for scripts and notebooks.

Its event loop runs in a thread of its own, so that it works where another loop is already running, as in a notebook.
"""

import asyncio
import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from opwire.client.client import (
    Client,
    ClientParameters,
    PageOptions,
    RequestOptions,
    SubscribeOptions,
    Target,
    shown_target,
)
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import Interceptor, OperationSpec
from opwire.registry import OperationRegistry

T = TypeVar("T")

_CLOSE_AT_EXIT_SECONDS = 5.0


class LaterTarget(ABC):
    """A target that exists only while a client is connected; `opwire.SyncClient` opens a configuration file as one."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[OperationRegistry]:
        """Open the target, in the event loop of the client, and close it when the client has disconnected."""


class SyncClient:
    """Calls operations and blocks until they return. The arguments are those of `Client`, or a `LaterTarget`.

        with SyncClient("https://api.example", token="…") as client:
            for tick in client.subscribe("clock.ticks"):
                print(tick)

    It connects with the first call, and disconnects at the end of the `with` block. Without one, it disconnects when it
    is no longer referenced, and when the process exits.

    It is thread-safe. Handlers of a registry, and interceptors, run in its own thread. A forked process, which has none
    of the threads, connects by itself.

    Raises:
        UsageError, MissingExtraError: as `Client`.
    """

    def __init__(self, target: Target | LaterTarget, **options: Unpack[ClientParameters]) -> None:
        Client(OperationRegistry() if isinstance(target, LaterTarget) else target, **options)  # checks them
        self._target = target
        self._options = options
        self._interceptors: dict[object, Interceptor] = {}
        self._removers: dict[object, Callable[[], None]] = {}  # of the running client
        self._client: Client | None = None
        self._thread: _LoopThread | None = None
        self._is_closed = False
        self._lock = threading.RLock()  # held while the client starts

    def __repr__(self) -> str:
        target = self._target if isinstance(self._target, LaterTarget) else shown_target(self._target)
        return f"<SyncClient of {target}{'' if self._client is not None else ', not open'}>"

    def start(self) -> Self:
        """Connect now, or again after `close`.

        Raises:
            CallError: as `Client.start`, and what a `LaterTarget` raises.
        """
        self._leave_parent()
        with self._lock:
            if self._client is None:
                # Holds no reference to this object, so that it can be garbage-collected.
                thread = _LoopThread(partial(_open, self._target, self._options, self._interceptors, self._removers))
                try:
                    self._client = thread.opened.result()
                except BaseException:
                    thread.close()
                    raise
                self._thread, self._is_closed = thread, False
                weakref.finalize(self, thread.end).atexit = False
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect and end the thread. Calls of other threads end with UNAVAILABLE."""
        self._leave_parent()
        with self._lock:
            thread, self._thread, self._client, self._is_closed = self._thread, None, None, True
            self._removers.clear()
        if thread is not None:
            thread.close()

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call; the returned function removes it. See `Client.use`."""
        key, removers = object(), self._removers
        self._interceptors[key] = interceptor
        if self._client is not None:
            removers[key] = self._client.use(interceptor)

        def remove() -> None:
            self._interceptors.pop(key, None)
            if (remove_started := removers.pop(key, None)) is not None:
                remove_started()

        return remove

    # --- the methods of `Client` --------------------------------------------------------------------------------------

    @overload
    def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RequestOptions]
    ) -> T: ...
    @overload
    def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RequestOptions]
    ) -> Any: ...
    def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RequestOptions]
    ) -> Any:
        """Call a query or mutation; return its data. See `Client.call`.

        Raises:
            CallError: the call failed.
        """
        return self._wait(self._started().call(operation_id, input, output_type=output_type, **options))

    def call_envelope(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RequestOptions]
    ) -> ResponseEnvelope[Any]:
        """Call a query or mutation; return its envelope. See `Client.call_envelope`.

        Raises:
            CallError: the call failed.
        """
        return self._wait(self._started().call_envelope(operation_id, input, output_type=output_type, **options))

    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[SubscribeOptions]
    ) -> Generator[Any]:
        """Stream the data of each item of a subscription: see `Client.subscribe`."""
        return self._each(self._started().subscribe(operation_id, input, output_type=output_type, **options))

    def subscribe_envelopes(
        self, operation_id: str, input: Any = None, **options: Unpack[SubscribeOptions]
    ) -> Generator[ResponseEnvelope[Any]]:
        """Stream the envelope of each item of a subscription: see `Client.subscribe_envelopes`."""
        return self._each(self._started().subscribe_envelopes(operation_id, input, **options))

    def paginate(self, operation_id: str, input: Any = None, **options: Unpack[PageOptions]) -> Generator[Any]:
        """Stream the items of all pages of a query: see `Client.paginate`."""
        return self._each(self._started().paginate(operation_id, input, **options))

    def operations(self, *, timeout: float | None = None) -> list[OperationSpec]:
        """Return the operations that can be called: see `Client.operations`.

        Raises:
            CallError: UNAVAILABLE, TIMEOUT, or another error of the server.
        """
        return self._wait(self._started().operations(timeout=timeout))

    # --- the thread -------------------------------------------------------------------------------------------------

    def _leave_parent(self) -> None:
        """In a forked process, forget the connection of its parent: its thread does not exist here."""
        if self._thread is not None and self._thread.process != os.getpid():
            self._client = self._thread = None
            self._removers.clear()
            self._lock = threading.RLock()  # another thread may have held it

    def _started(self) -> Client:
        self._leave_parent()
        with self._lock:
            if self._is_closed:
                message = "the client is closed: start() opens it again"
                raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False)
            self.start()
            return cast("Client", self._client)

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        if (thread := self._thread) is None:
            call.close()
            raise _closed()
        return thread.wait(call)

    def _each(self, items: AsyncGenerator[T]) -> Generator[T]:
        thread = self._thread

        async def next_item() -> Any:
            return await anext(items, _END_OF_STREAM)

        async def close() -> None:
            await items.aclose()

        try:
            while (item := self._wait(next_item())) is not _END_OF_STREAM:
                yield cast("T", item)
        finally:
            if thread is not None and thread.is_running:  # otherwise they were closed with it
                thread.wait(close())


_END_OF_STREAM = object()


async def _open(
    target: Target | LaterTarget,
    options: ClientParameters,
    interceptors: dict[object, Interceptor],
    removers: dict[object, Callable[[], None]],
    stack: AsyncExitStack,
) -> Client:
    if isinstance(target, LaterTarget):
        target = await stack.enter_async_context(target.opened())
    client = Client(target, **options)
    removers.update({key: client.use(interceptor) for key, interceptor in interceptors.items()})
    return await stack.enter_async_context(client)


class _LoopThread:
    """An event loop in a thread of its own, which opens a client, and closes it in the same task."""

    def __init__(self, opening: Callable[[AsyncExitStack], Awaitable[Client]]) -> None:
        self.opened: Future[Client] = Future()
        self._closed: Future[None] = Future()
        self._lock = threading.Lock()  # held while a callback is scheduled: a loop that ends ignores it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], object] = lambda: None
        self._has_closed = False
        self.process = os.getpid()
        running = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(opening, running), name="opwire-client", daemon=True)
        self._thread.start()
        running.wait()
        # Daemon threads are stopped at exit wherever they are, so connections are closed before.
        atexit.register(self.close, _CLOSE_AT_EXIT_SECONDS)

    @property
    def is_running(self) -> bool:
        """Whether the loop accepts calls, and belongs to this process."""
        return self._loop is not None and self.process == os.getpid()

    def end(self) -> None:
        """Begin to close. Does not block: a garbage collector may call it, in any thread."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(self._end)

    def close(self, timeout: float | None = None) -> None:
        """Close the client and end the thread; raise what closing raises."""
        self.end()
        self._thread.join(timeout)
        if self._closed.done():
            self._closed.result()

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call in the loop, and return its result."""
        if self.process != os.getpid():
            call.close()
            raise _closed()
        if threading.current_thread() is self._thread:
            call.close()
            reason = "a handler in the event loop of a SyncClient cannot wait for it"
            raise UsageError(f"{reason}: await `context.env` instead")
        pending = _ThreadCall(call)
        try:
            with self._lock:
                if self._loop is None:
                    call.close()
                    raise _closed()
                self._loop.call_soon_threadsafe(pending.begin)
            return pending.result.result()
        except CancelledError:  # the loop has ended, and the call with it
            raise _closed() from None
        except BaseException:  # Ctrl-C cancels the call, too; a call that has ended ignores it
            with self._lock:
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(pending.stop)
            raise

    def _run(self, opening: Callable[[AsyncExitStack], Awaitable[Client]], running: threading.Event) -> None:
        try:
            asyncio.run(self._main(opening, running))  # cancels the remaining tasks and closes generators at its end
        except BaseException as error:
            # Since Python 3.12 no thread starts at exit, and the last step of asyncio.run needs one, to stop its pool.
            if self._has_closed and isinstance(error, RuntimeError):
                self._closed.set_result(None)
            else:
                self._closed.set_exception(error)  # raised by `close`
        else:
            self._closed.set_result(None)
        atexit.unregister(self.close)

    async def _main(self, opening: Callable[[AsyncExitStack], Awaitable[Client]], running: threading.Event) -> None:
        task, close_requested = cast("asyncio.Task[None]", asyncio.current_task()), asyncio.Event()
        self._end, self._loop = task.cancel, asyncio.get_running_loop()
        running.set()
        async with AsyncExitStack() as stack:
            try:
                client = await opening(stack)
            except BaseException as error:  # raised by `start`
                with self._lock:
                    self._loop = None
                self.opened.set_exception(error)
                return
            self._end = close_requested.set
            self.opened.set_result(client)
            await close_requested.wait()
        self._has_closed = True


def _closed() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the client was closed", retryable=False)


class _ThreadCall(Generic[T]):
    """A call that one thread waits for while it runs in the thread of the event loop.

    `asyncio.run_coroutine_threadsafe` does the same, but an interrupt within it leaves no way to cancel the call.
    """

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self.result: Future[T] = Future()
        self._call = call
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._call)
        self._task.add_done_callback(self._done)

    def stop(self) -> None:
        if self._task is None:
            self._call.close()
        else:
            self._task.cancel()

    def _done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())
