"""`open_config`: a configuration that runs. Its sources are loaded at the same time, and exchanged when they change.

What happens while sources are loaded, told to whoever shows it. No I/O.

Many sources, opened at the same time: each within its own time, and none in the way of another.

The place of a source in a registry. What stands in it can be exchanged while calls go on. No I/O.

`watch`: notices that files have changed, and loads anew what was read from them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from opwire.config.problems import dotted
from opwire.config.reading import load_config
from opwire.config.settings import AnySource, Config, PythonSource, ServersFileSource
from opwire.config.sources import OpenSource, ProjectModules, files_of, open_source
from opwire.errors import CallError, ConfigError, ErrorCode, OpwireError
from opwire.operation import Operation, SourceChange
from opwire.registry import OperationRegistry


class Started(Struct, frozen=True):
    """A source is being loaded."""

    source: str


class Loaded(Struct, frozen=True):
    """A source is there; `notes` say what of it was left out or not understood."""

    source: str
    operations: int
    seconds: float
    notes: tuple[str, ...] = ()


class Failed(Struct, frozen=True):
    """A source cannot be loaded, or a part of it: then `source` is "file.server"."""

    source: str
    error: OpwireError
    seconds: float


class Removed(Struct, frozen=True):
    """A source is in the configuration no more."""

    source: str


LoadEvent = Started | Loaded | Failed | Removed


class Reloaded(Struct, frozen=True):
    """What became of a change.

    `error` is why the new file cannot be used: then nothing was changed. A source that is in `failures` runs on as it
    was, if it ran. Changes of what is in `restart` wait for the next start.
    """

    loaded: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    failures: dict[str, OpwireError] = {}
    restart: tuple[str, ...] = ()
    error: ConfigError | None = None


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


_Stamp = tuple[int, int, int] | None


async def watch(opened: OpenedConfig, *, interval: float = 0.5) -> AsyncGenerator[Reloaded]:
    """Follow the configuration file, the project's Python modules, and the documents of its sources.

        async for change in watch(opened):
            print(change)

    Files are looked at every `interval` seconds; a change counts once the files have come to rest. A file that cannot
    be used any more changes nothing, and its mistakes are the `error` of what is yielded.
    """
    seen = _stamps(opened.files)
    touched: set[Path] = set()  # and not yet loaded anew
    while True:
        await asyncio.sleep(interval)
        now = _stamps(opened.files)
        if _touched(seen, now):
            now = await _at_rest(opened, now, interval)
            touched |= _touched(seen, now)
            change = await _take_over(opened, touched)
            if change.error is None:
                touched.clear()
            now = {**_stamps(opened.files), **now}
            yield change
        seen = now


async def _at_rest(opened: OpenedConfig, now: dict[Path, _Stamp], interval: float) -> dict[Path, _Stamp]:
    """The files once nobody writes them any more: editors and `git checkout` take several steps."""
    while True:
        await asyncio.sleep(interval)
        before, now = now, _stamps(opened.files)
        if before == now:
            return now


async def _take_over(opened: OpenedConfig, touched: set[Path]) -> Reloaded:
    file = opened.config.file
    try:
        config = opened.config if file is None else load_config(file)
    except ConfigError as error:
        return Reloaded(error=error)
    return await opened.reload(config, touched=touched)


def _touched(before: dict[Path, _Stamp], now: dict[Path, _Stamp]) -> set[Path]:
    return {path for path, stamp in now.items() if path in before and before[path] != stamp}


def _stamps(files: Iterable[Path]) -> dict[Path, _Stamp]:
    return {path: _stamp(path) for path in files}


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
