"""Serve the receivers of webhooks. Nothing of a webhook is parsed before it is verified."""

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.routing import Match

from opwire.asgi.app import ExactRoute, is_plain, path_in_app
from opwire.asgi.problem import Send
from opwire.asgi.request import Receive, Scope
from opwire.errors import UsageError
from opwire.model.origin import id_of, path_of
from opwire.openapi.server.request import REQUEST, Request, parse_body
from opwire.openapi.server.responses import JSON, NO_STORE, send_methods, send_response, shutting_down

if TYPE_CHECKING:
    from opwire.openapi.webhooks import WebhookReceiver


class WebhookRoute(ExactRoute):
    """The path of a receiver, and those below it, which name one of its webhooks.

    Raises:
        UsageError: the name of the receiver cannot be a part of a path.
    """

    def __init__(self, name: str, receiver: "WebhookReceiver", is_draining: Callable[[], bool]) -> None:
        path = f"/webhooks/{name}"
        if path_of(f"webhooks.{name}") != path:
            raise UsageError(f"the name of a webhook receiver has letters, digits, -, _ and ., unlike {name!r}")
        super().__init__(path, WebhookEndpoint(name, receiver, is_draining))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        is_inside = f"{path_in_app(scope)}/".startswith(f"{self.path}/")
        return (Match.FULL if is_inside and is_plain(scope) else Match.NONE), {}


class WebhookEndpoint:
    """A receiver of webhooks as an ASGI app."""

    def __init__(self, name: str, receiver: "WebhookReceiver", is_draining: Callable[[], bool]) -> None:
        self._name = name
        self._receiver = receiver
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request.

        Raises:
            CallError, HTTPStatusError: it is rejected.
        """
        from opwire.openapi.webhooks import WebhookRequest  # only who has a receiver needs that module

        request: Request = scope[REQUEST]
        if request.access is not None:
            request.access.operation = f"{self._name}.webhooks"
        if request.method != "POST":
            await send_methods(send, request, "POST")
            return
        if self._is_draining():
            raise shutting_down()
        sent = WebhookRequest(request.text_headers, request.admitted.body)
        delivery = await self._receiver.verify(sent)
        request.check_json()
        operation_id = id_of(request.path.removeprefix("/webhooks"))
        webhook = None if operation_id is None else operation_id.partition(".")[2]
        outcome = self._receiver.deliver(parse_body(sent.body), sent, delivery=delivery, webhook=webhook)
        body = b'{"status":"%s"}' % outcome.encode()
        await send_response(send, request, HTTPStatus.OK, body, [JSON, NO_STORE])
