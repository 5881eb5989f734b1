"""The place of a source in a registry. What stands in it can be exchanged while calls go on. No I/O."""

from collections.abc import Callable, Iterable

from opwire.config.sources import OpenSource
from opwire.operation import Operation, SourceChange
from opwire.registry import OperationRegistry


class Slot:
    """Keeps the operations of one source in the registry, and follows its changes.

    `registry.follow` does so too, but cannot exchange one source for another without a moment in which there is none.
    An id that somebody else holds stays with him: it is in `taken`.
    """

    def __init__(self, registry: OperationRegistry) -> None:
        self._registry = registry
        self._unfollow: Callable[[], None] | None = None
        self.open: OpenSource | None = None
        self.ids: set[str] = set()
        self.taken: set[str] = set()

    def fill(self, new: OpenSource) -> OpenSource | None:
        """Put a source into the place of what was there, which is returned to be closed."""
        old = self._leave()
        self.open = new
        self.taken.clear()
        self._unfollow = new.source.on_change(self._follow)
        self._drop(self.ids - self._put(new.source))
        return old

    def reclaim(self) -> None:
        """Put in what was left out because somebody else held its id, if he has let go of it."""
        if self.open is not None and self.taken:
            wanted, self.taken = self.taken, set()
            self._put(each for each in self.open.source if each.spec.id in wanted)

    def clear(self) -> OpenSource | None:
        """Take out what is there; it is returned to be closed."""
        self._drop(set(self.ids))
        return self._leave()

    def _leave(self) -> OpenSource | None:
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        old, self.open = self.open, None
        return old

    def _follow(self, change: SourceChange) -> None:
        self._put(change.put)
        self._drop(set(change.gone))

    def _put(self, operations: Iterable[Operation]) -> set[str]:
        given = {each.spec.id: each for each in operations}
        self.taken |= {id for id in given if id in self._registry and id not in self.ids}
        ours = {id: each for id, each in given.items() if id not in self.taken}
        self._registry.register_all(ours.values(), replace=True)
        self.ids |= ours.keys()
        return set(ours)

    def _drop(self, gone: set[str]) -> None:
        self.taken.difference_update(gone)
        for id in self.ids.intersection(gone):
            self.ids.discard(id)
            if id in self._registry:
                self._registry.unregister(id)
