"""Real documents, served and read back: no parameter and no schema of a result is lost."""

from pathlib import Path
from typing import Any

import pytest

from opwire import Identity, OperationRegistry, Schema
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from opwire.typed.plain import as_dict
from tests.judges.openapi.examples import NoExample, example

DOCUMENTS = ["github_api.json", "kubernetes_swagger.json", "mistral.yaml", "openai.yaml", "stripe_spec3.json"]


def example_of(schema: Schema) -> Any:
    try:
        return example(schema, "full")
    except NoExample:
        return example(schema, "least")


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_a_real_document_is_served_and_read_back_completely(name: str, shared: Path) -> None:
    registry, back = OperationRegistry(), OperationRegistry()
    registry.register_all(from_openapi(shared / "openapi" / name, namespace="api"))
    app = serve_http(registry, anonymous=Identity(id="judge"))
    async with (
        app.listening(drain_timeout=1) as address,
        from_openapi(f"{address}/openapi.json", trust_annotations=True) as api,
    ):
        back.register_all(api)
    assert api.report.skipped == []
    lost: dict[str, str] = {}
    for spec in registry.list():
        found = back.get_spec(spec.id)
        assert found is not None, spec.id
        own, read = as_dict(spec.input_schema.json), as_dict(found.input_schema.json)
        if own.get("properties", {}).keys() != read.get("properties", {}).keys():
            lost[spec.id] = "parameters"
        elif set(own.get("required", ())) != set(read.get("required", ())):
            lost[spec.id] = "required parameters"
        elif not found.input_schema.is_valid(example_of(spec.input_schema)):
            lost[spec.id] = "an example of the input"
        elif spec.output_schema.is_unknown != found.output_schema.is_unknown:
            lost[spec.id] = "the schema of the result"
    assert lost == {}
