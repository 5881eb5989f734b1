"""Serve a registry as an HTTP API with an OpenAPI document. Needs `pip install 'opwire[http]'`.

    app = serve_http(registry, title="Shop", version="1.0", authenticate=StaticTokens({...}))
    await app.run(port=8000)  # or pass it to any ASGI server, or mount it into Starlette or FastAPI

Call an operation by `POST /{namespace}/{name}` with its input as JSON; a query or subscription also by `GET`, if a
query string can express its input. The response is the data, or with `Accept: application/vnd.opwire.envelope+json` the
envelope; of a subscription, a stream of server-sent events. `/openapi.json` describes the operations that the caller
may call (`?version=3.2` for OpenAPI 3.2), `/healthz` returns whether the server runs, `/readyz` whether it is ready.
"""

from opwire.errors import needs_extra
from opwire.model.envelope import ToolErrorPolicy

with needs_extra("http"):
    from opwire.openapi.server.app import HTTPApp, serve_http

__all__ = ["HTTPApp", "ToolErrorPolicy", "serve_http"]
