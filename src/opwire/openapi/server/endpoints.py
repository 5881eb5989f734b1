"""What the endpoints of the HTTP API share with those of the console: the parsed request, its errors, its responses."""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus

from opwire.asgi.problem import Header, HTTPStatusError, Send
from opwire.asgi.request import ADMITTED, App, Receive, Scope
from opwire.errors import CallError, ErrorCode
from opwire.observe.logs import CANCELLED
from opwire.openapi.server.request import REQUEST, Request
from opwire.openapi.server.responses import send_error
from opwire.runtime.text import EscapingLogger

NO_STORE: Header = (b"cache-control", b"no-store")
"""Without `vary`, which would only matter to a cache."""

JSON: Header = (b"content-type", b"application/json")

_STATUSES_WITHOUT_LENGTH = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class Requests:
    """Middleware that parses each admitted request, and responds with a problem if its endpoint raises an error."""

    def __init__(self, app: App, logger: EscapingLogger, error_headers: Iterable[Header] = ()) -> None:
        self._app = app
        self._logger = logger
        self._error_headers = error_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = scope[REQUEST] = Request(scope, scope[ADMITTED])
        if request.access is not None:
            request.access.request_id = request.request_id
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server stops, and does not wait any longer
            if request.access is not None:
                request.access.outcome = CANCELLED
            raise
        except Exception as error:
            await send_error(send, request, error, self._logger, self._error_headers)


async def send_methods(send: Send, request: Request, *methods: str) -> None:
    """Respond to OPTIONS; reject another method that a path does not have.

    Raises:
        HTTPStatusError: METHOD_NOT_ALLOWED.
    """
    allow = (b"allow", ", ".join((*methods, "OPTIONS")).encode())
    if request.method != "OPTIONS":
        wrong = CallError(ErrorCode.PROTOCOL_ERROR, f"the methods of this path are {', '.join(methods)} and OPTIONS")
        raise HTTPStatusError(HTTPStatus.METHOD_NOT_ALLOWED, wrong, allow)
    await send_response(send, request, HTTPStatus.NO_CONTENT, b"", [allow])


async def send_response(send: Send, request: Request, status: int, body: bytes, headers: list[Header]) -> None:
    """Send a complete response; to HEAD without its body."""
    headers.append((b"x-content-type-options", b"nosniff"))
    headers.append((b"x-request-id", request.request_id.encode()))
    if status not in _STATUSES_WITHOUT_LENGTH:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


def shutting_down() -> CallError:
    """Return the error for streams, probes and webhooks while the server drains."""
    return CallError(ErrorCode.UNAVAILABLE, "the server is shutting down: connect again", retry_after=1)
