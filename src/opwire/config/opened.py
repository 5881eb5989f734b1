"""`open_config`: a configuration that runs. Its sources are loaded at the same time, and exchanged when they change."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from opwire.config.events import LoadEvent, Reloaded, Removed
from opwire.config.loading import Loading, close_all
from opwire.config.modules import ProjectModules
from opwire.config.settings import AnySource, Config, PythonSource
from opwire.config.slot import Slot
from opwire.config.sources import files_of
from opwire.errors import ConfigError, OpwireError
from opwire.registry import OperationRegistry

_RESTART = ("registry", "serve", "hub", "spoke", "identities", "auth", "limits")


@asynccontextmanager
async def open_config(
    config: Config, *, on_event: Callable[[LoadEvent], object] | None = None
) -> AsyncGenerator["OpenedConfig"]:
    """Load every source at the same time; they are open as long as the block lasts.

        async with open_config(load_config("opwire.toml"), on_event=print) as opened:
            await opened.registry.execute("shop.order", {...})

    A source that fails, or takes longer than its `timeout`, is in `failures`; the others do not notice.

    Raises:
        ConfigError: a source that is `required` failed; its own error is the cause.
    """
    opened = OpenedConfig(config, on_event)
    try:
        await opened.load()
        yield opened
    finally:
        await opened.close()


class OpenedConfig:
    """A configuration that runs. Made by `open_config`."""

    def __init__(self, config: Config, on_event: Callable[[LoadEvent], object] | None = None) -> None:
        settings = config.registry
        self.config = config
        self.registry = OperationRegistry(
            normalize=settings.normalize, strip=settings.strip, max_workers=settings.max_workers
        )
        """The operations of all sources. It stays the same, whatever is loaded anew."""
        self._tell = on_event or _ignore
        self._slots: dict[str, Slot] = {}
        self._errors: dict[str, dict[str, OpwireError]] = {}
        self._leaving: set[asyncio.Task[None]] = set()  # sources that were given up, and still clean up
        self._modules = ProjectModules(config.folder)
        self._changing = asyncio.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<OpenedConfig of {len(self._slots)} sources{failed}: {len(self.registry)} operations>"

    @property
    def failures(self) -> dict[str, OpwireError]:
        """Why sources could not be loaded, by name; of one server of an `mcpServers` file, by "source.server"."""
        return {name: error for errors in self._errors.values() for name, error in errors.items()}

    @property
    def files(self) -> set[Path]:
        """The files that all this was read from."""
        of_sources = (files_of(each, self.config.folder) for each in self.config.sources.values())
        found = self._modules.files.union(*of_sources)
        return found if self.config.file is None else {*found, self.config.file.absolute()}

    def source_of(self, operation_id: str) -> str | None:
        """The name of the source that an operation comes from; None if it comes from none."""
        return next((name for name, slot in self._slots.items() if operation_id in slot.ids), None)

    def notes_of(self, source: str) -> list[str]:
        """What of a source was left out, or not understood."""
        slot = self._slots.get(source)
        if slot is None or slot.open is None:
            return []
        return [*slot.open.notes(), *(f"{id} is left out: another source has that id" for id in sorted(slot.taken))]

    async def load(self) -> None:
        """Load the sources that are enabled.

        Raises:
            ConfigError: a source that is `required` failed.
        """
        async with self._changing:
            await self._exchange(_enabled(self.config), strict=True)

    async def reload(self, config: Config, *, touched: Collection[Path] = ()) -> Reloaded:
        """Take over another configuration, and close and open only what is different.

        `touched` are files that have changed: sources that were read from them are loaded anew, and so are those that
        had failed. The others go on. A source that fails now runs on as it was. Calls in hand of one that is exchanged
        or removed may fail.

        Raises:
            ConfigError: it was closed meanwhile.
        """
        async with self._changing:
            before, self.config = self.config, config
            if self._modules.files.intersection(touched):
                self._modules.forget_edited()
            wanted = _enabled(config)
            changed = {name: each for name, each in wanted.items() if self._is_different(name, each, before, touched)}
            removed = tuple(name for name in dict.fromkeys((*self._slots, *self._errors)) if name not in wanted)
            await self._remove(removed)
            for name in removed:
                self._tell(Removed(name))
            loaded = await self._exchange(changed, strict=False)
            failures = {name: error for each in changed for name, error in self._errors.get(each, {}).items()}
            restart = tuple(each for each in _RESTART if getattr(before, each) != getattr(config, each))
            return Reloaded(loaded=loaded, removed=removed, failures=failures, restart=restart)

    async def close(self) -> None:
        """Close every source, and take its operations out of the registry; idempotent."""
        async with self._changing:
            self._is_closed = True
            await self._remove(tuple(self._slots))
            await asyncio.gather(*self._leaving)
            self._modules.forget()

    def _is_different(self, name: str, settings: AnySource, before: Config, touched: Collection[Path]) -> bool:
        if before.sources.get(name) != settings or name not in self._slots or name in self._errors:
            return True
        files = self._modules.files if isinstance(settings, PythonSource) else files_of(settings, self.config.folder)
        return not set(files).isdisjoint(touched)

    async def _exchange(self, sources: Mapping[str, AnySource], *, strict: bool) -> tuple[str, ...]:
        """Open sources, then put them into their slots in the order of the file. Gives the names of those that opened.

        Raises:
            ConfigError: one that is required failed, and `strict`.
        """
        if self._is_closed:
            raise ConfigError("the configuration was closed: open it again with open_config")
        loading = Loading(self.config.folder, self._modules, self._tell)
        await loading.open_all(sources, strict=strict)
        self._leaving |= loading.leaving
        for each in loading.leaving:
            each.add_done_callback(self._leaving.discard)
        names = tuple(name for name in sources if name in loading.ready)
        old = [self._slots.setdefault(name, Slot(self.registry)).fill(loading.ready[name]) for name in names]
        self._errors = {name: each for name, each in self._errors.items() if name not in sources} | loading.errors
        for slot in self._slots.values():
            slot.reclaim()
        await close_all(each for each in old if each is not None)
        return names

    async def _remove(self, names: Collection[str]) -> None:
        slots = [self._slots.pop(name) for name in names if name in self._slots]
        self._errors = {name: each for name, each in self._errors.items() if name not in names}
        await close_all(open for slot in slots if (open := slot.clear()) is not None)


def _enabled(config: Config) -> dict[str, AnySource]:
    return {name: each for name, each in config.sources.items() if each.enabled}


def _ignore(_: LoadEvent) -> None:
    pass
