"""Credentials: which ones a document demands, where they go, and where they never go.

- The first alternative with complete credentials is used. Without one, the request is sent unauthenticated: the
  document may be wrong, so the API decides, and `missing` explains a rejection.
- A request has one secret per place. Schemes of one alternative that share a place, as Google's `Oauth2` and `Oauth2c`
  share the Authorization header, are satisfied by either; the secret overrides what the input sends there.
- Credentials go to the caller's `base_url`, if that is given; a client secret goes to the token endpoint of a document
  only within the same origin.
- They never appear in a message, a repr or a log.

Tokens of OAuth clients are requested or refreshed by `opwire.auth.oauth`. The login of a person is a credential like
any other: without one, it is missing.
"""

import hmac
import inspect
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from opwire.auth.oauth.discovery import AuthorizationServer, discover, discover_openid
from opwire.auth.oauth.login import LoginTokens, sign_in
from opwire.auth.oauth.store import LoginKey, TokenStore
from opwire.auth.oauth.tokens import FetchJSON, OAuthClient, Subject, TokenCache, is_secure, read_client, subject_of
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.http.client import HTTPRequest
from opwire.model.context import Context
from opwire.model.login import LoginOptions
from opwire.openapi.client.document import DocumentSet, as_text, as_texts
from opwire.openapi.client.endpoints import HTTPEndpoint
from opwire.openapi.client.plan import (
    CallPlan,
    SecretPlace,
    SecurityRequirement,
    SecurityScheme,
    header_name,
    header_value,
)
from opwire.openapi.client.request import base_url_of
from opwire.openapi.client.serialize import encode
from opwire.registry.source import Report
from opwire.runtime.bounded import BoundedDict
from opwire.schema.dialect import escaped
from opwire.typed.plain import as_dict, as_list

_MAX_SCHEMES_PER_ALTERNATIVE = 100  # all operations may share it
_MAX_CACHED_SERVERS = 100  # and logins in use: a callback may name any number
_COOKIE = re.compile(r"[\x20-\x3a\x3c-\x7e]*")


# --- AWS Signature Version 4: the key is not sent ------------------------------------------------------------------

_ALGORITHM = "AWS4-HMAC-SHA256"


class AWSCredentials(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The credentials of an AWS account, for schemes with `awsSigv4`. The repr omits the secrets."""

    access_key: str
    secret_key: str
    region: str
    service: str  # as in signatures: "s3", "execute-api"
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"<AWSCredentials {self.access_key}>"


def read_aws_credentials(credentials: Any) -> AWSCredentials | None:
    """Return the credentials of an AWS account, or None if this is another kind of credential.

    Raises:
        ValueError: fields are missing or invalid; the message names fields and types, and no values.
    """
    if isinstance(credentials, Mapping) and "access_key" in credentials:
        try:
            return msgspec.convert(credentials, AWSCredentials)
        except msgspec.ValidationError as error:
            raise ValueError(f"expected AWS credentials: {error}") from None
    return credentials if isinstance(credentials, AWSCredentials) else None


def aws_signed(request: HTTPRequest, credentials: AWSCredentials, now: float) -> HTTPRequest:
    """Return the request with a signature over its method, URL, body and host. `now` is a Unix time.

    No I/O, no clock.
    """
    url = URL(request.url, encoded=True)
    time = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = sha256(request.body or b"").hexdigest()
    signed_headers = {"x-amz-date": time}
    if credentials.service == "s3":
        signed_headers["x-amz-content-sha256"] = digest
    if credentials.session_token is not None:
        signed_headers["x-amz-security-token"] = credentials.session_token
    others = [pair for pair in request.headers if pair[0].lower() not in (*signed_headers, "authorization", "host")]
    covered = {"host": url.host_port_subcomponent or "", **signed_headers}
    for name, value in others:
        if name.lower() == "content-type" or name.lower().startswith("x-amz-"):
            covered[name.lower()] = " ".join(value.split())
    names = ";".join(sorted(covered))
    path = url.raw_path or "/"
    query = [pair.partition("=")[::2] for pair in url.raw_query_string.split("&") if pair]
    fields = sorted(tuple(quote(unquote(part), safe="-_.~") for part in pair) for pair in query)
    canonical = "\n".join(
        [
            request.method,
            path if credentials.service == "s3" else quote(path, safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in fields),
            *(f"{name}:{covered[name]}" for name in sorted(covered)),
            "",
            names,
            digest,
        ]
    )
    scope = f"{time[:8]}/{credentials.region}/{credentials.service}/aws4_request"
    text = "\n".join([_ALGORITHM, time, scope, sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    proof = f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return replace(
        request,
        headers=[*others, *signed_headers.items(), ("Authorization", proof)],
        secret_headers=request.secret_headers | {"authorization", "x-amz-security-token"},
    )


StaticCredential = str | tuple[str, str] | OAuthClient | AWSCredentials | Mapping[str, Any]
"""A key or token; user and password; an OAuth client or an AWS account, or its fields: `{"client_id": …}`."""

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


class _LoginToken(NamedTuple):
    """The access token of a person's login."""

    text: str


class _Exchange(NamedTuple):
    """A client, and the caller for which it requests a token."""

    client: OAuthClient
    subject: Subject


class APICredentials:
    """Credentials by the names of the document's security schemes.

        APICredentials({"api_key": "…", "basic": ("user", "password"), "login": lambda context: token_for(context)})

    A callback that returns None has no credential for this call. A string with a space is a complete header value.
    `caller_token` as a callback passes the token of each caller on; an OAuth client with `exchange` exchanges it.
    """

    def __init__(
        self,
        credentials: GivenCredentials | None = None,
        fetch: FetchJSON | None = None,
        store: TokenStore | None = None,
    ) -> None:
        self._given: Any = credentials or {}
        self._fetch: Any = fetch
        self._tokens = None if fetch is None else TokenCache(fetch)
        self._store = store or TokenStore()
        self._servers: BoundedDict[str, AuthorizationServer] = BoundedDict(_MAX_CACHED_SERVERS)
        self._logins: BoundedDict[LoginKey, LoginTokens] = BoundedDict(_MAX_CACHED_SERVERS)

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
        secrets_by_scheme: dict[str, Any] = {}
        for alternative in plan.security:
            chosen_requirements: list[SecurityRequirement] = []
            for choices in _by_place(alternative):
                for requirement in choices:
                    name = requirement.scheme.name
                    if name not in secrets_by_scheme:
                        secrets_by_scheme[name] = await self._find(plan, name, context, offline)
                    if secrets_by_scheme[name] is not None:
                        chosen_requirements.append(requirement)
                        break
                else:
                    break
            else:
                if chosen_requirements:
                    return await self._proven(
                        plan,
                        request,
                        [
                            (requirement, secrets_by_scheme[requirement.scheme.name])
                            for requirement in chosen_requirements
                        ],
                        offline,
                    )
        return request

    def reject(self, request: HTTPRequest) -> bool:
        """Record a 401 to a request from `apply`, and return whether its token can be refreshed.

        If so, `apply` to the request without credentials once more.
        """
        if request.token is None or self._tokens is None:
            return False
        self._tokens.forget(request.token)
        for login in self._logins.values():
            login.reject(request.token)
        return True

    def missing(self, plan: CallPlan, request: HTTPRequest | None = None) -> str:
        """Return a hint for a 401 or 403 to a request: the missing credentials, and how to give them; or ""."""
        alternatives = [
            [[requirement.scheme.name for requirement in choices] for choices in _by_place(alternative)]
            for alternative in plan.security
        ]
        if not all(alternatives) or not alternatives or callable(self._given):
            return ""
        if any(
            all(any(name in self._given for name in names) for names in alternative) for alternative in alternatives
        ):
            names = [name for alternative in alternatives for names in alternative for name in names]
            logins = [name for name in names if self._is_login(name) and not (request and request.secret_headers)]
            return f"Not signed in as {logins[0]!r}: use `opwire login`, or login() of the source." if logins else ""
        choices = [[" or ".join(map(repr, names)) for names in alternative] for alternative in alternatives]
        missing_alternatives = [
            " and ".join(
                f"({choice})" if " or " in choice and len(required_choices) > 1 else choice
                for choice in required_choices
            )
            for required_choices in choices
        ]
        keys = " or ".join(dict.fromkeys(missing_alternatives))  # Google repeats the same schemes for each scope
        return f"Required credentials are missing: pass credentials={{…}} with the key {keys}."

    async def close(self) -> None:
        """End the token requests in flight."""
        for login in self._logins.values():
            await login.close()
        if self._tokens is not None:
            await self._tokens.close()

    # --- logins -------------------------------------------------------------------------------------------------------

    async def login(self, plan: CallPlan, requirement: SecurityRequirement, options: LoginOptions) -> bool:
        """Sign in for a scheme with these scopes, and store the login; return False if its credential is not a login.

        Raises:
            CallError: as `sign_in`; EXECUTION_ERROR, the endpoints of the document cannot be used.
        """
        scheme = requirement.scheme
        if not self._is_login(scheme.name):
            return False
        try:
            client = read_client(self._given[scheme.name])
            server = await self._server(plan, scheme, client)
            scopes = requirement.scopes if client.scopes is None else client.scopes
            key = _login_key(plan, scheme.name, client)
            if not is_secure(key.resource):
                raise ValueError("the API is not https: a token for it could be read on its way")
            login = await sign_in(self._fetch, key, server, client, options, scopes=scopes)
        except ValueError as error:
            raise _unusable(plan, scheme.name, str(error)) from error
        async with self._store.lock(key):
            await self._store.write(login)
        self._logins.pop(key, None)
        return True

    async def logout(self, plan: CallPlan, name: str) -> bool:
        """Delete the login for a scheme, and revoke it; return whether there was one."""
        if not self._is_login(name):
            return False
        return await self._login_tokens(_login_key(plan, name, read_client(self._given[name]))).sign_out()

    def _is_login(self, name: str) -> bool:
        return not callable(self._given) and _has_option(self._given.get(name), "login")

    def _login_tokens(self, key: LoginKey) -> LoginTokens:
        if key not in self._logins:
            self._logins[key] = LoginTokens(self._fetch, self._store, key)
        return self._logins[key]

    async def _server(self, plan: CallPlan, scheme: SecurityScheme, client: OAuthClient) -> AuthorizationServer:
        """Return the authorization server of a scheme: that of the client, else that of the document."""
        if client.issuer is None and not scheme.metadata_url:
            names = ("authorization_url", "token_url", "device_url", "refresh_url")
            client_settings = {name for name in names if getattr(client, name, None) is not None}
            # A refresh token goes where it came from.
            names = [
                setting
                for setting in names
                if setting not in client_settings and not (setting == "refresh_url" and "token_url" in client_settings)
            ]
            urls: dict[str, Any] = {name: _resolved(plan, getattr(scheme.server, name), name) for name in names}
            return AuthorizationServer(**urls).with_client(client)
        url = _resolved(plan, scheme.metadata_url, "issuer") if client.issuer is None else client.issuer
        if url not in self._servers:
            find = discover_openid if client.issuer is None else discover
            self._servers[url] = await find(self._fetch, url)
        return self._servers[url].with_client(client)

    # --- credentials --------------------------------------------------------------------------------------------------

    async def _find(self, plan: CallPlan, name: str, context: Context, offline: bool) -> Any:
        """Return the credential of a scheme; of a login its token, or None without a login."""
        try:
            if callable(self._given):
                credential = self._given(name, context)
            else:
                credential = self._given.get(name)
                credential = credential(context) if callable(credential) else credential
            credential = await credential if inspect.isawaitable(credential) else credential
        except CallError:
            raise
        except Exception as error:
            raise _unusable(plan, name, "its callback failed") from error
        if self._fetch is None or not (_has_option(credential, "login") or _has_option(credential, "exchange")):
            return credential
        if offline:
            return _LoginToken("***")
        try:
            client = read_client(credential)
        except ValueError as error:
            raise _unusable(plan, name, str(error)) from error
        if client.exchange:
            return _Exchange(client, subject_of(client, context))
        token = await self._login_tokens(_login_key(plan, name, client)).get()
        return None if token is None else _LoginToken(token)

    async def _proven(
        self, plan: CallPlan, request: HTTPRequest, requirements: list[tuple[SecurityRequirement, Any]], offline: bool
    ) -> HTTPRequest:
        """Return the request with these credentials; signatures come last, since they cover the rest."""
        secrets: list[_Secret] = []
        signer: AWSCredentials | None = None
        for requirement, credential in requirements:
            try:
                aws = read_aws_credentials(credential)
            except ValueError as error:
                raise _unusable(plan, requirement.scheme.name, str(error)) from error
            if aws is not None:
                signer = aws
            elif requirement.scheme.declared_as == "http digest" and isinstance(credential, tuple):
                request = replace(request, digest=cast("tuple[str, str]", credential))
            else:
                secrets.append(await self._secret(plan, requirement, credential, offline))
        # Secrets override what has the same place from the input or the server.
        headers = [(secret.name, secret.text) for secret in secrets if secret.location == "header"]
        cookies = {secret.name: secret.text for secret in secrets if secret.location == "cookie"}
        query = {secret.name: secret.text for secret in secrets if secret.location == "query"}
        if cookies:
            sent_cookies = [
                cookie for name, text in request.headers if name.lower() == "cookie" for cookie in text.split("; ")
            ]
            headers.append(("Cookie", _overridden(sent_cookies, cookies, "; ")))
        names = frozenset(name.lower() for name, _ in headers)
        address, _, fields = request.url.partition("?")
        request = replace(
            request,
            url=f"{address}?{_overridden(fields.split('&'), query, '&')}" if query else request.url,
            headers=[header for header in request.headers if header[0].lower() not in names] + headers,
            secret_headers=request.secret_headers | names,
            secret_query=request.secret_query.union(query),
            token=next((secret.token for secret in secrets if secret.token is not None), None),
        )
        return request if signer is None else aws_signed(request, signer, time.time())

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
        if isinstance(credential, _LoginToken):
            return credential.text
        subject, scheme = None, requirement.scheme
        if isinstance(credential, _Exchange):
            credential, subject = credential
        client = read_client(credential)
        if self._tokens is None:
            raise ValueError("token requests are not available")
        if offline:
            return "***"
        if client.token_url is not None:
            token_url = client.token_url
        elif client.issuer is not None or (scheme.metadata_url and not scheme.token_url):
            token_url = (await self._server(plan, scheme, client)).token_url
        else:
            token_url = _resolved(plan, scheme.token_url, "token_url")
        if not token_url:
            raise ValueError("the document has no token endpoint; set the client's token_url")
        scopes = requirement.scopes if client.scopes is None else client.scopes
        return await self._tokens.get(client, token_url, scopes, subject=subject)


def _has_option(credential: Any, option: Literal["login", "exchange"]) -> bool:
    """Return whether a credential is an OAuth client, or its fields, with this option."""
    client = isinstance(credential, OAuthClient)
    return getattr(credential, option) if client else as_dict(credential).get(option) is True


def _login_key(plan: CallPlan, name: str, client: OAuthClient) -> LoginKey:
    return LoginKey(base_url_of(plan).origin, name, client.client_id)


def _by_place(alternative: tuple[SecurityRequirement, ...]) -> list[list[SecurityRequirement]]:
    """Return the requirements that need a credential, those of one place together: either satisfies all of them."""
    places: dict[SecretPlace, list[SecurityRequirement]] = {}
    for requirement in alternative:
        if requirement.scheme.place is not None:
            places.setdefault(requirement.scheme.place, []).append(requirement)
    return list(places.values())


def _unusable(plan: CallPlan, name: str, why: str) -> CallError:
    return CallError(ErrorCode.EXECUTION_ERROR, f"{plan.operation_id}: the credential {name!r} cannot be used: {why}")


def _resolved(plan: CallPlan, url: str, option: str) -> str:
    """Return a URL of the document as an absolute one.

    Raises:
        ValueError: its origin is not that of the caller's `base_url`, so that the document must not choose it; or it is
            not https, although the API is.
    """
    if not url:
        return ""
    origin = URL(base_url_of(plan).origin)
    resolved = origin.join(URL(url))
    where = "token endpoint" if option == "token_url" else "authorization server"
    if plan.base_url is not None and resolved.origin() != origin:
        raise ValueError(f"its {where} has another origin than base_url; set the client's {option}")
    if origin.scheme == "https" and resolved.scheme != "https":
        raise ValueError(f"its {where} is not https; set the client's {option}")
    return str(resolved)


def _overridden(pairs: Sequence[str], secrets: Mapping[str, str], separator: str) -> str:
    """Return the fields of a query or of cookies with these secrets instead of fields of the same name."""
    kept_pairs = [pair for pair in pairs if pair and pair.partition("=")[0] not in secrets]
    return separator.join([*kept_pairs, *(f"{name}={text}" for name, text in secrets.items())])


# --- the document -----------------------------------------------------------------------------------------------------


def security_requirements(
    endpoint: HTTPEndpoint, documents: DocumentSet, report: Report
) -> tuple[tuple[SecurityRequirement, ...], ...]:
    """Return the alternatives of which one has to be satisfied: the operation's own, else the document's."""
    declared_security = endpoint.operation.value.get("security", documents.main.root.get("security"))

    def alternative(declared: Any) -> tuple[SecurityRequirement, ...]:
        return tuple(
            SecurityRequirement(_scheme(name, documents, report), tuple(as_texts(scopes)))
            for name, scopes in islice(as_dict(declared).items(), _MAX_SCHEMES_PER_ALTERNATIVE)
        )

    return documents.shared("security", declared_security, lambda: tuple(map(alternative, as_list(declared_security))))


def _scheme(name: str, documents: DocumentSet, report: Report) -> SecurityScheme:
    section = "securityDefinitions" if documents.version == "2.0" else "components/securitySchemes"
    try:
        fields = as_dict(documents.follow({"$ref": f"#/{section}/{escaped(name)}"}, documents.main).value)
    except SchemaError:
        fields = {}
    if not fields:
        report.warn(f"the security scheme {name!r} is not declared")
        return SecurityScheme(name=name, kind="other", declared_as="not declared")
    kind, http = as_text(fields.get("type")), as_text(fields.get("scheme")).lower()
    match kind, fields.get("in"), http:
        case "apiKey", "header" | "query" | "cookie" as location, _:
            return SecurityScheme(name=name, kind="apiKey", location=location, parameter=as_text(fields.get("name")))
        case ("basic", _, _) | ("http", _, "basic"):  # the former in Swagger 2.0
            return SecurityScheme(name=name, kind="basic")
        case "http", _, "bearer":
            return SecurityScheme(name=name, kind="bearer")
        case "oauth2", _, _:
            # URLs stay as written: a relative one belongs to the base URL, which the caller may override.
            flows, old = as_dict(fields.get("flows")), as_text(fields.get("flow"))
            # Swagger 2.0 has one flow, and other names.
            application = fields if old == "application" else as_dict(flows.get("clientCredentials"))
            code = fields if old == "accessCode" else as_dict(flows.get("authorizationCode"))
            device = as_dict(flows.get("deviceAuthorization"))
            server = AuthorizationServer(
                authorization_url=as_text(code.get("authorizationUrl")),
                token_url=as_text(code.get("tokenUrl")) or as_text(device.get("tokenUrl")),
                device_url=as_text(device.get("deviceAuthorizationUrl")),
                refresh_url=as_text(code.get("refreshUrl")) or as_text(device.get("refreshUrl")),
            )
            return SecurityScheme(
                name=name,
                kind="oauth2",
                token_url=as_text(application.get("tokenUrl")),
                server=server,
                metadata_url=as_text(fields.get("oauth2MetadataUrl")),
            )
        case "openIdConnect", _, _:
            return SecurityScheme(name=name, kind="openIdConnect", metadata_url=as_text(fields.get("openIdConnectUrl")))
        case _:
            return SecurityScheme(name=name, kind="other", declared_as=f"{kind} {http}".strip() or "of no type")
