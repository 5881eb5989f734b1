"""NATS: `request()` of nats-py, nats-py with an inbox of our own, its protocol by hand, and opwire."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.transports.connection import Connection, connected
from benchmarks.transports.ends import calling, responding
from benchmarks.transports.messages import Calls, answer, answered, request
from benchmarks.transports.scenario import SERVERS, Call, End, Scenario
from opwire.transports.nats import NatsTransport


@asynccontextmanager
async def _client(url: str) -> AsyncGenerator[Client]:
    client = await nats.connect(url)
    yield client
    await client.close()


@asynccontextmanager
async def _responder(subject: str, url: str) -> AsyncGenerator[str]:
    async def respond(message: Msg) -> None:
        answer(message.data, message.respond)

    async with _client(url) as client:
        await client.subscribe(subject, queue="servers", cb=respond)
        await client.flush()
        await client.flush()  # the first one may overtake the subscription
        yield url


@asynccontextmanager
async def _request_caller(url: str) -> AsyncGenerator[Call]:
    async with _client(url) as client:

        async def call(a: int) -> int:
            reply = await client.request("request", request("0123456789abcdef-1000", a), timeout=10)
            return answered(reply.data)

        yield call


@asynccontextmanager
async def _inbox_caller(url: str) -> AsyncGenerator[Call]:
    calls = Calls()

    async def arrived(message: Msg) -> None:
        calls.arrived(message.data)

    async with _client(url) as client:
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=arrived)

        async def call(a: int) -> int:
            message, future = calls.open(a)
            await client.publish("inbox", message, reply=inbox)
            return await future

        yield call


# --- the protocol by hand ---------------------------------------------------------------------------------------------


class _Frames(Connection):
    """The few words of NATS' protocol that calls need."""

    def __init__(self, subscription: bytes, arrived: Callable[[bytes, bytes], None]) -> None:
        super().__init__()
        self._subscription = subscription  # a subject, and where servers share it, their queue group
        self._arrived = arrived
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        start = 0
        while (end := data.find(b"\r\n", start)) >= 0:
            line = data[start:end]
            start = end + 2
            if line.startswith(b"MSG "):
                _, _, _, *reply, size = line.split(b" ")
                after = start + int(size)
                if after + 2 > len(data):
                    start = end - len(line)  # the rest of the message is to come
                    break
                self._arrived(data[start:after], reply[0] if reply else b"")
                start = after + 2
            else:
                self._control(line)
        self._rest = data[start:]

    def _control(self, line: bytes) -> None:
        if line.startswith(b"INFO"):
            self.write(b'CONNECT {"verbose":false}\r\nSUB %b 1\r\nPING\r\n' % self._subscription)
        elif line == b"PING":
            self.write(b"PONG\r\n")
        elif line == b"PONG":
            self.opened.set_result(None)

    def publish(self, subject: bytes, message: bytes, reply: bytes = b"") -> None:
        self.write(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(message), message))


@asynccontextmanager
async def _frames_responder(url: str) -> AsyncGenerator[str]:
    def arrived(message: bytes, reply: bytes) -> None:
        answer(message, lambda response: connection.publish(reply, response))

    async with connected(url, lambda: _Frames(b"by-hand.requests servers", arrived)) as connection:
        yield url


@asynccontextmanager
async def _frames_caller(url: str) -> AsyncGenerator[Call]:
    calls = Calls()

    async def call(a: int) -> int:
        message, future = calls.open(a)
        connection.publish(b"by-hand.requests", message, b"by-hand.replies")
        return await future

    async with connected(url, lambda: _Frames(b"by-hand.replies", calls.arrived)) as connection:
        yield call


# --- opwire -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opwire_responder(url: str) -> AsyncGenerator[str]:
    async with responding(NatsTransport(url)):
        yield url


def _scenario(
    name: str, responder: End, caller: Callable[[str], AbstractAsyncContextManager[Call]], library: str | None = None
) -> Scenario:
    return Scenario(name, __name__, responder, caller, library=library, servers=SERVERS, engine="NATS")


def _nats_py(use: str, subject: str, caller: Callable[[str], AbstractAsyncContextManager[Call]]) -> Scenario:
    return _scenario(f"nats-py, {use}", partial(_responder, subject), caller, "nats-py")


OPWIRE = _scenario("opwire", _opwire_responder, lambda url: calling(NatsTransport(url)), "opwire")
RAW = [
    _nats_py("request()", "request", _request_caller),
    _nats_py("an inbox of our own", "inbox", _inbox_caller),
    _scenario("NATS' protocol by hand", _frames_responder, _frames_caller),
]
SCENARIOS = [*RAW, OPWIRE]
