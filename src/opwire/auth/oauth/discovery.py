"""Authorization servers: endpoints from metadata (RFC 8414, OpenID Connect, RFC 9728), and registration (RFC 7591).

What a server says of itself is checked before it is used: metadata is that of the issuer it was requested for, a
protected resource describes itself, and no endpoint is plain http, except on this machine.
"""

import re
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.auth.oauth.store import resource_of
from opwire.auth.oauth.tokens import FetchJSON, OAuthClient, is_secure
from opwire.errors import CallError, ErrorCode
from opwire.http.client import HTTPClient, HTTPRequest, host_of
from opwire.typed.plain import as_dict, as_list

WELL_KNOWN_OPENID = "/.well-known/openid-configuration"
_WELL_KNOWN_OAUTH = "/.well-known/oauth-authorization-server"
_WELL_KNOWN_RESOURCE = "/.well-known/oauth-protected-resource"
_MAX_URL_LENGTH = 2_000
_MAX_SCOPES = 100
_MAX_SCOPE_LENGTH = 200
_PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
_RESOURCE_METADATA = re.compile(r'(?:^|[\s,])resource_metadata="([^"]*)"', re.IGNORECASE)
_CHALLENGED_SCOPE = re.compile(r'(?:^|[\s,])scope="([^"]*)"', re.IGNORECASE)


class AuthorizationServer(Struct, frozen=True, kw_only=True):
    """The endpoints of an authorization server; missing ones, and optional ones that are not https, are empty."""

    issuer: str = ""
    authorization_url: str = ""
    token_url: str = ""
    device_url: str = ""
    refresh_url: str = ""  # the token URL by default
    registration_url: str = ""
    revocation_url: str = ""
    jwks_url: str = ""  # the keys of its tokens
    introspection_url: str = ""
    sends_issuer: bool = False  # in authorization responses (RFC 9207)
    challenge_methods: tuple[str, ...] | None = None  # of PKCE; None: unknown
    token_auth_methods: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()

    def checked(self) -> "AuthorizationServer":
        """Return the server.

        Raises:
            CallError: PROTOCOL_ERROR, an endpoint is not https.
        """
        for name in ("authorization_url", "token_url", "device_url", "refresh_url", "registration_url"):
            url: str = getattr(self, name)
            if url and not is_secure(url, self.issuer):
                message = f"the {name.replace('_url', '')} endpoint of the authorization server is not an https URL"
                raise CallError(ErrorCode.PROTOCOL_ERROR, message)
        return self

    def with_client(self, client: OAuthClient) -> "AuthorizationServer":
        """Return the server with the endpoints that a client sets."""
        client_urls = {name: getattr(client, name) for name in ("authorization_url", "token_url", "device_url")}
        return replace(self, **{name: url for name, url in client_urls.items() if url is not None})


class ProtectedResource(Struct, frozen=True, kw_only=True):
    """What a server says of its protection."""

    resource: str
    issuer: str
    scopes: tuple[str, ...] = ()


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL.

    Raises:
        ValueError: the URL is invalid.
    """
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


async def discover(fetch: FetchJSON, issuer: str) -> AuthorizationServer:
    """Return the server of an issuer: by RFC 8414, else by OpenID Connect.

    Raises:
        CallError: its metadata is missing or invalid, or names another issuer.
    """
    if not is_secure(issuer):
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the issuer of an authorization server is not an https URL")
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    base = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    candidates = [f"{base}{_WELL_KNOWN_OAUTH}{path}", f"{base}{WELL_KNOWN_OPENID}{path}"]
    candidates += [f"{base}{path}{WELL_KNOWN_OPENID}"] if path else []
    metadata = await _first(fetch, candidates)
    if metadata is None:
        message = f"{host_of(issuer)} publishes no metadata of an authorization server"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)
    return _server(metadata, issuer)


async def discover_openid(fetch: FetchJSON, url: str) -> AuthorizationServer:
    """Return the server of an OpenID Connect discovery URL.

    Raises:
        CallError: as `discover`. The issuer has to be the URL without its well-known part, or of its origin.
    """
    if not is_secure(url):
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the URL of the OpenID Connect metadata is not https")
    metadata = as_dict(await fetch(_get(url)))
    issuer = _text(metadata, "issuer")
    expected = url.removesuffix(WELL_KNOWN_OPENID)
    if expected == url and _same_origin(issuer, url):
        expected = issuer
    return _server(metadata, expected)


def _server(metadata: Mapping[str, Any], issuer: str) -> AuthorizationServer:
    metadata_issuer = _text(metadata, "issuer")
    if metadata_issuer != issuer and metadata_issuer.removesuffix("/") != issuer.removesuffix("/"):
        message = f"the metadata of {host_of(issuer)} is that of another issuer, {host_of(metadata_issuer)}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)
    methods = metadata.get("code_challenge_methods_supported")

    def optional(name: str) -> str:  # an issuer elsewhere names no server of this machine, which would get a token
        url = _text(metadata, name)
        return url if is_secure(url, issuer) else ""

    return AuthorizationServer(
        issuer=metadata_issuer,
        authorization_url=_text(metadata, "authorization_endpoint"),
        token_url=_text(metadata, "token_endpoint"),
        device_url=_text(metadata, "device_authorization_endpoint"),
        registration_url=_text(metadata, "registration_endpoint"),
        revocation_url=optional("revocation_endpoint"),
        jwks_url=optional("jwks_uri"),
        introspection_url=optional("introspection_endpoint"),
        sends_issuer=metadata.get("authorization_response_iss_parameter_supported") is True,
        challenge_methods=None if methods is None else _texts(methods),
        token_auth_methods=_texts(metadata.get("token_endpoint_auth_methods_supported")),
        scopes=_texts(metadata.get("scopes_supported")),
    ).checked()


async def discover_resource(client: HTTPClient, fetch: FetchJSON, url: str) -> ProtectedResource:
    """Return how an MCP server is protected: by the metadata that its 401 names, else by the well-known one.

    Without metadata, its origin is the issuer, as in the first revisions of MCP.

    Raises:
        CallError: the server is not https, cannot be reached, or its metadata describes another resource.
    """
    if not is_secure(url):
        message = f"{host_of(url)} is not https: a token for it could be read on its way"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)
    challenge = ""
    headers = [("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")]
    for method, body in (("POST", _PING), ("GET", None)):  # GET as in the transport of 2024
        ping = HTTPRequest(method=method, url=url, headers=headers, body=body)
        seconds = client.options.timeout
        ends = None if seconds is None else time.monotonic() + seconds
        opening = partial(client.open, ping, bare=True)
        response = await client.deadlines.limit(opening, ends, f"{host_of(url)} did not respond")
        response.close()
        if response.status == 401:
            challenge = ", ".join(response.headers.getall("WWW-Authenticate", ()))
            break
    parts = urlsplit(url)
    base = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    metadata_url = _RESOURCE_METADATA.search(challenge)
    candidates = [metadata_url[1]] if metadata_url and _same_origin(metadata_url[1], url) else []
    candidates += [f"{base}{_WELL_KNOWN_RESOURCE}{parts.path.rstrip('/')}", f"{base}{_WELL_KNOWN_RESOURCE}"]
    metadata = await _first(fetch, dict.fromkeys(candidates))
    demanded_scopes = challenged_scopes(challenge)
    if metadata is None:
        return ProtectedResource(resource=resource_of(url), issuer=base, scopes=demanded_scopes)
    resource, issuers = _text(metadata, "resource"), _texts(metadata.get("authorization_servers"))
    resource_path = urlsplit(resource).path.rstrip("/") if _same_origin(resource, url) else None
    if resource_path is None or not f"{parts.path.rstrip('/')}/".startswith(f"{resource_path}/"):
        message = f"the metadata of {host_of(url)} describes another resource, at {host_of(resource)}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)
    if not issuers:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"the metadata of {host_of(url)} names no authorization server")
    if not is_secure(issuers[0], url):
        message = f"the metadata of {host_of(url)} names an authorization server that is not an https URL"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)
    supported = _texts(metadata.get("scopes_supported"))[:_MAX_SCOPES]
    return ProtectedResource(resource=resource, issuer=issuers[0], scopes=demanded_scopes or supported)


def challenged_scopes(challenge: str) -> tuple[str, ...]:
    """Return the scopes that a `WWW-Authenticate` demands."""
    scope_parameter = _CHALLENGED_SCOPE.search(challenge)
    scopes = scope_parameter[1].split() if scope_parameter else []
    return tuple(scope for scope in scopes if len(scope) <= _MAX_SCOPE_LENGTH)[:_MAX_SCOPES]


async def register(
    fetch: FetchJSON, server: AuthorizationServer, client: OAuthClient, redirect_uri: str, scopes: Iterable[str]
) -> OAuthClient:
    """Register a client at the server (RFC 7591), and return it with its id.

    Raises:
        CallError: the server does not register clients, or rejects this one.
    """
    if not server.registration_url:
        message = "the authorization server does not register clients: set client_id to that of a client it knows"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)
    is_public = not server.token_auth_methods or "none" in server.token_auth_methods
    fields = {
        "client_name": "opwire",
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none" if is_public else "client_secret_basic",
        "scope": " ".join(scopes),
    }
    body = msgspec.json.encode({name: value for name, value in fields.items() if value})
    headers = [("Accept", "application/json"), ("Content-Type", "application/json")]
    request = HTTPRequest(method="POST", url=server.registration_url, headers=headers, body=body)
    try:
        answer = as_dict(await fetch(request))
    except CallError as error:
        message = f"the registration as a client failed: {error.message}"
        raise CallError(error.code, message, error.details, retryable=error.retryable) from error
    client_id, secret = _text(answer, "client_id"), _text(answer, "client_secret")
    if not client_id:
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the response to the registration as a client has no client_id")
    auth = "body" if _text(answer, "token_endpoint_auth_method") == "client_secret_post" else "basic"
    return replace(client, client_id=client_id, client_secret=secret or None, auth=auth)


async def _first(fetch: FetchJSON, urls: Iterable[str]) -> Mapping[str, Any] | None:
    """Return the first document that exists. A server that fails is not one without a document."""
    for url in urls:
        try:
            return as_dict(await fetch(_get(url)))
        except CallError as error:
            status: int = as_dict(error.details).get("status", 0)
            if error.code is not ErrorCode.PROTOCOL_ERROR and not (300 <= status < 500 and status != 429):
                raise
    return None


def _get(url: str) -> HTTPRequest:
    return HTTPRequest(method="GET", url=url, headers=[("Accept", "application/json")])


def _same_origin(url: str, other_url: str) -> bool:
    try:
        return origin_of(url) == origin_of(other_url)
    except ValueError:
        return False


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) and len(value) <= _MAX_URL_LENGTH and value.isprintable() else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in as_list(value) if isinstance(text, str) and len(text) <= _MAX_URL_LENGTH)
