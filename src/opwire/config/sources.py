"""The sources of a configuration, created by their adapters, which are imported lazily.

`RegistrySource` mounts a registry in another: its operations keep their own argument conversion, threads and result
normalization. `ProjectModules` imports the Python modules of the project around a configuration file.
"""

import asyncio
import importlib
import re
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from opwire.auth.oauth.store import LoginKey, TokenStore, resource_of
from opwire.config.settings import (
    AnySource,
    CallerCredential,
    ClientSettings,
    EnvText,
    Key,
    OpenAPISettings,
    ProgramSource,
    PythonSource,
    ServersFileSource,
    ServerSource,
    UserCredential,
    WebhookSettings,
    dotted,
    similar_keys,
)
from opwire.errors import ConfigError, UsageError, needs_extra
from opwire.http.tls import client_context
from opwire.model.caller import caller_token
from opwire.model.operation import NormalizeMode, Operation
from opwire.registry import OperationRegistry
from opwire.registry.following import RegistryOperations
from opwire.registry.source import AdapterSource, SourceChange
from opwire.runtime.text import get_logger
from opwire.runtime.workers import WorkerPool
from opwire.typed.plain import as_dict

if TYPE_CHECKING:
    from opwire.mcp.client.options import MCPKeywords
    from opwire.mcp.client.servers import HTTPServerOptions, MCPServer
    from opwire.openapi.webhooks import Verify, WebhookReceiver


logger = get_logger("opwire.config")

_PYTHON_FILE = re.compile(r"(.+\.py)(:(.*))?")
_IMPORT_THREADS = 16  # not counting those of imports that hang


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
        methods = list(chain.from_iterable(registry.decorated_methods for registry in registries))
        if methods and not any(map(len, registries)):
            told = "%s: no operations: %s needs register_object with an object of its class"
            logger.warning(told, settings.python, methods[0])
        return RegistrySource(registries, normalize=settings.normalize, strip=settings.strip)
    extra = "openapi" if isinstance(settings, OpenAPISettings) else "mcp"
    with needs_extra(extra):
        # Adapters are imported on a thread, which takes up to a second: other sources are loaded meanwhile.
        await asyncio.to_thread(importlib.import_module, f"opwire.{extra}.client")
    values = resolve(settings, key)
    await _load_callers(values, key, modules)
    await _load_callers(values.get("credentials", {}), (*key, "credentials"), modules)
    if isinstance(settings, OpenAPISettings):
        receiver = None
        if settings.webhooks is not None:
            receiver = await _webhook_receiver(settings.webhooks, values["webhooks"], modules, (*key, "webhooks"))
        return _openapi_source(name, settings, values, folder, receiver)
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
        case CallerCredential():
            return value
        case ClientSettings():
            settings = {name: setting for name, setting in msgspec.structs.asdict(value).items() if setting is not None}
            return resolve(settings, key)
        case msgspec.Struct():
            return {name: resolve(setting, (*key, name)) for name, setting in msgspec.structs.asdict(value).items()}
        case dict():
            return {name: resolve(element, (*key, name)) for name, element in cast("dict[str, Any]", value).items()}
        case tuple():
            return tuple(resolve(element, (*key, n)) for n, element in enumerate(cast("tuple[Any, ...]", value)))
        case _:
            return value


async def _load_callers(values: dict[str, Any], key: Key, modules: "ProjectModules") -> None:
    """Replace the credentials of callers by functions."""
    for name, value in values.items():
        if isinstance(value, CallerCredential):
            at = dotted((*key, name, "caller"))
            values[name] = caller_token if value.caller == "token" else await modules.function(value.caller, at)
        elif (client := as_dict(value)).get("exchange") is True and "subject" in client:
            client["subject"] = await modules.function(client["subject"], dotted((*key, name, "subject")))


def files_of(settings: AnySource, folder: Path) -> list[Path]:
    """Return the files that a source is loaded from, except Python modules."""
    document = settings.openapi if isinstance(settings, OpenAPISettings) else getattr(settings, "mcp_servers", None)
    if document is None or document.missing or "://" in (path := document.resolve("")):
        return []
    return [folder / Path(path).expanduser()]


def _mcp_source(
    name: str, settings: ProgramSource | ServerSource | ServersFileSource, values: dict[str, Any], folder: Path
) -> AdapterSource:
    from opwire.mcp.client.servers import HTTPServer, StdioServer
    from opwire.mcp.client.source import from_mcp

    options: MCPKeywords = {
        "trust_annotations": settings.trust_annotations,
        "resources": settings.resources,
        "prompts": settings.prompts,
        "strict_input": settings.strict_input,
        "revision": settings.revision,
        "tool_timeout": settings.call_timeout,
        "normalize": settings.normalize,
        "strip": settings.strip,
        "connect_timeout": settings.load_timeout,
    }
    if isinstance(settings, ServersFileSource):
        path = folder / Path(values["mcp_servers"]).expanduser()
        return from_mcp(path, required=settings.required, **options)
    server: MCPServer
    if isinstance(settings, ServerSource):
        tls = _tls(values["tls"], folder)
        http_options: HTTPServerOptions = {"ssl": client_context(**tls)} if tls else {}
        server = HTTPServer(values["url"], values["headers"], settings.type, http_options)
        options["auth"] = values["auth"]
        if not values["auth"] and not any(name.lower() == "authorization" for name in values["headers"]):
            # `opwire login NAME` signs in to a server without `auth` too.
            key = LoginKey(resource_of(values["url"]), "mcp")
            options["auth"] = {"login": True} if TokenStore().may_have(key) else None
    else:
        cwd = folder / Path(values["cwd"] or "").expanduser()
        server = StdioServer(values["command"], values["args"], values["env"] or None, str(cwd))
    options["namespace"] = settings.namespace or name
    return from_mcp(server, **options)


def _tls(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the TLS options that are set, with paths relative to the folder."""
    files = ("ca_file", "client_certificate", "client_key")
    paths = {name: str(folder / Path(values[name]).expanduser()) for name in files if values[name] is not None}
    return paths | ({"client_key_password": values["client_key_password"]} if values["client_key_password"] else {})


async def _webhook_receiver(
    settings: WebhookSettings, values: dict[str, Any], modules: "ProjectModules", key: Key
) -> "WebhookReceiver":
    from opwire.openapi.webhooks import GitHubSignature, StandardSignature, StripeSignature, WebhookReceiver

    verify: Verify | None = None
    try:
        match settings.signature:
            case "stripe":
                verify = StripeSignature(values["secret"], tolerance=settings.tolerance)
            case "github":
                verify = GitHubSignature(values["secret"])
            case "standard":
                verify = StandardSignature(values["secret"], tolerance=settings.tolerance)
            case None if settings.verify is not None:
                verify = await modules.function(settings.verify, dotted((*key, "verify")))
            case None:
                pass
    except UsageError as error:
        raise ConfigError(f"{dotted((*key, 'secret'))}: {error}") from error
    return WebhookReceiver(
        verify,
        unsigned=settings.unsigned,
        events=settings.events,
        strict=settings.strict,
        max_body=settings.max_body,
        max_waiting=settings.max_waiting,
    )


def _openapi_source(
    name: str, settings: OpenAPISettings, values: dict[str, Any], folder: Path, webhooks: "WebhookReceiver | None"
) -> AdapterSource:
    from opwire.openapi.client.source import from_openapi

    document = values["openapi"]
    return from_openapi(
        document if "://" in document else folder / Path(document).expanduser(),
        namespace=name if settings.namespace is None else settings.namespace or None,
        base_url=values["base_url"],
        server_variables=values["server_variables"],
        credentials=values["credentials"],
        allow_external_refs=True if "*" in settings.allow_external_refs else settings.allow_external_refs,
        strict_input=settings.strict_input,
        max_documents=settings.max_documents,
        max_document_bytes=settings.max_document_bytes,
        include=settings.include,
        exclude=settings.exclude,
        normalize=settings.normalize,
        strip=bool(settings.strip),
        reconnect=settings.reconnect,
        retries=settings.retries,
        trust_annotations=settings.trust_annotations,
        timeout=settings.call_timeout,
        max_response=settings.max_response,
        headers=values["headers"],
        proxy=values["proxy"],
        max_connections=settings.max_connections,
        max_per_host=settings.max_per_host,
        webhooks=webhooks,
        **_tls(values["tls"], folder),
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
        self._parts = [
            RegistryOperations(registry, normalize=normalize or "off", strip=strip) for registry in registries
        ]

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations."""
        return chain.from_iterable(self._parts)

    @property
    def instructions(self) -> dict[str, str]:
        """The instructions of the registries' own sources."""
        return {namespace: text for part in self._parts for namespace, text in part.instructions.items()}

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Call the listener after every change; the returned function removes it."""
        return _all_of([part.on_change(listener) for part in self._parts])

    def on_resource_updated(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call the listener with the URI of every updated resource; the returned function removes it."""
        return _all_of([part.on_resource_updated(listener) for part in self._parts])


def _all_of(removes: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def remove_all() -> None:
        for remove in removes:
            remove()

    return remove_all


class ProjectModules:
    """Import modules, from `folder` first, and record the files of those that were found there.

    Imports run on threads, because one may block forever. The folder is in `sys.path` while one runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = frozenset(sys.modules)  # modules of the process itself are never removed
        self._threads = WorkerPool(_IMPORT_THREADS)
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
        module, attribute = await self._module(target, at)
        name = module.__name__
        registries = {name: value for name, value in vars(module).items() if isinstance(value, OperationRegistry)}
        if not attribute:
            if not registries:
                raise ConfigError(f"{at}: the module {name} has no OperationRegistry")
            return list({id(registry): registry for registry in registries.values()}.values())  # one may have two names
        try:
            registry: Any = attrgetter(attribute)(module)
        except AttributeError:
            hint = similar_keys(attribute, registries) or (f"it has {', '.join(registries)}" if registries else "")
            message = f"{at}: the module {name} has no {attribute}{f'; {hint}' if hint else ''}"
            raise ConfigError(message) from None
        if not isinstance(registry, OperationRegistry):
            kind = type(registry).__name__
            raise ConfigError(f"{at}: {attribute} of {name} is not an OperationRegistry, but of type {kind}")
        return [registry]

    async def function(self, target: str, at: str) -> Callable[..., Any]:
        """Return the function "module:function", or "file.py:function"; `at` is the key with this value.

        Raises:
            ConfigError: the target does not exist, or the import failed.
        """
        module, attribute = await self._module(target, at)
        function: Any = getattr(module, attribute, None)
        if not callable(function):
            raise ConfigError(f"{at}: the module {module.__name__} has no function {attribute}")
        return function

    async def _module(self, target: str, at: str) -> tuple[ModuleType, str]:
        """Import the module of a target, and return it with the name of the attribute."""
        folder = self._folder
        if file_target := _PYTHON_FILE.fullmatch(target):
            colon, attribute = file_target[2] or "", file_target[3] or ""
            folder, name = self._module_of(file_target[1], at)
        else:
            name, colon, attribute = target.partition(":")
        if not name or (colon and not attribute):
            raise ConfigError(f'{at}: write "module:registry", "module" or "file.py"')
        module: ModuleType = await self._threads.run(partial(self._import, name, at, folder), f"the import of {name}")
        return module, attribute

    def _module_of(self, path: str, at: str) -> tuple[Path, str]:
        """Return the folder to import a file from, and its module; a file of a package is imported as its part."""
        file = (self._folder / Path(path).expanduser()).resolve()
        if not file.is_file():
            raise ConfigError(f"{at}: {path}: no such file")
        folder, names = file.parent, [file.stem]
        while (folder / "__init__.py").is_file() and folder.name.isidentifier():
            folder, names = folder.parent, [folder.name, *names]
        name = ".".join(names)
        known_module = sys.modules.get(name)
        is_taken = known_module is not None and Path(getattr(known_module, "__file__", None) or "").resolve() != file
        if is_taken or not file.stem.isidentifier():
            raise ConfigError(f"{at}: {path} cannot be imported as {name}, which is another module: rename the file")
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
            frames = traceback.extract_tb(error.__traceback__)
            files = [frame.filename for frame in frames]
            if isinstance(error, SyntaxError) and error.filename:
                files.append(error.filename)
            self.files |= {Path(file) for file in files if self._is_ours(file)}
            self.files.add(self._folder / f"{name.replace('.', '/')}.py")
            if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
                message = f"{at}: unknown module {error.name}: it is neither in {self._folder} nor installed"
                raise ConfigError(message) from error
            message = f"{at}: {name} cannot be imported: {type(error).__name__}: {error}"
            ours = [frame for frame in frames if self._is_ours(frame.filename)]
            if ours and not isinstance(error, SyntaxError):  # its message has the position
                file = Path(ours[-1].filename)
                shown_file = file.relative_to(self._folder) if file.is_relative_to(self._folder) else file
                message += f" ({shown_file}, line {ours[-1].lineno})"
            raise ConfigError(message) from error
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
            for name, module in sys.modules.copy().items()  # in one step: other threads import, too
            if name.partition(".")[0] not in self._before and self._is_ours(getattr(module, "__file__", None))
        }

    def _is_ours(self, file: str | None) -> bool:
        ours = file is not None and any(Path(file).is_relative_to(folder) for folder in tuple(self._folders))
        return ours and "site-packages" not in Path(file or "").parts
