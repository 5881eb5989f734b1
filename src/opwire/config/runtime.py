"""`open_config`: load the sources of a configuration concurrently, each with its own timeout.

A source that fails does not affect the others. `watch` reports changed files, for a restart.

The sources of a configuration, opened by their adapters, which are imported lazily.

`RegistrySource` mounts a registry in another: its operations keep their own argument conversion, threads and result
normalization. `ProjectModules` imports the Python modules of the project around a configuration file.
"""

import asyncio
import importlib
import logging
import re
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.adapters.source import AdapterSource
from opwire.config.problems import Key, did_you_mean, dotted
from opwire.config.settings import (
    AnySource,
    ClientSettings,
    Config,
    EnvText,
    MCPSettings,
    OpenAPISettings,
    ProgramSource,
    PythonSource,
    ServersFileSource,
    ServerSource,
    UserCredential,
)
from opwire.errors import CallError, ConfigError, ErrorCode, OpwireError, needs_extra
from opwire.oauth.store import LoginKey, TokenStore, resource_of
from opwire.operation import (
    Context,
    NormalizeMode,
    Operation,
    OperationSpec,
    OperationType,
    PreparedRequest,
    SourceChange,
)
from opwire.registry import Change, OperationRegistry
from opwire.workers import WorkerPool

if TYPE_CHECKING:
    from opwire.adapters.mcp.servers import MCPKeywords, MCPServer


_PYTHON_FILE = re.compile(r"(.+\.py)(:(.*))?")
_THREADS = 16  # concurrent imports, not counting those that hang


async def open_source(name: str, settings: AnySource, folder: Path, modules: "ProjectModules") -> AdapterSource:
    """Open the source `[sources.NAME]`.

    Raises:
        OpwireError: it cannot be opened; the message has the reason.
    """
    source = await create_source(name, settings, folder, modules)
    try:
        return await source.open()
    except BaseException:
        await source.close()
        raise


async def create_source(name: str, settings: AnySource, folder: Path, modules: "ProjectModules") -> AdapterSource:
    """Return the source `[sources.NAME]`, which is not opened yet.

    Raises:
        OpwireError: its settings cannot be used.
    """
    key: Key = ("sources", name)
    if isinstance(settings, PythonSource):
        registries = await modules.registries(settings.python, dotted((*key, "python")))
        return RegistrySource(registries, normalize=settings.normalize, strip=settings.strip)
    extra = "openapi" if isinstance(settings, OpenAPISettings) else "mcp"
    with needs_extra(extra):
        # Adapters are imported on a thread, which takes up to a second: other sources are loaded meanwhile.
        await asyncio.to_thread(importlib.import_module, f"opwire.adapters.{extra}")
    values = resolve(settings, key)
    if isinstance(settings, OpenAPISettings):
        return _openapi_source(name, settings, values, folder)
    return _mcp_source(name, settings, values, folder)


def resolve(value: Any, key: Key) -> Any:
    """Return a value with all environment variables replaced; settings become dicts.

    Raises:
        ConfigError: a variable is not set; the message names its key.
    """
    match value:
        case EnvText():
            return value.resolve(dotted(key))
        case UserCredential():
            return resolve(value.user, (*key, "user")), resolve(value.password, (*key, "password"))
        case ClientSettings():
            given = {name: each for name, each in msgspec.structs.asdict(value).items() if each is not None}
            return resolve(given, key)
        case msgspec.Struct():
            return {name: resolve(each, (*key, name)) for name, each in msgspec.structs.asdict(value).items()}
        case dict():
            return {name: resolve(each, (*key, name)) for name, each in cast("dict[str, Any]", value).items()}
        case tuple():
            return tuple(resolve(each, (*key, n)) for n, each in enumerate(cast("tuple[Any, ...]", value)))
        case _:
            return value


def files_of(settings: AnySource, folder: Path) -> list[Path]:
    """Return the files that a source is loaded from, except Python modules."""
    given = settings.openapi if isinstance(settings, OpenAPISettings) else getattr(settings, "mcp_servers", None)
    if given is None or given.missing or "://" in (path := given.resolve("")):
        return []
    return [folder / Path(path).expanduser()]


def _mcp_source(
    name: str, settings: ProgramSource | ServerSource | ServersFileSource, values: dict[str, Any], folder: Path
) -> AdapterSource:
    from opwire.adapters.mcp.servers import HTTPServer, StdioServer
    from opwire.adapters.mcp.source import from_mcp

    options: MCPKeywords = {
        "trust_annotations": settings.trust_annotations,
        "resources": settings.resources,
        "prompts": settings.prompts,
        "tool_timeout": settings.tool_timeout,
        "normalize": settings.normalize,
        "strip": settings.strip,
        "connect_timeout": settings.timeout,
    }
    if isinstance(settings, ServersFileSource):
        path = folder / Path(values["mcp_servers"]).expanduser()
        return from_mcp(path, required=settings.required, **options)
    server: MCPServer
    if isinstance(settings, ServerSource):
        server = HTTPServer(values["url"], values["headers"], settings.type)
        options["auth"] = values["auth"] or _stored_login(values)
    else:
        cwd = folder / Path(values["cwd"] or "").expanduser()
        server = StdioServer(values["command"], values["args"], values["env"] or None, str(cwd))
    options["namespace"] = settings.namespace or name
    return from_mcp(server, **options)


def _stored_login(values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the client of a login to an MCP server without `auth`, if there ever was one: `opwire login NAME`."""
    has_header = any(name.lower() == "authorization" for name in values["headers"])
    key = LoginKey(resource_of(values["url"]), "mcp")
    return {"login": True} if not has_header and TokenStore().may_have(key) else None


def _openapi_source(name: str, settings: OpenAPISettings, values: dict[str, Any], folder: Path) -> AdapterSource:
    from opwire.adapters.openapi.source import from_openapi

    document = values["openapi"]
    return from_openapi(
        document if "://" in document else folder / Path(document).expanduser(),
        namespace=settings.namespace or name,
        base_url=values["base_url"],
        server_variables=values["server_variables"],
        credentials=values["credentials"],
        allow_external_refs=True if "*" in settings.external_refs else settings.external_refs,
        strict_input=settings.strict_input,
        max_documents=settings.max_documents,
        max_document_bytes=settings.max_document_bytes,
        include=settings.include,
        exclude=settings.exclude,
        normalize=settings.normalize,
        strip=bool(settings.strip),
        reconnect=settings.reconnect,
        trust_annotations=settings.trust_annotations,
        timeout=settings.call_timeout,
        max_response=settings.max_response,
        headers=values["headers"],
        proxy=values["proxy"],
    )


class RegistrySource(AdapterSource):
    """The operations of registries. `normalize` is applied to results in addition; it is off by default."""

    def __init__(
        self,
        registries: Sequence[OperationRegistry],
        *,
        normalize: NormalizeMode | None = None,
        strip: bool | None = None,
    ) -> None:
        super().__init__()
        self._registries = registries
        self._normalize: NormalizeMode = normalize or "off"
        self._strip = strip

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations."""
        return (self._operation(registry, spec) for registry in self._registries for spec in registry.list())

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Call the listener after every change; the returned function removes it."""

        def forward(registry: OperationRegistry, change: Change) -> None:
            if change.kind == "removed":
                listener(SourceChange(gone=(change.spec.id,)))
            else:
                listener(SourceChange(put=(self._operation(registry, change.spec),)))

        removes = [registry.on_change(partial(forward, registry)) for registry in self._registries]

        def remove_all() -> None:
            for remove in removes:
                remove()

        return remove_all

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

        def preview(input: Any, context: Context, reveal: bool) -> Awaitable[PreparedRequest]:
            return registry.preview(spec.id, input, context, reveal=reveal)

        handler = subscribe if spec.type is OperationType.SUBSCRIPTION else execute
        return Operation(outer, handler, preview=preview)


class ProjectModules:
    """Import modules, from `folder` first, and record the files of those that were found there.

    Imports run on threads, because one may block forever. The folder is in `sys.path` while one runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = frozenset(sys.modules)  # modules of the process itself are never removed
        self._threads = WorkerPool(_THREADS)
        self._lock = threading.Lock()
        self._running: Counter[Path] = Counter()  # imports, by their folder
        self._folders = {folder}
        self.files: set[Path] = set()
        """The files of the modules, including those that could not be imported."""

    async def registries(self, target: str, at: str) -> list[OperationRegistry]:
        """Return the registries of "module:attribute", "module", or a file "shop.py"; `at` is the key with this value.

        Raises:
            ConfigError: the target does not exist, or the import failed.
        """
        folder = self._folder
        if found := _PYTHON_FILE.fullmatch(target):
            colon, attribute = found[2] or "", found[3] or ""
            folder, name = self._module_of(found[1], at)
        else:
            name, colon, attribute = target.partition(":")
        if not name or (colon and not attribute):
            raise ConfigError(f'{at}: write "module:registry", "module" or "file.py"')
        module: ModuleType = await self._threads.run(partial(self._import, name, at, folder), f"the import of {name}")
        found = {name: each for name, each in vars(module).items() if isinstance(each, OperationRegistry)}
        if not attribute:
            if not found:
                raise ConfigError(f"{at}: the module {name} has no OperationRegistry")
            return list({id(each): each for each in found.values()}.values())  # one may have two names
        try:
            registry: Any = attrgetter(attribute)(module)
        except AttributeError:
            hint = did_you_mean(attribute, found) or (f"it has {', '.join(found)}" if found else "")
            message = f"{at}: the module {name} has no {attribute}{f'; {hint}' if hint else ''}"
            raise ConfigError(message) from None
        if not isinstance(registry, OperationRegistry):
            kind = type(registry).__name__
            raise ConfigError(f"{at}: {attribute} of {name} is not an OperationRegistry, but of type {kind}")
        return [registry]

    def _module_of(self, given: str, at: str) -> tuple[Path, str]:
        """Return the folder to import a file from, and its module; a file of a package is imported as its part."""
        file = (self._folder / Path(given).expanduser()).resolve()
        if not file.is_file():
            raise ConfigError(f"{at}: {given}: no such file")
        folder, names = file.parent, [file.stem]
        while (folder / "__init__.py").is_file() and folder.name.isidentifier():
            folder, names = folder.parent, [folder.name, *names]
        name = ".".join(names)
        known = sys.modules.get(name)
        taken = known is not None and Path(getattr(known, "__file__", None) or "").resolve() != file
        if taken or not file.stem.isidentifier():
            raise ConfigError(f"{at}: {given} cannot be imported as {name}, which is another module: rename the file")
        return folder, name

    def forget(self) -> None:
        """Remove the project's modules from `sys.modules`, so that the next import loads them again."""
        for name in self._modules():
            sys.modules.pop(name, None)

    def _import(self, name: str, at: str, folder: Path) -> ModuleType:
        try:
            with self._on_path(folder):
                return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            if isinstance(error, SyntaxError) and error.filename:
                files.append(error.filename)
            self.files |= {Path(file) for file in files if self._is_ours(file)}
            self.files.add(self._folder / f"{name.replace('.', '/')}.py")
            raise ConfigError(f"{at}: {self._reason(name, error)}") from error
        finally:
            self.files |= {Path(module.__file__) for module in self._modules().values() if module.__file__}

    @contextmanager
    def _on_path(self, folder: Path) -> Generator[None]:
        with self._lock:
            self._running[folder] += 1
            if self._running[folder] == 1:
                sys.path.insert(0, str(folder))
                self._folders.add(folder)
        try:
            yield
        finally:
            with self._lock:
                self._running[folder] -= 1
                if self._running[folder] == 0 and str(folder) in sys.path:
                    sys.path.remove(str(folder))

    def _modules(self) -> dict[str, ModuleType]:
        """Return the modules that were imported from the folder since the start."""
        return {
            name: module
            for name, module in tuple(sys.modules.items())
            if name.partition(".")[0] not in self._before and self._is_ours(getattr(module, "__file__", None))
        }

    def _is_ours(self, file: str | None) -> bool:
        ours = file is not None and any(Path(file).is_relative_to(each) for each in tuple(self._folders))
        return ours and "site-packages" not in Path(file or "").parts

    def _reason(self, name: str, error: BaseException) -> str:
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
            return f"unknown module {error.name}: it is neither in {self._folder} nor installed"
        reason = f"{name} cannot be imported: {type(error).__name__}: {error}"
        frames = [each for each in traceback.extract_tb(error.__traceback__) if self._is_ours(each.filename)]
        if not frames or isinstance(error, SyntaxError):  # its message has the position
            return reason
        file = Path(frames[-1].filename)
        shown = file.relative_to(self._folder) if file.is_relative_to(self._folder) else file
        return f"{reason} ({shown}, line {frames[-1].lineno})"


logger = logging.getLogger("opwire.config")

_GRACE = 10.0
"""Additional seconds for MCP servers: each has its own timeout and better message, and needs time to stop."""


class SourceStarted(Struct, frozen=True):
    """A source is being loaded."""

    source: str


class SourceLoaded(Struct, frozen=True):
    """A source is loaded; `notes` are the lines of its report."""

    source: str
    operations: int
    seconds: float
    notes: tuple[str, ...] = ()


class SourceFailed(Struct, frozen=True):
    """A source cannot be loaded, or a part of it: then `source` is "file.server"."""

    source: str
    error: OpwireError
    seconds: float


LoadEvent = SourceStarted | SourceLoaded | SourceFailed


@asynccontextmanager
async def open_config(
    config: Config, *, on_event: Callable[[LoadEvent], object] = lambda event: None
) -> AsyncGenerator["OpenedConfig"]:
    """Load all sources concurrently, and close them at the end of the block.

        async with open_config(load_config("opwire.toml"), on_event=print) as opened:
            await opened.registry.execute("shop.order", {...})

    A source that fails, or exceeds its `timeout`, is in `failures`; the others are not affected.

    Raises:
        ConfigError: a `required` source failed; its own error is the cause.
    """
    opened = OpenedConfig(config, on_event)
    try:
        await opened.load()
        yield opened
    finally:
        await opened.close()


class OpenedConfig:
    """A configuration with loaded sources. Returned by `open_config`."""

    def __init__(self, config: Config, on_event: Callable[[LoadEvent], object] = lambda event: None) -> None:
        settings = config.registry
        self.config = config
        self.registry = OperationRegistry(
            normalize=settings.normalize, strip=settings.strip, max_workers=settings.max_workers
        )
        """The operations of all sources."""
        self.failures: dict[str, OpwireError] = {}
        """The errors of sources, by name; of one server of an `mcpServers` file, by "source.server"."""
        self._on_event = on_event
        self._opened: dict[str, AdapterSource] = {}
        self._mounted: dict[str, MountedSource] = {}
        self._abandoned: set[asyncio.Task[None]] = set()  # sources that timed out, and still clean up
        self._modules = ProjectModules(config.folder)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<OpenedConfig of {len(self._mounted)} sources{failed}: {len(self.registry)} operations>"

    @property
    def files(self) -> set[Path]:
        """The files that the configuration was loaded from: its own, Python modules and documents."""
        of_sources = (files_of(each, self.config.folder) for each in self.config.sources.values())
        found = self._modules.files.union(*of_sources)
        return found if self.config.file is None else {*found, self.config.file.absolute()}

    def source_of(self, operation_id: str) -> str | None:
        """Return the name of an operation's source, or None."""
        return next((name for name, mounted in self._mounted.items() if operation_id in mounted.ids), None)

    def notes_of(self, source: str) -> list[str]:
        """Return the report of a source: skipped items, warnings and duplicate ids."""
        mounted = self._mounted.get(source)
        if mounted is None:
            return []
        duplicates = (f"skipped {id}: another source has this id" for id in sorted(mounted.duplicates))
        return [*mounted.source.report, *duplicates]

    async def load(self) -> None:
        """Load the enabled sources.

        Raises:
            ConfigError: a `required` source failed.
        """
        enabled = {name: each for name, each in self.config.sources.items() if each.enabled}
        try:
            async with asyncio.TaskGroup() as group:
                for name, settings in enabled.items():
                    group.create_task(self._load_one(name, settings))
        except BaseExceptionGroup as failed:
            first: BaseException = failed.exceptions[0]
            raise first from first.__cause__
        for name in enabled:  # in the order of the file, which decides between duplicate ids
            if name in self._opened:
                self._mounted[name] = MountedSource(self._opened[name], self.registry)

    async def close(self) -> None:
        """Close all sources, and remove their operations from the registry; idempotent."""
        for mounted in self._mounted.values():
            mounted.unmount()
        self._mounted.clear()
        opened, self._opened = self._opened, {}
        for error in await asyncio.gather(*(each.close() for each in opened.values()), return_exceptions=True):
            if isinstance(error, Exception):
                logger.warning("a source raised when it was closed: %s", error, exc_info=error)
        await asyncio.gather(*self._abandoned)
        self._modules.forget()

    async def _load_one(self, name: str, settings: AnySource) -> None:
        started = time.monotonic()
        self._on_event(SourceStarted(name))
        try:
            source = self._opened[name] = await self._open(name, settings)
        except OpwireError as error:
            self.failures[name] = error
            self._on_event(SourceFailed(name, error, time.monotonic() - started))
            if settings.required:
                raise ConfigError(f"{dotted(('sources', name))} is required: {error}") from error
            return
        seconds = time.monotonic() - started
        for part, error in source.failures.items():
            self.failures[f"{name}.{part}"] = error
            self._on_event(SourceFailed(f"{name}.{part}", error, seconds))
        self._on_event(SourceLoaded(name, sum(1 for _ in source), seconds, tuple(source.report)))

    async def _open(self, name: str, settings: AnySource) -> AdapterSource:
        """Open a source within its timeout; one that is late is abandoned at once, and cleans up in the background."""
        limit = settings.timeout + (_GRACE if isinstance(settings, MCPSettings) else 0)
        key = dotted(("sources", name))
        opening = asyncio.create_task(open_source(name, settings, self.config.folder, self._modules))
        try:
            await asyncio.wait({opening}, timeout=limit)
        except asyncio.CancelledError:
            await _abandon(opening)
            raise
        if not opening.done():
            self._abandoned.add(asyncio.create_task(_abandon(opening)))
            message = f"{key} was not loaded within {limit:g} s: check that it is running, or increase its timeout"
            raise CallError(ErrorCode.TIMEOUT, message)
        try:
            return opening.result()
        except OpwireError:
            raise
        except Exception as error:
            logger.exception("%s raised an unexpected exception", key)
            message = f"{key} failed: {type(error).__name__}; see the log"
            raise CallError(ErrorCode.INTERNAL, message) from error


async def _abandon(opening: asyncio.Task[AdapterSource]) -> None:
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:  # it had just been opened
        await opening.result().close()


class MountedSource:
    """The operations of one source in the registry, which follow its changes.

    Unlike `registry.follow`, it tolerates ids of other sources: they are skipped, and in `duplicates`.
    """

    def __init__(self, source: AdapterSource, registry: OperationRegistry) -> None:
        self.source = source
        self.ids: set[str] = set()
        self.duplicates: set[str] = set()
        self._registry = registry
        self._unfollow = source.on_change(self._follow)
        self._put(source)

    def unmount(self) -> None:
        """Remove the operations from the registry."""
        self._unfollow()
        self._drop(self.ids)

    def _follow(self, change: SourceChange) -> None:
        self._put(change.put)
        self._drop(change.gone)

    def _put(self, operations: Iterable[Operation]) -> None:
        given = {each.spec.id: each for each in operations}
        self.duplicates |= {id for id in given if id in self._registry and id not in self.ids}
        own = {id: each for id, each in given.items() if id not in self.duplicates}
        self._registry.register_all(own.values(), replace=True)
        self.ids |= own.keys()

    def _drop(self, gone: Iterable[str]) -> None:
        self.duplicates.difference_update(gone)
        for id in self.ids.intersection(gone):
            self.ids.discard(id)
            if id in self._registry:
                self._registry.unregister(id)


async def watch(paths: Iterable[Path], *, interval: float = 0.5) -> AsyncGenerator[set[Path]]:
    """Yield the files that have changed, after each change.

        async for changed in watch(opened.files):
            print(changed)

    Files are checked every `interval` seconds; changes are collected until they stop, because editors and
    `git checkout` write in several steps.
    """
    paths = tuple(paths)

    def versions() -> dict[Path, tuple[int, int, int] | None]:
        found: dict[Path, tuple[int, int, int] | None] = {}
        for path in paths:
            try:
                status = path.stat()
                found[path] = status.st_mtime_ns, status.st_size, status.st_ino
            except OSError:
                found[path] = None
        return found

    before = versions()
    while True:
        await asyncio.sleep(interval)
        now = versions()
        if now == before:
            continue
        while True:
            await asyncio.sleep(interval)
            last, now = now, versions()
            if last == now:
                break
        changed = {path for path in paths if before[path] != now[path]}
        before = now
        if changed:
            yield changed
