"""The guard in front of every HTTP surface: middleware for authentication, host and origin checks, and limits.

Rules: a rejected request never reaches the surface. Each check is one middleware, in the order of `RequestGuard`.
"""

from collections.abc import Iterable, MutableMapping
from typing import Any, TypedDict

from opwire.asgi.access_log import AccessLog
from opwire.asgi.bodies import MAX_BODY_BYTES, Bodies, ClientDisconnectedError
from opwire.asgi.credentials import Credentials, SessionLookup, overloaded
from opwire.asgi.headers import CLOSE, UPGRADE, HeaderChecks
from opwire.asgi.problem import HTTPStatusError, Send, send_problem
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope
from opwire.asgi.resource import PublishedResource
from opwire.auth.tokens import Authenticator
from opwire.errors import CallError, check_above_zero, check_counts, check_instance, check_list
from opwire.model.identity import Identity
from opwire.observe.logs import SurfaceName


class GuardOptions(TypedDict, total=False):
    """The options of `RequestGuard`, which every surface takes and passes on."""

    authenticate: Authenticator | None
    anonymous: Identity | None
    hosts: Iterable[str] | None
    origins: Iterable[str]
    max_body: int
    max_headers: int
    max_requests: int
    body_timeout: float
    challenge: str


class RequestGuard:
    """ASGI middleware that authenticates requests and enforces limits; a rejected request gets a problem response.

    `authenticate` checks tokens, sent as `Authorization: Bearer …` or `X-API-Key: …`; an invalid one is rejected.
    Requests without a token get the identity `anonymous`; by default they have none, and may call public operations
    only. `challenge` is the `WWW-Authenticate` of a 401. `session` looks up what requests without a token may do. If
    `authenticate` is an `OAuthTokens`, its metadata is published at `/.well-known/oauth-protected-resource`, followed
    by the path of the resource, and below the path that the app is mounted at; a 401 or 403 names the URL.

    `hosts` are the accepted host names: "tools.example", "*.tools.example", "tools.example:8000", or "*" for any. The
    default are the loopback names with any port, so that a web page cannot reach a local server through a host name of
    its own (DNS rebinding). `origins` are the origins of other hosts that may call, as "https://shop.example", or "*".
    Requests from other pages are rejected, whether they fetch, submit a form, link to this server or embed it as an
    image: browsers send `Origin`, `Sec-Fetch-Site` or `Referer`.

    `max_body` and `max_headers` are in bytes. What takes longest to parse in a body is limited (`check_density`). The
    bodies of open requests with more than 64 KiB may take 256 MiB, or four times `max_body`. `max_requests` bounds
    concurrent requests, open streams included, and `body_timeout` is the timeout for receiving a body, in seconds. With
    `authenticate`, all requests without a token share half of `max_requests` and of the memory for bodies, one identity
    gets at most half, and tokens that were not seen before are checked in a quarter of `max_requests`, so that they
    cannot lock each other out.

    The access log gets a line for each request to the surface "http". On others a request may be less or more than a
    call: they log calls themselves, and the guard only the requests that it or the app rejects.

    Raises:
        UsageError: a number is not above zero, or another option is invalid.
    """

    def __init__(
        self,
        app: App,
        *,
        surface: SurfaceName = "http",
        authenticate: Authenticator | None = None,
        anonymous: Identity | None = None,
        hosts: Iterable[str] | None = None,
        origins: Iterable[str] = (),
        max_body: int = MAX_BODY_BYTES,
        max_headers: int = 32 * 1024,
        max_requests: int = 1_000,
        body_timeout: float = 30,
        challenge: str = "Bearer",
        session: SessionLookup | None = None,
    ) -> None:
        check_counts(max_body=max_body, max_headers=max_headers, max_requests=max_requests)
        check_above_zero(body_timeout=body_timeout)
        check_list("names", hosts=hosts, origins=origins)
        check_instance(Authenticator, authenticate=authenticate)
        check_instance(Identity, anonymous=anonymous)
        self._app = app
        checked: App = Bodies(app, max_bytes=max_body, timeout=body_timeout, shares=authenticate is not None)
        checked = Credentials(
            checked,
            authenticate=authenticate,
            anonymous=anonymous,
            challenge=challenge,
            session=session,
            max_requests=max_requests,
        )
        checked = HeaderChecks(checked, hosts=hosts, origins=origins, max_bytes=max_headers)
        checked = Problems(OpenRequests(checked, max_requests))
        metadata = getattr(authenticate, "protected_resource", None)
        if metadata is not None:
            checked = PublishedResource(checked, metadata)
        self._checked = AccessLog(CloseAfterUpgrade(checked), surface)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or reject a request. Other events, such as the server's lifespan, pass."""
        if scope["type"] == "http":
            scope[ADMITTED] = AdmittedRequest.of(scope)
            await self._checked(scope, receive, send)
        elif scope["type"] == "websocket":  # unsupported, and a browser opens one to any host
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)


class CloseAfterUpgrade:
    """End the connection after the response to a request that asks for another protocol.

    httptools reads no body of such a request, and would take it for the next one: request smuggling behind a proxy that
    passes `Upgrade` on, as those do that are configured for WebSockets.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def send_and_close(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [line for line in message["headers"] if line[0] != CLOSE[0]] + [CLOSE]
            await send(message)

        is_upgrade = any(name == UPGRADE for name, _ in scope.get("headers", ()))
        await self._app(scope, receive, send_and_close if is_upgrade else send)


class Problems:
    """Send a problem response for a request that is rejected, by a check or by the app."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        try:
            await self._app(scope, receive, send)
        except ClientDisconnectedError:
            return
        except (HTTPStatusError, CallError) as error:
            request: AdmittedRequest = scope[ADMITTED]
            await send_problem(send, error, access=request.access, with_body=request.method != "HEAD")


class OpenRequests:
    """Limit the number of requests that are served at the same time."""

    def __init__(self, app: App, max_requests: int) -> None:
        self._app = app
        self._max_requests = max_requests
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request.

        Raises:
            CallError: UNAVAILABLE, too many are open.
        """
        if self._open >= self._max_requests:
            raise overloaded(self._max_requests)
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
