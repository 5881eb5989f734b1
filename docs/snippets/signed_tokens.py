import asyncio
import time

import jwt
from opwire.auth import JWTs

SECRET = (
    "a secret of at least thirty-two bytes"  # with RS256 and the like, a public key
)


async def main() -> None:
    tokens = JWTs(
        key=SECRET, algorithms=["HS256"], audience="opwire", issuer="https://id.example"
    )
    claims = {
        "sub": "ada",
        "scope": "shop:read shop:write",
        "aud": "opwire",
        "iss": "https://id.example",
    }
    token = jwt.encode({**claims, "exp": time.time() + 60}, SECRET, "HS256")
    # `serve_http(registry, authenticate=tokens)` does this for every request.
    grant = await tokens.authenticate(token)
    print(grant.identity.id, grant.identity.scopes)


asyncio.run(main())
