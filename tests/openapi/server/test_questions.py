"""A caller over HTTP cannot be asked."""

from opwire import Context, OperationRegistry
from tests.openapi.server.served import served


async def test_the_error_says_what_was_asked_and_how_to_answer() -> None:
    """An operation that asks its caller fails over HTTP, with the question and how to answer it."""
    registry = OperationRegistry()

    @registry.mutation("shop.purge")
    async def purge(context: Context) -> str:
        return "deleted" if await context.elicit(bool, "Delete 3 orders?") else "kept"

    async with served(registry) as client:
        reply = await client.post("/shop/purge", {})
    assert (reply.status, reply.problem["code"]) == (499, "ABORTED")
    assert reply.problem["detail"] == 'the operation asks "Delete 3 orders?", which its caller cannot answer'
    assert reply.problem["details"]["question"]["params"]["message"] == "Delete 3 orders?"
    assert "on_question" in reply.problem["details"]["hint"]
