"""What the tests of the WebSocket transport are made with: ends, and peers that know nothing of opwire."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from inspect import isasyncgenfunction
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from opwire.model.operation import Handler, OperationSpec, OperationType
from opwire.protocol import (
    LOCAL_IDENTITY,
    Address,
    CallHandler,
    CallRequested,
    PendingRequestMap,
    Transport,
)
from opwire.registry import OperationRegistry
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from opwire_conformance.harness import Probe, soon

BEAT = 0.2
"""Seconds between two beats where a test waits for them."""


class End(Probe):
    """A bare end: records what arrives, and lost peers."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.losses: list[tuple[Address | None, str]] = []

    def lost(self, peer: Address | None, reason: str) -> None:
        self.losses.append((peer, reason))
        self._news.set()

    def ask(self, operation_id: str, request_id: str = "r", input: Any = None, **fields: Any) -> Address | None:
        """Send a request."""
        event = CallRequested(request_id=request_id, operation_id=operation_id, input=input, **fields)
        return self.transport.request(event)

    async def event(self, number: int = 0) -> Any:
        """The event with this number, when it has arrived."""
        await self.count(number + 1)
        return self.events[number]


class Plain:
    """A client made of the `websockets` library and JSON by hand; it never says `peer`."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, type: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": type, **fields}))

    async def hear(self) -> dict[str, Any]:
        return json.loads(await soon("a message arrives", self.connection.recv()))

    async def closed(self) -> tuple[int, str]:
        """The code and the reason that the server closes with."""
        await soon("the server closes", self.connection.wait_closed())
        assert self.connection.close_code is not None
        return self.connection.close_code, self.connection.close_reason or ""


class Raw:
    """A client that writes bytes, and reads only on command."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str) -> None:
        self.reader = reader
        self.writer = writer
        self.core = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol("opwire.v1")], max_size=None)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def say(self, type: str, **fields: Any) -> None:
        self.write(Frame(Opcode.TEXT, json.dumps({"type": type, **fields}).encode()).serialize(mask=True))

    async def hear(self) -> list[Frame]:
        """The frames that arrive next."""
        while True:
            frames = [event for event in self.core.events_received() if isinstance(event, Frame)]
            if frames:
                return frames
            data = await soon("bytes arrive", self.reader.read(65_536))
            assert data, "the server closed the connection"
            self.core.receive_data(data)

    async def end(self) -> None:
        """Wait until the server ends the connection."""

        async def read() -> None:
            try:
                while await self.reader.read(65_536):
                    pass
            except ConnectionError:
                pass

        await soon("the server ends the connection", read())


class Ends:
    """Makes the ends of one test, and closes them when it is over."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def server(self, *operation_ids: str, **options: Any) -> tuple[WebSocketServer, End]:
        """A server that listens. Peers that are written by hand do not answer its pings."""
        server = WebSocketServer(**{"heartbeat": 60.0, **options})
        return server, await self._start(server, operation_ids)

    async def client(self, url: str, *operation_ids: str, **options: Any) -> End:
        """A client that is connected."""
        return await self._start(WebSocketTransport(url, **options), operation_ids)

    async def _start(self, transport: Transport, operation_ids: tuple[str, ...]) -> End:
        end = End(transport)
        self._stack.push_async_callback(transport.close)
        await transport.start(end)
        if operation_ids:
            await transport.announce(operation_ids)
        return end

    async def calls(self, transport: Transport, **handlers: Handler) -> PendingRequestMap:
        """An end that calls, and serves these operations of the namespace `test`."""
        calls = await self._stack.enter_async_context(PendingRequestMap(transport))
        if handlers:
            registry = OperationRegistry()
            for name, handler in handlers.items():
                type = OperationType.SUBSCRIPTION if isasyncgenfunction(handler) else OperationType.QUERY
                registry.register(OperationSpec(namespace="test", name=name, type=type), handler)
            await self._stack.enter_async_context(CallHandler(registry, calls, anonymous=LOCAL_IDENTITY))
        return calls

    async def plain(self, url: str, *, hello: bool = True, **options: Any) -> Plain:
        """A client made by hand, which has said hello."""
        options = {"subprotocols": [Subprotocol("opwire.v1")], "compression": None, "max_size": None} | options
        plain = Plain(await self._stack.enter_async_context(connect(url, **options)))
        if hello:
            await plain.say("session.hello", version=1)
            assert (await plain.hear())["type"] == "session.welcome"
        return plain

    async def raw(self, url: str, *, hello: bool = True) -> Raw:
        """A client that has shaken hands, and said hello."""
        uri = parse_uri(url)
        reader, writer = await asyncio.open_connection(uri.host, uri.port, limit=2**16)
        self._stack.callback(writer.close)
        raw = Raw(reader, writer, url)
        raw.core.send_request(raw.core.connect())
        for data in raw.core.data_to_send():
            raw.write(data)
        while raw.core.state.name == "CONNECTING":
            raw.core.receive_data(await soon("the handshake", reader.read(65_536)))
        raw.core.events_received()
        if hello:
            raw.say("session.hello", version=1)
            await raw.hear()
        return raw


async def until(what: str, condition: Callable[[], bool]) -> None:
    """Wait until something is true, by polling."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await soon(what, wait())
