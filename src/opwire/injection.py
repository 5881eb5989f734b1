"""Parameters that the program fills for each call, and the caller does not see.

async def connect() -> AsyncIterator[Database]:
    async with Database() as database:
        yield database

@registry.query("shop.orders")
async def orders(customer: str, database: Annotated[Database, Depends(connect)]) -> list[Order]: ...
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from msgspec import Struct

from opwire.operation import Context

Run = Callable[[Any, Context], Any]


class Depends(Struct, frozen=True):
    """Fill a parameter by calling `provider` for each call: a function, sync or async, with or without a `Context`.

    A generator function yields the value once and continues after the call. An exception of the call, or the end of a
    stream that is closed early, is raised at its `yield`: clean up in `finally`.
    """

    provider: Callable[..., Any]


class Dependency(Struct, frozen=True):
    """A parameter that is filled; `context` is the name of the provider's parameter for the context."""

    name: str
    provider: Callable[..., Any]
    context: str | None = None

    async def enter(self, stack: AsyncExitStack, context: Context) -> Any:
        """Return the value; the stack closes it."""
        given = {} if self.context is None else {self.context: context}
        if inspect.isasyncgenfunction(self.provider):
            return await stack.enter_async_context(asynccontextmanager(self.provider)(**given))
        if inspect.isgeneratorfunction(self.provider):
            return stack.enter_context(contextmanager(self.provider)(**given))
        value = self.provider(**given)
        return await value if inspect.isawaitable(value) else value


async def _values(dependencies: Sequence[Dependency], stack: AsyncExitStack, context: Context) -> dict[str, Any]:
    return {each.name: await each.enter(stack, context) for each in dependencies}


def injecting(run: Run, dependencies: Sequence[Dependency]) -> Run:
    """Return a coroutine function that fills the dependencies, runs a handler and closes them."""

    async def run_with_values(arguments: Any, context: Context) -> Any:
        async with AsyncExitStack() as stack:
            return await run({**arguments, **await _values(dependencies, stack, context)}, context)

    return run_with_values


def injecting_stream(open: Run, dependencies: Sequence[Dependency]) -> Callable[[Any, Context], AsyncGenerator[Any]]:
    """Return the same for a subscription: the dependencies are closed when the stream is."""

    async def stream_with_values(arguments: Any, context: Context) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as stack:
            items = open({**arguments, **await _values(dependencies, stack, context)}, context)
            stack.push_async_callback(items.aclose)
            async for item in items:
                yield item

    return stream_with_values
