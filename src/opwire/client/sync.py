"""`SyncClient`: a blocking client for scripts and notebooks.

Its event loop runs in a thread of its own, so that it works where another loop is already running.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from opwire.client.client import Client, PageOptions, RequestOptions, SubscribeOptions, Target
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Interceptor, OperationSpec

T = TypeVar("T")


class SyncClient:
    """Calls operations and blocks until they return. The arguments are those of `Client`.

        with SyncClient("https://api.example", token="…") as client:
            print(client.call("math.add", {"a": 1, "b": 2}))
            for tick in client.subscribe("clock.ticks"):
                print(tick)

    It is thread-safe. Handlers of a registry, and interceptors, run in its own thread.
    """

    def __init__(self, target: Target, **options: Any) -> None:
        self._make: Callable[[], Client] = lambda: Client(target, **options)
        self._interceptors: dict[object, Interceptor] = {}
        self._removers: dict[object, Callable[[], None]] = {}  # of the running client
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # held while a callback is scheduled: a stopping loop ignores it

    def start(self) -> Self:
        """Connect.

        Raises:
            CallError: as `Client` and its `start`.
        """
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="opwire-client", daemon=True)
        self._thread.start()
        ready.wait()
        try:
            self._client = self._wait(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect and end the thread. Calls of other threads end with UNAVAILABLE."""
        client, self._client = self._client, None
        if client is not None:
            self._wait(client.close())
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call; the returned function removes it. See `Client.use`."""
        key = object()
        self._interceptors[key] = interceptor
        if self._client is not None:
            self._removers[key] = self._client.use(interceptor)

        def remove() -> None:
            self._interceptors.pop(key, None)
            if (remove_started := self._removers.pop(key, None)) is not None:
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

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:  # cancels the remaining tasks and closes generators at its end
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

    async def _open(self) -> Client:
        client = self._make()
        self._removers = {key: client.use(interceptor) for key, interceptor in self._interceptors.items()}
        return await client.start()

    def _started(self) -> Client:
        if self._client is None:
            message = "the client is not open: use it within `with SyncClient(…)`"
            raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False)
        return self._client

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        pending = _ThreadCall(call)
        closed = CallError(ErrorCode.UNAVAILABLE, "the client was closed", retryable=False)
        try:
            with self._lock:
                if self._loop is None:
                    call.close()
                    raise closed
                self._loop.call_soon_threadsafe(pending.begin)
            return pending.result.result()
        except CancelledError:  # the loop has ended, and the call with it
            raise closed from None
        except BaseException:  # Ctrl-C cancels the call, too; a call that has ended ignores it
            with self._lock:
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(pending.stop)
            raise

    def _each(self, items: AsyncGenerator[T]) -> Generator[T]:
        async def next_item() -> Any:
            return await anext(items, _END)

        async def close() -> None:
            await items.aclose()

        try:
            while (item := self._wait(next_item())) is not _END:
                yield cast("T", item)
        finally:
            if self._loop is not None:  # otherwise they were closed with it
                self._wait(close())


_END = object()


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
