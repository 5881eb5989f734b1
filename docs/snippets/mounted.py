from opwire import Identity
from opwire.mcp.server import serve_mcp
from opwire.openapi.server import serve_http
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
