"""A real authorization server on loopback, with an API beside it: RFC 6749, 7636, 7591, 7662, 8414, 8628, 8693,
and RFC 8707, 9207, 9728.

It is strict: codes and refresh tokens are used once, and a refresh token that is used twice revokes its login. `browse`
is a browser in which a person consents at once.
"""

import json
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import aiohttp
from aiohttp import web

DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


class AuthorizationServer:
    """The server. Attributes change what it does; `tokens` are the valid access tokens with their logins."""

    def __init__(self) -> None:
        self.clients: dict[str, str | None] = {"cli": None, "robot": "s3cret"}
        self.codes: dict[str, dict[str, str]] = {}
        self.refreshes: dict[str, int] = {}  # refresh token -> login
        self.used: dict[str, int] = {}  # refresh tokens that were used
        self.tokens: dict[str, int] = {}
        self.logins = 0
        self.lifetime: int | None = 3600
        self.metadata_changes: dict[str, Any] = {}
        self.resource_changes: dict[str, Any] = {}
        self.response_changes: dict[str, str | None] = {}
        self.device_answers: list[str] = []  # errors before the tokens
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.api_headers: list[dict[str, str]] = []
        self.on_token: Callable[[], Any] | None = None
        self.revoked: list[str] = []
        self.mcp_server = ""  # what is behind /mcp
        self.demanded_scope = ""  # by /mcp
        self.subjects: dict[str, str] = {}  # tokens of callers that may be exchanged, and their names
        self.names: dict[str, str] = {}  # of the callers of exchanged tokens
        self.keys: list[dict[str, Any]] = []  # that are published
        self.sign: Callable[[dict[str, Any]], str] | None = None  # access tokens are JWTs
        self.introspections: dict[str, dict[str, Any]] = {}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(
            [
                web.get("/.well-known/oauth-authorization-server", self._metadata),
                web.get("/.well-known/openid-configuration", self._metadata),
                web.get("/.well-known/oauth-protected-resource/mcp", self._resource),
                web.get("/authorize", self._authorize),
                web.post("/token", self._token),
                web.post("/device", self._device),
                web.post("/register", self._register),
                web.post("/revoke", self._revoke),
                web.get("/jwks", self._jwks),
                web.post("/introspect", self._introspect),
                web.get("/me", self._me),
                web.route("*", "/mcp", self._mcp),
            ]
        )
        self.app = app
        self._runner = web.AppRunner(app, handler_cancellation=True)  # a stream of /mcp ends with its client
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def form(self, endpoint: str) -> dict[str, str]:
        """The last form or query that came to an endpoint."""
        return next(fields for path, fields in reversed(self.requests) if path == endpoint)

    def count(self, endpoint: str) -> int:
        """How often an endpoint was asked."""
        return sum(path == endpoint for path, _ in self.requests)

    async def _metadata(self, _: web.Request) -> web.Response:
        metadata = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "introspection_endpoint": f"{self.url}/introspect",
            "jwks_uri": f"{self.url}/jwks",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }
        changed = metadata | self.metadata_changes
        return web.json_response({name: value for name, value in changed.items() if value is not None})

    async def _resource(self, _: web.Request) -> web.Response:
        metadata = {"resource": f"{self.url}/mcp", "authorization_servers": [self.url], "scopes_supported": ["tools"]}
        return web.json_response(metadata | self.resource_changes)

    async def _authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.requests.append(("/authorize", query))
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        assert query["client_id"] in self.clients
        code = secrets.token_urlsafe()
        self.codes[code] = query
        answer = {"code": code, "state": query["state"], "iss": self.url} | self.response_changes
        fields = urlencode({name: value for name, value in answer.items() if value is not None})
        raise web.HTTPFound(f"{query['redirect_uri']}?{fields}")

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: values[0] for name, values in parse_qs((await request.read()).decode()).items()}
        self.requests.append(("/token", form))
        if self.on_token is not None:
            await self.on_token()
        if not self._knows(request, form):
            return _error("invalid_client", 401)
        match form["grant_type"]:
            case "authorization_code":
                asked = self.codes.pop(form["code"], {})
                challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
                same = [
                    asked.get("code_challenge") == challenge,
                    asked.get("redirect_uri") == form["redirect_uri"],
                    asked.get("resource") == form.get("resource"),
                ]
                resource = asked.get("resource", "")
                return self._issue(asked.get("scope", ""), resource=resource) if all(same) else _error("invalid_grant")
            case "refresh_token":
                return self._refresh(form["refresh_token"])
            case "client_credentials":
                return self._issue(form.get("scope", ""), refresh=False, resource=form.get("resource", ""))
            case grant if grant == EXCHANGE and form["subject_token"] in self.subjects:
                kind = "jwt" if form["subject_token"].startswith("assertion-") else "access_token"
                assert form["subject_token_type"] == f"urn:ietf:params:oauth:token-type:{kind}"
                response = self._issue(form.get("scope", ""), refresh=False)
                self.names[next(reversed(self.tokens))] = self.subjects[form["subject_token"]]
                return response
            case grant if grant == EXCHANGE:
                return _error("invalid_request")
            case grant if grant == DEVICE and form["device_code"] == "device-1":
                if self.device_answers:
                    answer = self.device_answers.pop(0)
                    return web.Response(status=503) if answer == "503" else _error(answer)
                return self._issue("")
            case _:
                return _error("unsupported_grant_type")

    def _knows(self, request: web.Request, form: dict[str, str]) -> bool:
        given = request.headers.get("Authorization", "")
        if given.startswith("Basic "):
            client, _, secret = map(unquote, b64decode(given.removeprefix("Basic ")).decode().partition(":"))
            return self.clients.get(client) == secret
        return form.get("client_id") in self.clients and self.clients[form["client_id"]] == form.get("client_secret")

    def _refresh(self, token: str) -> web.Response:
        if token in self.used:  # stolen: the whole login ends
            login = self.used[token]
            self.tokens = {each: other for each, other in self.tokens.items() if other != login}
            self.refreshes = {each: other for each, other in self.refreshes.items() if other != login}
        if token not in self.refreshes:
            return _error("invalid_grant")
        self.used[token] = login = self.refreshes.pop(token)
        return self._issue("", login)

    def _issue(self, scope: str, login: int | None = None, *, refresh: bool = True, resource: str = "") -> web.Response:
        if login is None:
            self.logins += 1
            login = self.logins
        claims = {"sub": "ada", "iss": self.url, "aud": resource, "scope": scope}
        access = secrets.token_urlsafe() if self.sign is None else self.sign(claims)
        self.tokens[access] = login
        self.introspections[access] = {"active": True, **claims}
        answer: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "scope": scope}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if refresh:
            answer["refresh_token"] = secrets.token_urlsafe()
            self.refreshes[answer["refresh_token"]] = login
        return web.json_response(answer, headers={"Cache-Control": "no-store"})

    async def _device(self, request: web.Request) -> web.Response:
        self.requests.append(("/device", {name: str(value) for name, value in (await request.post()).items()}))
        return web.json_response(
            {
                "device_code": "device-1",
                "user_code": "WDJB-MJHT",
                "verification_uri": f"{self.url}/enter",
                "expires_in": 600,
                "interval": 2,
            }
        )

    async def _register(self, request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        self.requests.append(("/register", asked))
        client_id = f"registered-{len(self.clients)}"
        self.clients[client_id] = None
        return web.json_response({**asked, "client_id": client_id}, status=201)

    async def _revoke(self, request: web.Request) -> web.Response:
        self.revoked.append(str((await request.post())["token"]))
        return web.Response()

    async def _jwks(self, _: web.Request) -> web.Response:
        self.requests.append(("/jwks", {}))
        return web.json_response({"keys": self.keys})

    async def _introspect(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.requests.append(("/introspect", form))
        if not self._knows(request, form):
            return _error("invalid_client", 401)
        return web.json_response(self.introspections.get(form["token"], {"active": False}))

    async def _me(self, request: web.Request) -> web.Response:
        self.api_headers.append(dict(request.headers))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return web.json_response({"detail": "unknown token"}, status=401)
        named = {"name": self.names[token]} if token in self.names else {}
        return web.json_response({"login": self.tokens[token], **named})

    async def _mcp(self, request: web.Request) -> web.StreamResponse:
        """An MCP server behind a proxy that checks tokens."""
        self.api_headers.append(dict(request.headers))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            place = f"{self.url}/.well-known/oauth-protected-resource/mcp"
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{place}"'})
        if self.demanded_scope:
            challenge = f'Bearer error="insufficient_scope", scope="{self.demanded_scope}"'
            return web.Response(status=403, headers={"WWW-Authenticate": challenge})
        kept = {name: value for name, value in request.headers.items() if name not in ("Host", "Authorization")}
        kept["x-name"] = self.names.get(token, "")
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self.mcp_server, data=await request.read(), headers=kept, allow_redirects=False
            ) as answer,
        ):
            names = ("Content-Type", "Mcp-Session-Id")
            headers = {name: answer.headers[name] for name in names if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response


def _error(code: str, status: int = 400) -> web.Response:
    return web.json_response({"error": code, "error_description": "s3cret"}, status=status)


async def redirect_of(url: str) -> str:
    """Sign in at an authorization URL; return where the browser would go then."""
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as response:
        return response.headers["Location"]


async def get(url: str, **headers: str) -> int:
    """Return the status of a URL."""
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        await response.read()
        return response.status


async def browse(prompt: Any) -> None:
    """Sign in with a browser."""
    assert urlsplit(prompt.url).path == "/authorize"
    assert await get(await redirect_of(prompt.url)) == 200
