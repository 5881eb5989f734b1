from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

RATES = {"EUR": 1.0, "USD": 1.09}


async def get(request: Request) -> Response:
    currency = request.path_params["currency"]
    if currency not in RATES:
        return JSONResponse({"error": "no such currency"}, status_code=404)
    return JSONResponse({"currency": currency, "rate": RATES[currency]})


app = Starlette(routes=[Route("/rates/{currency}", get)])
