import asyncio
import secrets

from opwire import Identity, OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth import StaticTokens
from opwire.client import Client
from opwire.mcp.client import HTTPServer, from_mcp
from opwire.mcp.server import serve_mcp
from opwire.openapi.server import serve_http

from composed import opened

INPUT = {"article": "tea", "price": 4.5, "currency": "USD"}


async def main() -> None:
    token = secrets.token_urlsafe()
    tokens = StaticTokens({token: Identity(id="ada", scopes=("*",))})
    async with opened() as registry:
        http = serve_http(registry, title="Shop", authenticate=tokens)
        mcp = serve_mcp(registry, name="shop").asgi(authenticate=tokens)
        async with (
            http.listening() as http_address,
            listening(mcp, on_drain=mcp.drain) as mcp_address,
        ):
            await call_over_http(http_address, token)
            await call_over_mcp(f"{mcp_address}/mcp", token)


async def call_over_http(address: str, token: str) -> None:
    async with Client(address, token=token) as client:
        print("over HTTP:", await client.call("shop.offer", INPUT))


async def call_over_mcp(url: str, token: str) -> None:
    server = HTTPServer(url, {"Authorization": f"Bearer {token}"})
    async with from_mcp(server, trust_annotations=True) as tools:
        outside = OperationRegistry()
        outside.follow(tools)
        print("over MCP:", (await outside.execute("shop.offer", INPUT)).data)


asyncio.run(main())
