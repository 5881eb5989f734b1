import asyncio
from collections.abc import Callable
from typing import Any

from opwire import CallError, Context, Handler, OperationSpec, OperationType
from opwire.policies.cache import ResponseCache

from shop import registry

log: list[str] = []


def audit(spec: OperationSpec, handler: Handler) -> Handler:
    """Log every call, and every item of a subscription."""

    async def call(input: Any, context: Context) -> Any:
        caller = context.identity.id if context.identity else "anonymous"
        try:
            envelope = await handler(input, context)
        except CallError as error:
            log.append(f"{caller} {spec.id} {error.code}")
            raise
        log.append(f"{caller} {spec.id} ok")
        return envelope

    async def stream(input: Any, context: Context) -> Any:
        async for envelope in handler(input, context):
            log.append(f"item of {spec.id}")
            yield envelope

    return stream if spec.type is OperationType.SUBSCRIPTION else call


def approval(ask: Callable[[str], bool]) -> Callable[[OperationSpec, Handler], Handler]:
    """Ask a person before each mutation."""

    def intercept(spec: OperationSpec, handler: Handler) -> Handler:
        if spec.type is not OperationType.MUTATION:
            return handler

        async def call(input: Any, context: Context) -> Any:
            if not await asyncio.to_thread(ask, f"{spec.id} {input}"):
                raise CallError("ACCESS_DENIED", f"{spec.id} was not approved")
            return await handler(input, context)

        return call

    return intercept


registry.use(audit)
registry.use(approval(lambda question: "refund" not in question))
registry.use(ResponseCache(ttl=60))


async def main() -> None:
    lines = [{"article": "tea", "price": 4.5}]
    await registry.execute("shop.order", {"lines": lines})
    await registry.execute("shop.order", {"lines": "none"})


try:
    asyncio.run(main())
except CallError as error:
    print(error.code)
print(*log, sep="\n")
