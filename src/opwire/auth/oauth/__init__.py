"""OAuth 2.0. Sign in to APIs and MCP servers, and keep the tokens; or be a resource server.

Signing in needs `pip install 'opwire[openapi]'`, a resource server `pip install 'opwire[oauth]'`.

    api = from_openapi("api.yaml", credentials={"oauth": OAuthClient(client_id="cli", login=True)})
    await api.login(print)  # once: the login is stored for this user

    tokens = OAuthTokens("https://tools.example/mcp", issuer="https://id.example")
    await serve_mcp(registry).run_http(authenticate=tokens)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opwire.auth.oauth.store import TokenStore

if TYPE_CHECKING:
    from opwire.auth.oauth.resource import OAuthTokens
    from opwire.auth.oauth.tokens import OAuthClient
    from opwire.model.login import LoginPrompt

__all__ = ["LoginPrompt", "OAuthClient", "OAuthTokens", "TokenStore"]

# Imported lazily: they need aiohttp, which takes 0.15 s.
_LAZY = {"LoginPrompt": "login", "OAuthClient": "tokens", "OAuthTokens": "resource"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
