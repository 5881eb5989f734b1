"""Sign in: the authorization code flow with PKCE, and the device flow; then the tokens of a login, kept fresh.

The code flow (RFC 8252) listens on 127.0.0.1, on a free port, for one redirect: the exact path, with the `state` of
this login. Other requests get an error and are ignored. The response has to name the issuer that was asked (RFC 9207),
if that says it does, and the code is redeemed with the verifier of this login (RFC 7636, S256): neither a code of
another login nor one of another server is accepted.
"""

import asyncio
import hmac
import inspect
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec.structs import replace

from opwire.auth.oauth.discovery import AuthorizationServer, register
from opwire.auth.oauth.store import LoginKey, StoredLogin, TokenSet, TokenStore
from opwire.auth.oauth.tokens import FetchJSON, OAuthClient, is_secure, request_tokens, token_request
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.http.client import bounded_number, host_of
from opwire.model.login import LoginOptions, LoginPrompt
from opwire.typed.plain import as_dict

_MAX_REDIRECT_BYTES = 16 * 1024
_REDIRECT_TIMEOUT = 10.0
_MAX_CONNECTIONS = 16
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_EXPIRED = "the code has expired before it was entered: sign in again"
_MAX_CODE_LENGTH = 100
_PAGE = """\
<!doctype html><meta charset="utf-8"><title>opwire</title>
<p>{}</p>
"""


async def sign_in(
    fetch: FetchJSON,
    key: LoginKey,
    server: AuthorizationServer,
    client: OAuthClient,
    options: LoginOptions,
    *,
    scopes: Iterable[str] = (),
    resource: str = "",
) -> StoredLogin:
    """Return a new login, which is not stored yet.

    Raises:
        CallError: TIMEOUT, EXECUTION_ERROR if the person or the server declines, PROTOCOL_ERROR for invalid responses.
    """
    server = server.checked()
    fields = {"scope": " ".join(scopes)} if scopes else {}
    fields |= {"resource": resource} if resource else {}
    if not server.token_url:
        raise _missing("token", "token_url")
    try:
        async with asyncio.timeout(options.timeout):
            flow = _device_flow if options.device else _code_flow
            client, tokens = await flow(fetch, server, client, options, fields)
    except TimeoutError:
        raise CallError(ErrorCode.TIMEOUT, f"the login was not completed within {options.timeout:g} s") from None
    return StoredLogin(
        key=key,
        tokens=tokens,
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth=client.auth,
        token_url=server.token_url,
        refresh_url=server.refresh_url,
        revocation_url=server.revocation_url,
        token_resource=resource,
        extra=client.extra,
    )


def _missing(endpoint: str, option: str) -> CallError:
    message = f"the {endpoint} endpoint of the authorization server is unknown: set {option} of the OAuth client"
    return CallError(ErrorCode.EXECUTION_ERROR, message)


# --- authorization code -----------------------------------------------------------------------------------------------


async def _code_flow(
    fetch: FetchJSON, server: AuthorizationServer, client: OAuthClient, options: LoginOptions, fields: Mapping[str, str]
) -> tuple[OAuthClient, TokenSet]:
    if not server.authorization_url:
        raise _missing("authorization", "authorization_url")
    if server.challenge_methods is not None and "S256" not in server.challenge_methods:
        message = "the authorization server does not support PKCE with S256, which protects the login"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
    async with _receive(client.redirect_uri, state, options.paste) as (redirect_uri, response):
        if not client.client_id:
            client = await register(fetch, server, client, redirect_uri, fields.get("scope", "").split())
        query = {
            **client.extra,
            **fields,
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        separator = "&" if urlsplit(server.authorization_url).query else "?"
        await _show(options, LoginPrompt(url=f"{server.authorization_url}{separator}{urlencode(query)}"))
        answer = await response()  # its state is checked already
    issuer = answer.get("iss")
    if (issuer is None and server.sends_issuer) or (issuer is not None and server.issuer and issuer != server.issuer):
        message = "the authorization response is not from the server that was asked, and is ignored"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)
    if "error" in answer:
        error = answer["error"]
        error_text = (
            error if len(error) <= _MAX_CODE_LENGTH and error.isascii() and error.isprintable() else "invalid error"
        )
        raise CallError(ErrorCode.EXECUTION_ERROR, f"the authorization server declined: {error_text}")
    code = answer.get("code")
    if not code:
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the authorization response has no code")
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
    form |= {"resource": fields["resource"]} if "resource" in fields else {}
    return client, await request_tokens(fetch, client, server.token_url, form)


async def _show(options: LoginOptions, prompt: LoginPrompt) -> None:
    prompting = options.show(prompt)
    if inspect.isawaitable(prompting):
        await prompting


@asynccontextmanager
async def _receive(
    redirect_uri: str, state: str, paste: Callable[[], Awaitable[str]] | None
) -> AsyncGenerator[tuple[str, Callable[[], Awaitable[Mapping[str, str]]]]]:
    """Listen for the redirect; yield its URI, and a function that waits for the parameters of the response."""
    parts = urlsplit(redirect_uri)
    if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost") or not parts.path:
        raise UsageError("redirect_uri must be http://127.0.0.1:PORT/PATH, with the port 0 for any free one")
    receiver = _RedirectReceiver(parts.path, state)
    try:
        listener = await asyncio.start_server(
            receiver.serve, "127.0.0.1", parts.port or 0, limit=_MAX_REDIRECT_BYTES, backlog=_MAX_CONNECTIONS
        )
    except OSError as error:
        message = f"cannot listen on port {parts.port} of 127.0.0.1 for the redirect: {error.strerror}"
        raise CallError(ErrorCode.UNAVAILABLE, message) from error
    receiver.host = f"{parts.hostname}:{listener.sockets[0].getsockname()[1]}"

    async def response() -> Mapping[str, str]:
        if paste is None:
            return await receiver.response
        answer = dict(parse_qsl(urlsplit((await paste()).strip()).query))
        if not _is_same(answer.get("state", ""), state):
            message = "this is not the address at which the browser ends after this login"
            raise CallError(ErrorCode.EXECUTION_ERROR, message)
        return answer

    try:
        yield f"http://{receiver.host}{parts.path}", response
    finally:
        listener.close()
        await receiver.close()


def _is_same(received: str, expected: str) -> bool:
    return hmac.compare_digest(received.encode(errors="replace"), expected.encode())


class _RedirectReceiver:
    """Answers requests on the loopback interface until one is the redirect of this login."""

    def __init__(self, path: str, state: str) -> None:
        self.response: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self.host = ""
        self._path = path
        self._state = state
        self._open = 0  # connections
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        if self._open >= _MAX_CONNECTIONS:
            writer.close()
            return
        self._open += 1
        self._is_idle.clear()
        try:
            async with asyncio.timeout(_REDIRECT_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._answer(head.decode("latin-1"))
                body = _PAGE.format(text).encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
                    "Content-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\n"
                    "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            self._open -= 1
            if not self._open:
                self._is_idle.set()

    def _answer(self, head: str) -> tuple[str, str]:
        """Return the status and the text for a request; decide the outcome of the login if it is the redirect."""
        request_line, *lines = head.split("\r\n")
        method, _, target_and_version = request_line.partition(" ")
        path, _, query = target_and_version.partition(" ")[0].partition("?")
        hosts = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:")]
        if method != "GET" or path != self._path or hosts != [self.host]:
            return "404 Not Found", "Not found."
        fields = parse_qsl(query, keep_blank_values=True)
        answer = dict(fields)
        if len(answer) != len(fields) or not _is_same(answer.get("state", ""), self._state) or self.response.done():
            return "400 Bad Request", "This is not the response to a login of opwire that is in progress."
        self.response.set_result(answer)
        if "error" in answer:
            return "200 OK", "The login was declined. You can close this window."
        return "200 OK", "You can close this window, and return to the program."

    async def close(self) -> None:
        """Wait a moment until the connections are answered: the browser shows the page."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._is_idle.wait()
        self.response.cancel()


# --- device -----------------------------------------------------------------------------------------------------------


async def _device_flow(
    fetch: FetchJSON, server: AuthorizationServer, client: OAuthClient, options: LoginOptions, fields: Mapping[str, str]
) -> tuple[OAuthClient, TokenSet]:
    """Sign in with a code on another device (RFC 8628)."""
    if not server.device_url:
        raise _missing("device authorization", "device_url")
    if not client.client_id:
        raise CallError(ErrorCode.EXECUTION_ERROR, "the device flow needs the client_id of a client the server knows")
    started = as_dict(await fetch(token_request(client, server.device_url, {**fields})))
    device_code, user_code = started.get("device_code"), started.get("user_code")
    url = started.get("verification_uri_complete") or started.get("verification_uri") or started.get("verification_url")
    if not (
        isinstance(device_code, str)
        and isinstance(user_code, str)
        and isinstance(url, str)
        and is_secure(url, server.device_url)
    ):
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"{host_of(server.device_url)} sent an invalid device authorization")
    interval = max(bounded_number(started.get("interval", 5), 60.0) or 0, 1.0)
    lifetime = bounded_number(started.get("expires_in"), 1800.0)
    deadline = time.monotonic() + (1800.0 if lifetime is None else lifetime)
    await _show(options, LoginPrompt(url=url, code=user_code[:_MAX_CODE_LENGTH]))
    form = {"grant_type": _DEVICE_GRANT, "device_code": device_code}
    form |= {"resource": fields["resource"]} if "resource" in fields else {}
    while time.monotonic() < deadline:
        await options.sleep(interval)
        try:
            return client, await request_tokens(fetch, client, server.token_url, form)
        except CallError as error:
            interval = _next_interval(error, interval)
    raise CallError(ErrorCode.TIMEOUT, _EXPIRED)


def _next_interval(error: CallError, interval: float) -> float:
    """Return the seconds until the next poll after this error, or raise an error that is final."""
    match as_dict(error.details).get("error"):
        case "authorization_pending":
            return interval
        case "slow_down":
            return interval + 5
        case "access_denied":
            raise CallError(ErrorCode.EXECUTION_ERROR, "the login was declined") from error
        case "expired_token":
            raise CallError(ErrorCode.TIMEOUT, _EXPIRED) from error
        case _ if error.retryable:
            return min(interval * 2, 60.0)
        case _:
            raise error


# --- the tokens of a login --------------------------------------------------------------------------------------------


class LoginTokens:
    """The access token of a stored login, refreshed shortly before it expires and after the API rejected it.

    At most one refresh is in flight, in this process and among all processes of the user.
    """

    def __init__(self, fetch: FetchJSON, store: TokenStore, key: LoginKey) -> None:
        self._fetch = fetch
        self._store = store
        self._key = key
        self._known: TokenSet | None = None
        self._rejected: str | None = None
        self._loading: asyncio.Task[str | None] | None = None

    async def get(self) -> str | None:
        """Return a valid token, or None without a login.

        Raises:
            CallError: the refresh failed, and may succeed later; the store cannot be read.
        """
        if self._known is not None and self._is_valid(self._known):
            return self._known.access_token
        loading = self._loading
        if loading is None or loading.done() or loading.get_loop() is not asyncio.get_running_loop():
            loading = self._loading = asyncio.create_task(self._load())
            # Retrieve its exception: its callers may have left.
            loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Not cancelled with its callers: a refresh token that was sent may be the last one that is valid.
        return await asyncio.shield(loading)

    def reject(self, token: str) -> bool:
        """Record that the API rejected a token; return whether it is of this login."""
        if self._known is None or self._known.access_token != token:
            return False
        self._rejected = token
        return True

    def _is_valid(self, tokens: TokenSet) -> bool:
        in_time = tokens.refresh_at is None or time.time() < tokens.refresh_at
        return in_time and tokens.access_token != self._rejected

    async def _load(self) -> str | None:
        login = await self._store.read(self._key)
        if login is not None and not self._is_valid(login.tokens):
            async with self._store.lock(self._key):
                login = await self._store.read(self._key)  # another process may have refreshed it
                if login is not None and not self._is_valid(login.tokens):
                    login = await self._refresh(login)
        self._known = None if login is None else login.tokens
        return None if login is None else login.tokens.access_token

    async def _refresh(self, login: StoredLogin) -> StoredLogin | None:
        stored_tokens = login.tokens
        if stored_tokens.refresh_token is None:
            # Without a refresh token, the rest of the lifetime is used as well.
            in_time = stored_tokens.expires_at is None or time.time() < stored_tokens.expires_at
            return login if in_time and stored_tokens.access_token != self._rejected else None
        form = {"grant_type": "refresh_token", "refresh_token": stored_tokens.refresh_token}
        form |= {"resource": login.token_resource} if login.token_resource else {}
        try:
            fresh_tokens = await request_tokens(
                self._fetch, client_of(login), login.refresh_url or login.token_url, form
            )
        except CallError as error:
            if as_dict(error.details).get("error") != "invalid_grant":
                raise
            await self._store.delete(self._key)  # expired or revoked
            return None
        login = replace(
            login,
            tokens=replace(fresh_tokens, refresh_token=fresh_tokens.refresh_token or stored_tokens.refresh_token),
        )
        await self._store.write(login)
        return login

    async def want(self, scopes: tuple[str, ...]) -> None:
        """Note scopes that the server demands for a call, for the next login."""
        async with self._store.lock(self._key):
            login = await self._store.read(self._key)
            if login is not None and not set(scopes) <= {*login.wanted, *login.tokens.scope.split()}:
                scopes_of_login = dict.fromkeys([*login.tokens.scope.split(), *login.wanted, *scopes])
                await self._store.write(replace(login, wanted=tuple(scopes_of_login)))

    async def sign_out(self) -> bool:
        """Delete the login, and revoke its tokens where the server can (RFC 7009); return whether there was one."""
        async with self._store.lock(self._key):
            login = await self._store.read(self._key)
            await self._store.delete(self._key)
        self._known = None
        if login is None:
            return False
        if login.revocation_url:
            kind = "access_token" if login.tokens.refresh_token is None else "refresh_token"
            form = {"token": login.tokens.refresh_token or login.tokens.access_token, "token_type_hint": kind}
            try:
                await self._fetch(token_request(client_of(login), login.revocation_url, form))
            except CallError:  # it is forgotten here in any case, and most servers return an empty body
                pass
        return True

    async def close(self) -> None:
        """Wait for a refresh in flight, which has a deadline."""
        if self._loading is not None and self._loading.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._loading])


def client_of(login: StoredLogin) -> OAuthClient:
    """Return the client of a login."""
    return OAuthClient(
        client_id=login.client_id, client_secret=login.client_secret, login=True, auth=login.auth, extra=login.extra
    )
