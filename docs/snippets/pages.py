import asyncio
from typing import Any

from opwire import OperationRegistry
from opwire.client import Client

registry = OperationRegistry()


@registry.query("logs.list")
async def logs(cursor: int = 0) -> dict[str, Any]:
    """Two lines a page, and where the next page begins."""
    page: dict[str, Any] = {"items": [f"line {cursor + 1}", f"line {cursor + 2}"]}
    return {**page, "next_cursor": cursor + 2} if cursor < 4 else page


async def main() -> None:
    async with Client(registry) as client:
        async for line in client.paginate(
            "logs.list", cursor=("next_cursor", "cursor"), max_items=5
        ):
            print(line)


asyncio.run(main())
