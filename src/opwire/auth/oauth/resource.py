"""Accept the access tokens of an OAuth authorization server, as a resource server. Needs `pip install 'opwire[oauth]'`.

Tokens are JWTs, verified with the keys that the issuer publishes, or opaque ones, which the issuer introspects
(RFC 7662). Surfaces publish where clients get tokens (RFC 9728), and name that document in the response to a request
that lacks one.

Rules: a token is accepted only if it was issued for this server. Every request of this module goes to the issuer or to
an endpoint of its metadata, follows no redirect, and has a deadline. However many unknown tokens arrive, keys are
fetched once per minute, and introspections are bounded.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from opwire.auth.tokens import (
    NOT_VALID,
    ClaimNames,
    Grant,
    ResourceMetadata,
    callback,
    failure_limit,
    grant_of,
    presented,
    rejected,
    token_digest,
)
from opwire.errors import CallError, ErrorCode, UsageError, check_list, needs_extra
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict, as_list

with needs_extra("oauth"):
    from opwire.auth.jwt import ALGORITHMS, FETCH_TIMEOUT, SECRET_BYTES, JWTs
    from opwire.auth.oauth.discovery import AuthorizationServer, discover
    from opwire.auth.oauth.tokens import OAuthClient, is_secure, json_fetcher, token_request
    from opwire.http.client import ClientOptions, HTTPClient, HTTPRequest

logger = get_logger("opwire.auth.oauth", failure_limit)

INTROSPECTED_AGE = 60.0
"""Seconds for which the introspection of a valid token is cached; it may be revoked in the meantime."""

MAX_INTROSPECTED = 10_000
"""Introspections in the cache."""

UNLIMITED_AGE = 300.0
"""Seconds after which a stream ends if the issuer does not say when its token expires."""

_PUBLIC_KEY_ALGORITHMS = tuple(algorithm for algorithm in ALGORITHMS if algorithm not in SECRET_BYTES)


class OAuthTokens:
    """Accept access tokens that an authorization server issued for this server.

        tokens = OAuthTokens("https://tools.example/mcp", issuer="https://id.example")
        await serve_mcp(registry).run_http(authenticate=tokens, hosts=["tools.example"])

    `resource` is the public URL of the server, or one that its paths start with; tokens have it as their `aud`, unless
    `audience` says otherwise. The keys of `issuer` are found by its metadata (RFC 8414 or OpenID Connect).

    A token has to grant all of `required_scopes`; `scopes` are further ones that clients may request. `client` is this
    server's own client at the issuer, for the introspection of opaque tokens; without it only JWTs are accepted.
    `algorithms`, `leeway` and `claims` are those of `JWTs`.

    Raises:
        UsageError: an option is invalid.
    """

    def __init__(
        self,
        resource: str,
        *,
        issuer: str,
        required_scopes: Iterable[str] = (),
        scopes: Iterable[str] = (),
        audience: str | Sequence[str] | None = None,
        client: OAuthClient | None = None,
        algorithms: Sequence[str] = _PUBLIC_KEY_ALGORITHMS,
        leeway: float = 5.0,
        claims: ClaimNames | None = None,
    ) -> None:
        for name, url in (("resource", resource), ("issuer", issuer)):
            if not is_secure(url) or "#" in url or '"' in url or not url.isascii():
                raise UsageError(f"{name} is an https URL without a fragment; http is for this machine only")
        check_list("scopes", required_scopes=required_scopes, scopes=scopes)
        self._required = tuple(required_scopes)
        self._issuer = issuer
        self._audience = audience or _spellings(resource)
        self._claims = claims or ClaimNames()
        self._leeway = leeway
        self.protected_resource = ResourceMetadata(resource, issuer, self._required, (*self._required, *scopes))
        self._fetch = json_fetcher(HTTPClient(ClientOptions(timeout=FETCH_TIMEOUT)))
        self._jwts = JWTs(
            jwks=self._published_keys,
            algorithms=algorithms,
            audience=self._audience,
            issuer=_spellings(issuer),
            leeway=leeway,
            claims=claims,
        )
        self._opaque = None if client is None else callback(partial(self._introspect, client=client))
        # By digest; until when, in monotonic time.
        self._known: BoundedDict[bytes, tuple[Grant, float]] = BoundedDict(MAX_INTROSPECTED)
        self._server: AuthorizationServer | None = None

    def __repr__(self) -> str:
        return f"OAuthTokens({self.protected_resource.resource!r}, issuer={self._issuer!r})"

    async def authenticate(self, token: str | None) -> Grant:
        """Return the grant of a token.

        Raises:
            CallError: UNAUTHENTICATED; ACCESS_DENIED, if it lacks a scope; UNAVAILABLE, if the issuer is out of reach.
        """
        token = presented(token)
        opaque = None if token.count(".") == 2 else self._opaque
        grant = await (opaque or self._jwts).authenticate(token)
        missing = [scope for scope in self._required if scope not in grant.identity.scopes]
        if missing:
            message = f"the token lacks the scope {' '.join(missing)}"
            raise CallError(ErrorCode.ACCESS_DENIED, message, {"requiredScopes": [*self._required]})
        return grant

    async def _published_keys(self) -> Mapping[str, Any]:
        self._server = None  # the URL of the keys may have changed
        headers = [("Accept", "application/json")]
        return await self._ask("jwks_url", lambda url: HTTPRequest(method="GET", url=url, headers=headers))

    async def _introspect(self, token: str, client: OAuthClient) -> Grant:
        """Return the grant of an opaque token; `callback` bounds how many run at once."""
        key = token_digest(token)
        grant, until = self._known.pop(key, (None, 0.0))
        now = time.monotonic()
        if grant is None or now >= until:
            if grant is not None:  # for other requests meanwhile: 500 at once would send 500 introspections
                self._known[key] = grant, now + FETCH_TIMEOUT
            fields = {"token": token, "token_type_hint": "access_token"}
            try:
                answer = await self._ask("introspection_url", lambda url: token_request(client, url, fields))
                grant = self._grant(answer)
            except BaseException:
                self._known.pop(key, None)
                raise
            until = time.monotonic() + min(INTROSPECTED_AGE, (grant.expires or inf) - time.time())
        self._known[key] = (grant, until)
        return grant

    async def _ask(self, endpoint: str, request: Callable[[str], HTTPRequest]) -> Mapping[str, Any]:
        """Send a request to an endpoint of the issuer.

        Raises:
            CallError: UNAVAILABLE. The reason is logged; it is not the fault of the token.
        """
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                server = self._server = self._server or await discover(self._fetch, self._issuer)
                url: str = getattr(server, endpoint)
                if not url:
                    raise CallError(ErrorCode.EXECUTION_ERROR, f"its metadata has no {endpoint} that is https")
                return as_dict(await self._fetch(request(url)))
        except (CallError, TimeoutError) as error:
            self._server = None
            logger.warning("the issuer %s: %s", self._issuer, getattr(error, "message", "no response"))
        raise CallError(ErrorCode.UNAVAILABLE, "the token cannot be checked at the moment")

    def _grant(self, answer: Mapping[str, Any]) -> Grant:
        """Return the grant of an introspected token.

        Raises:
            CallError: UNAUTHENTICATED, if it is inactive, or not for this server.
        """
        now, audience = time.time(), answer.get("aud")
        accepted = (self._audience,) if isinstance(self._audience, str) else self._audience
        if answer.get("active") is not True:
            reason = "it is not active"
        elif not any(
            token_audience in accepted
            for token_audience in ([audience] if isinstance(audience, str) else as_list(audience))
        ):
            reason = "it is for another audience"
        elif answer.get("iss", self._issuer) not in _spellings(self._issuer):
            reason = "it has another issuer"
        elif "cnf" in answer:
            reason = "it is bound to a key, and came without a proof of that key"
        else:
            try:
                grant = grant_of({"exp": now + UNLIMITED_AGE, **answer}, self._claims, self._leeway)
                if (grant.expires or 0) > now:
                    return grant
                reason = "exp has passed"
            except ValueError as error:
                reason = str(error)
        raise rejected(NOT_VALID, reason)


def _spellings(url: str) -> tuple[str, ...]:
    """Return a URL with and without a slash at the end: clients and servers differ."""
    plain = url.rstrip("/")
    return plain, f"{plain}/"
