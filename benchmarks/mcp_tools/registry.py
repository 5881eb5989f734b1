"""The work of every tool: a + b, with schemas for input and output, as an operation of opwire."""

from dataclasses import dataclass

from benchmarks.upstream import round_trip
from opwire import OperationRegistry

registry = OperationRegistry()


@dataclass
class Sum:
    sum: int


@registry.query("work.add")
async def add(a: int, b: int, note: str) -> Sum:
    """Add two numbers, after a wait for the upstream."""
    await round_trip()
    return Sum(a + b)
