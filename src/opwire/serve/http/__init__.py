"""A registry as an HTTP API with an OpenAPI document. Needs `pip install 'opwire[http]'`.

    app = serve_http(registry, title="Shop", version="1.0", authenticate=StaticTokens({...}))
    await app.run(port=8000)  # or give it to any ASGI server, or mount it into Starlette or FastAPI

Every operation is called by `POST /{namespace}/{name}` with its input as JSON; a query or subscription whose input is
flat by `GET` as well. The answer is the data, or with `Accept: application/vnd.opwire.envelope+json` the envelope; of a
subscription, server-sent events. `/openapi.json` describes what the asking caller may call (`?version=3.2` for OpenAPI
3.2), `/healthz` says that the server runs, `/readyz` that it takes requests.
"""

from opwire.serve.http.app import HTTPApp, serve_http
from opwire.serve.http.responses import IsErrorPolicy

__all__ = ["HTTPApp", "IsErrorPolicy", "serve_http"]
