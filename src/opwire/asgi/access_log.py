"""Middleware that writes a line of the access log for each request."""

import logging
from collections.abc import MutableMapping
from typing import Any

from opwire.asgi.problem import Send
from opwire.asgi.request import ADMITTED, App, Receive, Scope
from opwire.observe.logs import OK, AccessEntry, SurfaceName
from opwire.observe.logs import logger as access_logger


class AccessLog:
    """Write a line for each request to the surface "http".

    On others a request may be less or more than a call: they log calls themselves, and only rejected requests are
    logged here.
    """

    def __init__(self, app: App, surface: SurfaceName) -> None:
        self._app = app
        self._surface: SurfaceName = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and log it."""
        if not access_logger.isEnabledFor(logging.INFO):
            return await self._app(scope, receive, send)
        request = scope[ADMITTED]
        entry = request.access = AccessEntry(self._surface)
        entry.path = scope["path"]

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            else:
                entry.bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            entry.identity = None if request.identity is None else request.identity.id
            if self._surface == "http" or entry.outcome != OK:
                entry.write()
