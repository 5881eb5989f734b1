"""The work that all ladders of calls share: `add(a, b)` with input and output schema, bare and through `execute`."""

from typing import Any

from benchmarks.measure import Contender
from opwire import OperationRegistry, ResponseEnvelope

INPUT = {"a": 1, "b": 2}
SUM = 3

registry = OperationRegistry()


@registry.query("math.add")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def data_of(envelope: ResponseEnvelope[Any]) -> Any:
    """What is compared of an envelope."""
    return envelope.data


async def _bare(n: int) -> Any:
    result = None
    for _ in range(n):
        result = await add(**INPUT)
    return result


async def _execute(n: int) -> Any:
    result = None
    for _ in range(n):
        result = await registry.execute("math.add", INPUT)
    return result


BARE = Contender("bare async function", _bare, SUM)
EXECUTE = Contender("execute", _execute, SUM, data_of, limit=6)
