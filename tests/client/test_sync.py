"""The client without `await`."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opwire import CallError, ErrorCode
from opwire.client.codegen import generate_client
from opwire.client.sync import SyncClient
from opwire.errors import UsageError
from opwire.openapi.server import serve_http
from tests.client.samples import ME, Point, Samples


@pytest.fixture
def samples() -> Iterator[Samples]:
    """Operations to be called; at the end of the test the thread is gone."""
    yield Samples()
    assert "opwire-client" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and Python then leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_a_subscription_is_a_loop_and_leaving_it_stops_the_producer(samples: Samples) -> None:
    with SyncClient(samples.registry) as client:
        assert list(client.subscribe("clock.ticks")) == [0, 1, 2]
        assert [item.data for item in client.subscribe_envelopes("clock.ticks")] == [0, 1, 2]
        samples.stopped.clear()
        for item in client.subscribe("clock.ticks", {"count": 10**9}):
            if item == 3:
                break
        assert samples.stopped.is_set()


async def test_it_works_where_a_loop_is_running_already(samples: Samples) -> None:
    async with serve_http(samples.registry, anonymous=ME).listening() as address:

        def script() -> list[int]:
            with SyncClient(address) as client:
                return [client.call("math.add", {"a": 1}), *client.subscribe("clock.ticks")]

        assert await asyncio.to_thread(script) == [3, 0, 1, 2]
    with SyncClient(samples.registry) as client:  # in the very thread of the running loop
        assert client.call("math.add", {"a": 1}) == 3


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


def test_a_client_that_is_closed_refuses_and_one_that_cannot_start_leaves_nothing(samples: Samples) -> None:
    client = SyncClient(samples.registry)
    client.close()
    with pytest.raises(CallError, match="closed: start"):
        client.call("math.add", {"a": 1})
    with pytest.raises(CallError) as caught:
        SyncClient("ws://127.0.0.1:1").start()
    assert caught.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(UsageError, match="unknown URL scheme"):
        SyncClient("gopher://x").start()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals are for the main thread")
def test_an_interrupt_stops_the_call_and_leaves_the_client_usable(samples: Samples, interruptible: None) -> None:
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


def test_the_first_call_connects_and_a_second_start_changes_nothing(samples: Samples) -> None:
    client = SyncClient(samples.registry)
    assert "opwire-client" not in [thread.name for thread in threading.enumerate()]
    assert client.call("math.add", {"a": 1}) == 3
    assert list(client.start().subscribe("clock.ticks")) == [0, 1, 2]
    assert [thread.name for thread in threading.enumerate()].count("opwire-client") == 1
    client.close()
    assert client.start().call("math.add", {"a": 1}) == 3
    client.close()


def test_threads_that_call_at_once_start_it_once(samples: Samples) -> None:
    client = SyncClient(samples.registry)
    together, found = threading.Barrier(5), list[int]()

    def work() -> None:
        together.wait(10)
        found.append(client.call("math.add", {"a": 1}))

    workers = [threading.Thread(target=work) for _ in range(5)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(10)
    assert found == [3] * 5
    assert [thread.name for thread in threading.enumerate()].count("opwire-client") == 1
    client.close()


def test_a_client_without_references_ends_its_thread(samples: Samples) -> None:
    client = SyncClient(samples.registry)
    assert client.call("math.add", {"a": 1}) == 3
    (thread,) = [each for each in threading.enumerate() if each.name == "opwire-client"]
    del client
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_start_that_failed_is_tried_again_by_the_next_call(samples: Samples) -> None:
    client = SyncClient("ws://127.0.0.1:1", timeout=1)
    for _ in range(2):
        with pytest.raises(CallError) as caught:
            client.call("math.add")
        assert caught.value.code is ErrorCode.UNAVAILABLE


def test_a_handler_in_the_loop_of_a_client_cannot_wait_for_it(samples: Samples) -> None:
    with SyncClient(samples.registry) as client:

        @samples.registry.query("odd.nested")
        async def nested() -> int:
            try:
                return client.call("math.add", {"a": 1})
            except UsageError as error:
                raise CallError(ErrorCode.RATE_LIMITED, str(error)) from error

        with pytest.raises(CallError, match=r"await `context\.env`") as caught:
            client.call("odd.nested")
        assert caught.value.code is ErrorCode.RATE_LIMITED


def test_a_generated_class_blocks_like_its_client(samples: Samples, tmp_path: Path) -> None:
    """A generated class with methods that block works with SyncClient."""
    with SyncClient(samples.registry) as client:
        wanted = [spec for spec in client.operations() if spec.id in ("math.add", "clock.ticks")]
        source = generate_client(wanted, class_name="Sample", sync=True)
        module: dict[str, Any] = {}
        exec(compile(source, "sample.py", "exec"), module)
        sample = module["Sample"](client)
        assert sample.math.add(1) == 3
        assert list(sample.clock.ticks()) == [0, 1, 2]


FORKING = """
import asyncio, os, time

from opwire import CallError, OperationRegistry, SyncClient

registry = OperationRegistry(namespace="shop")


@registry.query
def add(a: int, b: int) -> int:  # in a thread of the registry
    time.sleep(0.01)
    return a + b


@registry.subscription
async def count():
    for number in range(1_000_000):
        yield number


with SyncClient(registry) as client:
    print(client.call("shop.add", {"a": 1, "b": 2}), flush=True)
    items = client.subscribe("shop.count")
    next(items)
    if not (child := os.fork()):
        try:
            next(items)
        except CallError as error:
            print(error.code, flush=True)
        print(client.call("shop.add", {"a": 3, "b": 4}), flush=True)
        client.close()
        print(asyncio.run(registry.execute("shop.add", {"a": 5, "b": 6})).data, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(client.call("shop.add", {"a": 7, "b": 8}), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_connects_by_itself_and_starts_its_own_threads() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.splitlines() == ["3", "UNAVAILABLE", "7", "11", "15"], ran.stderr
    assert ran.returncode == 0
