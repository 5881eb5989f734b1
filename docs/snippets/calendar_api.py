"""Stands for an API and its authorization server, which consents to everything."""

import secrets
from base64 import urlsafe_b64encode
from hashlib import sha256
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

codes: dict[str, str] = {}  # with the challenge of each
tokens: set[str] = set()


async def authorize(request: Request) -> Response:
    code = secrets.token_urlsafe()
    codes[code] = request.query_params["code_challenge"]
    answer = urlencode({"code": code, "state": request.query_params["state"]})
    return RedirectResponse(f"{request.query_params['redirect_uri']}?{answer}")


async def token(request: Request) -> Response:
    form = await request.form()
    digest = sha256(str(form["code_verifier"]).encode()).digest()
    challenge = urlsafe_b64encode(digest).decode().rstrip("=")
    if codes.pop(str(form["code"]), None) != challenge:
        return JSONResponse({"error": "invalid_grant"}, status_code=400)
    tokens.add(access := secrets.token_urlsafe())
    return JSONResponse(
        {"access_token": access, "token_type": "Bearer", "expires_in": 3600}
    )


async def events(request: Request) -> Response:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if given not in tokens:
        return JSONResponse({"error": "sign in first"}, status_code=401)
    return JSONResponse(["lunch", "tea"])


app = Starlette(
    routes=[
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
        Route("/events", events),
    ]
)
