"""Credentials: which ones a request needs, where they go, and where they never go.

- The first alternative whose credentials are all given is used. Where there is none, the request goes as it is: whether
  the document tells the truth is for the API to say, and `missing` explains a refusal.
- They go to the address that the user fixed, if he did; and a client's secret to the token endpoint that a document
  names only if that has the same origin.
- They never stand in a message, a repr or a log.

Tokens by OAuth 2.0's client credentials grant: asked for when needed, kept until shortly before they expire.

However many calls need the same token at once, it is asked for once. The question ends when nobody waits for it.
"""

import asyncio
import inspect
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from opwire.adapters.openapi.bodies import encode, urlencoded
from opwire.adapters.openapi.document import bounded
from opwire.adapters.openapi.plan import Need, Plan, Scheme, header_name, header_value
from opwire.adapters.openapi.request import HTTPRequest, read_address
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context

FetchToken = Callable[[HTTPRequest], Awaitable[Any]]
"""Sends the request for a token, following no redirect, and gives the decoded JSON of a 2xx answer.

Raises:
    CallError: for all else.
"""

_MARGIN = 60.0  # seconds before its end that a token is renewed, or a tenth of its life where that is less
_MAX_LIFE = 10 * 365 * 24 * 60 * 60.0  # seconds
_MAX_TOKENS = 1000  # each identity may have its own


class OAuthClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client that can ask for tokens. Its repr shows no secret."""

    client_id: str
    client_secret: str
    scopes: tuple[str, ...] | None = None  # None: those that the operation asks for
    token_url: str | None = None  # None: what the document says
    auth: Literal["basic", "body"] = "basic"  # how the token endpoint wants the id and the secret
    extra: dict[str, str] = {}  # more fields of the form: `audience`, `resource`

    def __repr__(self) -> str:
        return f"<OAuthClient {self.client_id}>"


class _Token(NamedTuple):
    value: str
    renew_at: float


class _Flight:
    """A question that is under way, and how many wait for its answer."""

    def __init__(self, task: asyncio.Task[str]) -> None:
        self.task = task
        self.waiting = 0


_Key = tuple[Any, ...]


class TokenCache:
    """The tokens that are good at the moment."""

    def __init__(self, fetch: FetchToken, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._tokens: dict[_Key, _Token] = {}
        self._flights: dict[_Key, _Flight] = {}

    async def get(self, client: OAuthClient, token_url: str, scopes: Sequence[str]) -> str:
        """A token that is good for a while.

        Raises:
            CallError: EXECUTION_ERROR, if the endpoint gives none; what `fetch` raises.
        """
        key = (token_url, tuple(scopes), client.client_id, client.client_secret, client.auth, *client.extra.items())
        token = self._tokens.get(key)
        if token is not None and self._clock() < token.renew_at:
            return token.value
        flight = self._flights.get(key)
        if flight is None or flight.task.get_loop() is not asyncio.get_running_loop():
            flight = _Flight(asyncio.create_task(self._ask(key, client, token_url, scopes)))
            self._flights[key] = flight
        return await self._arrival(key, flight)

    async def _arrival(self, key: _Key, flight: _Flight) -> str:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            # Whoever closes the cache cancels the question, and not those who wait for it.
            task = asyncio.current_task()
            if flight.task.cancelled() and not (task and task.cancelling()):
                message = "the credentials were closed while a token was awaited"
                raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False) from None
            raise
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                flight.task.cancel()
                if self._flights.get(key) is flight:
                    del self._flights[key]

    async def _ask(self, key: _Key, client: OAuthClient, token_url: str, scopes: Sequence[str]) -> str:
        asked = self._clock()  # its life began at the latest then
        try:
            answer = await self._fetch(token_request(client, token_url, scopes))
        except CallError as error:
            # Without the details: what an endpoint says of a secret may hold it.
            message = f"the token endpoint gives no token: {error.message}"
            raise CallError(error.code, message, retryable=error.retryable, retry_after=error.retry_after) from error
        token = _read_token(answer, asked)
        while len(self._tokens) >= _MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[key] = token
        return token.value

    def forget(self, value: str) -> None:
        """Drop a token that was refused, if it is still there."""
        self._tokens = {key: token for key, token in self._tokens.items() if token.value != value}

    async def close(self) -> None:
        """End the questions that are under way."""
        loop = asyncio.get_running_loop()
        tasks = [flight.task for flight in self._flights.values() if flight.task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def token_request(client: OAuthClient, token_url: str, scopes: Sequence[str]) -> HTTPRequest:
    """The request for a token (RFC 6749, section 4.4)."""
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


def _read_token(answer: Any, asked: float) -> _Token:
    fields = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    value, kind = fields.get("access_token"), fields.get("token_type", "bearer")
    if not isinstance(value, str) or not value:
        raise CallError(ErrorCode.EXECUTION_ERROR, "the token endpoint answered without an access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise CallError(ErrorCode.EXECUTION_ERROR, "the token endpoint answered with a token that is no bearer token")
    life = bounded(fields.get("expires_in"), _MAX_LIFE)
    if life is None:
        return _Token(value, float("inf"))  # good until the API refuses it
    return _Token(value, asked + life - min(_MARGIN, life / 10))


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
