"""What is measured, as data: how the ends of a scenario are made. Each end has a process of its own."""

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

Call = Callable[[int], Awaitable[int]]
"""Asks for a + 1."""

End = Callable[[str], AbstractAsyncContextManager[str]]
"""Is given the address of what was started before it (a broker, a relay, or nothing), and gives that for the next."""


SERVERS = 2
"""The responders that share an operation over a broker, as users run them."""

SERVER_NUMBER = "BENCHMARK_SERVER_NUMBER"


def server_number() -> int:
    """The number of this responder among those that share the operation, from 0."""
    return int(os.environ[SERVER_NUMBER])


class Scenario(NamedTuple):
    """A way to call: responders, a relay in between where there is one, and a caller.

    Without a responder, the caller answers its calls itself.
    """

    name: str  # begins with the library's, if it has one
    module: str  # where it is found again by its name
    responder: End | None
    caller: Callable[[str], AbstractAsyncContextManager[Call]]
    relay: End | None = None
    library: str | None = None
    peer: str | None = None  # the peer with the environment that it runs in
    ahead: bool = False  # opwire must be ahead of it
    servers: int = 1
    engine: str | None = None  # the broker that it uses

    def label(self, version: str) -> str:
        """Its name, with the version of its library."""
        return self.name if self.library is None else self.name.replace(self.library, f"{self.library} {version}", 1)
