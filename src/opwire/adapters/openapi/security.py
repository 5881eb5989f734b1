"""Credentials: which ones a request needs, where they go, and where they never go.

- The first alternative with complete credentials is used. Without one, the request is sent unauthenticated: the
  document may be wrong, so the API decides, and `missing` explains a rejection.
- A request has one secret per place. Schemes of one alternative that share a place, as Google's `Oauth2` and `Oauth2c`
  share the Authorization header, are satisfied by either; the secret overrides what the input sends there.
- Credentials go to the caller's `base_url`, if that is given; a client secret goes to the token endpoint of a document
  only within the same origin.
- They never appear in a message, a repr or a log.

Tokens of OAuth 2.0's client credentials grant are requested lazily and cached until shortly before they expire. Calls
that need the same token at once share one request, which is cancelled when the last of them stops waiting.
"""

import asyncio
import inspect
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from opwire.adapters.openapi.plan import (
    CallPlan,
    SecretPlace,
    SecurityRequirement,
    SecurityScheme,
    header_name,
    header_value,
)
from opwire.adapters.openapi.request import base_url_of
from opwire.adapters.openapi.serialize import encode, urlencoded
from opwire.errors import CallError, ErrorCode
from opwire.http_client import HTTPRequest, bounded_number
from opwire.operation import Context
from opwire.typed.plain import as_dict

FetchToken = Callable[[HTTPRequest], Awaitable[Any]]
"""Sends a token request without following redirects, and returns the decoded JSON of a 2xx response.

Raises:
    CallError: for any other response.
"""

_MARGIN = 60.0  # seconds before its expiry that a token is refreshed, or a tenth of its lifetime if that is less
_MAX_LIFETIME = 10 * 365 * 24 * 60 * 60.0  # seconds
_MAX_TOKENS = 1000  # each identity may have its own
_COOKIE = re.compile(r"[\x20-\x3a\x3c-\x7e]*")


class OAuthClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client of the client credentials grant. Its repr omits the secret."""

    client_id: str
    client_secret: str
    scopes: tuple[str, ...] | None = None  # None: the scopes of the operation
    token_url: str | None = None  # None: the URL of the document
    auth: Literal["basic", "body"] = "basic"  # how the token endpoint takes id and secret
    extra: dict[str, str] = {}  # more fields of the form: `audience`, `resource`

    def __repr__(self) -> str:
        return f"<OAuthClient {self.client_id}>"


class _TokenRequest:
    """A token request in flight, and the number of calls that wait for it."""

    def __init__(self, task: asyncio.Task[str]) -> None:
        self.task = task
        self.waiting = 0


class TokenCache:
    """Requests and caches tokens."""

    def __init__(self, fetch: FetchToken, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._tokens: dict[Any, tuple[str, float]] = {}  # with the time to refresh each
        self._requests: dict[Any, _TokenRequest] = {}

    async def get(self, client: OAuthClient, token_url: str, scopes: Sequence[str]) -> str:
        """Return a cached token, or request one.

        Raises:
            CallError: EXECUTION_ERROR, the endpoint returns no token; what `fetch` raises.
        """
        key = (token_url, tuple(scopes), client.client_id, client.client_secret, client.auth, *client.extra.items())
        token, refresh_at = self._tokens.get(key, ("", 0.0))
        if token and self._clock() < refresh_at:
            return token
        request = self._requests.get(key)
        if request is None or request.task.get_loop() is not asyncio.get_running_loop():
            request = _TokenRequest(asyncio.create_task(self._request(key, client, token_url, scopes)))
            self._requests[key] = request
        request.waiting += 1
        try:
            return await asyncio.shield(request.task)
        except asyncio.CancelledError:
            # Closing the cache cancels the request, but not the calls that wait for it.
            task = asyncio.current_task()
            if request.task.cancelled() and not (task and task.cancelling()):
                message = "the credentials were closed during a token request"
                raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False) from None
            raise
        finally:
            request.waiting -= 1
            if not request.waiting:
                request.task.cancel()
                if self._requests.get(key) is request:
                    del self._requests[key]

    async def _request(self, key: Any, client: OAuthClient, token_url: str, scopes: Sequence[str]) -> str:
        requested = self._clock()  # the lifetime starts at the latest now
        try:
            fields = as_dict(await self._fetch(token_request(client, token_url, scopes)))
        except CallError as error:
            # Without the details: an endpoint's error may quote the secret.
            message = f"the token request failed: {error.message}"
            raise CallError(error.code, message, retryable=error.retryable, retry_after=error.retry_after) from error
        token, kind = fields.get("access_token"), fields.get("token_type", "bearer")
        if not isinstance(token, str) or not token:
            raise CallError(ErrorCode.EXECUTION_ERROR, "the response of the token endpoint has no access_token")
        if not isinstance(kind, str) or kind.lower() != "bearer":
            raise CallError(ErrorCode.EXECUTION_ERROR, "the token endpoint returned a token that is not a bearer token")
        lifetime = bounded_number(fields.get("expires_in"), _MAX_LIFETIME)
        refresh_at = float("inf")  # without a lifetime: until the API rejects it
        if lifetime is not None:
            refresh_at = requested + lifetime - min(_MARGIN, lifetime / 10)
        while len(self._tokens) >= _MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[key] = token, refresh_at
        return token

    def forget(self, token: str) -> None:
        """Drop a rejected token, if it is still cached."""
        self._tokens = {key: entry for key, entry in self._tokens.items() if entry[0] != token}

    async def close(self) -> None:
        """Cancel the requests in flight."""
        loop = asyncio.get_running_loop()
        tasks = [request.task for request in self._requests.values() if request.task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def token_request(client: OAuthClient, token_url: str, scopes: Sequence[str]) -> HTTPRequest:
    """Return the request for a token (RFC 6749, section 4.4)."""
    fields: dict[str, Any] = {"grant_type": "client_credentials"}
    if scopes:
        fields["scope"] = " ".join(scopes)
    headers = [("Accept", "application/json"), ("Content-Type", "application/x-www-form-urlencoded")]
    if client.auth == "basic":
        pair = f"{encode(client.client_id)}:{encode(client.client_secret)}"
        headers.append(("Authorization", "Basic " + b64encode(pair.encode()).decode()))
    else:
        fields |= {"client_id": client.client_id, "client_secret": client.client_secret}
    return HTTPRequest(
        method="POST",
        url=str(URL(token_url)),
        headers=headers,
        body=urlencoded(fields | client.extra).encode(),
        secret_headers=frozenset({"authorization"}),
    )


StaticCredential = str | tuple[str, str] | OAuthClient | Mapping[str, Any]
"""A key or token; user and password; an OAuth client, or its fields: `{"client_id": …, "client_secret": …}`."""

MaybeCredential = StaticCredential | None | Awaitable[StaticCredential | None]

GivenCredentials = (
    Mapping[str, StaticCredential | Callable[[Context], MaybeCredential]] | Callable[[str, Context], MaybeCredential]
)
"""Credentials or callbacks by scheme name; or one callback for all schemes."""


class _Secret(NamedTuple):
    """A credential, encoded for its location."""

    location: Literal["header", "query", "cookie"]
    name: str
    text: str
    token: str | None = None  # an OAuth token that can be refreshed


class APICredentials:
    """Credentials by the names of the document's security schemes.

        APICredentials({"api_key": "…", "basic": ("user", "password"), "login": lambda context: token_for(context)})

    A callback that returns None has no credential for this call. A string with a space is a complete header value.
    """

    def __init__(self, given: GivenCredentials | None = None, fetch_token: FetchToken | None = None) -> None:
        self._given: Any = given or {}
        self._tokens = None if fetch_token is None else TokenCache(fetch_token)

    def __repr__(self) -> str:
        return f"<APICredentials {'by callback' if callable(self._given) else sorted(self._given)}>"

    async def apply(
        self, plan: CallPlan, request: HTTPRequest, context: Context, *, offline: bool = False
    ) -> HTTPRequest:
        """Return the request with credentials; unchanged if none are required or given.

        `offline` requests no token, and uses `***` instead.

        Raises:
            CallError: EXECUTION_ERROR, a credential does not fit its scheme, or the token request failed.
        """
        if not plan.security or not self._given:
            return request
        found: dict[str, Any] = {}
        for alternative in plan.security:
            chosen: list[SecurityRequirement] = []
            for choices in _by_place(alternative):
                for requirement in choices:
                    name = requirement.scheme.name
                    if name not in found:
                        found[name] = await self._find(plan, name, context)
                    if found[name] is not None:
                        chosen.append(requirement)
                        break
                else:
                    break
            else:
                if chosen:
                    secrets = [await self._secret(plan, each, found[each.scheme.name], offline) for each in chosen]
                    return _signed(request, secrets)
        return request

    def reject(self, request: HTTPRequest) -> bool:
        """Record a 401 to a request from `apply`, and return whether its token can be refreshed.

        If so, `apply` to the request without credentials once more.
        """
        if request.token is None or self._tokens is None:
            return False
        self._tokens.forget(request.token)
        return True

    def missing(self, plan: CallPlan) -> str:
        """Return a hint for a 401 or 403: which credentials are missing, and how to give them; or ""."""
        alternatives = [
            [[each.scheme.name for each in choices] for choices in _by_place(alternative)]
            for alternative in plan.security
        ]
        if not all(alternatives) or not alternatives or callable(self._given):
            return ""
        if any(all(any(name in self._given for name in names) for names in needed) for needed in alternatives):
            return ""
        choices = [[" or ".join(map(repr, names)) for names in needed] for needed in alternatives]
        wanted = [
            " and ".join(f"({each})" if " or " in each and len(needed) > 1 else each for each in needed)
            for needed in choices
        ]
        keys = " or ".join(dict.fromkeys(wanted))  # Google repeats the same schemes for each scope
        return f"Required credentials are missing: pass credentials={{…}} with the key {keys}."

    async def close(self) -> None:
        """Cancel token requests in flight."""
        if self._tokens is not None:
            await self._tokens.close()

    async def _find(self, plan: CallPlan, name: str, context: Context) -> Any:
        try:
            if callable(self._given):
                credential = self._given(name, context)
            else:
                credential = self._given.get(name)
                credential = credential(context) if callable(credential) else credential
            return await credential if inspect.isawaitable(credential) else credential
        except CallError:
            raise
        except Exception as error:
            raise _unusable(plan, name, "its callback failed") from error

    async def _secret(
        self, plan: CallPlan, requirement: SecurityRequirement, credential: Any, offline: bool
    ) -> _Secret:
        """Return a credential in the form and place of its scheme."""
        scheme = requirement.scheme
        location, name, token = "header", "Authorization", None
        try:
            match scheme.kind, credential:
                case "apiKey", str() as text:
                    location, name = scheme.location or "header", scheme.parameter
                case "basic", (str() as user, str() as password) if ":" not in user:
                    text = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
                case "basic", _:
                    raise ValueError("expected (user, password), the user without a colon")
                case "other", str() as text:
                    pass
                case (("apiKey" | "other"), _):
                    raise ValueError(f"expected a string, not {type(credential).__name__}")
                case _, str() as text:
                    # A token has no spaces: with a space it is a complete header value, `Token abc`.
                    text = text if " " in text else f"Bearer {text}"
                case _:
                    token = await self._token(plan, requirement, credential, offline)
                    text = f"Bearer {token}"
            if location == "query":
                return _Secret(location, encode(name), encode(text))
            if location == "cookie" and not _COOKIE.fullmatch(text):
                raise ValueError("a cookie is ASCII without semicolons and control characters")
            return _Secret(location, header_name(name, location), header_value(text), token)
        except ValueError as error:
            raise _unusable(plan, scheme.name, str(error)) from error

    async def _token(self, plan: CallPlan, requirement: SecurityRequirement, credential: Any, offline: bool) -> str:
        try:
            client = credential if isinstance(credential, OAuthClient) else msgspec.convert(credential, OAuthClient)
        except msgspec.ValidationError as error:  # its text names fields and types, not values
            raise ValueError(f"expected a token or an OAuth client: {error}") from None
        if self._tokens is None:
            raise ValueError("token requests are not available")
        token_url = _token_url(plan, requirement.scheme) if client.token_url is None else client.token_url
        scopes = requirement.scopes if client.scopes is None else client.scopes
        return "***" if offline else await self._tokens.get(client, token_url, scopes)


def _by_place(alternative: tuple[SecurityRequirement, ...]) -> list[list[SecurityRequirement]]:
    """Return the requirements that need a credential, those of one place together: either satisfies all of them."""
    places: dict[SecretPlace, list[SecurityRequirement]] = {}
    for each in alternative:
        if each.scheme.place is not None:
            places.setdefault(each.scheme.place, []).append(each)
    return list(places.values())


def _unusable(plan: CallPlan, name: str, why: str) -> CallError:
    return CallError(ErrorCode.EXECUTION_ERROR, f"{plan.operation_id}: the credential {name!r} cannot be used: {why}")


def _token_url(plan: CallPlan, scheme: SecurityScheme) -> str:
    if not scheme.token_url:
        raise ValueError("the document has no token endpoint; set the client's token_url")
    origin = URL(base_url_of(plan).origin)
    url = origin.join(URL(scheme.token_url))
    if plan.base_url is not None and url.origin() != origin:
        raise ValueError("its token endpoint has another origin than base_url; set the client's token_url")
    return str(url)


def _signed(request: HTTPRequest, secrets: list[_Secret]) -> HTTPRequest:
    """Return the request with these secrets. They override what has the same place from the input or the server."""
    headers = [(secret.name, secret.text) for secret in secrets if secret.location == "header"]
    cookies = {secret.name: secret.text for secret in secrets if secret.location == "cookie"}
    query = {secret.name: secret.text for secret in secrets if secret.location == "query"}
    if cookies:
        given = [each for name, text in request.headers if name.lower() == "cookie" for each in text.split("; ")]
        headers.append(("Cookie", _overridden(given, cookies, "; ")))
    names = frozenset(name.lower() for name, _ in headers)
    address, _, fields = request.url.partition("?")
    return replace(
        request,
        url=f"{address}?{_overridden(fields.split('&'), query, '&')}" if query else request.url,
        headers=[header for header in request.headers if header[0].lower() not in names] + headers,
        secret_headers=request.secret_headers | names,
        secret_query=request.secret_query.union(query),
        token=next((secret.token for secret in secrets if secret.token is not None), None),
    )


def _overridden(given: Sequence[str], secrets: Mapping[str, str], separator: str) -> str:
    """Return the fields of a query or of cookies with these secrets instead of fields of the same name."""
    kept = [each for each in given if each and each.partition("=")[0] not in secrets]
    return separator.join([*kept, *(f"{name}={text}" for name, text in secrets.items())])
