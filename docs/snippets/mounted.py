from opwire import Identity
from opwire.serve.http import serve_http
from opwire.serve.mcp import serve_mcp
from starlette.applications import Starlette
from starlette.routing import Mount

from shop import registry

guest = Identity(id="guest")
app = Starlette(
    routes=[
        Mount("/api", serve_http(registry, title="Shop", anonymous=guest)),
        Mount("/", serve_mcp(registry, name="shop").asgi(anonymous=guest)),  # at /mcp
    ]
)
