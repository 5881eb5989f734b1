"""Sign in to APIs and MCP servers with OAuth 2.0, and keep the tokens. Needs `pip install 'opwire[openapi]'`.

api = from_openapi("api.yaml", credentials={"oauth": OAuthClient(client_id="cli", login=True)})
await api.login(print)  # once: the login is stored for this user
"""

from opwire.oauth.login import LoginPrompt
from opwire.oauth.store import TokenStore
from opwire.oauth.tokens import OAuthClient

__all__ = ["LoginPrompt", "OAuthClient", "TokenStore"]
