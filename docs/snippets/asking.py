import asyncio
from typing import Any

from opwire import CallError, Client, Context, OperationRegistry, Question

registry = OperationRegistry(namespace="orders")


@registry.mutation
async def purge(context: Context, year: int) -> str:
    """Delete the orders of a year."""
    answer = await context.elicit(bool, f"Delete 3 orders of {year}?")
    return "deleted 3 orders" if answer else f"deleted nothing: {answer.action}"


async def answer(question: Question) -> dict[str, Any]:
    """Stand in for a dialog: MCP clients, terminals and consoles show one."""
    print(question.params["message"])
    return {"action": "accept", "content": {"value": True}}


async def main() -> None:
    async with Client(registry, on_question=answer) as client:
        print(await client.call("orders.purge", {"year": 2019}))
    async with Client(registry) as client:
        try:
            await client.call("orders.purge", {"year": 2019})
        except CallError as error:
            print(error)


if __name__ == "__main__":
    asyncio.run(main())
