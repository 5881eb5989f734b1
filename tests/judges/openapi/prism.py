"""Prism: a server made from an OpenAPI document, which refuses requests that do not fit the document."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

from opwire import CallError, OperationRegistry
from opwire.openapi.client import from_openapi
from opwire.openapi.client.security import GivenCredentials
from tests.judges.openapi.examples import Extent, example
from tests.judges.programs import npm_program
from tests.judges.serving import HOST, free_port, listening

_UNHAPPY = "https://stoplight.io/prism/errors#"


@asynccontextmanager
async def prism(document: Path, log: Path) -> AsyncGenerator[str]:
    """A Prism for a document; gives its address. With `--errors` every violation is a refusal."""
    port = free_port()
    command = [*npm_program("prism"), "mock", "--errors", "-h", HOST, "-p", str(port), str(document)]
    async with listening(command, port, log):
        yield f"http://{HOST}:{port}"


async def refused(document: Path, address: str, credentials: GivenCredentials | None = None) -> dict[str, Any]:
    """What Prism found wrong when every operation of the document was called, by operation.

    Each is called three times, with inputs of different extent.
    """
    registry = OperationRegistry()
    found: dict[str, Any] = {}
    async with from_openapi(document, namespace="api", base_url=address, credentials=credentials) as api:
        registry.register_all(api)
        for spec in registry.list():
            for extent in get_args(Extent):
                input = example(spec.input_schema, extent)
                if complaint := await complaint_about(registry, spec.id, input):
                    found[f"{spec.name} {extent}"] = complaint
    return found


async def complaint_about(registry: OperationRegistry, operation_id: str, input: Any) -> Any:
    """What Prism finds wrong with a call; None if it took the request."""
    try:
        await registry.execute(operation_id, input)
    except CallError as error:
        body = error.details.get("body") if isinstance(error.details, dict) else None
        if isinstance(body, dict) and str(body.get("type", "")).startswith(_UNHAPPY):
            return body.get("validation") or body.get("title")
        return f"{error} {body}"
    return None
