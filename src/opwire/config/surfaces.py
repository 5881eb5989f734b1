"""The surfaces, hub and spoke of a configuration, not started yet, and the authentication of their callers."""

import json
import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

import msgspec

from opwire.auth.tokens import Authenticator, ClaimNames, Grant, ResourceMetadata, StaticTokens
from opwire.config.runtime import OpenedConfig
from opwire.config.settings import (
    BrokerSettings,
    ClaimSettings,
    Config,
    EnvText,
    HTTPSurfaceSettings,
    HubSettings,
    JWTSettings,
    MCPSurfaceSettings,
    OAuthSettings,
    SignedSettings,
    SurfaceSettings,
    dotted,
)
from opwire.config.views import served_view
from opwire.errors import CallError, ConfigError, ErrorCode, MissingExtraError, UsageError, needs_extra
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import OperationSpec
from opwire.registry import OperationRegistry

if TYPE_CHECKING:
    from opwire.asgi.guard import GuardOptions
    from opwire.auth.signed import SignedRequests
    from opwire.console.app import ConsoleApp
    from opwire.durable.jetstream.journal import NatsJournal
    from opwire.durable.journal import Journal
    from opwire.durable.redis.journal import RedisJournal
    from opwire.durable.worker import DurableWorker
    from opwire.hub.hub import Hub
    from opwire.hub.spoke import BrokerNode, Spoke
    from opwire.mcp.server.app import MCPHTTPOptions, MCPSurface
    from opwire.observe.monitor import CallMonitor
    from opwire.openapi.server.app import HTTPApp
    from opwire.openapi.webhooks import WebhookReceiver


CONSOLE = "/console"
"""The path of the console beside the HTTP API."""

_MAX_KEY_SET_BYTES = 1024 * 1024
_FETCH_TIMEOUT_SECONDS = 10.0


def build_authenticator(config: Config) -> Authenticator | None:
    """Return the authenticator of `[identities]` and `[auth]`, or None if they have no tokens.

    Raises:
        ConfigError: a token or key is missing in the environment, or invalid.
    """
    grants: dict[str, Grant] = {}
    for name, settings in config.identities.items():
        if settings.token is None:
            continue
        at = dotted(("identities", name, "token"))
        token = settings.token.resolve(at)
        try:
            StaticTokens({token: _grant(config, name)})
        except (CallError, UsageError, MissingExtraError) as error:
            message = error.message if isinstance(error, CallError) else str(error)
            subject = ", ".join(settings.token.variables) or "it"
            raise ConfigError(f"{at}: {message.replace('token number 1', subject)}") from error
        if token in grants:
            raise ConfigError(f"{at}: duplicate of the token of {grants[token].identity.id}; each needs its own")
        grants[token] = _grant(config, name)
    tokens = StaticTokens(grants) if grants else None
    accepted: list[Authenticator] = [] if tokens is None else [tokens]
    if config.auth.jwt is not None:
        accepted.append(_jwts(config.auth.jwt, config.folder))
    if config.auth.oauth is not None:
        accepted.append(_oauth_tokens(config.auth.oauth))
    return AnyAuthenticator(accepted) if len(accepted) > 1 else next(iter(accepted), None)


def identity_of(config: Config, name: str | None) -> Identity | None:
    """Return the identity of a name; None for None."""
    return None if name is None else _grant(config, name).identity


class AnyAuthenticator:
    """Authenticate a token that one of several authenticators accepts."""

    def __init__(self, accepted: Sequence[Authenticator]) -> None:
        self._accepted = accepted
        resources = (getattr(authenticator, "protected_resource", None) for authenticator in accepted)
        self.protected_resource: ResourceMetadata | None = next(
            (resource for resource in resources if resource is not None), None
        )

    async def authenticate(self, token: str | None) -> Grant:
        """Return the first grant of a token; the error says more than that it is invalid, if one of them does."""
        errors: list[CallError] = []
        for authenticator in self._accepted:
            try:
                return await authenticator.authenticate(token)
            except CallError as error:
                errors.append(error)
        raise next((error for error in errors if error.code is not ErrorCode.UNAUTHENTICATED), errors[-1])


class AnonymousGrant:
    """Grant access to callers without a token; an invalid token is still rejected."""

    def __init__(self, authenticator: Authenticator | None, grant: Grant) -> None:
        self._authenticator = authenticator
        self._grant = grant

    async def authenticate(self, token: str | None) -> Grant:
        """Return the grant of a token, or the default one."""
        if token and self._authenticator is not None:
            return await self._authenticator.authenticate(token)
        return self._grant


def _grant(config: Config, name: str) -> Grant:
    settings = config.identities[name]
    identity = Identity(id=name, scopes=settings.scopes, resources=settings.resources)
    return Grant(identity, settings.announces, delegates=settings.delegates, undescribed=settings.undescribed)


def _jwts(settings: JWTSettings, folder: Path) -> Authenticator:
    with needs_extra("auth"):
        from opwire.auth.jwt import JWTs
    key = None if settings.key is None else settings.key.resolve("auth.jwt.key")
    if settings.key_file is not None:
        try:
            key = (folder / Path(settings.key_file).expanduser()).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"auth.jwt.key_file: cannot be read: {error}") from error
    with _config_errors("auth.jwt"):
        return JWTs(
            key=key,
            jwks=None if settings.jwks_url is None else key_fetcher(settings.jwks_url),
            algorithms=settings.algorithms,
            audience=None if settings.audience == "*" else settings.audience,
            issuer=None if settings.issuer == "*" else settings.issuer,
            leeway=settings.leeway,
            claims=_claim_names(settings.claims),
        )


def _oauth_tokens(settings: OAuthSettings) -> Authenticator:
    from opwire.auth.oauth.resource import OAuthTokens
    from opwire.auth.oauth.tokens import OAuthClient

    client = None
    if settings.client_id is not None and settings.client_secret is not None:
        secret = settings.client_secret.resolve("auth.oauth.client_secret")
        client = OAuthClient(client_id=settings.client_id, client_secret=secret)
    with _config_errors("auth.oauth"):
        return OAuthTokens(
            settings.resource,
            issuer=settings.issuer,
            required_scopes=settings.required_scopes,
            scopes=settings.scopes,
            audience=settings.audience,
            client=client,
            leeway=settings.leeway,
            claims=_claim_names(settings.claims),
        )


def _claim_names(settings: ClaimSettings) -> ClaimNames:
    claim_names = {name: claim for name, claim in msgspec.structs.asdict(settings).items() if claim is not None}
    return cast("ClaimNames", claim_names)


class _NoRedirects(HTTPRedirectHandler):
    """Reject redirects: their target would control the keys, and so all identities."""

    def http_error_302(self, *_: Any, **__: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def key_fetcher(url: str) -> Callable[[], Mapping[str, Any]]:
    """Return a function that fetches a key set. It blocks: `JWTs` calls it on a thread, and handles its exceptions."""
    opener = build_opener(_NoRedirects)

    def fetch() -> Mapping[str, Any]:
        try:
            with opener.open(url, timeout=_FETCH_TIMEOUT_SECONDS) as response:
                return json.loads(response.read(_MAX_KEY_SET_BYTES))
        except HTTPError as error:
            error.close()  # it holds the connection
            raise

    return fetch


def mcp_surface(config: Config, registry: OperationRegistry, *, journal: "Journal | None" = None) -> "MCPSurface":
    """Return the MCP server of `[serve.mcp]`: for `run_stdio`, or for `run_http` with `mcp_http_options`.

    `durable_tasks` need the `journal` of `[durable]`, which `durable_of` returns with a worker that serves it.

    Raises:
        ConfigError: a setting is invalid.
        MissingExtraError: its package is not installed.
    """
    with needs_extra("mcp"):
        from opwire.mcp.server.app import serve_mcp
        from opwire.mcp.server.durable_tasks import DurableTasks
    settings = config.serve.mcp or MCPSurfaceSettings()
    with _config_errors("serve.mcp"):
        durable_tasks = None
        if settings.durable_tasks:
            if journal is None:
                raise UsageError("durable_tasks need a journal: add [durable], with its url and trusted = true")
            if settings.view is not None:  # its renamed or fixed parameters would be unknown to the worker
                raise UsageError("durable_tasks and view exclude each other: workers run the operations without it")
            durable_tasks = DurableTasks(journal, settings.durable_tasks)
        return serve_mcp(
            served_view(config, settings.view, registry),
            name=settings.name,
            version=settings.version,
            title=settings.title,
            instructions=settings.instructions,
            stdio_identity=identity_of(config, settings.stdio_identity) or LOCAL_IDENTITY,
            timeout=config.limits.call_timeout,
            max_items=settings.max_items,
            max_seconds=settings.max_seconds,
            max_name=settings.max_name,
            tool_names=settings.tool_names,
            max_output_schema=settings.max_output_schema,
            tool_envelopes=settings.tool_envelopes,
            task_after=settings.task_after,
            durable_tasks=durable_tasks,
            state_key=None if settings.state_key is None else settings.state_key.resolve("serve.mcp.state_key"),
            all_tools=settings.all_tools,
        )


def mcp_http_options(config: Config) -> "MCPHTTPOptions":
    """Return the options of `run_http` and `asgi` for the MCP server.

    Raises:
        ConfigError: a token or key is missing in the environment, or invalid.
    """
    settings = config.serve.mcp or MCPSurfaceSettings()
    return {**_guard_options(config, settings), "path": settings.path, "poll_after": settings.poll_after}


def http_surface(
    config: Config,
    registry: OperationRegistry,
    *,
    monitor: "CallMonitor | None" = None,
    webhooks: "Mapping[str, WebhookReceiver] | None" = None,
    console: "ConsoleApp | None" = None,
) -> "HTTPApp":
    """Return the HTTP API of `[serve.http]`; `monitor` counts its calls, `webhooks` are those of `OpenedConfig`.

    `console`, as `console_surface` returns it, is served at /console.

    Raises:
        MissingExtraError: its package is not installed.
        ConfigError: a token or key is missing in the environment, or invalid.
    """
    with needs_extra("http"):
        from opwire.openapi.server.app import serve_http
    settings = config.serve.http or HTTPSurfaceSettings()
    return serve_http(
        served_view(config, settings.view, registry),
        title=settings.title,
        version=settings.version,
        description=settings.description,
        servers=settings.servers,
        timeout=config.limits.call_timeout,
        heartbeat=settings.heartbeat,
        is_error=settings.is_error,
        cors_origins=settings.cors_origins,
        monitor=monitor,
        webhooks=webhooks,
        mounts=None if console is None else {CONSOLE: console},
        **_guard_options(config, settings),
    )


def console_surface(
    config: Config,
    opened: OpenedConfig,
    *,
    monitor: "CallMonitor | None" = None,
    journal: "Journal | None" = None,
    hub: "Hub | BrokerNode | None" = None,
) -> "ConsoleApp":
    """Return the console of `[serve.http]`, which shows what the HTTP API serves, and the servers of a hub.

    Raises:
        MissingExtraError: its package is not installed.
        ConfigError: a token or key is missing in the environment, or invalid.
    """
    with needs_extra("http"):
        from opwire.console.app import ConsoleSystem, serve_console
    settings = config.serve.http or HTTPSurfaceSettings()
    return serve_console(
        served_view(config, settings.view, opened.registry),
        title=settings.title,
        version=settings.version,
        monitor=monitor,
        system=ConsoleSystem(
            sources=opened,
            servers=getattr(hub, "servers", None),  # a node on a broker lists none
            journal=journal,
            approvals=opened.approvals,
        ),
        **_guard_options(config, settings),
    )


def hub_of(config: Config, registry: OperationRegistry) -> "Hub | BrokerNode":
    """Return the hub of `[hub]`; with the URL of a broker, a node on that broker.

    Raises:
        ConfigError: a setting is invalid.
    """
    from opwire.hub.hub import Hub
    from opwire.hub.spoke import BrokerNode

    settings = config.hub or HubSettings()
    url = settings.url.resolve("hub.url")
    options: dict[str, Any] = {
        "name": settings.name,
        "version": settings.version,
        "anonymous": identity_of(config, settings.anonymous),
        "linger": settings.linger,
    }
    with _config_errors("hub"):
        if not url.startswith(("ws://", "wss://")):
            if settings.cluster is not None:
                raise ConfigError("hub.cluster is for hubs, at ws:// or wss://; a node on a broker needs none")
            options |= _connection_options("hub", settings, config.folder)
            return BrokerNode(registry, url, refresh=settings.refresh, **options)
        if settings.cluster is not None and settings.signed is None:
            with needs_extra("websocket"):
                from opwire.hub.cluster import cluster_transport
            secret = settings.cluster_secret
            options["cluster_open"] = settings.cluster_open
            options["cluster"] = cluster_transport(
                settings.cluster.resolve("hub.cluster"),
                secret=None if secret is None else secret.resolve("hub.cluster_secret"),
                **_connection_options("hub", settings, config.folder),
            )
        elif any((settings.prefix, settings.credentials_file, settings.ca_file, settings.signed)):
            keys = "prefix, credentials_file, ca_file and signed"
            raise ConfigError(f"hub: {keys} are for the URL of a broker; a hub authenticates by [identities]")
        context = None
        if settings.certificate is not None and settings.private_key is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            try:
                context.load_cert_chain(config.folder / settings.certificate, config.folder / settings.private_key)
            except OSError as error:  # SSLError is one
                raise ConfigError(f"hub.certificate and hub.private_key cannot be used: {error}") from error
        limits, authenticator = config.limits, build_authenticator(config)
        options |= limits.calls
        return Hub(
            registry,
            url,
            authenticate=AnonymousGrant(authenticator, _grant(config, settings.anonymous))
            if settings.anonymous
            else authenticator,
            balance=settings.balance,
            rate=limits.rate,
            burst=limits.burst,
            ssl=context,
            **options,
        )


def spoke_of(config: Config, registry: OperationRegistry | None) -> "Spoke":
    """Return the spoke of `[spoke]`. Without a registry it only calls.

    Raises:
        ConfigError: a setting is missing or invalid.
    """
    from opwire.hub.spoke import Spoke

    settings = config.spoke
    if settings is None:
        raise ConfigError('missing table [spoke]: add it, with url = "ws://…" of a hub, or of a broker')
    options: dict[str, Any] = {}
    if settings.token is not None:
        options["token"] = settings.token.resolve("spoke.token")
    options |= _connection_options("spoke", settings, config.folder) | config.limits.calls
    urls = settings.url if isinstance(settings.url, tuple) else (settings.url,)

    def is_announced(spec: OperationSpec) -> bool:
        patterns = settings.announces or ()
        return any(spec.namespace == pattern or fnmatchcase(spec.id, pattern) for pattern in patterns)

    with _config_errors("spoke"):
        return Spoke(
            registry,
            [url.resolve("spoke.url") for url in urls],
            name=settings.name,
            version=settings.version,
            anonymous=identity_of(config, settings.anonymous),
            announces=None if settings.announces is None else is_announced,
            **options,
        )


def durable_of(
    config: Config, registry: OperationRegistry
) -> "tuple[RedisJournal | NatsJournal, DurableWorker] | None":
    """Return the journal of `[durable]` and a worker that serves it, both not started; None without the table.

    Raises:
        ConfigError: a setting is invalid.
    """
    settings = config.durable
    if settings is None:
        return None
    from opwire.durable.worker import DurableWorker

    url = settings.url.resolve("durable.url")
    options: dict[str, Any] = {"trusted": settings.trusted, **_connection_options("durable", settings, config.folder)}
    if settings.keep is not None:
        options["keep"] = settings.keep
    with _config_errors("durable"):
        if url.startswith(("nats://", "tls://")):
            with needs_extra("nats"):
                from opwire.durable.jetstream.journal import NatsJournal
            journal = NatsJournal(url, **options)
        else:
            with needs_extra("redis"):
                from opwire.durable.redis.journal import RedisJournal
            journal = RedisJournal(url, **options)
        worker = DurableWorker(
            registry,
            journal,
            operations=settings.operations,
            concurrency=settings.concurrency,
            lease=settings.lease,
            max_attempts=settings.max_attempts,
            anonymous=identity_of(config, settings.anonymous),
        )
    return journal, worker


def _connection_options(key: str, settings: BrokerSettings, folder: Path) -> dict[str, Any]:
    """Return the options of a transport or journal that secure its connection to a broker."""
    options: dict[str, Any] = {}
    if settings.prefix is not None:
        options["prefix"] = settings.prefix
    if settings.credentials_file is not None:
        options["credentials_file"] = folder / Path(settings.credentials_file).expanduser()
    if settings.ca_file is not None:
        try:
            options["ssl"] = ssl.create_default_context(cafile=folder / Path(settings.ca_file).expanduser())
        except OSError as error:
            raise ConfigError(f"{key}.ca_file cannot be used: {error}") from error
    signed: SignedSettings | None = getattr(settings, "signed", None)
    if signed is not None:
        options["signed"] = signed_requests(f"{key}.signed", signed, folder)
    return options


def signed_requests(key: str, settings: SignedSettings, folder: Path) -> "SignedRequests":
    """Return how requests over a broker are signed and verified; `key` names the settings in errors.

    Raises:
        ConfigError: a file is unreadable or invalid.
    """
    with needs_extra("auth"):
        from opwire.auth.signed import SignedRequests, Signer, SigningKey, Verifier

    def read(name: str, file: str) -> str:
        try:
            return (folder / Path(file).expanduser()).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{key}.{name}: cannot be read: {error}") from error

    def text(name: str) -> str | None:
        env_text: EnvText | None = getattr(settings, name)
        file: str | None = getattr(settings, f"{name}_file")
        return env_text.resolve(f"{key}.{name}") if env_text is not None else file and read(f"{name}_file", file)

    pem, certificate = text("key"), text("certificate")
    with _config_errors(key):
        if (pem is None) != (certificate is None):
            raise ConfigError(f"{key}: a key and its certificate belong together")
        signer = verifier = None
        if pem is not None and certificate is not None:
            signer = Signer(certificate, SigningKey.from_pem(pem), lifetime=settings.lifetime)
        if settings.authorities:
            verifier = Verifier(*(read("authorities", authority) for authority in settings.authorities))
        return SignedRequests(signer, verifier)


def _guard_options(config: Config, settings: SurfaceSettings) -> "GuardOptions":
    return {
        "authenticate": build_authenticator(config),
        "anonymous": identity_of(config, settings.anonymous),
        "hosts": settings.hosts,
        "origins": settings.origins,
        "max_body": config.limits.max_body,
        "max_requests": config.limits.max_requests,
    }


@contextmanager
def _config_errors(key: str) -> Generator[None]:
    """Raise ConfigError for settings that a hub, a spoke or `JWTs` rejects."""
    try:
        yield
    except (CallError, UsageError, MissingExtraError) as error:
        raise ConfigError(f"{key}: {error.message if isinstance(error, CallError) else error}") from error
