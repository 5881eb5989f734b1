"""A TCP proxy that makes trouble between a client and a real server."""

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Literal, Self

Way = Literal["up", "down"]
"""Towards the server, or back to the client."""

_RST = struct.pack("ii", 1, 0)  # for SO_LINGER: close without goodbye
_GAP = 0.001  # seconds between two pieces, so that the receiver reads them one by one


class FaultProxy:
    """Forward bytes, or inject faults, for all connections at once, present and future.

    async with FaultProxy("127.0.0.1", server.port) as proxy:
        connect(proxy.port)
        proxy.cut()

    `buffer` bounds the bytes of the server that the kernel receives for it: by itself it grows that to 32 MiB, which
    hides a stall from the server.
    """

    def __init__(self, host: str, port: int, *, buffer: int | None = None) -> None:
        self._target = (host, port)
        self._buffer = buffer
        self._listener = _bound(0)
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._passing: dict[Way, asyncio.Event] = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._until_cut: dict[Way, int | None] = {"up": None, "down": None}
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0  # connections so far
        self.passed: dict[Way, int] = {"up": 0, "down": 0}  # bytes so far
        self.flow()

    async def __aenter__(self) -> Self:
        self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_listening()
        self.flow()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return sum(not task.cancelling() for task in self._connections)

    # --- connections --------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break every connection, with a reset to both sides."""
        self._end(_reset)

    def close_all(self) -> None:
        """Close every connection, politely to both sides."""
        self._end(asyncio.StreamWriter.close)

    def cut_after(self, size: int, way: Way) -> None:
        """Let this number of bytes pass that way, then cut."""
        self._until_cut[way] = size

    def refuse(self) -> None:
        """Refuse new connections; the open ones live on."""
        self._stop_listening()
        self._listener = _bound(self.port)  # bound but not listening: the port stays ours, and the kernel says no

    def accept(self) -> None:
        """Accept new connections again."""
        self._listener.listen()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    # --- bytes --------------------------------------------------------------------------------------------------------

    def stall(self, *ways: Way) -> None:
        """Pass nothing on, not even the end of a connection; without an argument both ways. `flow` passes it on."""
        for way in ways or self._passing:
            self._passing[way].clear()

    def drip(self, size: int, delay: float) -> None:
        """Pass on this number of bytes at a time, with a delay in seconds after each."""
        self._divide, self._gap = (lambda chunk: _slices(chunk, size)), delay

    def halve(self) -> None:
        """Pass on everything in two pieces."""
        self._divide, self._gap = _halves, _GAP

    def flow(self) -> None:
        """Pass everything on again: the end of `stall`, `drip`, `halve` and `drop_replies`."""
        self.drop_replies = False  # when true, the client's bytes reach the server and the server's go nowhere
        self._divide: Callable[[bytes], Iterable[bytes]] = _whole
        self._gap = 0.0
        for gate in self._passing.values():
            gate.set()

    # --- the work -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        self.accepted += 1
        writers: list[asyncio.StreamWriter] = []
        task = asyncio.create_task(self._connect(client, writers))
        self._connections[task] = writers
        task.add_done_callback(self._connections.pop)
        task.add_done_callback(lambda _: writers or client.close())  # where it was cut before it began

    async def _connect(self, client: socket.socket, writers: list[asyncio.StreamWriter]) -> None:
        try:
            from_client, to_client = await asyncio.open_connection(sock=client)
            writers.append(to_client)
            from_server, to_server = await asyncio.open_connection(*self._target)
            writers.append(to_server)
            if self._buffer is not None:
                to_server.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(from_client, to_server, "up"))
                group.create_task(self._pass(from_server, to_client, "down"))
        except* OSError:
            for gate in self._passing.values():
                await gate.wait()  # a stall hides a reset, too
            for writer in writers:
                _reset(writer)
        finally:
            for writer in writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        while chunk := await reader.read(65_536):
            for piece in self._divide(chunk):
                await self._passing[way].wait()
                await self._write(piece, writer, way)
        await self._passing[way].wait()
        writer.write_eof()

    async def _write(self, piece: bytes, writer: asyncio.StreamWriter, way: Way) -> None:
        if way == "down" and self.drop_replies:
            return
        left = self._until_cut[way]
        piece = piece[:left]
        writer.write(piece)
        self.passed[way] += len(piece)
        if left is not None:
            self._until_cut[way] = left - len(piece) or None
            if left == len(piece):
                self.cut()
        await writer.drain()
        if self._gap:
            await asyncio.sleep(self._gap)

    def _end(self, how: Callable[[asyncio.StreamWriter], None]) -> None:
        for task, writers in self._connections.items():
            for writer in writers:
                how(writer)
            if not task.cancelling():  # a second cancel would hit it while it closes
                task.cancel()

    def _stop_listening(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    listener.bind(("127.0.0.1", port))
    return listener


def _reset(writer: asyncio.StreamWriter) -> None:
    try:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
    except OSError:
        pass  # it is closed already
    writer.transport.abort()


def _whole(chunk: bytes) -> Iterable[bytes]:
    return (chunk,)


def _slices(chunk: bytes, size: int) -> Iterable[bytes]:
    return (chunk[at : at + size] for at in range(0, len(chunk), size))


def _halves(chunk: bytes) -> Iterable[bytes]:
    middle = random.randint(1, max(1, len(chunk) - 1))
    return filter(None, (chunk[:middle], chunk[middle:]))
