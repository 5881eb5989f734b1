"""The client without `await`."""

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from opwire import CallError, ErrorCode
from opwire.client import SyncClient
from opwire.errors import UsageError
from opwire.serve.http import serve_http
from tests.client.samples import ME, Point, Samples
from tests.requirements import requirement


@pytest.fixture
def samples() -> Iterator[Samples]:
    """Operations to be called; at the end of the test the thread is gone."""
    yield Samples()
    assert "opwire-client" not in [thread.name for thread in threading.enumerate()]


@requirement("client.sync")
def test_calls_wait_for_their_answer(samples: Samples) -> None:
    with SyncClient(samples.registry) as client:
        assert client.call("math.add", {"a": 1}) == 3
        assert client.call("odd.point", output_type=Point) == Point(1, 2)
        assert client.call_envelope("math.add", {"a": 1}).meta.source == "local"
        assert "math.add" in [spec.id for spec in client.operations()]
        assert list(client.paginate("far.page", max_items=2)) == [1, 2]
        with pytest.raises(CallError) as caught:
            client.call("slow.wait", timeout=0.05)
        assert caught.value.code is ErrorCode.TIMEOUT


@requirement("client.sync")
def test_a_subscription_is_a_loop_and_leaving_it_stops_the_producer(samples: Samples) -> None:
    with SyncClient(samples.registry) as client:
        assert list(client.subscribe("clock.ticks")) == [0, 1, 2]
        assert [item.data for item in client.subscribe_envelopes("clock.ticks")] == [0, 1, 2]
        samples.stopped.clear()
        for item in client.subscribe("clock.ticks", {"count": 10**9}):
            if item == 3:
                break
        assert samples.stopped.is_set()


@requirement("client.sync")
async def test_it_works_where_a_loop_is_running_already(samples: Samples) -> None:
    async with serve_http(samples.registry, anonymous=ME).listening() as address:

        def script() -> list[int]:
            with SyncClient(address) as client:
                return [client.call("math.add", {"a": 1}), *client.subscribe("clock.ticks")]

        assert await asyncio.to_thread(script) == [3, 0, 1, 2]
    with SyncClient(samples.registry) as client:  # in the very thread of the running loop
        assert client.call("math.add", {"a": 1}) == 3


@requirement("client.sync")
def test_several_threads_may_share_it(samples: Samples) -> None:
    found: list[int] = []
    with SyncClient(samples.registry) as client:

        def work(number: int) -> None:
            found.extend(client.call("math.add", {"a": number, "b": 0}) for _ in range(20))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
    assert sorted(found) == sorted([*range(5)] * 20)


@requirement("client.sync", "client.closed")
def test_closing_ends_the_calls_of_other_threads(samples: Samples) -> None:
    client = SyncClient(samples.registry).start()
    errors: list[CallError] = []
    began = threading.Event()

    @samples.registry.query("slow.told")
    async def told() -> None:
        began.set()
        await asyncio.Event().wait()

    def work() -> None:
        with pytest.raises(CallError) as caught:
            client.call("slow.told")
        errors.append(caught.value)

    items = client.subscribe("clock.quiet")
    assert next(items) == 1
    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(5)
    client.close()
    thread.join(5)
    assert [error.code for error in errors] == [ErrorCode.UNAVAILABLE]
    items.close()
    client.close()


@requirement("client.sync", "client.closed")
def test_a_client_that_is_not_open_refuses_and_one_that_cannot_start_leaves_nothing(samples: Samples) -> None:
    client = SyncClient(samples.registry)
    with pytest.raises(CallError, match="with SyncClient"):
        client.call("math.add", {"a": 1})
    with pytest.raises(CallError) as caught:
        SyncClient("ws://127.0.0.1:1").start()
    assert caught.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(UsageError, match="unknown URL scheme"):
        SyncClient("gopher://x").start()


@requirement("client.sync")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals are for the main thread")
def test_an_interrupt_stops_the_call_and_leaves_the_client_usable(samples: Samples) -> None:
    began, stopped = threading.Event(), threading.Event()

    @samples.registry.query("slow.told")
    async def told() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    def interrupt(main: int = threading.get_ident()) -> None:
        began.wait(5)
        signal.pthread_kill(main, signal.SIGINT)

    with SyncClient(samples.registry) as client:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            client.call("slow.told")
        assert stopped.wait(5)
        assert client.call("math.add", {"a": 1}) == 3
