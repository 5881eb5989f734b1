"""What type checkers see of the transport interface; these files are checked, never run."""

from typing import Any, assert_type

from opwire import Client, SyncClient
from opwire.hub import Observer, RemoteServer
from opwire.model.envelope import ResponseEnvelope
from opwire.protocol import Address, CallEvent, CallHandler, CallRequested, PendingRequestMap, Receiver, Transport
from opwire.protocol.description import RequestHandler
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport

memory: Transport = MemoryTransport(MemoryBus())
kind: type[Transport] = MemoryTransport

calls = PendingRequestMap(memory)
receiver: Receiver = calls
server: RequestHandler = CallHandler(OperationRegistry(), calls)

client = Client("ws://127.0.0.1:8700", token="secret", max_message=1024, ssl=None, headers={"x-team": "shop"})
blocking = SyncClient("https://api.example", timeout=5.0, retries=None, proxy=None)
Client("ws://127.0.0.1:8700", max_mesage=1024)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Client("ws://127.0.0.1:8700", max_message="1 KiB")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
observer = Observer("https://api.example", token="secret", proxy=None)
Observer("ws://127.0.0.1:8700", max_mesage=1024)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
remote = RemoteServer("redis://127.0.0.1", name="shop", prefix="shop")
RemoteServer("redis://127.0.0.1", prefix=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Incomplete:
    local = trusted = True

    async def start(self, receiver: Receiver) -> None: ...


incomplete: Transport = Incomplete()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


class Waiting(MemoryTransport):
    async def send(self, event: CallEvent, to: Address | None) -> None: ...  # type: ignore[override]


waiting: Transport = Waiting(MemoryBus())  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


async def types(event: CallRequested) -> None:
    assert_type(memory.request(event), Address | None)
    assert_type(await calls.call("math.add", {"a": 1}, timeout=1.5), ResponseEnvelope[Any])
    async for item in calls.subscribe("clock.ticks", overflow="latest"):
        assert_type(item, ResponseEnvelope[Any])
    calls.subscribe("clock.ticks", overflow="whatever")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    assert_type(await calls.call("clock.now", output_type=int), ResponseEnvelope[int])
    assert_type(await calls.call("clock.now", output_type=int | None), ResponseEnvelope[Any])
    async for typed in calls.subscribe("clock.ticks", output_type=int, idle_timeout=1):
        assert_type(typed.data, int)
