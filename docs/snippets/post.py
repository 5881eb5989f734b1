"""A small broker, and opwire over it. Frames are MessagePack: a verb, arguments."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
from opwire import CallError
from opwire.transports.broker import BrokerTransport
from opwire.transports.broker_connection import BrokerListener

GONE = (OSError, asyncio.IncompleteReadError)


def write(writer: asyncio.StreamWriter, *frame: Any) -> None:
    data = msgspec.msgpack.encode(frame)
    writer.write(len(data).to_bytes(4) + data)


async def read(reader: asyncio.StreamReader) -> list[Any]:
    size = int.from_bytes(await reader.readexactly(4))
    return msgspec.msgpack.decode(await reader.readexactly(size))


class PostOffice:
    """The broker: knows who is there, and who serves what."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.StreamWriter] = {}
        self._serving: dict[str, deque[str]] = {}

    async def visit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        address = ""
        try:
            address = (await read(reader))[1]
            self._ends[address] = writer
            write(writer, "done")
            while True:
                self._act(address, *await read(reader))
        except GONE:
            pass  # it left
        finally:
            self._ends.pop(address, None)
            self._unserve(address, list(self._serving))
            writer.close()

    def _act(self, sender: str, what: str, *words: Any) -> None:
        writer = self._ends[sender]
        match what, *words:
            case "serve", ids:
                for each in ids:
                    self._serving.setdefault(each, deque()).append(sender)
                write(writer, "done")
            case "unserve", ids:
                self._unserve(sender, ids)
                write(writer, "done")
            case "request", operation_id, token, message:
                if serving := self._serving.get(operation_id):
                    serving.rotate()
                    write(self._ends[serving[0]], "arrived", sender, token, message)
                else:
                    write(writer, "undelivered", token, "no server has it")
            case "send", to, token, message:
                if to in self._ends:
                    write(self._ends[to], "arrived", sender, token, message)
                else:
                    write(writer, "unreachable", to)
            case "broadcast", token, message:
                for end in self._ends.values():
                    write(end, "overheard", sender, token, message)
            case _:
                pass  # a verb of a newer version

    def _unserve(self, address: str, ids: Iterable[str]) -> None:
        for each in ids:
            if address in self._serving.get(each, ()):
                self._serving[each].remove(address)


class PostBrokerConnection:
    """One connection to the broker: all that opwire has to know of it."""

    name = "the post office"
    max_message = 2**20

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def connect(self, address: str, listener: BrokerListener) -> None:
        try:
            reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._port
            )
        except OSError as error:
            raise CallError("UNAVAILABLE", f"{self.name} cannot be reached") from error
        self._reading = asyncio.create_task(self._read(reader, listener))
        await self._confirmed("join", address)

    async def serve(self, operation_ids: Iterable[str]) -> None:
        await self._confirmed("serve", list(operation_ids))

    async def unserve(self, operation_ids: Iterable[str]) -> None:
        await self._confirmed("unserve", list(operation_ids))

    def request(
        self,
        operation_id: str,
        token: str,
        message: bytes,
        sticky_key: str | None = None,
    ) -> None:
        self._write("request", operation_id, token, message)

    def send(self, to: str, token: str, message: bytes, *, control: bool) -> None:
        self._write("send", to, token, message)

    def broadcast(self, token: str, message: bytes) -> None:
        self._write("broadcast", token, message)

    def beat(self, every: float) -> None:
        """The broker sees for itself who is connected."""

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        if self._writer is not None:
            self._writer.close()  # what was written before is still sent
            self._writer = None

    async def _read(
        self, reader: asyncio.StreamReader, listener: BrokerListener
    ) -> None:
        try:
            while True:
                what, *words = await read(reader)
                if what == "done":
                    self._settle(None)
                else:
                    # arrived, overheard, undelivered or unreachable
                    getattr(listener, what)(*words)
        except GONE:
            self._writer = None
            listener.disconnected("the connection was lost")
        finally:
            while self._waiting:
                self._settle(self._gone())

    async def _confirmed(self, *frame: Any) -> None:
        self._write(*frame)
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        await done

    def _write(self, *frame: Any) -> None:
        if self._writer is None:
            raise self._gone()
        if self._writer.transport.get_write_buffer_size() > 8 * self.max_message:
            raise CallError("RATE_LIMITED", f"{self.name} does not keep up")
        write(self._writer, *frame)

    def _settle(self, error: CallError | None) -> None:
        done = self._waiting.popleft()
        if done.done():
            return  # the waiting call has given up
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _gone(self) -> CallError:
        return CallError("UNAVAILABLE", f"the connection to {self.name} is gone")


class PostTransport(BrokerTransport):
    """One end of a post office."""

    def __init__(self, port: int) -> None:
        super().__init__(PostBrokerConnection(port), heartbeat=1.0)
