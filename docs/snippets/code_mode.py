import asyncio

from opwire import OperationRegistry
from opwire.agents.code_mode import code_mode

registry = OperationRegistry()


@registry.query("stock.list")
async def stock() -> list[dict[str, int | str]]:
    """Return the pieces of every article."""
    return [{"article": f"a{n}", "pieces": n % 7} for n in range(1_000)]


@registry.mutation("stock.reorder")
async def reorder(article: str, pieces: int) -> int:
    """Order pieces of an article from its supplier."""
    return pieces


PROGRAM = """
import asyncio
empty = [each["article"] for each in await stock_list() if each["pieces"] == 0]
await asyncio.gather(*(stock_reorder(article=each, pieces=10) for each in empty[:20]))
print(len(empty), "articles are out of stock, the first 20 were ordered")
empty[:3]
"""


async def main() -> None:
    mode = code_mode(registry)  # serve it, or give it to a model
    print((await mode.execute("tools.search", {"query": "what is in stock?"})).data)
    print((await mode.execute("tools.run", {"code": PROGRAM})).data)


asyncio.run(main())
