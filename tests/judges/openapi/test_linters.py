"""The documents of served registries, judged by linters: functions of every kind, and real APIs."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opwire import Identity, OperationRegistry
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from tests.judges.openapi.catalogue import make_registry
from tests.judges.openapi.test_served_document import QUIET
from tests.judges.programs import npm_program
from tests.judges.serving import finished

HERE = Path(__file__).parent
FUNCTIONS = "functions"
DOCUMENTS = [FUNCTIONS, "swagger_petstore3.yaml", "stripe_spec3.json", "github_api.json"]

OF_THE_AUTHOR = {"info-license", "info-contact", "tag-description", "operation-description"}
"""What only the author of an API can write."""
OF_THE_DOCUMENT = {
    "no-illogical-composition-keywords",
    "no-invalid-schema-examples",
    "no-required-schema-properties-undefined",
}
"""What real documents say themselves: overlapping unions, examples that contradict their schema."""


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_linters_find_no_error_in_a_served_document(name: str, shared: Path, tmp_path: Path) -> None:
    """Redocly's recommended rules and Spectral's `oas` rules find no error in what is served, functions and real
    APIs alike."""
    registry = make_registry() if name == FUNCTIONS else OperationRegistry()
    if name != FUNCTIONS:
        registry.register_all(from_openapi(shared / "openapi" / name))
    document = tmp_path / "openapi.json"
    app = serve_http(registry, title="Shop", version="1.0", description="A shop.", anonymous=Identity(id="judge"))
    async with (
        app.listening(drain_timeout=1) as address,
        aiohttp.request("GET", f"{address}/openapi.json", raise_for_status=True) as answer,
    ):
        document.write_bytes(await answer.read())
    found = [*await by_redocly(document), *await by_spectral(document)]
    assert [each for each in found if each["is_error"]] == []
    expected = OF_THE_AUTHOR if name == FUNCTIONS else OF_THE_AUTHOR | OF_THE_DOCUMENT
    assert {each["rule"] for each in found} <= expected


async def test_the_linters_are_awake(tmp_path: Path) -> None:
    document = tmp_path / "broken.json"
    tuples = {"T": {"type": "array"}}
    get = {"operationId": "a", "responses": {"200": {"description": "", "nowhere": 1}}}
    info = {"title": "A", "version": "1"}
    broken = {"openapi": "3.1.1", "info": info, "paths": {"/a": {"get": get}}, "components": {"schemas": tuples}}
    document.write_text(json.dumps(broken))
    assert {"struct", "operation-summary"} <= {each["rule"] for each in await by_redocly(document)}
    assert "array-items" in {each["rule"] for each in await by_spectral(document) if each["is_error"]}


async def by_redocly(document: Path) -> list[dict[str, Any]]:
    options = ["--config", str(HERE / "recommended.yaml"), "--format", "json", "--max-problems", "100000"]
    found = await finished([*npm_program("redocly"), "lint", *options, str(document)], QUIET)
    return [
        {"rule": each["ruleId"], "is_error": each["severity"] == "error", "message": each["message"]}
        for each in json.loads(found.output)["problems"]
    ]


async def by_spectral(document: Path) -> list[dict[str, Any]]:
    options = ["--ruleset", str(HERE / "spectral.yaml"), "--format", "json", "--quiet"]
    found = await finished([*npm_program("spectral"), "lint", *options, str(document)])
    return [
        {"rule": each["code"], "is_error": each["severity"] == 0, "message": each["message"]}
        for each in json.loads(found.output)
    ]
