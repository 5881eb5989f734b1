from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def invoices(request: Request) -> Response:
    if request.headers.get("x-key") != "open-sesame":
        return JSONResponse({"error": "no key"}, status_code=401)
    return JSONResponse([{"id": 17, "total": 9.0}])


app = Starlette(routes=[Route("/invoices", invoices)])
