"""The base class of the sources that adapters return."""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from opwire.adapters.report import Report
from opwire.errors import OpwireError
from opwire.operation import Operation, SourceChange

logger = logging.getLogger("opwire.adapters")

ENV_PLACEHOLDER = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""An environment variable in the settings of a source: `${NAME}`, `${env:NAME}` or `${NAME:-default}`."""


class AdapterSource(ABC):
    """Operations of a foreign system, as `registry.follow` and `registry.register_all` take them.

        async with source:  # or `await source`, then `await source.close()`
            registry.follow(source)

    A subclass iterates over its operations, overrides `open` and `close` if it holds resources, and calls `notify` when
    its operations change.
    """

    def __init__(self) -> None:
        self._report = Report()
        self._listeners: list[Callable[[SourceChange], None]] = []

    @abstractmethod
    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations."""

    @property
    def report(self) -> Report:
        """The skipped items and warnings."""
        return self._report

    @property
    def failures(self) -> Mapping[str, OpwireError]:
        """The errors of parts that could not be opened, by name: of single servers of an `mcpServers` file."""
        return {}

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Call the listener after every change; the returned function removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def notify(self, change: SourceChange) -> None:
        """Call every listener; log the exceptions that they raise."""
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:
                logger.exception("a listener raised on a change of operations")

    async def open(self) -> Self:
        """Connect or load; idempotent. A no-op by default."""
        return self

    async def close(self) -> None:  # noqa: B027 - not every source holds resources
        """Release all resources; idempotent. A no-op by default."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
