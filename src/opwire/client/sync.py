"""`SyncClient`: the client for scripts and notebooks, without `await`.

Its event loop runs in a thread of its own, so that it works where another loop is already running.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from opwire.client.client import CallOptions, Client, PageOptions, StreamOptions, Target
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import OperationSpec

T = TypeVar("T")


class SyncClient:
    """Calls operations and waits for them. The arguments are those of `Client`.

        with SyncClient("https://api.example", token="…") as client:
            print(client.call("math.add", {"a": 1, "b": 2}))
            for tick in client.subscribe("clock.ticks"):
                print(tick)

    It may be used from several threads at once. Handlers of a registry run in its thread.
    """

    def __init__(self, target: Target, **options: Any) -> None:
        self._make: Callable[[], Client] = lambda: Client(target, **options)
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # nothing is handed to a loop that has been told to stop

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
            self._client = self._wait(self._started())
        except BaseException:
            self.close()
            raise
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave, and end the thread. Calls of other threads end with UNAVAILABLE."""
        client, self._client = self._client, None
        if client is not None:
            self._wait(client.close())
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()

    # --- as the client, without `await` -------------------------------------------------------------------------------

    @overload
    def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[CallOptions]
    ) -> T: ...
    @overload
    def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[CallOptions]
    ) -> Any: ...
    def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[CallOptions]
    ) -> Any:
        """The data of a query or mutation: see `Client.call`.

        Raises:
            CallError: as there.
        """
        return self._wait(self._open().call(operation_id, input, output_type=output_type, **options))

    def call_envelope(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[CallOptions]
    ) -> ResponseEnvelope[Any]:
        """The whole envelope of a query or mutation: see `Client.call_envelope`.

        Raises:
            CallError: as there.
        """
        return self._wait(self._open().call_envelope(operation_id, input, output_type=output_type, **options))

    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[StreamOptions]
    ) -> Generator[Any]:
        """The data of each item of a subscription: see `Client.subscribe`. Leaving the loop stops the producer."""
        return self._each(self._open().subscribe(operation_id, input, output_type=output_type, **options))

    def subscribe_envelopes(
        self, operation_id: str, input: Any = None, **options: Unpack[StreamOptions]
    ) -> Generator[ResponseEnvelope[Any]]:
        """The envelopes of a subscription: see `Client.subscribe_envelopes`."""
        return self._each(self._open().subscribe_envelopes(operation_id, input, **options))

    def paginate(self, operation_id: str, input: Any = None, **options: Unpack[PageOptions]) -> Generator[Any]:
        """The items of all pages of a query: see `Client.paginate`."""
        return self._each(self._open().paginate(operation_id, input, **options))

    def operations(self, *, timeout: float | None = None) -> list[OperationSpec]:
        """What can be called: see `Client.operations`.

        Raises:
            CallError: as there.
        """
        return self._wait(self._open().operations(timeout=timeout))

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:  # at its end it cancels what is left, and closes generators
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()

    async def _started(self) -> Client:
        return await self._make().start()

    def _open(self) -> Client:
        if self._client is None:
            closed = "the client is not open: it is used within `with SyncClient(…)`"
            raise CallError(ErrorCode.UNAVAILABLE, closed, retryable=False)
        return self._client

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        waiting = _Waiting(call)
        try:
            with self._lock:
                if self._loop is None:
                    call.close()
                    raise _gone()
                self._loop.call_soon_threadsafe(waiting.begin)
            return waiting.answer.result()
        except CancelledError:  # the loop has ended, and the call with it
            raise _gone() from None
        except BaseException:  # Ctrl-C is for the call, too; one that has ended is not touched
            with self._lock:
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(waiting.stop)
            raise

    def _each(self, items: AsyncGenerator[T]) -> Generator[T]:
        try:
            while (item := self._wait(_next(items))) is not _END:
                yield cast("T", item)
        finally:
            if self._loop is not None:  # else they were closed with it
                self._wait(_close(items))


class _Waiting(Generic[T]):
    """A call that a thread waits for, while it runs in that of the loop.

    `asyncio.run_coroutine_threadsafe` does the same, but an interrupt within it leaves nothing to stop the call by.
    """

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self.answer: Future[T] = Future()
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
            self.answer.cancel()
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


_END = object()


async def _next(items: AsyncGenerator[Any]) -> Any:
    return await anext(items, _END)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()


def _gone() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the client was closed", retryable=False)
