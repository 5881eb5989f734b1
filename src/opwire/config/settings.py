"""What `opwire.toml` may say, as types. The file has the same names and the same shape.

A table of which there are several kinds (a source, a credential) is told by its kind's first field without a default:
the source that has `python` is a Python module, the one that has `openapi` an HTTP API.

Texts whose parts come from the environment, so that no secret has to stand in a file.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from opwire.errors import ConfigError
from opwire.operation import NormalizeMode

_PLACEHOLDER = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

IN_FILE = "is a secret, and does not belong in a file"
SET_IT = 'write "${NAME}", and set NAME in the environment'


class EnvText(Struct, frozen=True):
    """A text in which `${NAME}`, or `${NAME:-default}`, stands for an environment variable.

    The variables are read when the text is used. Its repr names them, and shows nothing else.
    """

    template: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'${{{name}}}' for name in self.variables) or '…'})"

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the environment variables, each once."""
        return tuple(dict.fromkeys(found[1] for found in _PLACEHOLDER.finditer(self.template)))

    @property
    def missing(self) -> tuple[str, ...]:
        """The variables that are needed and not set."""
        found = _PLACEHOLDER.finditer(self.template)
        return tuple(dict.fromkeys(each[1] for each in found if each[2] is None and each[1] not in os.environ))

    def resolve(self, at: str) -> str:
        """The text as the environment makes it; `at` is the key that the text is the value of.

        Raises:
            ConfigError: a variable is not set.
        """
        if missing := self.missing:
            many = len(missing) > 1
            asked = f"the environment variable{'s' if many else ''} {' and '.join(missing)}"
            raise ConfigError(f"{at} asks for {asked}, which {'are' if many else 'is'} not set")
        return _PLACEHOLDER.sub(lambda found: os.environ.get(found[1], found[2] or ""), self.template)


class Secret(EnvText, frozen=True):
    """A text that has to come from the environment."""


def problem_of(text: EnvText) -> tuple[str, str] | None:
    """Why this text cannot be used, whatever the environment holds, and what to do; None if it can."""
    if "${" in _PLACEHOLDER.sub("", text.template):
        return 'has a "${" that names no environment variable', "write ${NAME}"
    if not isinstance(text, Secret):
        return None
    defaults = [found[2] for found in _PLACEHOLDER.finditer(text.template)]
    return None if defaults and set(defaults) == {None} else (IN_FILE, SET_IT)


Seconds = Annotated[float, Meta(gt=0, lt=1e9)]
Count = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class Settings(Struct, frozen=True, kw_only=True):
    """A table of the file."""


class SourceSettings(Settings, frozen=True, kw_only=True):
    """What every `[sources.NAME]` may say. One that is `required` stops the start if it cannot be loaded."""

    enabled: bool = True
    required: bool = False
    timeout: Seconds = 30.0  # to load it
    normalize: NormalizeMode | None = None
    strip: bool | None = None


class PythonSource(SourceSettings, frozen=True, kw_only=True):
    """The registry of a Python module, "shop.operations:registry", or all that "shop.operations" holds.

    The folder of the file is where modules are looked for first. The operations have the ids that the code gives them.
    """

    python: str


class MCPSettings(SourceSettings, frozen=True, kw_only=True):
    """What every MCP source may say; see `from_mcp`."""

    trust_annotations: bool = False
    resources: bool = True
    prompts: bool = True
    tool_timeout: Seconds | None = None


class ProgramSource(MCPSettings, frozen=True, kw_only=True):
    """An MCP server that is a program to start. Its namespace is NAME unless given."""

    command: EnvText
    args: tuple[EnvText, ...] = ()
    env: dict[str, EnvText] = {}
    cwd: EnvText | None = None  # the folder of the file unless given
    namespace: str | None = None


class ServerSource(MCPSettings, frozen=True, kw_only=True):
    """An MCP server behind a URL. Its namespace is NAME unless given."""

    url: EnvText
    headers: dict[str, EnvText] = {}
    type: Literal["http", "sse"] = "http"
    namespace: str | None = None


class ServersFileSource(MCPSettings, frozen=True, kw_only=True):
    """All MCP servers of an `mcpServers` file, each in the namespace of its key there."""

    mcp_servers: EnvText


class UserCredential(Settings, frozen=True, kw_only=True):
    """For HTTP Basic."""

    user: EnvText
    password: Secret


class ClientCredential(Settings, frozen=True, kw_only=True):
    """An OAuth client, which asks for its own tokens."""

    client_id: EnvText
    client_secret: Secret
    scopes: tuple[str, ...] | None = None
    token_url: EnvText | None = None
    auth: Literal["basic", "body"] = "basic"


Credential = Secret | UserCredential | ClientCredential


class OpenAPISource(SourceSettings, frozen=True, kw_only=True):
    """An HTTP API that has an OpenAPI document, a file or a URL. Its namespace is NAME unless given.

    `credentials` are by the names of the document's security schemes.
    """

    openapi: EnvText
    namespace: str | None = None
    base_url: EnvText | None = None
    server_variables: dict[str, EnvText] = {}
    credentials: dict[str, Credential] = {}
    headers: dict[str, EnvText] = {}
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    trust_annotations: bool = False  # believe `x-opwire`, for a document of `serve_http`
    external_refs: tuple[str, ...] = ()  # hosts of other documents that this one may refer to; "*": any
    call_timeout: Seconds = 30.0
    max_response: Count = 64 * 1024 * 1024
    proxy: EnvText | None = None
    reconnect: bool = False


AnySource = PythonSource | ProgramSource | ServerSource | ServersFileSource | OpenAPISource


class RegistrySettings(Settings, frozen=True, kw_only=True):
    """`[registry]`: see `OperationRegistry`. What a Python module's own registry says counts for its operations."""

    normalize: NormalizeMode = "fit"
    strip: bool = True
    max_workers: Count = 32


class SurfaceSettings(Settings, frozen=True, kw_only=True):
    """What both surfaces may say. `anonymous` is the identity of callers that show no token; without it, nobody."""

    host: str = "127.0.0.1"
    version: str = "1.0"
    hosts: tuple[str, ...] | None = None  # the names that it answers to; the loopback ones unless given
    origins: tuple[str, ...] = ()  # web pages of other hosts that may call
    anonymous: str | None = None


class MCPSurfaceSettings(SurfaceSettings, frozen=True, kw_only=True):
    """`[serve.mcp]`: see `serve_mcp`. Over stdio the caller is `identity`, or trusted with everything."""

    transport: Literal["stdio", "http"] = "stdio"
    port: Port = 8000
    path: str = "/mcp"
    name: str = "opwire"
    title: str | None = None
    instructions: str | None = None
    identity: str | None = None
    max_items: Count = 100
    max_seconds: Seconds = 30.0
    tool_envelopes: bool = False


class HTTPSurfaceSettings(SurfaceSettings, frozen=True, kw_only=True):
    """`[serve.http]`: see `serve_http`."""

    port: Port = 8080
    title: str = "opwire"
    description: str = ""
    cors_origins: tuple[str, ...] = ()
    heartbeat: Seconds = 15.0
    is_error: Literal["return", "fail"] = "return"


class ServeSettings(Settings, frozen=True, kw_only=True):
    """`[serve]`: the surfaces."""

    mcp: MCPSurfaceSettings | None = None
    http: HTTPSurfaceSettings | None = None


class HubSettings(Settings, frozen=True, kw_only=True):
    """`[hub]`: see `Hub`. `anonymous` is the identity of spokes that show no token; without it they are nobody."""

    url: EnvText = EnvText("ws://127.0.0.1:8700")
    name: str = "hub"
    version: str = "0.0.0"
    anonymous: str | None = None
    linger: Annotated[float, Meta(ge=0)] = 30.0
    refresh: Seconds = 5.0
    balance: Literal["round_robin", "least_busy"] = "least_busy"
    certificate: str | None = None  # of wss://, a PEM file
    private_key: str | None = None


class SpokeSettings(Settings, frozen=True, kw_only=True):
    """`[spoke]`: see `Spoke`. `url` is one, or a list of hubs that are tried one after the other."""

    url: EnvText | tuple[EnvText, ...]
    token: Secret | None = None
    name: str = "opwire"
    version: str = "0.0.0"
    anonymous: str | None = None  # whom callers count as that have no identity


class IdentitySettings(Settings, frozen=True, kw_only=True):
    """`[identities.NAME]`: who shows this token is NAME. Without a token it is for `anonymous` and `identity`."""

    token: Secret | None = None
    scopes: tuple[str, ...] = ()
    resources: dict[str, tuple[str, ...]] = {}
    delegates: bool = False  # it may call with the identity of a caller whose call it serves
    announces: tuple[str, ...] = ()  # the namespaces in which it may serve operations at a hub; "*": all


class ClaimSettings(Settings, frozen=True, kw_only=True):
    """Which claims hold what, where they are not the usual ones; see `JWTs`."""

    id: str | None = None
    scopes: str | None = None
    resources: str | None = None
    announces: str | None = None
    delegates: str | None = None


class JWTSettings(Settings, frozen=True, kw_only=True):
    """`[auth.jwt]`: see `JWTs`. One of `key`, `key_file` (a public key as PEM) and `jwks_url` is needed.

    `audience` and `issuer` are "*" where anything will do.
    """

    algorithms: tuple[str, ...]
    audience: str
    issuer: str
    key: Secret | None = None
    key_file: str | None = None
    jwks_url: str | None = None
    leeway: Annotated[float, Meta(ge=0)] = 5.0
    claims: ClaimSettings = ClaimSettings()


class AuthSettings(Settings, frozen=True, kw_only=True):
    """`[auth]`: who callers are, beside the tokens of `[identities]`."""

    jwt: JWTSettings | None = None


class LimitSettings(Settings, frozen=True, kw_only=True):
    """`[limits]` of everything that faces outward."""

    call_timeout: Seconds = 30.0  # of calls over a surface that have no other
    max_body: Count = 4 * 1024 * 1024  # bytes of a request to a surface
    max_requests: Count = 1_000  # to a surface at the same time
    max_calls: Count = 10_000  # open at the same time: of a client of the hub, or at a spoke
    rate: Annotated[float, Meta(gt=0)] | None = None  # calls a second of a client of the hub
    burst: Count = 1_000  # and so many at once


class Config(Settings, frozen=True, kw_only=True):
    """An `opwire.toml`. `file` is where it was read; relative paths begin in its folder."""

    file: Path | None = None
    registry: RegistrySettings = RegistrySettings()
    sources: dict[str, AnySource] = {}
    serve: ServeSettings = ServeSettings()
    hub: HubSettings | None = None
    spoke: SpokeSettings | None = None
    identities: dict[str, IdentitySettings] = {}
    auth: AuthSettings = AuthSettings()
    limits: LimitSettings = LimitSettings()

    @property
    def folder(self) -> Path:
        """Where relative paths begin."""
        return Path.cwd() if self.file is None else self.file.absolute().parent
