"""Tokens for an MCP server behind a URL: of a person's login, or of client credentials.

The server says which authorization server issues its tokens (RFC 9728). A token is requested for this server
(RFC 8707), and sent to its origin only.
"""

from copy import copy
from typing import Any

from msgspec.structs import replace

from opwire.auth.oauth.discovery import (
    AuthorizationServer,
    ProtectedResource,
    challenged_scopes,
    discover,
    discover_resource,
    origin_of,
)
from opwire.auth.oauth.login import LoginTokens, sign_in
from opwire.auth.oauth.store import LoginKey, TokenStore, resource_of
from opwire.auth.oauth.tokens import Subject, TokenCache, json_fetcher, read_client, subject_of
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.http.client import HTTPClient, host_of
from opwire.model.context import Context
from opwire.model.login import LoginOptions

_MAX_CHALLENGE_LENGTH = 4_000
LOGIN_NAME = "mcp"
"""The name in the key of a login."""


class MCPAuth:
    """The tokens for one server. A rejected token is refreshed once."""

    def __init__(self, url: str, client: Any, store: TokenStore | None) -> None:
        try:
            self._client = read_client(client)
        except ValueError as error:
            raise UsageError(f"auth: {error}") from None
        self._url = url
        self._key = LoginKey(resource_of(url), LOGIN_NAME, self._client.client_id)
        self._store = store or TokenStore()
        self._subject: Subject | None = None  # the caller
        self._open()

    def _open(self) -> None:
        self._http = HTTPClient()
        self._fetch = json_fetcher(self._http)
        self._login = LoginTokens(self._fetch, self._store, self._key)
        self._cache = TokenCache(self._fetch)
        self._found: tuple[ProtectedResource, AuthorizationServer] | None = None

    @property
    def is_login(self) -> bool:
        """Whether a person signs in."""
        return self._client.login

    @property
    def exchanges(self) -> bool:
        """Whether the tokens of callers are exchanged."""
        return self._client.exchange

    def subject_of(self, context: Context) -> Subject:
        """Return the caller of a context.

        Raises:
            CallError: UNAUTHENTICATED, it cannot be proven.
        """
        return subject_of(self._client, context)

    async def of_caller(self, subject: Subject) -> "MCPAuth":
        """Return the `auth` that requests tokens for a caller; it shares connections and cache with this one.

        Raises:
            CallError: the server's metadata is missing or invalid.
        """
        await self._discovered()
        caller = copy(self)
        caller._subject = subject
        return caller

    async def token(self, url: str) -> str | None:
        """Return the token for a request to a URL; None if it is of another origin, or there is no token.

        Raises:
            CallError: a token cannot be requested.
        """
        if origin_of(url) != origin_of(self._url):
            return None
        if self._client.login:
            return await self._login.get()
        if self._client.client_secret is None and self._subject is None:  # only callers have a token to exchange
            return None
        resource, server = await self._discovered()
        scopes = resource.scopes if self._client.scopes is None else self._client.scopes
        return await self._cache.get(self._client, server.token_url, scopes, resource.resource, subject=self._subject)

    async def token_after(self, url: str, token: str | None, status: int, challenge: str) -> str | None:
        """Return another token if the server rejected this one, to repeat the request with.

        The next login requests the scopes that a server demands. `challenge` is the header WWW-Authenticate.

        Raises:
            CallError: a token cannot be requested.
        """
        scopes = challenged_scopes(challenge[:_MAX_CHALLENGE_LENGTH]) if status == 403 and self.is_login else ()
        if scopes and origin_of(url) == origin_of(self._url):
            await self._login.want(scopes)
        if status != 401 or token is None:
            return None
        self._login.reject(token)
        self._cache.forget(token)
        other_token = await self.token(url)
        return None if other_token == token else other_token

    async def _discovered(self) -> tuple[ProtectedResource, AuthorizationServer]:
        if self._found is None:
            client = self._client
            resource = await discover_resource(self._http, self._fetch, self._url)
            if client.token_url is not None:
                server = AuthorizationServer().with_client(client)
            else:
                server = (await discover(self._fetch, client.issuer or resource.issuer)).with_client(client)
                # What the server says does not decide where our secret and the tokens of callers are sent.
                is_chosen = client.issuer is not None or origin_of(server.token_url) == origin_of(self._url)
                if not is_chosen and (client.exchange or client.client_secret is not None):
                    message = (
                        f"{host_of(self._url)} names the authorization server {resource.issuer[:200]!r}: set issuer of "
                        "the OAuth client to it, if the secret of the client and tokens of callers may be sent there"
                    )
                    raise CallError(ErrorCode.EXECUTION_ERROR, message)
                # MCP demands that the metadata announce PKCE.
                server = replace(server, challenge_methods=server.challenge_methods or ())
            self._found = resource, server
        return self._found

    async def sign_in(self, options: LoginOptions) -> None:
        """Sign in, and store the login.

        Raises:
            CallError: as `opwire.auth.oauth.login.sign_in`; the server's metadata is missing or invalid.
        """
        self._found = None
        resource, server = await self._discovered()
        scopes = self._client.scopes
        if scopes is None:
            earlier_login = await self._store.read(self._key)
            refresh = ("offline_access",) if resource.scopes and "offline_access" in server.scopes else ()
            scopes = dict.fromkeys([*resource.scopes, *(earlier_login.wanted if earlier_login else ()), *refresh])
        login = await sign_in(
            self._fetch, self._key, server, self._client, options, scopes=scopes, resource=resource.resource
        )
        async with self._store.lock(self._key):
            await self._store.write(login)
        self._login = LoginTokens(self._fetch, self._store, self._key)

    async def sign_out(self) -> bool:
        """Delete the login, and revoke it; return whether there was one."""
        return await self._login.sign_out()

    async def close(self) -> None:
        """End the requests in flight; a later one opens new connections."""
        await self._login.close()
        await self._cache.close()
        await self._http.close()
        self._open()
