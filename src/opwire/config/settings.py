"""The settings of `opwire.toml` as types, and their problems. The file has the same names and the same structure.

A table of several types (a source, a credential) is selected by the first required key of its type: a source with
`python` is a Python module, one with `openapi` an HTTP API.

`EnvText` values refer to environment variables, so that files need not contain secrets.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from opwire.errors import ConfigError
from opwire.model.envelope import ToolErrorPolicy
from opwire.model.operation import NormalizeMode
from opwire.names import did_you_mean, similar_names
from opwire.registry.source import ENV_PLACEHOLDER
from opwire.runtime.deadlines import CALL_TIMEOUT
from opwire.version import VERSION

SECRET_IN_FILE = "secrets do not belong in a file"  # noqa: S105 - a message
USE_ENVIRONMENT = 'write "${NAME}", and set NAME in the environment'


class EnvText(Struct, frozen=True):
    """A string with placeholders for environment variables: `${NAME}`, or `${NAME:-default}`.

    The variables are read lazily. The repr names them, and shows nothing else.
    """

    template: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'${{{name}}}' for name in self.variables) or '…'})"

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the environment variables, each once."""
        return tuple(dict.fromkeys(placeholder[1] for placeholder in ENV_PLACEHOLDER.finditer(self.template)))

    @property
    def missing(self) -> tuple[str, ...]:
        """The variables without a default that are not set."""
        placeholders = ENV_PLACEHOLDER.finditer(self.template)
        return tuple(
            dict.fromkeys(
                placeholder[1]
                for placeholder in placeholders
                if placeholder[2] is None and placeholder[1] not in os.environ
            )
        )

    def resolve(self, at: str) -> str:
        """Return the text with the variables replaced; `at` is its key.

        Raises:
            ConfigError: a variable is not set.
        """
        if missing := self.missing:
            names = f"variable {missing[0]} is" if len(missing) == 1 else f"variables {' and '.join(missing)} are"
            raise ConfigError(f"{at}: the environment {names} not set")
        return ENV_PLACEHOLDER.sub(
            lambda placeholder: os.environ.get(placeholder[1], placeholder[2] or ""), self.template
        )

    @property
    def problem(self) -> tuple[str, str] | None:
        """The problem of an invalid template, and a suggestion; None if it is valid."""
        if "${" in ENV_PLACEHOLDER.sub("", self.template):
            return 'invalid placeholder after "${"', "write ${NAME}"
        return None


def env_texts(value: Any) -> Iterator[EnvText]:
    """Yield the texts with environment variables in a value of settings."""
    if isinstance(value, EnvText):
        yield value
    elif isinstance(value, Struct):
        yield from env_texts(tuple(getattr(value, name) for name in value.__struct_fields__))
    elif isinstance(value, dict | tuple):
        items = cast("dict[str, Any] | tuple[Any, ...]", value)
        for element in items.values() if isinstance(items, dict) else items:
            yield from env_texts(element)


def missing_variables(value: Any) -> tuple[str, ...]:
    """Return the environment variables that settings use and that are not set, each once."""
    return tuple(dict.fromkeys(name for text in env_texts(value) for name in text.missing))


class Secret(EnvText, frozen=True):
    """A text that has to contain an environment variable, without a default."""

    @property
    def problem(self) -> tuple[str, str] | None:
        """As for any text; and the problem of a secret in the file."""
        defaults = {placeholder[2] for placeholder in ENV_PLACEHOLDER.finditer(self.template)}
        return super().problem or (None if defaults == {None} else (SECRET_IN_FILE, USE_ENVIRONMENT))


Seconds = Annotated[float, Meta(gt=0, lt=1e9)]
Count = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
CountedBy = Literal["identity", "operation", "namespace"]


class Settings(Struct, frozen=True, kw_only=True):
    """A table of the file."""


class SourceSettings(Settings, frozen=True, kw_only=True):
    """The keys of every `[sources.NAME]`. A failure of a `required` source stops the start.

    `include` and `exclude` are patterns of ids and tags; `rename` maps ids, namespaces or patterns; see `ViewOptions`.
    """

    enabled: bool = True
    required: bool = False
    load_timeout: Seconds = 30.0
    normalize: NormalizeMode | None = None
    strip: bool | None = None
    include: tuple[str, ...] = ()  # of an OpenAPI document: operationId, tag, path or "GET /path"
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = {}


class PythonSource(SourceSettings, frozen=True, kw_only=True):
    """The registry of a Python module, "shop.operations:registry", or all registries of "shop.operations" or "shop.py".

    Modules are imported from the folder of the file first. The operations keep the ids of the code.
    """

    python: str


class MCPSettings(SourceSettings, frozen=True, kw_only=True):
    """The keys of every MCP source; see `from_mcp`."""

    trust_annotations: bool = False
    resources: bool = True
    prompts: bool = True
    strict_input: bool = False  # reject arguments that do not match their schema, instead of the server
    revision: Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] | None = None
    call_timeout: Seconds | None = None


class ProgramSource(MCPSettings, frozen=True, kw_only=True):
    """An MCP server that is a program to start. Its namespace is NAME by default."""

    command: EnvText
    args: tuple[EnvText, ...] = ()
    env: dict[str, EnvText] = {}
    cwd: EnvText | None = None  # the folder of the file by default
    namespace: str | None = None


class ServersFileSource(MCPSettings, frozen=True, kw_only=True):
    """All MCP servers of an `mcpServers` file, each with its key there as the namespace."""

    mcp_servers: EnvText


class TLSSettings(Settings, frozen=True, kw_only=True):
    """`[sources.NAME.tls]`: PEM files, relative to the folder of the configuration."""

    ca_file: str | None = None  # the authorities to trust, instead of the system's
    client_certificate: str | None = None  # for mutual TLS
    client_key: str | None = None  # if it is not in the file of the certificate
    client_key_password: Secret | None = None


class UserCredential(Settings, frozen=True, kw_only=True):
    """Credentials for HTTP Basic."""

    user: EnvText
    password: Secret


class ClientSettings(Settings, frozen=True, kw_only=True):
    """The keys of an OAuth client; see `OAuthClient`. With `login`, `opwire login` signs in as a person."""

    client_secret: Secret | None = None
    login: bool = False
    exchange: bool = False  # the token of each caller, for one of this source
    subject: str | None = None  # "module:function" that proves an identity, instead of the token of the caller
    scopes: tuple[str, ...] | None = None
    issuer: EnvText | None = None
    token_url: EnvText | None = None
    authorization_url: EnvText | None = None
    device_url: EnvText | None = None
    redirect_uri: EnvText | None = None
    auth: Literal["basic", "body"] = "basic"
    extra: dict[str, EnvText] = {}


class ClientCredential(ClientSettings, frozen=True, kw_only=True):
    """An OAuth client of an API, which requests its own tokens or uses the login of a person."""

    client_id: EnvText


class ServerClient(ClientSettings, frozen=True, kw_only=True):
    """An OAuth client of an MCP server. Without an id it is registered at login."""

    client_id: EnvText | None = None


class CallerCredential(Settings, frozen=True, kw_only=True):
    """The credential of each caller: its own "token", or what "module:function" or "file.py:function" returns."""

    caller: str


class ServerSource(MCPSettings, frozen=True, kw_only=True):
    """An MCP server behind a URL. Its namespace is NAME by default."""

    url: EnvText
    headers: dict[str, EnvText] = {}
    auth: ServerClient | CallerCredential | None = None  # by default that of `opwire login`, if there is one
    tls: TLSSettings = TLSSettings()
    type: Literal["http", "sse"] = "http"
    namespace: str | None = None


class AWSCredential(Settings, frozen=True, kw_only=True):
    """The credentials of an AWS account, for Signature Version 4."""

    access_key: EnvText
    secret_key: Secret
    region: EnvText
    service: str
    session_token: Secret | None = None


Credential = Secret | UserCredential | ClientCredential | AWSCredential | CallerCredential


class WebhookSettings(Settings, frozen=True, kw_only=True):
    """`[sources.NAME.webhooks]`: receive the webhooks of an API at `/webhooks/NAME` of `[serve.http]`.

    See `WebhookReceiver`. `signature` needs a `secret`, several while one replaces another; `verify` is a function of a
    module, "shop.hooks:verify"; `unsigned` accepts everything.
    """

    signature: Literal["stripe", "github", "standard"] | None = None
    secret: Secret | tuple[Secret, ...] | None = None
    verify: str | None = None
    unsigned: bool = False
    tolerance: Annotated[float, Meta(gt=0, le=3_600)] = 300.0  # seconds, of a signed timestamp
    events: tuple[str, ...] = ()  # patterns of the webhooks that become operations; all by default
    strict: bool = True  # reject what the document does not allow
    max_body: Count = 1024 * 1024
    max_waiting: Count = 1_000  # webhooks, per subscriber


class OpenAPISettings(SourceSettings, frozen=True, kw_only=True):
    """An HTTP API with an OpenAPI document, a file or a URL.

    Its namespace is NAME by default; with `namespace = ""` that of the document's title, as `from_openapi` derives it.
    The keys of `credentials` are the names of the document's security schemes.
    """

    openapi: EnvText
    namespace: str | None = None
    base_url: EnvText | None = None
    server_variables: dict[str, EnvText] = {}
    credentials: dict[str, Credential] = {}
    headers: dict[str, EnvText] = {}
    trust_annotations: bool = False  # trust `x-opwire`, for a document of `serve_http`
    strict_input: bool = False  # check `format` in inputs, and `oneOf` as more than `anyOf`
    allow_external_refs: tuple[str, ...] = ()  # hosts of other documents that this one may refer to; "*" is any
    max_documents: Count = 1_000  # that this one may refer to, not counting files below its folder
    max_document_bytes: Count = 256 * 1024 * 1024  # of this one and all that it refers to
    call_timeout: Seconds = 30.0
    max_response: Count = 16 * 1024 * 1024
    proxy: EnvText | None = None
    tls: TLSSettings = TLSSettings()
    max_connections: Count = 100  # at a time
    max_per_host: Annotated[int, Meta(ge=0)] = 0  # 0: limited by max_connections only
    reconnect: bool = False
    retries: Annotated[int, Meta(ge=0, le=10)] = 0  # of idempotent calls
    webhooks: WebhookSettings | None = None


AnySource = PythonSource | ProgramSource | ServerSource | ServersFileSource | OpenAPISettings


class RegistrySettings(Settings, frozen=True, kw_only=True):
    """`[registry]`: see `OperationRegistry`. The registry of a Python module overrides these for its operations."""

    normalize: NormalizeMode = "fit"
    strip: bool = True
    max_workers: Count = 32


class ReshapeSettings(Settings, frozen=True, kw_only=True):
    """`[views.NAME.reshape."ID"]`: see `Reshape`. ID is an id or a pattern."""

    title: str | None = None
    description: str | None = None
    rename: dict[str, str] = {}
    hide: tuple[str, ...] = ()
    fix: dict[str, Any] = {}
    from_context: dict[str, str] = {}
    narrow: dict[str, dict[str, Any]] = {}
    keep: tuple[str, ...] = ()
    max_chars: Count | None = None


class ViewSettings(Settings, frozen=True, kw_only=True):
    """`[views.NAME]`: see `ViewOptions`. Patterns may also be "source:NAME", of a source of this file.

    `search`: callers see three operations to search the others with, and those that are `pinned`; see `search_mode`.
    `code`: they see a search and an operation that runs Python, instead; see `code_mode`.
    "auto" does so if the definitions of all operations take more than `token_budget` tokens.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = {}
    reshape: dict[str, ReshapeSettings] = {}
    scopes: tuple[str, ...] = ()
    search: Literal["never", "auto", "always"] = "never"
    code: bool = False
    token_budget: Count = 10_000
    pinned: tuple[str, ...] = ()  # ids or patterns, after `rename`


class PolicySettings(Settings, frozen=True, kw_only=True):
    """The operations that a policy applies to: see `opwire.policies`."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class AuditSettings(PolicySettings, frozen=True, kw_only=True):
    """`[policies.audit]`: see `AuditLog`."""

    path: str
    values: bool = False
    redact: tuple[str, ...] = ()


class BudgetSettings(PolicySettings, frozen=True, kw_only=True):
    """`[policies.budget]`: see `CallBudget`."""

    calls: Count = 100


class RateSettings(PolicySettings, frozen=True, kw_only=True):
    """`[policies.rate]`: see `RateLimit`."""

    calls: Count
    per: Seconds = 1.0
    by: tuple[CountedBy, ...] = ("identity",)


class ConcurrencySettings(PolicySettings, frozen=True, kw_only=True):
    """`[policies.concurrency]`: see `ConcurrencyLimit`."""

    calls: Count
    wait: Annotated[float, Meta(ge=0, lt=1e9)] = 0.0
    by: tuple[CountedBy, ...] = ("operation",)


class BreakerSettings(PolicySettings, frozen=True, kw_only=True):
    """`[policies.breaker]`: see `CircuitBreaker`."""

    failures: Count = 5
    pause: Seconds = 30.0
    by: tuple[CountedBy, ...] = ("namespace",)


class ApprovalSettings(Settings, frozen=True, kw_only=True):
    """`[policies.approval]`: see `Approval`. `ask`: "console", "caller", or "module:function"."""

    ask: str = "console"
    timeout: Seconds = 300.0
    max_waiting: Count = 100
    include: tuple[str, ...] = ("type:mutation",)
    exclude: tuple[str, ...] = ()


class CacheSettings(PolicySettings, frozen=True, kw_only=True):
    """`[policies.cache]`: see `ResponseCache`. Mutations always invalidate it."""

    ttl: Annotated[float, Meta(ge=0, lt=1e9)] = 0.0
    max_bytes: Count = 64 * 1024 * 1024
    max_entries: Count = 10_000


class PoliciesSettings(Settings, frozen=True, kw_only=True):
    """`[policies]`: interceptors of all calls, in this order, the first outermost."""

    audit: AuditSettings | None = None
    budget: BudgetSettings | None = None
    rate: RateSettings | None = None
    concurrency: ConcurrencySettings | None = None
    breaker: BreakerSettings | None = None
    approval: ApprovalSettings | None = None
    cache: CacheSettings | None = None


class SurfaceSettings(Settings, frozen=True, kw_only=True):
    """The keys of both surfaces. `anonymous` is the identity of callers without a token; by default they have none."""

    host: str = "127.0.0.1"
    version: str = VERSION  # of what is served; opwire's own by default
    hosts: tuple[str, ...] | None = None  # accepted host names; the loopback ones by default
    origins: tuple[str, ...] = ()  # origins of web pages that may call
    anonymous: str | None = None
    view: str | None = None  # the NAME of `[views.NAME]`; all operations by default


class MCPSurfaceSettings(SurfaceSettings, frozen=True, kw_only=True):
    """`[serve.mcp]`: see `serve_mcp`. Over stdio the caller has `stdio_identity`; by default it is fully trusted."""

    transport: Literal["stdio", "http"] = "stdio"
    port: Port = 8000
    path: str = "/mcp"
    name: str = "opwire"
    title: str | None = None
    instructions: str | None = None
    stdio_identity: str | None = None
    max_items: Count = 100
    max_seconds: Seconds = 30.0
    max_name: Annotated[int, Meta(ge=32, le=128)] = 50
    tool_names: dict[str, str] = {}  # by operation id, in place of the usual ones
    max_output_schema: Annotated[int, Meta(ge=0)] = 4096
    tool_envelopes: bool = False
    task_after: Seconds = 10.0  # seconds after which a call becomes a task, for clients that support tasks
    durable_tasks: tuple[str, ...] = ()  # ids of mutations; their calls are stored in the journal of `[durable]`
    state_key: Secret | None = None  # signs questions to clients, and ids; the same for all servers behind one address
    all_tools: bool = False  # resources and prompts are tools as well
    poll_after: Seconds | None = None  # seconds after which a stream of a session over HTTP ends, to be resumed


class HTTPSurfaceSettings(SurfaceSettings, frozen=True, kw_only=True):
    """`[serve.http]`: see `serve_http`. `console` serves the console as well, at /console."""

    port: Port = 8080
    title: str = "opwire"
    description: str = ""
    servers: tuple[str, ...] = ()  # public URLs, for the document
    cors_origins: tuple[str, ...] = ()
    heartbeat: Seconds = 15.0
    is_error: ToolErrorPolicy = "raise"
    console: bool = False


class ServeSettings(Settings, frozen=True, kw_only=True):
    """`[serve]`: the surfaces."""

    mcp: MCPSurfaceSettings | None = None
    http: HTTPSurfaceSettings | None = None


class SignedSettings(Settings, frozen=True, kw_only=True):
    """`[hub.signed]`, `[spoke.signed]`: sign requests over a broker and verify those of others; see `SignedRequests`.

    The key and its certificate prove the identity of this process. `authorities` are files with the public keys of the
    authorities of accepted certificates; callers without a valid one are anonymous.
    """

    key: Secret | None = None  # the private key as PEM
    key_file: str | None = None  # a file with it
    certificate: EnvText | None = None
    certificate_file: str | None = None
    authorities: tuple[str, ...] = ()
    lifetime: Seconds = 60.0  # of a signature


class BrokerSettings(Settings, frozen=True, kw_only=True):
    """The keys of every connection to a broker. Ends with different prefixes do not reach each other."""

    prefix: str | None = None
    credentials_file: str | None = None  # for NATS: a .creds file, or the seed of an NKEY
    ca_file: str | None = None  # the certificate of the authority that certifies the server, for TLS


class HubSettings(BrokerSettings, frozen=True, kw_only=True):
    """`[hub]`: see `Hub`. `anonymous` is the identity of spokes without a token; by default they have none.

    With the URL of a broker it is a node on that broker; see `BrokerNode`. Hubs with the same `cluster`, the URL of a
    broker, are one; `prefix`, `credentials_file` and `ca_file` are for that connection.
    """

    url: EnvText = EnvText("ws://127.0.0.1:8700")
    name: str = "hub"
    version: str = VERSION
    anonymous: str | None = None
    linger: Annotated[float, Meta(ge=0)] = 30.0
    refresh: Seconds = 5.0
    balance: Literal["round_robin", "least_busy"] = "least_busy"
    certificate: str | None = None  # a PEM file, for wss://
    private_key: str | None = None
    cluster: EnvText | None = None
    cluster_secret: Secret | None = None
    cluster_open: bool = False  # believe every client of the broker that may use the prefix of hubs
    signed: SignedSettings | None = None


class SpokeSettings(BrokerSettings, frozen=True, kw_only=True):
    """`[spoke]`: see `Spoke`. `url` may be an array of hubs, which are tried in this order.

    `announces` are namespaces or patterns of ids, such as "shop.*", that select the operations that others see.
    """

    url: EnvText | tuple[EnvText, ...]
    token: Secret | None = None
    name: str = "opwire"
    version: str = VERSION
    anonymous: str | None = None  # the identity of callers without one
    announces: tuple[str, ...] | None = None
    signed: SignedSettings | None = None


class DurableSettings(BrokerSettings, frozen=True, kw_only=True):
    """`[durable]`: serve mutations to durable calls from a journal in Redis or NATS; see `DurableWorker`.

    `operations` are ids, by default every mutation. `trusted` accepts the identity that a caller states: any client
    that may write to the journal could state any. `anonymous` is the identity of callers without one.
    """

    url: EnvText
    operations: tuple[str, ...] | None = None
    trusted: bool = False
    anonymous: str | None = None
    concurrency: Count = 16
    lease: Seconds = 30.0
    max_attempts: Count = 5
    keep: Seconds | None = None  # seconds for which outcomes are kept


class IdentitySettings(Settings, frozen=True, kw_only=True):
    """`[identities.NAME]`: callers with this token are NAME. It needs none for `anonymous` and `stdio_identity`."""

    token: Secret | None = None
    scopes: tuple[str, ...] = ()
    resources: dict[str, tuple[str, ...]] = {}
    delegates: bool = False  # may pass on the identity of its own callers
    undescribed: bool = False  # may announce operations without describing them
    announces: tuple[str, ...] = ()  # the namespaces that it may serve at a hub; "*" is all


class ClaimSettings(Settings, frozen=True, kw_only=True):
    """The names of claims, if they are not the default ones; see `JWTs`."""

    id: str | None = None
    scopes: str | None = None
    resources: str | None = None
    announces: str | None = None
    delegates: str | None = None


class JWTSettings(Settings, frozen=True, kw_only=True):
    """`[auth.jwt]`: see `JWTs`. One of `key`, `key_file` (a public key as PEM) and `jwks_url` is required.

    "*" as `issuer` accepts any, and as `audience` tokens that name none.
    """

    algorithms: tuple[str, ...]
    audience: str
    issuer: str
    key: Secret | None = None
    key_file: str | None = None
    jwks_url: str | None = None
    leeway: Annotated[float, Meta(ge=0)] = 5.0
    claims: ClaimSettings = ClaimSettings()


class OAuthSettings(Settings, frozen=True, kw_only=True):
    """`[auth.oauth]`: see `OAuthTokens`. `client_id` and `client_secret` are for the introspection of opaque tokens."""

    resource: str
    issuer: str
    required_scopes: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    audience: str | None = None
    client_id: str | None = None
    client_secret: Secret | None = None
    leeway: Annotated[float, Meta(ge=0)] = 5.0
    claims: ClaimSettings = ClaimSettings()


class AuthSettings(Settings, frozen=True, kw_only=True):
    """`[auth]`: authentication in addition to the tokens of `[identities]`."""

    jwt: JWTSettings | None = None
    oauth: OAuthSettings | None = None


class LimitSettings(Settings, frozen=True, kw_only=True):
    """`[limits]` of surfaces, hub and spoke."""

    call_timeout: Seconds = CALL_TIMEOUT  # the default for calls over a surface; over MCP, without progress
    max_body: Count = 4 * 1024 * 1024  # bytes of a request to a surface
    max_requests: Count = 1_000  # concurrent, per surface
    max_calls: Count | None = None  # in flight: per client of the hub, or at a spoke; by default theirs
    rate: Annotated[float, Meta(gt=0)] | None = None  # calls per second and client of the hub
    burst: Count = 1_000  # calls at once, above the rate

    @property
    def calls(self) -> dict[str, int]:
        """The option `max_calls`, if it is given: the defaults of a hub and of a spoke differ."""
        return {} if self.max_calls is None else {"max_calls": self.max_calls}


class Config(Settings, frozen=True, kw_only=True):
    """An `opwire.toml`. `file` is its path; relative paths start in its folder."""

    file: Path | None = None
    registry: RegistrySettings = RegistrySettings()
    sources: dict[str, AnySource] = {}
    views: dict[str, ViewSettings] = {}
    policies: PoliciesSettings = PoliciesSettings()
    serve: ServeSettings = ServeSettings()
    hub: HubSettings | None = None
    spoke: SpokeSettings | None = None
    durable: DurableSettings | None = None
    identities: dict[str, IdentitySettings] = {}
    auth: AuthSettings = AuthSettings()
    limits: LimitSettings = LimitSettings()

    @property
    def folder(self) -> Path:
        """The base of relative paths."""
        return Path.cwd() if self.file is None else self.file.absolute().parent


# --- problems ---------------------------------------------------------------------------------------------------------

Key = tuple[str | int, ...]
"""The names of the tables and the key: ("sources", "shop", "args", 0)."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class ConfigProblem(Struct, frozen=True):
    """One problem of a file: its key, what is wrong, what to do, and the line."""

    path: Key
    message: str
    suggestion: str = ""
    line: int | None = None

    @property
    def key(self) -> str:
        """The key as TOML writes it."""
        return dotted(self.path)

    def __str__(self) -> str:
        where = ", ".join([f"line {self.line}"] * (self.line is not None) + [self.key] * bool(self.path))
        hint = f"; {self.suggestion}" if self.suggestion else ""
        return f"{where}: {self.message}{hint}" if where else f"{self.message}{hint}"


def dotted(key: Key) -> str:
    """Return a key as TOML writes it: `sources."my shop".args[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE.fullmatch(part) else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
            text += f".{name}" if text else name
    return text


def similar_keys(key: str, known_keys: Iterable[str]) -> str:
    """Return "did you mean `key`?", or an empty string if no known word is close."""
    return did_you_mean(f"`{name}`" for name in similar_names(key, known_keys))
