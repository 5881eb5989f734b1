import asyncio
import os

from opwire import Identity
from opwire.auth import StaticTokens
from opwire.openapi.server import serve_http

from shop import registry

if __name__ == "__main__":
    tokens = StaticTokens({os.environ["SHOP_TOKEN"]: Identity(id="ada", scopes=("*",))})
    app = serve_http(registry, title="Shop", authenticate=tokens)
    asyncio.run(app.run(port=int(os.environ.get("PORT", "8080"))))
