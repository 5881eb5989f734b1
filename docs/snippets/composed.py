import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from opwire import CallError, Context, OperationRegistry
from opwire.asgi.listener import listening
from opwire.mcp.client import StdioServer, from_mcp
from opwire.openapi.client import from_openapi

from rates import app
from shop import registry


@registry.query("shop.offer", timeout=5)
async def offer(article: str, price: float, currency: str, context: Context) -> str:
    """The price in a currency of your choice, if there is any left."""
    stock = await context.env.warehouse.stock(article=article)  # an MCP tool
    rate = await context.env.rates.get(currency=currency)  # an HTTP request
    if stock.meta.is_error:
        raise CallError("EXECUTION_ERROR", f"{article} is sold out")
    cost = price * rate.data["rate"]
    return f"{stock.data['pieces']} pieces of {article} at {cost:.2f} {currency}"


@asynccontextmanager
async def opened() -> AsyncGenerator[OperationRegistry, None]:
    """The registry with all three sources, as long as the block lasts."""
    async with (
        listening(app) as address,
        from_openapi("rates.yaml", base_url=address) as rates,
        from_mcp(
            StdioServer(sys.executable, ("warehouse.py",)), namespace="warehouse"
        ) as warehouse,
    ):
        registry.follow(rates)
        registry.follow(warehouse)
        yield registry
