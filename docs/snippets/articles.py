import asyncio
from typing import Literal

from opwire import Annotations, Context, OperationRegistry
from opwire.mcp.server import serve_mcp

registry = OperationRegistry(namespace="shop")
articles = {"tea": 4.5, "cups": 12.0}


def names(value: str) -> list[str]:
    return [name for name in articles if name.startswith(value)]


@registry.resource("shop://articles")
def catalogue() -> list[str]:
    """All articles."""
    return sorted(articles)


@registry.resource("shop://articles/{name}", completes={"name": names})
def article(name: str) -> dict[str, float]:
    """An article with its price."""
    return {"price": articles[name]}


@registry.prompt(title="Recommend an article", completes={"article": names})
def recommend(article: str, tone: Literal["kind", "funny"] = "kind") -> str:
    """Ask for a recommendation."""
    return f"Recommend {article} to a customer, in a {tone} tone."


@registry.mutation(
    "shop.reprice", annotations=Annotations(idempotent=True, destructive=False)
)
async def reprice(name: str, price: float, context: Context) -> float:
    """Change the price of an article."""
    before, articles[name] = articles[name], price
    registry.resource_updated(
        f"shop://articles/{name}"
    )  # clients that have subscribed are notified
    context.log(
        "info", f"{name} was {before}"
    )  # to the client, at the level that it has set
    return price


if __name__ == "__main__":
    asyncio.run(serve_mcp(registry, name="shop").run_stdio())
