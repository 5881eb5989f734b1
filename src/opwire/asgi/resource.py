"""Middleware that publishes the metadata of a protected resource (RFC 9728), and names its URL in challenges."""

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from opwire.asgi.problem import SCOPES, Header, Send
from opwire.asgi.request import ADMITTED, App, Receive, Scope
from opwire.auth.tokens import WELL_KNOWN_RESOURCE, ResourceMetadata


class PublishedResource:
    """Publish where clients get tokens for an app."""

    def __init__(self, app: App, metadata: ResourceMetadata) -> None:
        self._app = app
        resource_url = urlsplit(metadata.resource)
        self._origin = f"{resource_url.scheme}://{resource_url.netloc}"
        self._path = WELL_KNOWN_RESOURCE + resource_url.path.rstrip("/")
        self._document = msgspec.json.encode(metadata.document)
        scopes = " ".join(metadata.required_scopes)
        self._scope = f', scope="{scopes}"' if SCOPES.fullmatch(scopes) else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the metadata: to any host name, because it is public and names its own; or serve a request."""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if path in (self._path, root + WELL_KNOWN_RESOURCE):
            await self._send_metadata(scope["method"], send)
            return
        scope[ADMITTED].offers_oauth = True
        await self._app(scope, receive, self._challenging(root, send))

    async def _send_metadata(self, method: str, send: Send) -> None:
        """Send the metadata; pages of any origin may read it."""
        headers: list[Header] = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"max-age=3600"),
            (b"access-control-allow-origin", b"*"),
            (b"allow", b"GET, HEAD, OPTIONS"),
        ]
        status, body = (200, self._document) if method in ("GET", "HEAD") else (405, b"")
        if method == "OPTIONS":
            status = 204
            headers.append((b"access-control-allow-headers", b"*"))
        else:
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    def _challenging(self, root: str, send: Send) -> Send:
        """Return `send` with the URL of the metadata in each challenge.

        An app that is mounted below a path does not get requests for the well-known path of the origin.
        """
        mounted = quote(root.rstrip("/"), safe="/~")
        metadata_url = self._origin + (mounted + WELL_KNOWN_RESOURCE if mounted else self._path)

        async def send_challenge(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] in (401, 403):
                message["headers"] = [self._with_url(header, metadata_url) for header in message["headers"]]
            await send(message)

        return send_challenge

    def _with_url(self, header: Header, metadata_url: str) -> Header:
        name, challenge = header
        if name != b"www-authenticate" or not challenge.startswith(b"Bearer"):
            return header
        parameters = challenge.decode("latin-1").removeprefix("Bearer").strip()
        scope = "" if "scope=" in parameters else self._scope
        more = f", {parameters}" if parameters else ""
        return name, f'Bearer resource_metadata="{metadata_url}"{scope}{more}'.encode("latin-1")
