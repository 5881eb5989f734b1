"""Running a surface under uvicorn."""

import asyncio
import contextlib
import logging
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opwire import CallError, ErrorCode, Identity
from opwire.asgi import connections
from opwire.asgi.app import ListeningApp
from opwire.asgi.guard import RequestGuard
from opwire.asgi.listener import bind, listening
from opwire.auth import StaticTokens
from opwire.errors import UsageError
from tests.servers.certificates import self_signed

TOKEN = "a-token-0123456789"


class Slow(ListeningApp):
    """Responds on command."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.draining = asyncio.Event()
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        self.requests += 1
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


async def test_a_call_that_does_not_end_is_stopped_after_the_time_given(caplog: pytest.LogCaptureFixture) -> None:
    app = Slow()
    async with asyncio.timeout(5), aiohttp.ClientSession() as session:
        async with listening(app, drain_timeout=0, lifespan="off") as address:
            request = asyncio.create_task(session.get(f"{address}/slow").__aenter__())
            await app.asked.wait()
        reply = await request
        assert (reply.status, reply.content_type) == (503, "application/problem+json")
        assert (await reply.json(content_type=None))["detail"] == "the server is shutting down"
        reply.close()
    assert "Exception in ASGI application" not in caplog.text


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


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-A: "])
async def test_a_client_that_does_not_finish_its_headers_is_disconnected(before: bytes, begun: bytes) -> None:
    async with (
        asyncio.timeout(5),
        listening(Slow(), lifespan="off", header_timeout=0.3, keep_alive=1) as address,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        if before:
            writer.write(before)
            await reader.readuntil(b"ok")
        writer.write(begun)
        assert await reader.read() == b""  # the server has closed
        writer.close()


@pytest.mark.parametrize("target", [b"/#", b"/#x?q=1", b"/?q=1#x", b"/%23#"])
async def test_a_target_with_a_fragment_is_not_another_spelling_of_a_path(target: bytes) -> None:
    async with asyncio.timeout(5), listening(Slow(), lifespan="off") as address:
        for path, status in ((b"/?q=%23", b"200"), (target, b"400")):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
            writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path)
            assert (await reader.read()).startswith(b"HTTP/1.1 %s " % status)
            writer.close()


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://tools.example:80/", b"200"),
        (b"HTTP://TOOLS.example:80/?q=/", b"200"),
        (b"http://other.example/", b"400"),
        (b"http://tools.example/", b"400"),
        (b"http://tools.example:80@other.example/", b"400"),
    ],
)
async def test_the_host_in_the_target_of_a_request_is_that_of_the_header(target: bytes, status: bytes) -> None:
    async with asyncio.timeout(5), listening(Slow(), lifespan="off") as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(b"GET %s HTTP/1.1\r\nHost: Tools.example:80\r\nConnection: close\r\n\r\n" % target)
        assert (await reader.read()).startswith(b"HTTP/1.1 %s " % status)
        writer.close()


async def test_a_call_may_take_longer_than_its_headers() -> None:
    app = Slow()
    async with (
        asyncio.timeout(20),
        listening(app, lifespan="off", header_timeout=0.5) as address,
        getting(address, "/slow") as answer,
    ):
        await app.asked.wait()
        [(later, writer)] = await silent(address, 1)  # its time for headers ends after that of the request
        assert await closed(later)
        writer.close()
        app.go_on.set()
        assert await answer == b"ok"


class Crowded(Slow):
    """Answers, or holds requests to `/slow` without a token, where tokens are taken."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._guard = RequestGuard(super().__call__, authenticate=StaticTokens({TOKEN: Identity(id="me")}), **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._guard(scope, receive, send)


async def silent(address: str, number: int, said: bytes = b"") -> list[tuple[asyncio.StreamReader, Any]]:
    found = [await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2])) for _ in range(number)]
    for _, writer in found:
        writer.write(said)
    return found


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_connections_without_a_request_give_way_to_new_ones_the_oldest_first(said: bytes) -> None:
    async with asyncio.timeout(20), listening(Slow(), lifespan="off", max_connections=5) as address:
        others = await silent(address, 5, said)
        async with getting(address, "/") as answer:
            assert await answer == b"ok"
        assert await closed(others[0][0])
        assert not any(reader.at_eof() for reader, _ in others[2:])
        for _, writer in others:
            writer.close()


async def test_a_request_in_flight_does_not_give_way_and_a_new_connection_has_to_wait() -> None:
    app = Slow()
    async with asyncio.timeout(20), listening(app, lifespan="off", max_connections=1) as address:
        async with getting(address, "/slow") as first:
            await app.asked.wait()
            [(reader, writer)] = await silent(address, 1)
            assert await closed(reader)
            writer.close()
            app.go_on.set()
            assert await first == b"ok"
        async with getting(address, "/") as again:
            assert await again == b"ok"


async def test_when_all_connections_have_requests_those_without_a_token_give_way() -> None:
    app = Crowded()
    slow = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with asyncio.timeout(20), listening(app, lifespan="off", max_connections=2) as address:
        others = await silent(address, 2, slow)
        for _, writer in others:
            await writer.drain()
        while app.requests < 2:
            await asyncio.sleep(0.01)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{address}/") as response:
            assert await response.read() == b"ok"
        assert await closed(others[0][0])
        app.go_on.set()
        for _, writer in others:
            writer.close()


@contextmanager
def max_files(number: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_before_the_process_runs_out_of_files_connections_give_way() -> None:
    async with asyncio.timeout(20):
        with socket.socket() as probe:
            first_free_file = probe.fileno()
        with max_files(first_free_file + 24 + 64):  # 64 are left to the rest of the process
            server = listening(Slow(), lifespan="off")
            address = await server.__aenter__()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(server)
            others = await silent(address, 60)  # two files each: this process is the client, too
            async with getting(address, "/") as answer:
                assert await answer == b"ok"
            assert await closed(others[0][0])
            for _, writer in others:
                writer.close()


async def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    gone = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while not gone.is_set():
                await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
                message = asyncio.ensure_future(receive())
                await asyncio.wait([message], timeout=0)
                if message.done() and message.result()["type"] == "http.disconnect":
                    gone.set()
                message.cancel()
        finally:
            gone.set()

    async with asyncio.timeout(20), listening(app, lifespan="off", write_timeout=0.1, drain_timeout=0) as address:
        [(_, writer)] = await silent(address, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await gone.wait()
        writer.close()


async def test_responses_that_clients_do_not_read_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    size, began, third = 20_000_000, list[str](), asyncio.Event()

    async def large(scope: Any, receive: Any, send: Any) -> None:
        began.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": b"x" * size})
        if scope["path"] == "/third":
            third.set()

    monkeypatch.setattr(connections, "MAX_UNREAD_BYTES", 2 * size)
    async with asyncio.timeout(20), listening(large, lifespan="off") as address:
        ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for _ in range(3):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)  # otherwise the kernel takes megabytes
            client.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            ends.append(await asyncio.open_connection(sock=client))
        for (_, writer), path in zip(ends, ("first", "second", "third"), strict=True):
            # The next request on a connection waits until its client has read the response before.
            writer.write(f"GET /{path} HTTP/1.1\r\nHost: a\r\n\r\nGET /more HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            while f"/{path}" not in began:
                await asyncio.sleep(0.01)
        await third.wait()
        assert began == ["/first", "/second", "/third"]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):  # the oldest was disconnected
            await ends[0][0].readexactly(size)
        for reader, _ in ends[1:]:
            await reader.readexactly(2 * size)
        assert began[3:] == ["/more", "/more"]
        for _, writer in ends:
            writer.close()


async def test_headers_without_an_end_are_not_collected() -> None:
    async with asyncio.timeout(20), listening(Slow(), lifespan="off") as address:
        [(reader, writer)] = await silent(address, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(1_000):
                writer.write(b"X-Filler: " + b"x" * 4_000 + b"\r\n")
                await writer.drain()
                if reader.at_eof():
                    break
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in await reader.read()
        writer.close()


@pytest.mark.parametrize(
    ("begun", "line"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a:\r\n" * 1_000),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ", b"x" * 4_000),
        (b"Transfer-Encoding: chunked\r\n\r\n2;x=", b"x" * 4_000),
        (b"\r\nGET / HTTP/1.1\r\n", b"X-Filler: " + b"x" * 4_000 + b"\r\n"),
    ],
    ids=["trailers", "trailer", "extension", "pipelined"],
)
async def test_what_follows_a_request_that_is_being_served_is_not_collected_without_end(
    begun: bytes, line: bytes
) -> None:
    begun = b"POST /slow HTTP/1.1\r\nHost: localhost\r\n" + begun
    async with asyncio.timeout(20), listening(app := Slow(), lifespan="off") as address:
        [(reader, writer)] = await silent(address, 1, begun)
        await app.asked.wait()
        with contextlib.suppress(ConnectionError):
            for _ in range(1_000):
                writer.write(line)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()  # until the server has closed, although the request is being served
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        writer.close()
        app.go_on.set()


async def test_trailers_are_not_headers() -> None:
    async def names(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        body = b",".join(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"2\r\n{}\r\n0\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nX-A: 1\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(10), listening(names, lifespan="off") as address:
        [(reader, writer)] = await silent(address, 1, request + trailers + last)
        answers = await reader.read()
        writer.close()
    assert re.findall(rb"\r\n\r\n([a-z,-]+)", answers) == [b"host,transfer-encoding", b"x-a,connection"]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_requests_may_be_sent_before_the_response_to_the_one_before_them(encrypted: bool, tmp_path: Path) -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()).get("more_body", False):
            body += message["body"]
        body = scope["path"].encode() + b"=%d;" % len(body + message["body"])
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate = self_signed(tmp_path)
    server.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate)) if encrypted else None
    count, length = 3_000, 300_000
    requests = b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(count))
    body = b"POST /body HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length + b"x" * length
    last = b"GET /last HTTP/1.1\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(30), listening(echo, ssl=server if encrypted else None, lifespan="off") as address:
        reader, writer = await asyncio.open_connection("localhost", int(address.rpartition(":")[2]), ssl=trusting)
        writer.write(requests + body + last)
        answers = await reader.read()
        writer.close()
    expected = [*(b"/%d=0;" % number for number in range(count)), b"/body=%d;" % length, b"/last=0;"]
    assert re.findall(rb"/\w+=\d+;", answers) == expected


async def test_requests_that_wait_for_the_one_before_them_are_not_collected() -> None:
    allowed, served = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def on_command(scope: Any, receive: Any, send: Any) -> None:
        await allowed.acquire()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        served.release()

    async def bytes_that_the_server_does_not_take(writer: asyncio.StreamWriter) -> int:
        previous, unsent = -1, writer.transport.get_write_buffer_size()
        while unsent != previous:
            await asyncio.sleep(0.3)
            previous, unsent = unsent, writer.transport.get_write_buffer_size()
        return unsent

    async with asyncio.timeout(30), listening(on_command, lifespan="off", drain_timeout=0) as address:
        [(_, writer)] = await silent(address, 1)
        writer.write(1_500_000 * b"GET / HTTP/1.1\r\n\r\n")  # 27 MB, more than the buffers of the kernel
        before = await bytes_that_the_server_does_not_take(writer)
        assert before > 8_000_000
        for _ in range(1_000):
            allowed.release()
            await served.acquire()
        assert before - await bytes_that_the_server_does_not_take(writer) < 1_000_000
        writer.transport.abort()


async def test_broken_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(20), listening(Slow(), lifespan="off") as address:
        logger = logging.getLogger("uvicorn.error")
        with caplog.at_level(logging.WARNING):
            for _ in range(2_000):
                logger.warning("Invalid HTTP request received.")
            logger.error("a fault of the application")
            refused = "socket.accept() out of system resource"
            for _ in range(100):
                logging.getLogger("asyncio").error(refused)
        async with getting(address, "/") as answer:
            assert await answer == b"ok"
    assert 0 < caplog.messages.count("Invalid HTTP request received.") < 600
    assert caplog.messages.count(refused) < 10
    assert "a fault of the application" in caplog.messages
    assert not logging.getLogger("uvicorn.error").filters


@pytest.mark.parametrize(
    "options",
    [
        *({"header_timeout": 0}, {"header_timeout": float("nan")}, {"write_timeout": -1}, {"max_connections": 0}),
        *({"max_connections": 1.5}, {"drain_timeout": float("inf")}, {"drain_delay": -1}, {"drain_timeout": "5"}),
    ],
)
async def test_a_number_that_cannot_be_used_is_refused_by_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        async with listening(Slow(), lifespan="off", **options):
            pass


async def test_answers_are_sent_without_delay() -> None:
    delays: list[int] = []

    class Watched(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            delays.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    with bind("127.0.0.1", 0) as bound:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Watched, sock=bound):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
    assert delays == [1]


async def test_an_address_that_cannot_be_listened_on_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for place in (("127.0.0.1", port), ("203.0.113.1", 0)):
            with pytest.raises(CallError) as raised:
                async with listening(Slow(), *place):
                    pass
            assert raised.value.code is ErrorCode.UNAVAILABLE
            assert f"{place[0]}:{place[1]}" in raised.value.message


@pytest.mark.parametrize("port", [70_000, -1, "8000"])
async def test_a_port_that_cannot_exist_is_a_wrong_argument(port: Any) -> None:
    with pytest.raises(UsageError, match="port must be a whole number from 0 to 65535, not "):
        async with listening(Slow(), "127.0.0.1", port):
            pass


async def test_an_application_that_does_not_start_is_said_so() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(CallError, match="failed to start"):
        async with listening(app, lifespan="on"):
            pass


async def test_outside_the_main_thread_it_runs_without_signals(unused_tcp_port: int) -> None:
    async def run() -> None:
        running = asyncio.create_task(app.run("127.0.0.1", unused_tcp_port, lifespan="off"))
        async with asyncio.timeout(30), aiohttp.ClientSession() as session:
            while not app.requests:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await session.get(f"http://127.0.0.1:{unused_tcp_port}", timeout=aiohttp.ClientTimeout(1))
        running.cancel()
        await asyncio.wait([running])

    app = Slow()
    await asyncio.to_thread(asyncio.run, run())
    assert app.draining.is_set()


async def test_an_ipv6_address_is_shown_as_one() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with listening(Slow(), "::1", lifespan="off") as address, getting(address, "/") as request:
        assert address.startswith("http://[::1]:")
        assert await request == b"ok"


async def test_with_a_certificate_it_listens_on_https(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with (
        asyncio.timeout(10),
        listening(Slow(), ssl=server, lifespan="off") as address,
        aiohttp.ClientSession() as session,
        session.get(address.replace("127.0.0.1", "localhost"), ssl=trusting) as reply,
    ):
        assert address.startswith("https://127.0.0.1:")
        assert await reply.read() == b"ok"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_drains_and_then_the_runner_returns(number: signal.Signals) -> None:
    app = Slow()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with asyncio.timeout(5):
        running = asyncio.create_task(app.run("127.0.0.1", port, lifespan="off"))
        await reached(port)
        os.kill(os.getpid(), number)
        await running
    assert app.draining.is_set()


async def test_a_runner_that_is_cancelled_drains_too() -> None:
    app = Slow()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with asyncio.timeout(5):
        running = asyncio.create_task(app.run("127.0.0.1", port, lifespan="off"))
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


def test_without_uvicorn_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; import opwire.asgi.listener"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr.rstrip().endswith("the package uvicorn is not installed; run: pip install 'opwire[http]'")
