"""Sources that a registry follows: operations that come and go, instructions, updated resources.

A registry, or a view of one, is such a source too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from opwire.model.operation import Change, NormalizeMode, Operation, OperationSpec
from opwire.registry.source import Source, SourceChange
from opwire.registry.view import operation_through
from opwire.runtime.text import get_logger

if TYPE_CHECKING:
    from opwire.registry.registry import OperationRegistry

logger = get_logger("opwire.registry")


class Registering(Protocol):
    """The methods of a registry that following uses."""

    def __contains__(self, operation_id: object) -> bool: ...
    def register_all(self, operations: Iterable[Operation], *, replace: bool = False) -> None: ...
    def unregister(self, operation_id: str) -> None: ...
    def resource_updated(self, uri: str) -> None: ...


class FollowedSources:
    """The sources of a registry."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    @property
    def instructions(self) -> dict[str, str]:
        """The instructions of the sources for models, by namespace."""
        instructions: dict[str, str] = {}
        for source in self._sources:
            instructions |= getattr(source, "instructions", {})
        return instructions

    def follow(self, registry: Registering, source: Source, *, overrides: bool) -> Callable[[], None]:
        """Add the operations of a source and follow its changes; the returned function stops that."""
        registry.register_all(followed := tuple(source), replace=overrides)
        followed_ids = {operation.spec.id for operation in followed}

        def keep_up(change: SourceChange) -> None:
            for operation in change.put:
                id = operation.spec.id
                if id in registry and id not in followed_ids and not overrides:
                    logger.warning("%s is ignored: the id is already registered by another owner", id)
                    continue
                registry.register_all([operation], replace=True)
                followed_ids.add(id)
            for id in followed_ids.intersection(change.gone):
                followed_ids.discard(id)
                if id in registry:
                    registry.unregister(id)

        unfollow, detach = source.on_change(keep_up), self.attach(registry, source)

        def stop() -> None:
            unfollow()
            detach()

        return stop

    def attach(self, registry: Registering, source: Source) -> Callable[[], None]:
        """Use the instructions of a source and its updates of resources, if it has any; the result stops that."""
        on_updated = getattr(source, "on_resource_updated", None)
        stop_updates = None if on_updated is None else on_updated(registry.resource_updated)
        self._sources.append(source)

        def detach() -> None:
            self._sources[:] = [followed_source for followed_source in self._sources if followed_source is not source]
            if stop_updates is not None:
                stop_updates()

        return detach


class RegistryOperations:
    """The operations of a registry as a source, for another registry to follow.

    Results are normalized by their own registry; `normalize` and `strip` are applied in addition.
    """

    def __init__(
        self, registry: "OperationRegistry", *, normalize: NormalizeMode = "off", strip: bool | None = None
    ) -> None:
        self._registry = registry
        self._normalize: NormalizeMode = normalize
        self._strip = strip

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations."""
        return map(self._operation, self._registry.list())

    @property
    def instructions(self) -> Mapping[str, str]:
        """The instructions of the registry's own sources."""
        return self._registry.instructions

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Call the listener after every change; the returned function removes it."""

        def forward(change: Change) -> None:
            if change.kind == "removed":
                listener(SourceChange(gone=(change.spec.id,)))
            else:
                listener(SourceChange(put=(self._operation(change.spec),)))

        return self._registry.on_change(forward)

    def on_resource_updated(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call the listener with the URI of every updated resource; the returned function removes it."""
        return self._registry.on_resource_updated(listener)

    def _operation(self, spec: OperationSpec) -> Operation:
        outer = replace(spec, normalize=self._normalize, strip=self._strip)
        return operation_through(self._registry, spec, outer)
