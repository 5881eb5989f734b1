"""Many sources, opened at the same time: each within its own time, and none in the way of another."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from opwire.config.events import Failed, Loaded, LoadEvent, Started
from opwire.config.mistakes import dotted
from opwire.config.modules import ProjectModules
from opwire.config.settings import AnySource, ServersFileSource
from opwire.config.sources import OpenSource, open_source
from opwire.errors import CallError, ConfigError, ErrorCode, OpwireError

logger = logging.getLogger("opwire.config")

_GRACE = 10.0
"""Seconds more for a whole file of MCP servers: each of them has a time-out of its own, and needs time to stop."""


class Loading:
    """One round of opening sources. Those that open are in `ready`; of the others, `errors` says why, by source.

    One that is late is given up at once; what it needs to clean up goes on in `leaving`, which somebody has to await.
    """

    def __init__(self, folder: Path, modules: ProjectModules, tell: Callable[[LoadEvent], object]) -> None:
        self._folder = folder
        self._modules = modules
        self._tell = tell
        self.ready: dict[str, OpenSource] = {}
        self.errors: dict[str, dict[str, OpwireError]] = {}
        self.leaving: set[asyncio.Task[None]] = set()

    async def open_all(self, sources: Mapping[str, AnySource], *, strict: bool) -> None:
        """Open all of them, or, if one that is required fails and `strict`, none.

        Raises:
            ConfigError: one that is required failed.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for name, settings in sources.items():
                    group.create_task(self._open_one(name, settings, strict=strict and settings.required))
        except BaseExceptionGroup as failed:
            await self._undo()
            first: BaseException = failed.exceptions[0]
            raise first from first.__cause__
        except BaseException:
            await self._undo()
            raise

    async def _undo(self) -> None:
        await close_all(self.ready.values())
        await asyncio.gather(*self.leaving)

    async def _open_one(self, name: str, settings: AnySource, *, strict: bool) -> None:
        begin = time.monotonic()
        self._tell(Started(name))
        try:
            opened = self.ready[name] = await self._opened(name, settings)
        except OpwireError as error:
            self.errors[name] = {name: error}
            self._tell(Failed(name, error, time.monotonic() - begin))
            if strict:
                raise ConfigError(f"{dotted(('sources', name))} is required: {error}") from error
            return
        seconds = time.monotonic() - begin
        if opened.failures:
            self.errors[name] = {f"{name}.{part}": error for part, error in opened.failures.items()}
        for part, error in self.errors.get(name, {}).items():
            self._tell(Failed(part, error, seconds))
        self._tell(Loaded(name, sum(1 for _ in opened.source), seconds, tuple(opened.notes())))

    async def _opened(self, name: str, settings: AnySource) -> OpenSource:
        limit = settings.timeout + (_GRACE if isinstance(settings, ServersFileSource) else 0)
        where = dotted(("sources", name))
        opening = asyncio.create_task(open_source(name, settings, self._folder, self._modules))
        try:
            await asyncio.wait({opening}, timeout=limit)
        except asyncio.CancelledError:
            await _give_up(opening)
            raise
        if not opening.done():
            self.leaving.add(asyncio.create_task(_give_up(opening)))
            late = f"{where} was not loaded within {limit:g} s: is it there? Else give it a longer timeout"
            raise CallError(ErrorCode.TIMEOUT, late)
        try:
            return opening.result()
        except OpwireError:
            raise
        except Exception as error:
            logger.exception("%s failed in a way that nobody foresaw", where)
            raise CallError(ErrorCode.INTERNAL, f"{where} failed: {type(error).__name__}; the log says more") from error


async def _give_up(opening: asyncio.Task[OpenSource]) -> None:
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:  # it had just been opened
        await close_all([opening.result()])


async def close_all(sources: Iterable[OpenSource]) -> None:
    """Close them all, at once. One that does not end well keeps nobody from ending."""
    for each in await asyncio.gather(*(each.close() for each in sources), return_exceptions=True):
        if isinstance(each, Exception):
            logger.warning("a source did not close well: %s", each, exc_info=each)
