"""Credentials: which ones a request needs, where they go, and where they never go.

- The first alternative whose credentials are all given is used. Where there is none, the request goes as it is: whether
  the document tells the truth is for the API to say, and `missing` explains a refusal.
- They go to the address that the user fixed, if he did; and a client's secret to the token endpoint that a document
  names only if that has the same origin.
- They never stand in a message, a repr or a log.
"""

import inspect
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace
from yarl import URL

from opwire.adapters.openapi.address import read_address
from opwire.adapters.openapi.headers import header_name, header_value
from opwire.adapters.openapi.oauth import FetchToken, OAuthClient, TokenCache
from opwire.adapters.openapi.plan import Need, Plan, Scheme
from opwire.adapters.openapi.request import HTTPRequest
from opwire.adapters.openapi.styles import encode
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context

StaticCredential = str | tuple[str, str] | OAuthClient | Mapping[str, Any]
"""A key or token; user and password; an OAuth client, or its fields: `{"client_id": …, "client_secret": …}`."""

MaybeCredential = StaticCredential | None | Awaitable[StaticCredential | None]

GivenCredentials = (
    Mapping[str, StaticCredential | Callable[[Context], MaybeCredential]] | Callable[[str, Context], MaybeCredential]
)
"""Credentials by the names of their schemes, some asked for at each call; or one function that gives them all."""

_Location = Literal["header", "query", "cookie"]

_COOKIE = re.compile(r"[\x20-\x3a\x3c-\x7e]*")


class _Placed(NamedTuple):
    """A secret, written for the place where it goes."""

    location: _Location
    name: str
    text: str
    token: str | None = None  # if it can be had anew


class Credentials:
    """What was given to authenticate with, by the names of the document's schemes.

        Credentials({"api_key": "…", "basic": ("user", "password"), "login": lambda context: token_for(context)})

    A function that gives None has no credential for this call. A text with a space in it is a whole header.
    """

    def __init__(self, given: GivenCredentials | None = None, fetch_token: FetchToken | None = None) -> None:
        self._given: Any = given or {}
        self._tokens = None if fetch_token is None else TokenCache(fetch_token)

    def __repr__(self) -> str:
        return f"<Credentials {'by function' if callable(self._given) else sorted(self._given)}>"

    async def apply(self, plan: Plan, request: HTTPRequest, context: Context) -> HTTPRequest:
        """The request with its credentials; as it is where none are needed or none were given.

        Raises:
            CallError: EXECUTION_ERROR, if a credential cannot be used for its scheme or no token is to be had.
        """
        if not plan.security or not self._given:
            return request
        found: dict[str, Any] = {}
        for alternative in plan.security:
            needs = _needs(alternative)
            if needs and await self._are_given(plan, needs, found, context):
                return _signed(request, [await self._placed(plan, need, found[need.scheme.name]) for need in needs])
        return request

    def reject(self, request: HTTPRequest) -> bool:
        """Say that the API answered 401 to this request, as `apply` made it.

        True if it carried a token that can be had anew: then `apply` to the request without credentials, once more.
        """
        if request.token is None or self._tokens is None:
            return False
        self._tokens.forget(request.token)
        return True

    def missing(self, plan: Plan) -> str:
        """A sentence for the error of a 401 or 403: which credentials were not given, and how to; or ""."""
        alternatives = [_needs(alternative) for alternative in plan.security]
        if not all(alternatives) or not alternatives or callable(self._given):
            return ""
        if any(all(need.scheme.name in self._given for need in needs) for needs in alternatives):
            return ""
        wanted = " or ".join(" and ".join(repr(need.scheme.name) for need in needs) for needs in alternatives)
        return f"It asks for credentials that were not given: credentials={{…}} takes them under the name {wanted}."

    async def close(self) -> None:
        """End the questions for tokens that are under way."""
        if self._tokens is not None:
            await self._tokens.close()

    async def _are_given(self, plan: Plan, needs: list[Need], found: dict[str, Any], context: Context) -> bool:
        for need in needs:
            name = need.scheme.name
            if name not in found:
                found[name] = await self._find(plan, name, context)
            if found[name] is None:
                return False
        return True

    async def _find(self, plan: Plan, name: str, context: Context) -> Any:
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
            raise _unusable(plan, name, "the function that gives it failed") from error

    async def _placed(self, plan: Plan, need: Need, credential: Any) -> _Placed:
        scheme = need.scheme
        try:
            if scheme.kind == "apiKey":
                return _place(scheme.location or "header", scheme.parameter, _text(credential))
            if scheme.kind == "basic":
                return _place("header", "Authorization", _basic(credential))
            if scheme.kind == "other":
                return _place("header", "Authorization", _text(credential))
            if isinstance(credential, str):
                # A token has no spaces; what has is a whole header, `Token abc`.
                return _place("header", "Authorization", credential if " " in credential else f"Bearer {credential}")
            client = _oauth_client(credential)
            token = await self._token(client, _token_url(plan, scheme, client), need)
            return _place("header", "Authorization", f"Bearer {token}", token)
        except ValueError as error:
            raise _unusable(plan, scheme.name, str(error)) from error

    async def _token(self, client: OAuthClient, token_url: str, need: Need) -> str:
        if self._tokens is None:
            raise ValueError("there is nothing to ask for tokens with")
        return await self._tokens.get(client, token_url, need.scopes if client.scopes is None else client.scopes)


def _needs(alternative: tuple[Need, ...]) -> list[Need]:
    """What has to be given; a client certificate is shown by the connection."""
    return [need for need in alternative if need.scheme.said != "mutualTLS"]


def _unusable(plan: Plan, name: str, why: str) -> CallError:
    return CallError(ErrorCode.EXECUTION_ERROR, f"{plan.operation_id}: the credential {name!r} cannot be used: {why}")


def _text(credential: Any) -> str:
    if not isinstance(credential, str):
        raise ValueError(f"it is given as text, not as {type(credential).__name__}")
    return credential


def _basic(credential: Any) -> str:
    match credential:
        case (str() as user, str() as password) if ":" not in user:
            return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
        case _:
            raise ValueError("it is given as (user, password), the user without a colon")


def _oauth_client(credential: Any) -> OAuthClient:
    if isinstance(credential, OAuthClient):
        return credential
    try:
        return msgspec.convert(credential, OAuthClient)
    except msgspec.ValidationError as error:  # its text names fields and types, not values
        raise ValueError(f"it is given as a token, or as an OAuth client: {error}") from None


def _token_url(plan: Plan, scheme: Scheme, client: OAuthClient) -> str:
    if client.token_url is not None:
        return client.token_url
    if not scheme.token_url:
        raise ValueError("the document names no token endpoint; give the client a token_url")
    origin = URL(read_address(plan).origin)
    url = origin.join(URL(scheme.token_url))
    if plan.base_url is not None and url.origin() != origin:
        raise ValueError("its token endpoint is of another origin than base_url; give the client its token_url")
    return str(url)


def _place(location: _Location, name: str, text: str, token: str | None = None) -> _Placed:
    if location == "query":
        return _Placed(location, encode(name), encode(text))
    if location == "cookie" and not _COOKIE.fullmatch(text):
        raise ValueError("a cookie holds ASCII without semicolons and control characters")
    return _Placed(location, header_name(name, location), header_value(text), token)


def _signed(request: HTTPRequest, secrets: list[_Placed]) -> HTTPRequest:
    """The request with these secrets. They take the place of headers of the same name that the input gave."""
    own = [(secret.name, secret.text) for secret in secrets if secret.location == "header"]
    cookies = [f"{secret.name}={secret.text}" for secret in secrets if secret.location == "cookie"]
    query = [f"{secret.name}={secret.text}" for secret in secrets if secret.location == "query"]
    if cookies:
        own.append(
            ("Cookie", "; ".join([*(text for name, text in request.headers if name.lower() == "cookie"), *cookies]))
        )
    names = frozenset(name.lower() for name, _ in own)
    url = request.url
    if query:
        url = f"{url}{'&' if '?' in url else '?'}{'&'.join(query)}"
    return replace(
        request,
        url=url,
        headers=[header for header in request.headers if header[0].lower() not in names] + own,
        secret_headers=request.secret_headers | names,
        secret_query=request.secret_query or bool(query),
        token=next((secret.token for secret in secrets if secret.token is not None), None),
    )
