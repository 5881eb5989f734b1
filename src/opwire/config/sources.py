"""The sources that a configuration names, opened: each by its adapter, which is imported when it is first asked for.

A registry as a source of another: its operations, called where they are.

They keep what their own registry gives them: argument conversion, threads, and what it does to results.

Python modules of the project around a configuration file: imported, and imported anew when they change.
"""

import asyncio
import importlib
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec.structs import replace

from opwire.config.problems import Key, did_you_mean, dotted
from opwire.config.settings import (
    AnySource,
    ClientCredential,
    Credential,
    EnvText,
    MCPSettings,
    OpenAPISource,
    ProgramSource,
    PythonSource,
    ServersFileSource,
    ServerSource,
    UserCredential,
)
from opwire.errors import ConfigError, OpwireError
from opwire.operation import Context, NormalizeMode, Operation, OperationSpec, OperationType, Source, SourceChange
from opwire.registry import Change, OperationRegistry
from opwire.workers import WorkerPool

if TYPE_CHECKING:
    from opwire.adapters.mcp import MCPServer


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


_THREADS = 16  # imports at the same time, not counting those that hang


class ProjectModules:
    """Imports modules, which are looked for in `folder` first, and remembers those that were found there.

    Imports run on threads, because one may wait for ever. `sys.path` has the folder as long as one runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = frozenset(sys.modules)  # what the process needs for itself is never imported anew
        self._threads = WorkerPool(_THREADS)
        self._lock = threading.Lock()
        self._running = 0
        self.files: set[Path] = set()
        """Where the modules are, those included that could not be imported."""

    async def registries(self, target: str, at: str) -> list[OperationRegistry]:
        """What "module:attribute" or "module" names; `at` is the key that says so.

        Raises:
            ConfigError: there is no such thing, or the import failed.
        """
        name, colon, attribute = target.partition(":")
        if not name or (colon and not attribute):
            raise ConfigError(f'{at} is "module:registry" or "module"')
        module: ModuleType = await self._threads.run(partial(self._import, name, at), f"the import of {name}")
        if attribute:
            return [_registry_at(module, attribute, at)]
        found = {id(each): each for each in _registries_in(module).values()}  # one may have two names
        if not found:
            raise ConfigError(f"{at}: the module {name} holds no OperationRegistry")
        return list(found.values())

    def forget(self) -> None:
        """Take the project's modules out of `sys.modules`, so that the next import is one of their files."""
        for name in self._modules():
            sys.modules.pop(name, None)

    def forget_edited(self) -> None:
        """As `forget`, for files that have just been edited."""
        # Python tells by the second whether it has to compile a file again, and people save more often than that.
        for compiled in [getattr(module, "__cached__", None) for module in self._modules().values()]:
            if isinstance(compiled, str):
                with suppress(OSError):
                    Path(compiled).unlink()
        self.forget()
        importlib.invalidate_caches()

    def _import(self, name: str, at: str) -> ModuleType:
        try:
            with self._on_path():
                return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            self.files |= {*self._files_in(error), self._folder / f"{name.replace('.', '/')}.py"}
            raise ConfigError(f"{at}: {self._reason(name, error)}") from error
        finally:
            self.files |= {Path(module.__file__) for module in self._modules().values() if module.__file__}

    @contextmanager
    def _on_path(self) -> Generator[None]:
        with self._lock:
            self._running += 1
            if self._running == 1:
                sys.path.insert(0, str(self._folder))
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0 and str(self._folder) in sys.path:
                    sys.path.remove(str(self._folder))

    def _modules(self) -> dict[str, ModuleType]:
        """The modules that came from the folder since we began."""
        return {
            name: module
            for name, module in tuple(sys.modules.items())
            if name.partition(".")[0] not in self._before and self._is_ours(getattr(module, "__file__", None))
        }

    def _is_ours(self, file: str | None) -> bool:
        return file is not None and Path(file).is_relative_to(self._folder) and "site-packages" not in Path(file).parts

    def _files_in(self, error: BaseException) -> list[Path]:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            files.append(error.filename)
        return [Path(file) for file in files if self._is_ours(file)]

    def _reason(self, name: str, error: BaseException) -> str:
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
            return f"there is no module {error.name}, neither in {self._folder} nor among the installed packages"
        reason = f"{name} cannot be imported: {type(error).__name__}: {error}"
        frames = [each for each in traceback.extract_tb(error.__traceback__) if self._is_ours(each.filename)]
        if not frames or isinstance(error, SyntaxError):  # which says itself where
            return reason
        return f"{reason} ({Path(frames[-1].filename).relative_to(self._folder)}, line {frames[-1].lineno})"


def _registries_in(module: ModuleType) -> dict[str, OperationRegistry]:
    return {name: each for name, each in vars(module).items() if isinstance(each, OperationRegistry)}


def _registry_at(module: ModuleType, attribute: str, at: str) -> OperationRegistry:
    try:
        found: Any = attrgetter(attribute)(module)
    except AttributeError:
        names = list(_registries_in(module))
        hint = did_you_mean(attribute, names) or (f"it has {', '.join(names)}" if names else "")
        message = f"{at}: the module {module.__name__} has no {attribute}{f'; {hint}' if hint else ''}"
        raise ConfigError(message) from None
    if not isinstance(found, OperationRegistry):
        kind = type(found).__name__
        raise ConfigError(f"{at}: {attribute} of {module.__name__} is no OperationRegistry, but of type {kind}")
    return found


@dataclass
class OpenSource:
    """A source that is open. `failures` are of parts of it: of one MCP server among several."""

    source: Source
    close: Callable[[], Awaitable[None]]
    notes: Callable[[], list[str]] = list
    """What of it is left out, or was not understood."""
    failures: Mapping[str, OpwireError] = field(default_factory=dict[str, OpwireError])


async def open_source(name: str, settings: AnySource, folder: Path, modules: ProjectModules) -> OpenSource:
    """Open the source `[sources.NAME]`.

    Raises:
        OpwireError: it cannot be opened. The message says why.
    """
    key: Key = ("sources", name)
    # The adapters are imported on a thread, which takes up to a second: the other sources go on meanwhile.
    try:
        match settings:
            case PythonSource():
                return await _open_python(key, settings, modules)
            case OpenAPISource():
                await asyncio.to_thread(import_module, "opwire.adapters.openapi")
                return await _open_openapi(key, name, settings, folder)
            case _:
                await asyncio.to_thread(import_module, "opwire.adapters.mcp")
                return await _open_mcp(key, name, settings, folder)
    except ModuleNotFoundError as error:
        extra = "openapi" if isinstance(settings, OpenAPISource) else "mcp"
        missing = f"{dotted(key)} needs the package {error.name}: pip install 'opwire[{extra}]'"
        raise ConfigError(missing) from error


def files_of(settings: AnySource, folder: Path) -> list[Path]:
    """The files that a source is read from, beside Python modules."""
    given = settings.openapi if isinstance(settings, OpenAPISource) else None
    if isinstance(settings, ServersFileSource):
        given = settings.mcp_servers
    if given is None or given.missing:
        return []
    where = _document(given.resolve(""), folder)
    return [where] if isinstance(where, Path) else []


async def _open_python(key: Key, settings: PythonSource, modules: ProjectModules) -> OpenSource:
    registries = await modules.registries(settings.python, dotted((*key, "python")))
    source = RegistrySource(registries, normalize=settings.normalize, strip=settings.strip)
    return OpenSource(source, _nothing_to_close)


async def _nothing_to_close() -> None:
    """The modules are those of the whole project."""


async def _open_mcp(
    key: Key, name: str, settings: ProgramSource | ServerSource | ServersFileSource, folder: Path
) -> OpenSource:
    from opwire.adapters.mcp import from_mcp

    if isinstance(settings, ServersFileSource):
        path = _path(settings.mcp_servers.resolve(dotted((*key, "mcp_servers"))), folder)
        source = from_mcp(path, required=settings.required, **_mcp_options(settings, settings.timeout))
    else:
        server = _mcp_server(key, settings, folder)
        # Whoever opens sources keeps the time. Two who give up at the same moment would be in each other's way.
        options = _mcp_options(settings, 2 * settings.timeout)
        source = from_mcp(server, namespace=settings.namespace or name, **options)
    stack = AsyncExitStack()
    await stack.enter_async_context(source)
    return OpenSource(
        source,
        stack.aclose,
        notes=lambda: [*map(str, source.report.skipped), *source.report.warnings],
        failures=dict(source.failures),
    )


class _MCPOptions(TypedDict):
    trust_annotations: bool
    resources: bool
    prompts: bool
    tool_timeout: float | None
    normalize: NormalizeMode | None
    strip: bool | None
    connect_timeout: float


def _mcp_options(settings: MCPSettings, connect_timeout: float) -> _MCPOptions:
    return {
        "trust_annotations": settings.trust_annotations,
        "resources": settings.resources,
        "prompts": settings.prompts,
        "tool_timeout": settings.tool_timeout,
        "normalize": settings.normalize,
        "strip": settings.strip,
        "connect_timeout": connect_timeout,
    }


def _mcp_server(key: Key, settings: ProgramSource | ServerSource, folder: Path) -> "MCPServer":
    from opwire.adapters.mcp import HTTPServer, StdioServer

    if isinstance(settings, ServerSource):
        headers = _resolved((*key, "headers"), settings.headers)
        return HTTPServer(settings.url.resolve(dotted((*key, "url"))), headers, settings.type)
    return StdioServer(
        command=settings.command.resolve(dotted((*key, "command"))),
        args=tuple(each.resolve(dotted((*key, "args", at))) for at, each in enumerate(settings.args)),
        env=_resolved((*key, "env"), settings.env) or None,
        cwd=str(folder if settings.cwd is None else _path(settings.cwd.resolve(dotted((*key, "cwd"))), folder)),
    )


async def _open_openapi(key: Key, name: str, settings: OpenAPISource, folder: Path) -> OpenSource:
    from opwire.adapters.openapi import from_openapi

    def optional(field: str) -> str | None:
        text: EnvText | None = getattr(settings, field)
        return None if text is None else text.resolve(dotted((*key, field)))

    source = from_openapi(
        _document(settings.openapi.resolve(dotted((*key, "openapi"))), folder),
        namespace=settings.namespace or name,
        base_url=optional("base_url"),
        server_variables=_resolved((*key, "server_variables"), settings.server_variables),
        credentials=_credentials((*key, "credentials"), settings.credentials),
        allow_external_refs=True if "*" in settings.external_refs else settings.external_refs,
        include=settings.include,
        exclude=settings.exclude,
        normalize=settings.normalize,
        strip=bool(settings.strip),
        reconnect=settings.reconnect,
        trust_annotations=settings.trust_annotations,
        timeout=settings.call_timeout,
        max_response=settings.max_response,
        headers=_resolved((*key, "headers"), settings.headers),
        proxy=optional("proxy"),
    )
    stack = AsyncExitStack()
    await stack.enter_async_context(source)
    return OpenSource(source, stack.aclose, notes=lambda: str(source.report).splitlines())


def _credentials(key: Key, given: Mapping[str, Credential]) -> dict[str, Any]:
    return {name: _credential((*key, name), each) for name, each in given.items()}


def _credential(key: Key, given: Credential) -> str | tuple[str, str] | dict[str, Any]:
    match given:
        case UserCredential():
            return given.user.resolve(dotted((*key, "user"))), given.password.resolve(dotted((*key, "password")))
        case ClientCredential():
            token_url = None if given.token_url is None else given.token_url.resolve(dotted((*key, "token_url")))
            return {
                "client_id": given.client_id.resolve(dotted((*key, "client_id"))),
                "client_secret": given.client_secret.resolve(dotted((*key, "client_secret"))),
                "scopes": given.scopes,
                "token_url": token_url,
                "auth": given.auth,
            }
        case _:
            return given.resolve(dotted(key))


def _resolved(key: Key, texts: Mapping[str, EnvText]) -> dict[str, str]:
    return {name: each.resolve(dotted((*key, name))) for name, each in texts.items()}


def _document(given: str, folder: Path) -> str | Path:
    return given if "://" in given else _path(given, folder)


def _path(given: str, folder: Path) -> Path:
    return folder / Path(given).expanduser()
