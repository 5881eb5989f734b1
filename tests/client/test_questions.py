"""Questions of handlers, answered by a function of the client's owner."""

import threading
from typing import Any

from opwire import Context, OperationRegistry, Question, SyncClient


def test_a_plain_function_answers_in_a_thread_of_its_own_so_that_it_may_block() -> None:
    threads: list[int] = []

    def answer(_: Question) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return {"action": "accept", "content": {"value": True}}

    registry = OperationRegistry(namespace="shop")

    @registry.mutation
    async def delete(context: Context) -> str:
        return "deleted" if await context.elicit(bool, "Delete?") else "kept"

    @registry.query("shop.here", inline=True)
    def here() -> int:
        return threading.get_ident()

    with SyncClient(registry, on_question=answer) as client:
        assert client.call("shop.delete") == "deleted"
        loop = client.call("shop.here")
    assert len({*threads, loop, threading.get_ident()}) == 3
