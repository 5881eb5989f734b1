"""The base class of the sources that adapters return, and their report: what cannot be used, with the reason.

An adapter never raises for one broken tool or endpoint: it skips it, warns, and loads the rest. Names and reasons come
from foreign servers and documents, so entries are bounded in number and length, and control characters are escaped.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from msgspec import Struct

from opwire.errors import OpwireError, UsageError
from opwire.model.login import LoginOptions
from opwire.model.operation import Operation
from opwire.names import counted
from opwire.runtime.text import get_logger, harmless, shorten

logger = get_logger("opwire.registry")

ENV_PLACEHOLDER = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""An environment variable in the settings of a source: `${NAME}`, `${env:NAME}` or `${NAME:-default}`."""

MAX_ENTRIES = 1_000
"""Skipped items, and warnings, that a report keeps by default: a hostile document could produce millions."""

MAX_TEXT = 500
"""Characters of one name or reason: thousands of operations may refer to one name of a megabyte."""


class Skipped(Struct, frozen=True):
    """An item of a source without an operation: `Skipped("GET", "/pets", "…")`, `Skipped("tool", "fs.read", "…")`."""

    kind: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"skipped {self.kind} {self.name}: {self.reason}"


class SourceChange(Struct, frozen=True):
    """A change of a source: `put` are new or changed operations, `gone` are ids."""

    put: tuple[Operation, ...] = ()
    gone: tuple[str, ...] = ()


class Source(Protocol):
    """A changing set of operations, such as an MCP server. `registry.follow` subscribes to it."""

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations."""
        ...

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Call the listener on every change; the returned function removes it."""
        ...


class Report:
    """Skipped items and warnings of one source.

        print(source.report)  # "skipped GET /pets: …", then "warning: …", one line each

    Schemas are parsed lazily, so `warnings` may grow after a document was loaded. Duplicate warnings are dropped.
    """

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self.skipped: list[Skipped] = []
        self._warnings: dict[str, None] = {}  # a set that keeps its order
        self._limit = limit
        self._dropped = 0

    @property
    def warnings(self) -> list[str]:
        """The warnings, in the order of their discovery."""
        dropped = [f"{self._dropped:,} more entries are not listed"] if self._dropped else []
        return [*self._warnings, *dropped]

    def skip(self, kind: str, name: str, reason: str) -> None:
        """Record an item that is skipped."""
        if len(self.skipped) < self._limit:
            self.skipped.append(Skipped(_shortened(kind), _shortened(name), _shortened(reason)))
        else:
            self._dropped += 1

    def warn(self, warning: str) -> None:
        """Record a warning, once."""
        text = _shortened(warning)
        if text not in self._warnings:
            if len(self._warnings) < self._limit:
                self._warnings[text] = None
            else:
                self._dropped += 1

    def add(self, other: "Report") -> None:
        """Append the entries of another report."""
        self.skipped += other.skipped
        self._warnings |= other._warnings
        self._dropped += other._dropped

    def __iter__(self) -> Iterator[str]:
        """Iterate over the lines of the report."""
        yield from map(str, self.skipped)
        for warning in self.warnings:
            yield f"warning: {warning}"

    def __str__(self) -> str:
        return "\n".join(self)

    def __repr__(self) -> str:
        return f"<Report of {counted(len(self.skipped), 'skipped item')}, {counted(len(self.warnings), 'warning')}>"


def _shortened(text: str) -> str:
    return harmless(shorten(text, MAX_TEXT))


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

    async def login(
        self,
        show: Callable[[Any], Any],
        *,
        device: bool = False,
        paste: Callable[[], Awaitable[str]] | None = None,
        timeout: float = 300.0,
    ) -> tuple[str, ...]:
        """Sign in as a person, and store the login for this user; the source need not be open.

            await source.login(lambda prompt: print("open", prompt.url))

        Args:
            show: shows a `LoginPrompt` to a person, or opens its URL in a browser.
            device: sign in with a code on another device, instead of a browser on this machine.
            paste: returns the address at which a browser on another machine ended, instead of awaiting it here.
            timeout: seconds to sign in.

        Returns:
            The names of what the login is for: security schemes, or MCP servers.

        Raises:
            UsageError: the source has no OAuth client with `login`.
            CallError: the login failed.
        """
        return await self.sign_in(LoginOptions(show=show, device=device, paste=paste, timeout=timeout))

    async def sign_in(self, options: LoginOptions) -> tuple[str, ...]:
        """Override it to implement `login`."""
        raise UsageError("this source has no login")

    async def logout(self) -> tuple[str, ...]:
        """Delete the stored logins of this source, and revoke them where the server can; return their names."""
        return ()

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
