"""The sources that a configuration names, opened: each by its adapter, which is imported when it is first asked for."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from opwire.config.delegates import RegistrySource
from opwire.config.environment import EnvText
from opwire.config.mistakes import dotted
from opwire.config.modules import ProjectModules
from opwire.config.places import Key
from opwire.config.settings import (
    AnySource,
    ClientCredential,
    Credential,
    MCPSettings,
    OpenAPISource,
    ProgramSource,
    PythonSource,
    ServersFileSource,
    ServerSource,
    UserCredential,
)
from opwire.errors import ConfigError, OpwireError
from opwire.operation import NormalizeMode, Source

if TYPE_CHECKING:  # their packages may not be installed
    from opwire.adapters.mcp import MCPServer


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
