"""The options of `from_mcp`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from opwire.auth.oauth.store import TokenStore
from opwire.errors import UsageError, needs_extra
from opwire.mcp.client.questions import Callbacks
from opwire.mcp.client.servers import MCPServer, StdioServer
from opwire.mcp.revisions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from opwire.model.context import Context
from opwire.model.operation import NormalizeMode

if TYPE_CHECKING:
    from opwire.auth.oauth.tokens import OAuthClient
    from opwire.mcp.client.auth import MCPAuth

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message from a server."""


class MCPOptions(Callbacks, frozen=True, kw_only=True):
    """The options of `from_mcp`, which documents them."""

    namespace: str | None = None
    trust_annotations: bool = False
    resources: bool = True
    prompts: bool = True
    strict_input: bool = False
    revision: str | None = None
    tool_timeout: float | None = None
    normalize: NormalizeMode | None = None
    strip: bool | None = None
    connect_timeout: float = 30.0
    max_message: int = MAX_MESSAGE
    auth: Any = None
    token_store: TokenStore | None = None

    def __post_init__(self) -> None:
        revisions = (*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS)
        if self.revision is not None and self.revision not in revisions:
            raise UsageError(f"unknown revision {self.revision!r:.50}; known are {', '.join(revisions)}")


class MCPKeywords(TypedDict, total=False):
    """`MCPOptions` as keyword arguments."""

    elicit: Callable[[dict[str, Any]], Any] | None
    sample: Callable[[dict[str, Any]], Any] | None
    roots: Callable[[], Any] | None
    log: Callable[[dict[str, Any]], Any] | None
    namespace: str | None
    trust_annotations: bool
    resources: bool
    prompts: bool
    strict_input: bool
    revision: str | None
    tool_timeout: float | None
    normalize: NormalizeMode | None
    strip: bool | None
    connect_timeout: float
    max_message: int
    auth: "OAuthClient | Mapping[str, Any] | Callable[[Context], Any] | None"
    token_store: TokenStore | None


def server_auth(server: MCPServer, options: MCPOptions) -> "MCPAuth | None":
    """Return the OAuth client of the options for a server.

    Raises:
        UsageError: a program has callers with credentials of their own.
    """
    is_program = isinstance(server, StdioServer)
    if callable(options.auth) or options.auth is None or is_program:
        if callable(options.auth) and is_program:
            raise UsageError(f"auth: {server.name} is a program, which all callers share; it needs a server with a URL")
        return None
    with needs_extra("mcp"):
        from opwire.mcp.client.auth import MCPAuth
    return MCPAuth(server.url, options.auth, options.token_store)
