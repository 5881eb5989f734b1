"""The work of the served HTTP ladder on `serve_http`: `... h11|httptools`."""

import sys
from dataclasses import dataclass

from benchmarks.http.uvicorn_server import run
from benchmarks.upstream import round_trip
from opwire import OperationRegistry
from opwire.openapi.server import serve_http
from opwire.protocol import LOCAL_IDENTITY

registry = OperationRegistry()


@dataclass
class Sum:
    sum: int
    note: str


@registry.query("math.add")
async def add(a: int, b: int, note: str) -> Sum:
    """Add two numbers, after a wait for the upstream."""
    await round_trip()
    return Sum(a + b, note)


if __name__ == "__main__":
    run(serve_http(registry, anonymous=LOCAL_IDENTITY), sys.argv[1])
