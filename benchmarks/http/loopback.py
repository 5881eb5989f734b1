"""The API of the HTTP ladder, on aiohttp's server; every way to call it calls this one."""

import asyncio
import sys
from typing import Any

import msgspec
from aiohttp import web

from benchmarks.http.document import document


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def _get(request: web.Request) -> web.Response:
    return _json({"sum": int(request.match_info["a"]) + int(request.query["b"]), "note": request.query["note"]})


async def _post(request: web.Request) -> web.Response:
    given = msgspec.json.decode(await request.read())
    return _json({"sum": given["a"] + given["b"], "note": given["note"]})


async def _document(request: web.Request) -> web.Response:
    return _json(document(f"http://{request.host}"))


async def main() -> None:
    app = web.Application()
    app.add_routes(
        [web.get("/sums/{a}", _get), web.post("/sums", _post), web.get("/openapi.json", _document)],
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
