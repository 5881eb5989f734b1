"""Calls within this process."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec.structs import replace

from opwire.access import check_access, may_access
from opwire.envelope import ResponseEnvelope
from opwire.operation import LOCAL_IDENTITY, Context, Identity, OperationSpec
from opwire.registry import OperationRegistry


class RegistryBackEnd:
    """A registry. Without an identity calls are trusted, and made by `LOCAL_IDENTITY` unless a context says otherwise.

    With one, access is checked as at any other surface.
    """

    def __init__(self, registry: OperationRegistry, identity: Identity | None) -> None:
        self._registry = registry
        self._identity = identity

    async def start(self) -> None:
        """Nothing is to be done."""

    async def close(self) -> None:
        """Nothing is to be done: the registry goes on."""

    async def call(self, operation_id: str, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation."""
        return await self._registry.execute(operation_id, input, self._admitted(operation_id, context))

    async def subscribe(self, operation_id: str, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription."""
        items = self._registry.subscribe(operation_id, input, self._admitted(operation_id, context))
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def operations(self) -> Sequence[OperationSpec]:
        """What has a handler, and may be called."""
        return [
            spec
            for spec in self._registry.list()
            if self._registry.get_handler(spec.id) is not None
            and (self._identity is None or may_access(spec, self._identity))
        ]

    async def find(self, operation_id: str) -> OperationSpec | None:
        """One of the operations."""
        return self._registry.get_spec(operation_id)

    def _admitted(self, operation_id: str, context: Context) -> Context:
        """The context of a call that may be made.

        Raises:
            CallError: OPERATION_NOT_FOUND; UNAUTHENTICATED or ACCESS_DENIED.
        """
        if self._identity is None:
            is_own = context.identity is None and context.inbound is None  # else its caller is anonymous, and stays so
            return replace(context, identity=LOCAL_IDENTITY) if is_own else context
        spec = self._registry.get_spec(operation_id)
        if spec is None:
            raise self._registry.not_found(operation_id, visible=lambda each: may_access(each, context.identity))
        check_access(spec, context.identity)
        return context
