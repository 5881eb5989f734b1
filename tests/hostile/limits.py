"""Runs cases under limits on CPU time and memory, and prints what came of it as JSON."""

import asyncio
import json
import logging
import resource
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from opwire import CallError, OperationRegistry, OperationSpec, OperationType

CPU_SECONDS = 10
MEMORY = 2**30

Case = Callable[[], Coroutine[Any, Any, Any]]


class Log(logging.Handler):
    """Keeps what was said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def run(cases: dict[str, Case]) -> None:
    """Run the cases that the command line names, one after the other."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = Log()
    logging.getLogger("opwire").addHandler(log)
    for case in sys.argv[1:]:
        log.messages = []
        outcome = asyncio.run(cases[case]())
        print(json.dumps({"outcome": outcome, "log": log.messages}), flush=True)  # noqa: T201


async def outcome(call: Awaitable[Any], show: Callable[[Any], Any] = lambda data: data) -> Any:
    """What a call gave: its data as `show` tells it, or its error. The registry itself has to be alive afterwards."""
    try:
        envelope = await call
    except CallError as error:
        return {"code": error.code.value, "message": error.message, "details": error.details}
    return {"data": show(envelope.data)}


def registry_of(handler: Any, *, subscription: bool = False, **fields: Any) -> OperationRegistry:
    """A registry with the operation `hostile.it`."""
    registry = OperationRegistry(max_workers=2)
    kind = OperationType.SUBSCRIPTION if subscription else OperationType.QUERY
    registry.register(OperationSpec(namespace="hostile", name="it", type=kind, **fields), handler)
    return registry


async def result(value: Any, show: Callable[[Any], Any] = lambda data: data, **fields: Any) -> Any:
    """What becomes of a value that a handler returns."""
    registry = registry_of(lambda input, context: value, **fields)
    return await outcome(registry.execute("hostile.it"), show)


async def given(input: Any, **fields: Any) -> Any:
    """What becomes of a value that is given as input."""
    registry = registry_of(lambda input, context: "handled", **fields)
    return await outcome(registry.execute("hostile.it", input))
