"""What a configuration serves: surfaces, hub and spoke. Nothing of it runs yet.

Who callers are, as a configuration says it: known tokens, signed tokens, and those who show none.
"""

import json
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

import msgspec

from opwire.auth import Authenticator, Grant, StaticTokens
from opwire.auth.tokens import ClaimNames
from opwire.call import LOCAL_IDENTITY
from opwire.config.problems import dotted
from opwire.config.settings import (
    Config,
    HTTPSurfaceSettings,
    HubSettings,
    JWTSettings,
    MCPSurfaceSettings,
    SpokeSettings,
    SurfaceSettings,
)
from opwire.errors import CallError, ConfigError, UsageError
from opwire.hub import Hub, Spoke
from opwire.operation import Identity
from opwire.registry import OperationRegistry

if TYPE_CHECKING:
    from opwire.serve.guard import GuardOptions
    from opwire.serve.http import HTTPApp
    from opwire.serve.mcp import MCPSurface
    from opwire.serve.mcp.app import MCPHTTPOptions


_MAX_KEYS = 1024 * 1024  # bytes of a published key set
_PATIENCE = 10.0  # seconds for it to arrive


def build_authenticator(config: Config) -> Authenticator | None:
    """What `[identities]` and `[auth.jwt]` say of tokens; None if they say nothing.

    Raises:
        ConfigError: a token or key is not in the environment, or is no good.
    """
    grants = _grants(config)
    tokens = StaticTokens(grants) if grants else None
    jwts = None if config.auth.jwt is None else _jwts(config.auth.jwt, config.folder)
    return _EitherOf(tokens, jwts) if tokens and jwts else tokens or jwts


def identity_of(config: Config, name: str | None) -> Identity | None:
    """The identity of this name; None for None."""
    return None if name is None else _grant(config, name).identity


def or_anonymous(authenticator: Authenticator | None, config: Config, name: str | None) -> Authenticator | None:
    """An authenticator that takes those who show no token for the identity of this name."""
    return authenticator if name is None else _OrAnonymous(authenticator, _grant(config, name))


class _EitherOf:
    """Takes a token that is known, or else one that is signed."""

    def __init__(self, tokens: StaticTokens, jwts: Authenticator) -> None:
        self._tokens = tokens
        self._jwts = jwts

    async def authenticate(self, token: str | None) -> Grant:
        try:
            return await self._tokens.authenticate(token)
        except CallError:
            return await self._jwts.authenticate(token)


class _OrAnonymous:
    """Takes those who show no token for somebody; a token that is no good is still refused."""

    def __init__(self, authenticator: Authenticator | None, grant: Grant) -> None:
        self._authenticator = authenticator
        self._grant = grant

    async def authenticate(self, token: str | None) -> Grant:
        if token and self._authenticator is not None:
            return await self._authenticator.authenticate(token)
        return self._grant


def _grant(config: Config, name: str) -> Grant:
    settings = config.identities[name]
    identity = Identity(id=name, scopes=settings.scopes, resources=settings.resources)
    return Grant(identity, settings.announces, delegates=settings.delegates)


def _grants(config: Config) -> dict[str, Grant]:
    grants: dict[str, Grant] = {}
    for name, settings in config.identities.items():
        if settings.token is None:
            continue
        at = dotted(("identities", name, "token"))
        token, grant = settings.token.resolve(at), _grant(config, name)
        try:
            StaticTokens({token: grant})
        except UsageError as error:
            raise ConfigError(f"{at}: {str(error).replace('token number 1', 'it')}") from error
        if token in grants:
            raise ConfigError(f"{at} is the token of {grants[token].identity.id} as well: each needs its own")
        grants[token] = grant
    return grants


def _jwts(settings: JWTSettings, folder: Path) -> Authenticator:
    try:
        from opwire.auth import JWTs
    except ImportError as error:
        raise ConfigError(f"auth.jwt: {error}") from error
    claims = {name: each for name, each in msgspec.structs.asdict(settings.claims).items() if each is not None}
    try:
        return JWTs(
            key=_key(settings, folder),
            jwks=None if settings.jwks_url is None else _fetcher(settings.jwks_url),
            algorithms=settings.algorithms,
            audience=None if settings.audience == "*" else settings.audience,
            issuer=None if settings.issuer == "*" else settings.issuer,
            leeway=settings.leeway,
            claims=cast("ClaimNames", claims),
        )
    except UsageError as error:
        raise ConfigError(f"auth.jwt: {error}") from error


def _key(settings: JWTSettings, folder: Path) -> str | None:
    if settings.key is not None:
        return settings.key.resolve("auth.jwt.key")
    if settings.key_file is None:
        return None
    try:
        return (folder / Path(settings.key_file).expanduser()).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"auth.jwt.key_file cannot be read: {error}") from error


class _NoRedirects(HTTPRedirectHandler):
    """Whoever may send us elsewhere for the keys decides who everybody is."""

    def http_error_302(self, *_: Any, **__: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _fetcher(url: str) -> Callable[[], Mapping[str, Any]]:
    """A function that fetches a key set. It blocks: `JWTs` calls it on a thread, and deals with what it raises."""
    opener = build_opener(_NoRedirects)

    def fetch() -> Mapping[str, Any]:
        try:
            with opener.open(url, timeout=_PATIENCE) as response:
                return json.loads(response.read(_MAX_KEYS))
        except HTTPError as error:
            error.close()  # it holds the connection
            raise

    return fetch


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
        stdio_identity=identity_of(config, settings.identity) or LOCAL_IDENTITY,
        timeout=config.limits.call_timeout,
        max_items=settings.max_items,
        max_seconds=settings.max_seconds,
        tool_envelopes=settings.tool_envelopes,
    )


def mcp_http_options(config: Config) -> "MCPHTTPOptions":
    """Who may come in to the MCP server over HTTP, and where: the options of `run_http` and `asgi`.

    Raises:
        ConfigError: a token or key is not in the environment, or is no good.
    """
    settings = config.serve.mcp or MCPSurfaceSettings()
    return {**_guard_options(config, settings), "path": settings.path}


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
        **_guard_options(config, settings),
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


def _guard_options(config: Config, settings: SurfaceSettings) -> "GuardOptions":
    return {
        "authenticate": build_authenticator(config),
        "anonymous": identity_of(config, settings.anonymous),
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
    except ImportError as error:
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
