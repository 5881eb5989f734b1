"""The work of the served HTTP ladder on FastAPI, as its documentation shows it: `... h11`."""

import sys
from typing import Annotated

from fastapi import FastAPI, Query  # pyright: ignore[reportMissingImports] - its own environment
from pydantic import BaseModel

from benchmarks.http.uvicorn_server import run
from benchmarks.upstream import round_trip

app = FastAPI()


class Input(BaseModel):
    a: int
    b: int
    note: str


class Sum(BaseModel):
    sum: int
    note: str


@app.post("/math/add")
async def add(input: Input) -> Sum:
    await round_trip()
    return Sum(sum=input.a + input.b, note=input.note)


@app.get("/math/add")
async def add_by_query(input: Annotated[Input, Query()]) -> Sum:
    await round_trip()
    return Sum(sum=input.a + input.b, note=input.note)


if __name__ == "__main__":
    run(app, sys.argv[1])
