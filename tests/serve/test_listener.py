"""Running a surface under uvicorn."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from opwire import CallError, ErrorCode
from opwire.serve import listener
from opwire.serve.listener import listening, run_until_signalled
from tests.requirements import requirement


class Slow:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.draining = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        self.asked.set()
        if scope["path"] == "/slow":
            await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def drain(self) -> None:
        self.draining.set()


@asynccontextmanager
async def getting(address: str, path: str) -> AsyncGenerator[asyncio.Task[bytes]]:
    async def get() -> bytes:
        async with session.get(address + path) as reply:
            return await reply.read()

    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(get())
        try:
            yield task
        finally:
            task.cancel()


@requirement("serve.drain")
async def test_what_runs_when_the_server_stops_is_answered() -> None:
    app = Slow()
    async with asyncio.timeout(5):
        async with listening(app, on_drain=app.drain, lifespan="off") as address:
            request = await stop_while_running(app, address)
        assert await request == b"ok"
    with pytest.raises(aiohttp.ClientConnectorError):
        async with getting(address, "/") as late:
            await late


async def stop_while_running(app: Slow, address: str) -> asyncio.Task[bytes]:
    async def finish() -> bytes:
        async with getting(address, "/slow") as request:
            await app.draining.wait()
            app.go_on.set()
            return await request

    task = asyncio.create_task(finish())
    await app.asked.wait()
    return task


@requirement("serve.drain")
async def test_a_call_that_does_not_end_is_stopped_after_the_time_given() -> None:
    app = Slow()
    async with asyncio.timeout(5), aiohttp.ClientSession() as session:
        async with listening(app, drain_timeout=0, lifespan="off") as address:
            request = asyncio.create_task(session.get(f"{address}/slow").__aenter__())
            await app.asked.wait()
        reply = await request
        assert reply.status == 500  # uvicorn's own word for a request that it stopped
        reply.close()


async def test_new_requests_are_answered_while_a_load_balancer_has_not_noticed() -> None:
    app = Slow()

    async def serve() -> None:
        async with listening(app, on_drain=app.drain, drain_delay=0.6, lifespan="off") as address:
            addresses.append(address)

    addresses: list[str] = []
    async with asyncio.timeout(5):
        serving = asyncio.create_task(serve())
        await app.draining.wait()
        async with getting(addresses[0], "/") as request:
            assert await request == b"ok"
        await serving


@requirement("serve.limits")
@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-A: "])
async def test_a_client_that_does_not_finish_its_headers_is_disconnected(before: bytes, begun: bytes) -> None:
    async with (
        asyncio.timeout(5),
        listening(Slow(), lifespan="off", header_timeout=0.3, timeout_keep_alive=1) as address,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        if before:
            writer.write(before)
            await reader.readuntil(b"ok")
        writer.write(begun)
        assert await reader.read() == b""  # the server has closed
        writer.close()


@requirement("serve.limits")
async def test_a_call_may_take_longer_than_its_headers() -> None:
    app = Slow()
    async with (
        asyncio.timeout(5),
        listening(app, lifespan="off", header_timeout=0.5) as address,
        getting(address, "/slow") as answer,
    ):
        await app.asked.wait()
        await asyncio.sleep(0.6)
        app.go_on.set()
        assert await answer == b"ok"


async def test_answers_are_sent_without_delay() -> None:
    delays: list[int] = []

    class Watched(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            delays.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    with listener._bind("127.0.0.1", 0) as bound:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Watched, sock=bound):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
    assert delays == [1]


@requirement("serve.address")
async def test_an_address_that_cannot_be_listened_on_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for place in ((("127.0.0.1"), port), ("127.0.0.1", 70_000), ("203.0.113.1", 0)):
            with pytest.raises(CallError) as raised:
                async with listening(Slow(), *place):
                    pass
            assert raised.value.code is ErrorCode.UNAVAILABLE
            assert f"{place[0]}:{place[1]}" in raised.value.message


async def test_an_application_that_does_not_start_is_said_so() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(CallError, match="could not start"):
        async with listening(app, lifespan="on"):
            pass


async def test_outside_the_main_thread_it_runs_without_signals(unused_tcp_port: int) -> None:
    async def run() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await run_until_signalled(app, "127.0.0.1", unused_tcp_port, on_drain=drained.set, lifespan="off")

    app, drained = Slow(), threading.Event()
    await asyncio.to_thread(asyncio.run, run())
    assert drained.is_set()


async def test_an_ipv6_address_is_shown_as_one() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with listening(Slow(), "::1", lifespan="off") as address, getting(address, "/") as request:
        assert address.startswith("http://[::1]:")
        assert await request == b"ok"


@requirement("serve.drain")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_drains_and_then_the_runner_returns(number: signal.Signals) -> None:
    app = Slow()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with asyncio.timeout(5):
        running = asyncio.create_task(run_until_signalled(app, "127.0.0.1", port, on_drain=app.drain, lifespan="off"))
        await reached(port)
        os.kill(os.getpid(), number)
        await running
    assert app.draining.is_set()


async def test_a_runner_that_is_cancelled_drains_too() -> None:
    app = Slow()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with asyncio.timeout(5):
        running = asyncio.create_task(run_until_signalled(app, "127.0.0.1", port, on_drain=app.drain, lifespan="off"))
        await reached(port)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert app.draining.is_set()


async def reached(port: int) -> None:
    while True:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/"):
                return
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.01)
