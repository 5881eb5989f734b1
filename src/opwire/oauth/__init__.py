"""Sign in to APIs and MCP servers with OAuth 2.0, and keep the tokens. Needs `pip install 'opwire[openapi]'`.

api = from_openapi("api.yaml", credentials={"oauth": OAuthClient(client_id="cli", login=True)})
await api.login(print)  # once: the login is stored for this user
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opwire.oauth.store import TokenStore

if TYPE_CHECKING:
    from opwire.oauth.login import LoginPrompt
    from opwire.oauth.tokens import OAuthClient

__all__ = ["LoginPrompt", "OAuthClient", "TokenStore"]

# Imported lazily: they need aiohttp, which takes 0.15 s.
_LAZY = {"LoginPrompt": "login", "OAuthClient": "tokens"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
