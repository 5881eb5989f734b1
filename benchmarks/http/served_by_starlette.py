"""The work of the served HTTP ladder on bare Starlette: `... h11|httptools jsonschema-rs|pydantic`, which validates."""

import sys
from typing import Any

import jsonschema_rs
import msgspec
from pydantic import BaseModel, TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.http.uvicorn_server import run
from benchmarks.upstream import round_trip


class Input(BaseModel):
    a: int
    b: int
    note: str


class Sum(BaseModel):
    sum: int
    note: str


_input, _output = TypeAdapter(Input), TypeAdapter(Sum)
_is_input = jsonschema_rs.validator_for(_input.json_schema()).is_valid
_is_output = jsonschema_rs.validator_for(_output.json_schema()).is_valid


async def _with_jsonschema(request: Request) -> Response:
    given: Any = msgspec.json.decode(await request.body()) if request.method == "POST" else _query(request)
    if not _is_input(given):
        return Response("bad input", 422)
    await round_trip()
    result = {"sum": given["a"] + given["b"], "note": given["note"]}
    if not _is_output(result):
        return Response("bad output", 500)
    return Response(msgspec.json.encode(result), media_type="application/json")


async def _with_pydantic(request: Request) -> Response:
    if request.method == "POST":
        given = _input.validate_json(await request.body())
    else:
        given = _input.validate_python(dict(request.query_params))
    await round_trip()
    result = _output.validate_python({"sum": given.a + given.b, "note": given.note})
    return Response(_output.dump_json(result), media_type="application/json")


def _query(request: Request) -> dict[str, Any]:
    query = request.query_params
    return {"a": int(query["a"]), "b": int(query["b"]), "note": query["note"]}


if __name__ == "__main__":
    endpoint = {"jsonschema-rs": _with_jsonschema, "pydantic": _with_pydantic}[sys.argv[2]]
    run(Starlette(routes=[Route("/math/add", endpoint, methods=["GET", "POST"])]), sys.argv[1])
