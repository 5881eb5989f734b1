"""The base class of the sources that adapters return."""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from opwire.adapters.report import Report
from opwire.errors import OpwireError, UsageError, needs_extra
from opwire.operation import Operation, SourceChange

if TYPE_CHECKING:
    from opwire.oauth.login import LoginOptions

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
        with needs_extra("openapi"):
            from opwire.oauth.login import LoginOptions

        return await self.sign_in(LoginOptions(show=show, device=device, paste=paste, timeout=timeout))

    async def sign_in(self, options: "LoginOptions") -> tuple[str, ...]:
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
