"""What a configuration serves: surfaces, hub and spoke. Nothing of it runs yet."""

import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opwire.call import LOCAL_IDENTITY
from opwire.config.authentication import build_authenticator, identity_of, or_anonymous
from opwire.config.settings import (
    Config,
    HTTPSurfaceSettings,
    HubSettings,
    MCPSurfaceSettings,
    SpokeSettings,
    SurfaceSettings,
)
from opwire.errors import CallError, ConfigError
from opwire.hub import Hub, Spoke
from opwire.registry import OperationRegistry

if TYPE_CHECKING:  # their packages may not be installed
    from opwire.serve.door import DoorOptions
    from opwire.serve.http import HTTPApp
    from opwire.serve.mcp import MCPSurface
    from opwire.serve.mcp.app import HTTPOptions


def mcp_surface(config: Config, registry: OperationRegistry) -> "MCPSurface":
    """The MCP server that `[serve.mcp]` describes: for `run_stdio`, or for `run_http` with `mcp_http_options`.

    Raises:
        ConfigError: its package is not installed.
    """
    with _needs("serve.mcp", "mcp"):
        from opwire.serve.mcp import serve_mcp
    settings = config.serve.mcp or MCPSurfaceSettings()
    return serve_mcp(
        registry,
        name=settings.name,
        version=settings.version,
        title=settings.title,
        instructions=settings.instructions,
        identity=identity_of(config, settings.identity) or LOCAL_IDENTITY,
        timeout=config.limits.call_timeout,
        max_items=settings.max_items,
        max_seconds=settings.max_seconds,
        tool_envelopes=settings.tool_envelopes,
    )


def mcp_http_options(config: Config) -> "HTTPOptions":
    """Who may come in to the MCP server over HTTP, and where: the options of `run_http` and `asgi`.

    Raises:
        ConfigError: a token or key is not in the environment, or is no good.
    """
    settings = config.serve.mcp or MCPSurfaceSettings()
    return {**_door(config, settings), "path": settings.path}


def http_surface(config: Config, registry: OperationRegistry) -> "HTTPApp":
    """The HTTP API that `[serve.http]` describes.

    Raises:
        ConfigError: its package is not installed; a token or key is not in the environment, or is no good.
    """
    with _needs("serve.http", "http"):
        from opwire.serve.http import serve_http
    settings = config.serve.http or HTTPSurfaceSettings()
    return serve_http(
        registry,
        title=settings.title,
        version=settings.version,
        description=settings.description,
        timeout=config.limits.call_timeout,
        heartbeat=settings.heartbeat,
        is_error=settings.is_error,
        cors_origins=settings.cors_origins,
        **_door(config, settings),
    )


def hub_of(config: Config, registry: OperationRegistry) -> Hub:
    """The hub that `[hub]` describes.

    Raises:
        ConfigError: it cannot be made so; the message says why.
    """
    settings = config.hub or HubSettings()
    url = settings.url.resolve("hub.url")
    options: dict[str, Any] = {}
    if url.startswith(("ws://", "wss://")):
        limits = config.limits
        options = {"balance": settings.balance, "max_calls": limits.max_calls, "rate": limits.rate}
        options |= {"burst": limits.burst, "ssl": _tls(settings, config.folder)}
        options["auth"] = or_anonymous(build_authenticator(config), config, settings.anonymous)
    with _mapped("hub"):
        return Hub(
            registry,
            url,
            name=settings.name,
            version=settings.version,
            identity=identity_of(config, settings.anonymous),
            linger=settings.linger,
            refresh=settings.refresh,
            **options,
        )


def spoke_of(config: Config, registry: OperationRegistry | None) -> Spoke:
    """The spoke that `[spoke]` describes. Without a registry it only calls.

    Raises:
        ConfigError: it cannot be made so; the message says why.
    """
    settings = config.spoke
    if settings is None:
        raise ConfigError('the configuration has no [spoke]: add one, with url = "ws://…" of a hub, or of a broker')
    options: dict[str, Any] = {}
    if settings.token is not None:
        options["token"] = settings.token.resolve("spoke.token")
    with _mapped("spoke"):
        return Spoke(
            registry,
            _urls(settings),
            name=settings.name,
            version=settings.version,
            identity=identity_of(config, settings.anonymous),
            max_calls=config.limits.max_calls,
            **options,
        )


def _door(config: Config, settings: SurfaceSettings) -> "DoorOptions":
    return {
        "authenticate": build_authenticator(config),
        "identity": identity_of(config, settings.anonymous),
        "hosts": settings.hosts,
        "origins": settings.origins,
        "max_body": config.limits.max_body,
        "max_requests": config.limits.max_requests,
    }


def _urls(settings: SpokeSettings) -> list[str]:
    urls = settings.url if isinstance(settings.url, tuple) else (settings.url,)
    return [each.resolve("spoke.url") for each in urls]


def _tls(settings: HubSettings, folder: Path) -> ssl.SSLContext | None:
    if settings.certificate is None or settings.private_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(folder / settings.certificate, folder / settings.private_key)
    except OSError as error:  # that of ssl is one
        raise ConfigError(f"hub.certificate and hub.private_key cannot be used: {error}") from error
    return context


@contextmanager
def _needs(key: str, extra: str) -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{key} needs the package {error.name}: pip install 'opwire[{extra}]'") from error


@contextmanager
def _mapped(key: str) -> Generator[None]:
    """What a hub or spoke does not like about its settings is a mistake of the file."""
    try:
        yield
    except CallError as error:
        raise ConfigError(f"{key}: {error.message}") from error
    except TypeError as error:  # an option that this transport does not have
        raise ConfigError(f"{key}: a setting is not for this kind of URL: {error}") from error
