"""A registry with one of everything.

It is apart from the clients: importing the SDK takes a second, which a process that only serves does not need.
"""

from collections.abc import AsyncGenerator

from opwire import AccessControl, Context, OperationRegistry


def shop() -> OperationRegistry:
    """Functions that return each kind of value, and a subscription."""
    registry = OperationRegistry()
    _add_data(registry)

    @registry.query("math.add", title="Add", tags=["sums"], version="1.2")
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @registry.mutation("work.report")
    async def report(context: Context, steps: int = 3) -> str:
        for step in range(1, steps + 1):
            context.report(step, steps, f"step {step}")
        return "done"

    @registry.subscription("feed.count")
    async def count(n: int = 3) -> AsyncGenerator[int]:
        for number in range(n):
            yield number

    @registry.query("admin.secret", access=AccessControl(required_scopes=("admin",)))
    async def secret() -> str:
        return "secret"

    @registry.query("public.hello", access=AccessControl(public=True))
    async def hello() -> str:
        return "hello"

    return registry


def _add_data(registry: OperationRegistry) -> None:
    @registry.query("data.object")
    async def object_() -> dict[str, int]:
        return {"n": 1}

    @registry.query("data.list")
    async def list_() -> list[int]:
        return [1, 2]

    @registry.query("data.none")
    async def none() -> int | None:
        return None

    @registry.query("data.bytes")
    async def bytes_() -> bytes:
        return b"\x00\xff"
