import asyncio

from opwire_conformance import TRANSPORT_CONTRACT, check_transport

from post import PostOffice, PostTransport


async def main() -> None:
    server = await asyncio.start_server(PostOffice().visit, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await check_transport(lambda: PostTransport(port))
    print(f"keeps all {len(TRANSPORT_CONTRACT)} promises")
    server.close()


asyncio.run(main())
