"""OAuth 2.0 clients, their token requests, and a cache of tokens.

Rules: a request of this package follows no redirect, has a deadline, and reads at most 1 MiB. The message of an error
names the host and the error code of the server (`invalid_grant`), and quotes nothing else: a response may repeat a
secret. Endpoints are https, or http on this machine.
"""

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from opwire.auth.oauth.store import TokenSet
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.http.client import MAX_WAIT, RETRYABLE, HTTPClient, HTTPRequest, bounded_number, host_of
from opwire.model.caller import caller_token
from opwire.model.context import Context
from opwire.runtime.bounded import BoundedDict, Tally
from opwire.typed.plain import as_dict, parse_float, read_peer_json

MAX_BODY = 1024 * 1024
"""Bytes of a response of an authorization server."""

MAX_TOKEN = 64 * 1024
"""Characters of a token."""

FetchJSON = Callable[[HTTPRequest], Awaitable[Any]]
"""Sends a request without following redirects, and returns the decoded JSON of a 2xx response.

Raises:
    CallError: for any other response; its details are `{"status": …, "error": …}`.
"""

_REFRESH_MARGIN_SECONDS = 60.0  # or a tenth of the lifetime of the token, if that is less
_MAX_LIFETIME_SECONDS = 10 * 365 * 24 * 60 * 60.0
_MAX_CACHED_TOKENS = 1000  # each identity may have its own
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a type
_JWT = "urn:ietf:params:oauth:token-type:jwt"
_ERROR_CODE = re.compile(r"[a-z_]{1,50}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_json = msgspec.json.Decoder(float_hook=parse_float)


class OAuthClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OAuth client. Its repr omits the secret.

        OAuthClient(client_id="robot", client_secret=…)  # requests its own tokens, by client credentials
        OAuthClient(client_id="cli", login=True)  # uses the login of a person: `source.login()`, `opwire login`
        OAuthClient(client_id="robot", client_secret=…, exchange=True)  # exchanges the token of each caller (RFC 8693)
        OAuthClient(client_id="robot", client_secret=…, exchange=True, subject=assertion_of)  # for each identity

    `subject` takes the `Identity` of a caller and returns a token that proves it to the authorization server, such as a
    JWT that you sign; it may be async. It works for calls that arrive without the token of the caller: over a hub or a
    broker, and durable ones. It is called when a token is requested, not for each call.

    Endpoints come from the document or the server's metadata, unless they are given here.
    """

    client_id: str = ""  # empty: registered at login, if the server allows it
    client_secret: str | None = None
    login: bool = False
    exchange: bool = False
    subject: Any = None  # `Callable[[Identity], str | Awaitable[str]]`, which msgspec cannot convert
    scopes: tuple[str, ...] | None = None  # None: those of the operation, for a login those of all operations
    token_url: str | None = None
    authorization_url: str | None = None
    device_url: str | None = None
    issuer: str | None = None  # discover the endpoints from its metadata
    redirect_uri: str = "http://127.0.0.1:0/callback"  # port 0 is any free one
    auth: Literal["basic", "body"] = "basic"  # how the token endpoint takes id and secret
    extra: dict[str, str] = {}  # more fields of authorization and token requests: `audience`, `resource`

    def __post_init__(self) -> None:
        if self.login and self.exchange:
            raise UsageError("login and exchange exclude each other")
        if self.subject is not None and not (self.exchange and callable(self.subject)):
            raise UsageError("subject is a function that takes an Identity, and needs exchange=True")
        if not (self.login or self.exchange or (self.client_id and self.client_secret is not None)):
            raise UsageError("client_id and client_secret are required without login")

    def __repr__(self) -> str:
        return f"<OAuthClient {self.client_id}>"


def read_client(fields: Any) -> OAuthClient:
    """Convert the fields of a client.

    Raises:
        ValueError: they are invalid; the message names fields and types, and no values.
    """
    try:
        return fields if isinstance(fields, OAuthClient) else msgspec.convert(fields, OAuthClient)
    except msgspec.ValidationError as error:
        raise ValueError(f"expected a token or an OAuth client: {error}") from None


class Subject(NamedTuple):
    """The caller of a token request: its key in the cache, and a function that returns the token that proves it."""

    key: str | bytes
    prove: Callable[[], Any]
    token_type: str

    async def proof(self) -> str:
        """Return the token that proves the caller.

        Raises:
            CallError: EXECUTION_ERROR, the function failed; or the error that it raised.
        """
        try:
            token = self.prove()
            token = await token if isawaitable(token) else token
        except CallError:
            raise
        except Exception as error:  # its message may contain a secret
            raise CallError(ErrorCode.EXECUTION_ERROR, "the function `subject` of an OAuth client failed") from error
        if not isinstance(token, str):
            message = f"the function `subject` of an OAuth client returns a token, not {type(token).__name__}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message)
        return token


def subject_of(client: OAuthClient, context: Context) -> Subject:
    """Return the caller of a context, proven by its token, or by the function of the client.

    Raises:
        CallError: UNAUTHENTICATED, it has no token, or no identity for the function.
    """
    if client.subject is None:
        token = caller_token(context)
        return Subject(token, lambda: token, _ACCESS_TOKEN)
    if context.identity is None:
        message = "the operation is called on behalf of its caller, which is anonymous"
        raise CallError(ErrorCode.UNAUTHENTICATED, message)
    key = msgspec.msgpack.encode(context.identity, order="deterministic")
    return Subject(key, partial(client.subject, context.identity), _JWT)


def is_secure(url: str, named_by: str = "") -> bool:
    """Return whether a URL is https, or http on this machine, unless a server elsewhere names it."""
    try:
        parts = urlsplit(url)
        may_be_local = not named_by or urlsplit(named_by).hostname in _LOOPBACK
    except ValueError:
        return False
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    return (parts.scheme == "https" and bool(parts.hostname)) or (is_local and may_be_local)


def token_request(client: OAuthClient, token_url: str, fields: Mapping[str, str]) -> HTTPRequest:
    """Return a request to the token endpoint, authenticated as the client (RFC 6749, section 2.3)."""
    form = {**fields, **client.extra}
    headers = [("Accept", "application/json"), ("Content-Type", "application/x-www-form-urlencoded")]
    if client.client_secret is None:
        form |= {"client_id": client.client_id} if client.client_id else {}
    elif client.auth == "basic":
        pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
        headers.append(("Authorization", "Basic " + b64encode(pair.encode()).decode()))
    else:
        form |= {"client_id": client.client_id, "client_secret": client.client_secret}
    return HTTPRequest(
        method="POST",
        url=token_url,
        headers=headers,
        body=urlencode(form, quote_via=quote).encode(),
        secret_headers=frozenset({"authorization"}),
    )


async def request_tokens(
    fetch: FetchJSON,
    client: OAuthClient,
    token_url: str,
    fields: Mapping[str, str],
    *,
    clock: Callable[[], float] = time.time,
) -> TokenSet:
    """Request tokens.

    Raises:
        CallError: EXECUTION_ERROR, the endpoint returns no bearer token; what `fetch` raises.
    """
    requested = clock()  # the lifetime starts at the latest now
    try:
        answer = as_dict(await fetch(token_request(client, token_url, fields)))
    except CallError as error:
        message = f"the token request failed: {error.message}"
        raise CallError(
            error.code, message, error.details, retryable=error.retryable, retry_after=error.retry_after
        ) from error
    token, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN or not token.isprintable() or " " in token:
        raise CallError(ErrorCode.EXECUTION_ERROR, "the response of the token endpoint has no valid access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise CallError(ErrorCode.EXECUTION_ERROR, "the token endpoint returned a token that is not a bearer token")
    expires_at = refresh_at = None
    if (lifetime := bounded_number(answer.get("expires_in"), _MAX_LIFETIME_SECONDS)) is not None:
        expires_at = requested + lifetime
        refresh_at = expires_at - min(_REFRESH_MARGIN_SECONDS, lifetime / 10)
    refresh_token, scope = answer.get("refresh_token"), answer.get("scope")
    return TokenSet(
        token,
        expires_at,
        refresh_at,
        refresh_token if isinstance(refresh_token, str) and 0 < len(refresh_token) <= MAX_TOKEN else None,
        scope if isinstance(scope, str) and len(scope) <= MAX_TOKEN else "",
    )


def json_fetcher(client: HTTPClient) -> FetchJSON:
    """Return the function that sends requests to authorization servers."""

    async def fetch(request: HTTPRequest) -> Any:
        endpoint, seconds = host_of(request.url), client.options.timeout
        try:
            request = replace(request, url=str(URL(request.url)))
        except ValueError:
            raise CallError(ErrorCode.PROTOCOL_ERROR, "the URL of an authorization server is invalid") from None

        async def send() -> Any:
            response = await client.open(request, bare=True)
            body, is_whole = await client.read_start(response, MAX_BODY)
            try:
                answer = read_peer_json(_json, body) if is_whole else None
            except (ValueError, RecursionError):
                answer = None
            if not 200 <= response.status < 300:
                code = as_dict(answer).get("error")
                code = code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
                raise CallError(
                    ErrorCode.EXECUTION_ERROR,
                    f"HTTP {response.status} from {endpoint}{f': {code}' if code else ''}",
                    {"status": response.status, "error": code},
                    retryable=response.status in RETRYABLE,
                    retry_after=bounded_number(response.headers.get("Retry-After"), MAX_WAIT),
                )
            if answer is None:
                message = f"{endpoint} did not return JSON of at most {MAX_BODY:,} bytes"
                raise CallError(ErrorCode.PROTOCOL_ERROR, message)
            return answer

        deadline = None if seconds is None else time.monotonic() + seconds
        return await client.deadlines.limit(send, deadline, f"{endpoint} did not respond")

    return fetch


class SharedRequests:
    """Requests in flight by key: callers that need the same result at once share one.

    A request is cancelled when the last of them stops waiting.
    """

    def __init__(self) -> None:
        self._tasks: dict[Any, asyncio.Task[Any]] = {}
        self._waiting: Tally[asyncio.Task[Any]] = Tally()

    async def get(self, key: Any, request: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of the request in flight, or start one."""
        shared = self._tasks.get(key)
        if shared is None or shared.get_loop() is not asyncio.get_running_loop():
            shared = self._tasks[key] = asyncio.ensure_future(cast("Any", request()))
        self._waiting[shared] += 1
        try:
            return await asyncio.shield(shared)
        except asyncio.CancelledError:
            # `close` cancels the request, but not the calls that wait for it.
            task = asyncio.current_task()
            if shared.cancelled() and not (task and task.cancelling()):
                message = "the credentials were closed during a token request"
                raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False) from None
            raise
        finally:
            self._waiting.subtract(shared)
            if shared not in self._waiting:
                shared.cancel()
                if self._tasks.get(key) is shared:
                    del self._tasks[key]

    async def close(self) -> None:
        """Cancel the requests in flight."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._waiting if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TokenCache:
    """Requests tokens by client credentials or token exchange, and caches them until shortly before they expire."""

    def __init__(self, fetch: FetchJSON, *, clock: Callable[[], float] = time.time) -> None:
        self._fetch = fetch
        self._clock = clock
        self._tokens: BoundedDict[Any, TokenSet] = BoundedDict(_MAX_CACHED_TOKENS)
        self._requests = SharedRequests()

    async def get(
        self,
        client: OAuthClient,
        token_url: str,
        scopes: Sequence[str],
        resource: str = "",
        *,
        subject: Subject | None = None,
    ) -> str:
        """Return a cached token, or request one (RFC 6749, section 4.4); for a caller, exchange what proves it.

        A token without a lifetime that was exchanged is kept for a minute: the caller's own may be revoked.

        Raises:
            CallError: as `request_tokens`; or the function of the client that proves a caller failed.
        """
        fields = {"grant_type": "client_credentials"}
        if subject is not None:
            fields = {"grant_type": _EXCHANGE, "subject_token_type": subject.token_type}
        fields |= {"scope": " ".join(scopes)} if scopes else {}
        fields |= {"resource": resource} if resource else {}
        secret = (client.client_id, client.client_secret, client.auth, *client.extra.items())
        key = (token_url, subject and subject.key, *fields.items(), *secret)
        tokens = self._tokens.get(key)
        if tokens is not None and (tokens.refresh_at is None or self._clock() < tokens.refresh_at):
            return tokens.access_token

        async def request() -> TokenSet:
            proof = {} if subject is None else {"subject_token": await subject.proof()}
            tokens = await request_tokens(self._fetch, client, token_url, {**fields, **proof}, clock=self._clock)
            if tokens.refresh_at is None and proof:
                tokens = replace(tokens, refresh_at=self._clock() + _REFRESH_MARGIN_SECONDS)
            self._tokens[key] = tokens
            return tokens

        return (await self._requests.get(key, request)).access_token

    def forget(self, token: str) -> None:
        """Drop a rejected token, if it is still cached."""
        for key in [key for key, tokens in self._tokens.items() if tokens.access_token == token]:
            del self._tokens[key]

    async def close(self) -> None:
        """Cancel the requests in flight."""
        await self._requests.close()
