import asyncio

from opwire import OperationRegistry

registry = OperationRegistry()


@registry.query("math.add")
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


envelope = asyncio.run(registry.execute("math.add", {"a": 1, "b": 2}))
print(envelope.data, envelope.meta.source)
