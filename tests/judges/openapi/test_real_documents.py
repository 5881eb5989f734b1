"""Every operation of every real document can be called: its plan is made, its schemas compile, its request is sent."""

from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web

from opwire import CallError, OperationRegistry, Schema
from opwire.model.operation import OperationType
from opwire.openapi.client import from_openapi
from tests.judges.openapi.examples import NoExample, example
from tests.judges.serving import HOST

OPERATIONS = 3_452  # of ten documents, streams counted apart


async def test_every_operation_of_ten_real_documents_can_be_called(shared: Path) -> None:
    arrived: list[str] = []

    async def take(request: web.Request) -> web.Response:
        arrived.append(f"{request.method} {request.raw_path}")
        return web.Response(status=HTTPStatus.NO_CONTENT)

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    failed = dict[str, str]()
    try:
        for document in sorted((shared / "openapi").glob("*[!v].[jy]*")):
            failed |= await _called(document, f"http://{HOST}:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert failed == {}
    assert len(arrived) == OPERATIONS


async def _called(document: Path, address: str) -> dict[str, str]:
    """Call every operation of a document, and return what went wrong."""
    failed: dict[str, str] = {}
    registry = OperationRegistry()
    async with from_openapi(document, namespace="api", base_url=address) as api:
        registry.register_all(api)
        for spec in registry.list():
            try:
                spec.output_schema.compile()
                input = _example(spec.input_schema)
                if spec.type is OperationType.SUBSCRIPTION:
                    async for _ in registry.subscribe(spec.id, input):
                        pass
                else:
                    await registry.execute(spec.id, input)
            except (CallError, NoExample) as error:
                failed[f"{document.name} {spec.name}"] = str(error)[:300]
    assert api.report.skipped == []
    assert api.report.warnings == []
    return failed


def _example(schema: Schema) -> Any:
    """With all that can be given; with the least where that contradicts itself."""
    try:
        return example(schema, "full")
    except NoExample:
        return example(schema, "least")
