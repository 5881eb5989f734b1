"""The fault proxy, between plain sockets and an echo server, and in front of a real one."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.servers.brokers import RedisServer
from tests.servers.faults import FaultProxy
from tests.servers.leaks import Leaks

SILENCE = 0.05  # seconds in which nothing is meant to arrive

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """A proxy in front of a server that sends back what it gets, and that leaves nothing behind."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65_536):
                writer.write(chunk)
        except ConnectionResetError:
            pass
        writer.close()

    async with Leaks():
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
            yield proxy
        server.close()


@pytest.fixture
async def connect(proxy: FaultProxy) -> AsyncIterator[Callable[[], object]]:
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writers.append(writer)
        await exchange((reader, writer), b"hello")
        return reader, writer

    yield connect
    for writer in writers:
        writer.close()


async def read(client: Client, size: int) -> bytes:
    async with asyncio.timeout(5):
        return await client[0].readexactly(size)


async def exchange(client: Client, data: bytes) -> None:
    client[1].write(data)
    assert await read(client, len(data)) == data


async def silence(client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SILENCE):
            await client[0].read(1)


async def reset(client: Client) -> None:
    with pytest.raises(ConnectionResetError):
        await read(client, 1)


async def test_bytes_pass_and_are_counted(proxy: FaultProxy, connect) -> None:
    client = await connect()
    await exchange(client, b"x" * 1_000_000)
    assert proxy.passed == {"up": 1_000_005, "down": 1_000_005}
    assert (proxy.accepted, proxy.connections) == (1, 1)


async def test_cut_resets_every_connection_and_new_ones_work(proxy: FaultProxy, connect) -> None:
    clients = [await connect(), await connect()]
    proxy.cut()
    assert proxy.connections == 0
    for client in clients:
        await reset(client)
    await exchange(await connect(), b"again")
    assert (proxy.accepted, proxy.connections) == (3, 1)


async def test_close_all_ends_every_connection_politely(proxy: FaultProxy, connect) -> None:
    client = await connect()
    proxy.close_all()
    async with asyncio.timeout(5):
        assert await client[0].read() == b""
    assert proxy.connections == 0


async def test_the_end_of_a_connection_is_passed_on(proxy: FaultProxy, connect) -> None:
    client = await connect()
    client[1].write(b"last words")
    client[1].write_eof()
    async with asyncio.timeout(5):
        assert await client[0].read() == b"last words"
        while proxy.connections:
            await asyncio.sleep(0.01)


async def test_a_stalled_connection_stays_open_and_nothing_is_lost(proxy: FaultProxy, connect) -> None:
    client = await connect()
    proxy.stall()
    client[1].write(b"late")
    await silence(client)
    assert proxy.connections == 1
    proxy.flow()
    assert await read(client, 4) == b"late"


@pytest.mark.parametrize(("way", "reached_the_server"), [("up", 5), ("down", 9)])
async def test_one_way_can_be_stalled_alone(proxy: FaultProxy, connect, way, reached_the_server: int) -> None:
    client = await connect()
    proxy.stall(way)
    client[1].write(b"late")
    await silence(client)
    assert proxy.passed == {"up": reached_the_server, "down": 5}
    proxy.flow()
    assert await read(client, 4) == b"late"


async def test_a_stall_hides_that_the_other_side_is_gone(proxy: FaultProxy, connect) -> None:
    client = await connect()
    proxy.stall()
    client[1].transport.abort()
    await asyncio.sleep(SILENCE)
    assert proxy.connections == 1


async def test_dripping_and_halved_bytes_arrive_whole(proxy: FaultProxy, connect) -> None:
    client = await connect()
    proxy.drip(3, 0.001)
    client[1].write(b"0123456789")
    assert await client[0].read(100) == b"012"
    assert await read(client, 7) == b"3456789"
    proxy.halve()
    client[1].write(b"0123456789")
    first = await client[0].read(100)
    assert 0 < len(first) < 10
    assert first + await read(client, 10 - len(first)) == b"0123456789"
    await exchange(client, b"x")


@pytest.mark.parametrize("size", [1, 3, 100_000])
async def test_cut_after_lets_exactly_that_number_of_bytes_pass(proxy: FaultProxy, connect, size: int) -> None:
    client = await connect()
    proxy.cut_after(size, "down")
    client[1].write(b"x" * 200_000)
    assert await read(client, size) == b"x" * size
    await reset(client)
    assert proxy.passed["down"] == 5 + size
    await exchange(await connect(), b"only once")


async def test_refused_connections_fail_while_the_open_ones_live_on(proxy: FaultProxy, connect) -> None:
    client = await connect()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect()
    await exchange(client, b"still here")
    proxy.accept()
    await exchange(await connect(), b"welcome")


async def test_dropped_replies_never_arrive_though_the_server_got_the_bytes(proxy: FaultProxy, connect) -> None:
    client = await connect()
    proxy.drop_replies = True
    client[1].write(b"into the void")
    await silence(client)
    assert proxy.passed == {"up": 18, "down": 5}
    proxy.flow()
    await exchange(client, b"heard")


@pytest.mark.parametrize("trouble", [FaultProxy.stall, FaultProxy.halve, FaultProxy.refuse, FaultProxy.close_all])
async def test_closing_in_the_middle_of_trouble_leaves_nothing_behind(proxy: FaultProxy, connect, trouble) -> None:
    client = await connect()
    client[1].write(b"x" * 10_000_000)  # more than fits in the buffers on the way
    trouble(proxy)


async def test_a_connection_that_is_cut_before_it_is_passed_on_leaves_nothing_behind(proxy: FaultProxy) -> None:
    connecting = asyncio.create_task(asyncio.open_connection("127.0.0.1", proxy.port))
    async with asyncio.timeout(5):
        while not proxy.accepted:
            await asyncio.sleep(0)
    proxy.cut()
    reader, writer = await connecting
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await read((reader, writer), 1)
    writer.close()


async def test_a_server_that_cannot_be_reached_resets_the_client() -> None:
    async with Leaks():
        with RedisServer() as server:
            port = server.port
        async with FaultProxy("127.0.0.1", port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            await reset((reader, writer))
            writer.close()


async def test_a_real_server_is_reached_through_the_proxy(redis_server: RedisServer) -> None:
    async with Leaks(), FaultProxy("127.0.0.1", redis_server.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.halve()
        writer.write(b"PING\r\n")
        assert await read((reader, writer), 7) == b"+PONG\r\n"
        writer.close()
