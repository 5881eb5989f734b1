"""The third source: an HTTP API with an OpenAPI document and a stream of server-sent events, built on Starlette."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_RATES = {"EUR": 1.0, "USD": 1.09, "JPY": 163.2}
_STEP = 0.05  # seconds between two events


async def get(request: Request) -> Response:
    """Handle `GET /rates/{currency}`."""
    currency = request.path_params["currency"]
    if currency not in _RATES:
        return JSONResponse({"error": f"unknown currency {currency}"}, status_code=404)
    return JSONResponse({"currency": currency, "rate": _RATES[currency]})


async def follow(request: Request) -> Response:
    """Handle `GET /rates/{currency}/changes`: stream an event for each change of the rate."""
    rate, count = _RATES[request.path_params["currency"]], int(request.query_params["count"])

    async def events() -> AsyncGenerator[str]:
        for number in range(count):
            yield f"id: {number}\ndata: {json.dumps({'rate': round(rate + number / 100, 2)})}\n\n"
            await asyncio.sleep(_STEP)

    return StreamingResponse(events(), media_type="text/event-stream")


async def document(_: Request) -> Response:
    """Handle `GET /openapi.json`."""
    return JSONResponse(_DOCUMENT)


def rates() -> Starlette:
    """Return the API as an ASGI application."""
    return Starlette(
        routes=[
            Route("/openapi.json", document),
            Route("/rates/{currency}", get),
            Route("/rates/{currency}/changes", follow),
        ]
    )


def _response(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "Found.", "content": {media_type: {"schema": schema}}}}


_RATE = {"rate": {"type": "number"}}
_NAMED = {"type": "object", "properties": {"currency": {"type": "string"}, **_RATE}, "required": ["currency", "rate"]}
_CURRENCY = {"name": "currency", "in": "path", "required": True, "schema": {"type": "string"}}
_COUNT = {"name": "count", "in": "query", "required": True, "schema": {"type": "integer", "minimum": 1}}
_DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "rates", "version": "1.0"},
    "paths": {
        "/rates/{currency}": {
            "get": {
                "operationId": "get",
                "summary": "The exchange rate of the euro",
                "parameters": [_CURRENCY],
                "responses": _response("application/json", _NAMED),
            }
        },
        "/rates/{currency}/changes": {
            "get": {
                "operationId": "follow",
                "summary": "The exchange rate of the euro, at each change",
                "parameters": [_CURRENCY, _COUNT],
                "responses": _response("text/event-stream", {"type": "object", "properties": _RATE}),
            }
        },
    },
}
