"""A registry as a source of another: its operations, called where they are.

They keep what their own registry gives them: argument conversion, threads, and what it does to results.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from opwire.operation import Context, NormalizeMode, Operation, OperationSpec, OperationType, SourceChange
from opwire.registry import Change, OperationRegistry


class RegistrySource:
    """The operations of registries. `normalize` is done to results once more; by default nothing is."""

    def __init__(
        self,
        registries: Sequence[OperationRegistry],
        *,
        normalize: NormalizeMode | None = None,
        strip: bool | None = None,
    ) -> None:
        self._registries = registries
        self._normalize: NormalizeMode = normalize or "off"
        self._strip = strip

    def __iter__(self) -> Iterator[Operation]:
        """The operations as they are now."""
        return (self._operation(registry, spec) for registry in self._registries for spec in registry.list())

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Be told of every change; the function that is returned ends it."""
        ends = [registry.on_change(self._teller(registry, listener)) for registry in self._registries]

        def end() -> None:
            for each in ends:
                each()

        return end

    def _teller(
        self, registry: OperationRegistry, listener: Callable[[SourceChange], None]
    ) -> Callable[[Change], None]:
        def tell(change: Change) -> None:
            if change.kind == "removed":
                listener(SourceChange(gone=(change.spec.id,)))
            else:
                listener(SourceChange(put=(self._operation(registry, change.spec),)))

        return tell

    def _operation(self, registry: OperationRegistry, spec: OperationSpec) -> Operation:
        outer = replace(spec, normalize=self._normalize, strip=self._strip)
        if registry.get_handler(spec.id) is None:
            return Operation(outer)

        async def execute(input: Any, context: Context) -> Any:
            return await registry.execute(spec.id, input, context)

        async def subscribe(input: Any, context: Context) -> AsyncIterator[Any]:
            async with aclosing(registry.subscribe(spec.id, input, context)) as envelopes:
                async for envelope in envelopes:
                    yield envelope

        return Operation(outer, subscribe if spec.type is OperationType.SUBSCRIPTION else execute)
