import asyncio

from opwire.mcp.server import serve_mcp

from shop import registry

if __name__ == "__main__":
    asyncio.run(serve_mcp(registry, name="shop", version="1.0").run_stdio())
