"""Loading documents and what they refer to."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, SchemaError, UsageError
from opwire.http.client import ClientOptions, HTTPClient
from opwire.openapi.client.document import DocumentSet
from opwire.openapi.client.operations import ReadOptions, read_operations
from opwire.openapi.client.source import MAX_DOCUMENTS, DocumentLoader
from opwire.registry.source import Report
from opwire.typed.plain import collection_paused
from tests.openapi.client.documents import document, parameter
from tests.openapi.client.echo import EchoServer, answer, json_answer, redirect, silence

PETS = document({"/pets": {"get": {}}})


def loader(given: Any, allow: Any = False, client: HTTPClient | None = None, **limits: int) -> DocumentLoader:
    return DocumentLoader(given, Report(), allow, client or HTTPClient(), **limits)


def load(given: Any, allow: Any = False) -> DocumentSet:
    return loader(given, allow).load()


def referring(*refs: str) -> dict[str, Any]:
    return document({}, schemas={f"S{number}": {"$ref": ref} for number, ref in enumerate(refs)})


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / "main.json"


def schema(documents: DocumentSet, name: str = "S0") -> Any:
    return documents.follow({"$ref": f"#/components/schemas/{name}"}, documents.main).value


def test_a_document_is_a_mapping_text_or_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, main_json=PETS)
    text = json.dumps(PETS)
    for given in (PETS, text, text.encode(), path, str(path), path.as_uri(), f"# YAML\n{text}"):
        assert load(given).main.root == PETS


def test_a_mapping_is_copied() -> None:
    given = document({})
    documents = load(given)
    given["paths"]["/a"] = {}
    assert documents.main.root["paths"] == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("nowhere.yaml", "nowhere.yaml cannot be read: No such file"),
        (".", "is not a file"),
        ("\0", "cannot be read"),
        (7, "not int"),
        (b"", "it is empty"),
        ("{}", "no `openapi`"),
        ("https://api.test/openapi.json", "`await from_openapi"),
    ],
)
def test_what_cannot_be_loaded_is_a_clear_error(given: Any, says: str) -> None:
    with pytest.raises((CallError, UsageError), match=says) as caught:
        load(given)
    assert not isinstance(caught.value, CallError) or caught.value.code is ErrorCode.VALIDATION_ERROR


def test_files_below_the_folder_are_read(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main_json=referring("sub/a.yaml#/A", "./b.json", "sub/../sub/a.yaml#/Back"),
        sub__a_yaml="A: {$ref: '../b.json'}\nBack: {$ref: '../main.json#/info/title'}\n",
        b_json={"type": "integer"},
    )
    documents = load(main)
    assert schema(documents) == {"type": "integer"}
    assert schema(documents, "S1") == {"type": "integer"}
    assert schema(documents, "S2") == "Test"
    assert len(set(map(id, documents.loaded.values()))) == 3


def test_a_document_may_be_spread_over_files(tmp_path: Path) -> None:
    main = write(
        tmp_path,
        main_json={"openapi": "3.1.0", "paths": {"$ref": "paths.yaml"}, "components": {"$ref": "parts.json"}},
        paths_yaml="/a: {$ref: items/a.yaml}\n",
        items__a_yaml="get: {security: [{key: []}], parameters: [{$ref: '../parts.json#/parameters/Q'}],"
        " responses: {'200': {content: {application/json: {schema: {$ref: '#/components/schemas/Pet'}}}}}}",
        parts_json={
            "schemas": {"Pet": {"type": "integer"}},
            "parameters": {"Q": parameter("q")},
            "securitySchemes": {"key": {"type": "http", "scheme": "basic"}},
        },
    )
    (one,) = read_operations(load(main), Report(), ReadOptions())
    assert [each.name for each in one.plan.parameters] == ["q"]
    assert one.spec.output_schema.json == {"type": "integer"}
    assert one.plan.security[0][0].scheme.kind == "basic"


def test_files_below_the_folder_are_limited_by_their_size_only(tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text('{"type": "null"}')
    folder = tmp_path / "api"
    files = {f"sub__f{n}_json": {"const": n} for n in range(MAX_DOCUMENTS + 1)}
    refs = [f"sub/f{n}.json" for n in range(MAX_DOCUMENTS + 1)]
    main = write(folder, main_json=referring(*refs, "../outside.json"), **files)
    assert schema(load(main), f"S{MAX_DOCUMENTS}") == {"const": MAX_DOCUMENTS}

    size = main.stat().st_size
    documents = loader(main, True, max_documents=0, max_bytes=size + 25).load()
    assert schema(documents) == {"const": 0}
    assert schema(documents, "S1") == {"const": 1}
    with pytest.raises(
        SchemaError, match=rf"f2\.json and the .* more than {size + 25:,} bytes; .* `max_document_bytes`"
    ):
        schema(documents, "S2")
    with pytest.raises(SchemaError, match=r"outside\.json, which exceeds `max_documents` \(0\)"):
        schema(documents, f"S{MAX_DOCUMENTS + 1}")
    with pytest.raises(CallError, match=r"main\.json and the documents before it have more than 100 bytes") as caught:
        loader(main, max_bytes=100).load()
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_files_elsewhere_are_read_only_when_allowed(tmp_path: Path) -> None:
    outside = tmp_path / "secret.json"
    outside.write_text('{"type": "null"}')
    folder = tmp_path / "api"
    folder.mkdir()
    (folder / "link.json").symlink_to(outside)
    main = write(folder, main_json=referring("../secret.json", outside.as_uri(), "link.json"))
    documents = load(main)
    for name in ("S0", "S1", "S2"):
        with pytest.raises(SchemaError, match="json, which is not below the document's folder"):
            schema(documents, name)
    assert schema(load(main, allow=True)) == {"type": "null"}


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        (
            "https://other.test/a.json?key=secret#/x",
            r"https://other\.test/a\.json, which `allow_external_refs` does not allow",
        ),
        ("a.json", "no folder"),
        ("file:///etc/passwd", "not below"),
        ("gopher://x/y", "no folder"),
    ],
)
def test_nothing_is_fetched_for_a_mapping(ref: str, says: str) -> None:
    documents = load(referring(ref))
    with pytest.raises(SchemaError, match=says) as caught:
        schema(documents)
    assert "secret" not in str(caught.value).partition(" leads to ")[2]


def test_addresses_need_await_even_if_they_are_allowed() -> None:
    documents = load(referring("https://other.test/a.json"), allow=True)
    with pytest.raises(SchemaError, match="loaded only by `async with"):
        schema(documents)


def test_a_broken_file_fails_the_operations_that_need_it(tmp_path: Path) -> None:
    documents = load(write(tmp_path, main_json=referring("bad.yaml", "gone.yaml"), bad_yaml="a: ["))
    with pytest.raises(SchemaError, match=r"bad\.yaml is not readable as YAML"):
        schema(documents)
    with pytest.raises(SchemaError, match=r"gone\.yaml cannot be read"):
        schema(documents, "S1")


def test_references_without_a_target_are_reported_at_once() -> None:
    report = Report()
    DocumentLoader(referring("#/components/schemas/Nope"), report, False, HTTPClient()).load()
    assert report.warnings == ["the reference '#/components/schemas/Nope' has no target: there is no 'Nope'"]


def test_ids_inside_the_document_are_not_fetched() -> None:
    root = document(
        {}, schemas={"A": {"$id": "https://api.test/a", "type": "null"}, "S0": {"$ref": "https://api.test/a"}}
    )
    documents = load(root, allow=True)
    assert schema(documents)["type"] == "null"
    assert documents.missing == {}


# --- over the network -----------------------------------------------------------------------------------------------


@pytest.fixture
async def other() -> AsyncIterator[EchoServer]:
    async with EchoServer() as server:
        yield server


async def fetch(given: Any, client: HTTPClient, allow: Any = False) -> DocumentSet:
    return await loader(given, allow, client).load_with_network()


async def test_a_document_is_fetched_from_an_address(server: EchoServer, client: HTTPClient) -> None:
    server.on("/api/openapi.yaml", answer(200, b"openapi: 3.1.0\ninfo: {title: x}\npaths: {}"))
    documents = await fetch(f"{server.url.upper()}/api/openapi.yaml#ignored", client)
    assert documents.main.root["info"] == {"title": "x"}
    assert documents.main.uri == f"{server.url}/api/openapi.yaml"


async def test_a_redirect_moves_the_address_of_the_document(server: EchoServer, client: HTTPClient) -> None:
    server.on("/old", redirect(302, "/new/openapi.json"))
    server.on("/new/openapi.json", json_answer(PETS))
    assert (await fetch(f"{server.url}/old", client)).main.uri == f"{server.url}/new/openapi.json"


async def test_addresses_below_the_document_are_fetched(server: EchoServer, client: HTTPClient) -> None:
    server.on("/api/openapi.json", json_answer(referring("schemas/a.json#/A", "../elsewhere.json")))
    server.on("/api/schemas/a.json", json_answer({"A": {"type": "null"}}))
    documents = await fetch(f"{server.url}/api/openapi.json", client)
    assert schema(documents) == {"type": "null"}
    with pytest.raises(SchemaError, match="does not allow"):
        schema(documents, "S1")
    assert [each.path for each in server.arrived] == ["/api/openapi.json", "/api/schemas/a.json"]


@pytest.mark.parametrize(
    "ref", ["%2e%2e/a.json", ".%2E/a.json", "x%2f..%2f..%2fa.json", "x/../../a.json", "x\\..\\..\\a.json"]
)
async def test_dots_do_not_lead_out_of_the_place_of_the_document(
    ref: str, server: EchoServer, client: HTTPClient
) -> None:
    server.on("/api/openapi.json", json_answer(referring(ref)))
    documents = await fetch(f"{server.url}/api/openapi.json", client)
    with pytest.raises(SchemaError, match="does not allow"):
        schema(documents)
    assert len(server.arrived) == 1


@pytest.mark.parametrize("allow", [True, {"127.0.0.1"}])
async def test_other_hosts_are_asked_when_allowed_and_without_our_headers(
    server: EchoServer, other: EchoServer, allow: Any
) -> None:
    client = HTTPClient(ClientOptions(headers={"X-Secret": "s"}))
    server.on("/openapi.json", json_answer(referring(f"{other.url}/a.json")))
    other.on("/a.json", json_answer({"type": "null"}))
    documents = await fetch(f"{server.url}/openapi.json", client, allow)
    await client.close()
    assert schema(documents) == {"type": "null"}
    assert server.arrived[0].header("X-Secret") == "s"
    assert other.arrived[0].header("X-Secret") is None


async def test_a_host_that_is_not_allowed_is_not_asked_even_by_a_redirect(
    server: EchoServer, other: EchoServer, client: HTTPClient
) -> None:
    server.on("/openapi.json", json_answer(referring(f"{other.url}/a.json", f"{server.url}/b.json")))
    server.on("/b.json", redirect(302, f"{other.url}/a.json"))
    documents = await fetch(f"{server.url}/openapi.json", client, {f"127.0.0.1:{server.port}"})
    for name in ("S0", "S1"):
        with pytest.raises(SchemaError, match="does not allow"):
            schema(documents, name)
    assert other.arrived == []


async def test_files_and_mappings_may_refer_to_addresses(
    tmp_path: Path, server: EchoServer, client: HTTPClient
) -> None:
    server.on("/a.json", json_answer({"type": "null"}), json_answer({"type": "null"}))
    root = referring(f"{server.url}/a.json")
    for given in (root, write(tmp_path, main_json=root)):
        assert schema(await fetch(given, client, allow=True)) == {"type": "null"}


@pytest.mark.parametrize(
    ("said", "code", "says"),
    [
        (answer(404), ErrorCode.EXECUTION_ERROR, "returned HTTP 404"),
        (answer(200, b"<html>"), ErrorCode.VALIDATION_ERROR, "is not a usable OpenAPI document"),
        (answer(200, b"{"), ErrorCode.VALIDATION_ERROR, "is not readable as JSON"),
        (answer(200, b"x" * 2000), ErrorCode.PAYLOAD_TOO_LARGE, "max_response"),
        (silence, ErrorCode.TIMEOUT, "did not respond within 0.2 s"),
    ],
)
async def test_a_document_that_is_not_to_be_had_says_why(
    server: EchoServer, said: Any, code: ErrorCode, says: str
) -> None:
    client = HTTPClient(ClientOptions(timeout=0.2 if said is silence else 5, max_response=1000))
    server.on("/openapi.json", said)
    with pytest.raises(CallError, match=says) as caught:
        await fetch(f"{server.url}/openapi.json?token=secret", client)
    assert caught.value.code is code
    assert "secret" not in str(caught.value)
    await client.close()


async def test_a_cancelled_load_ends_at_once(server: EchoServer, client: HTTPClient) -> None:
    server.on("/openapi.json", silence)
    task = asyncio.create_task(fetch(f"{server.url}/openapi.json", client))
    async with asyncio.timeout(5):
        while not server.arrived:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_garbage_is_collected_again_after_loading() -> None:
    assert gc.isenabled()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_any_mapping_will_do() -> None:
    class Wrapped(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return PETS[key]

        def __iter__(self) -> Any:
            return iter(PETS)

        def __len__(self) -> int:
            return len(PETS)

    assert load(Wrapped()).main.root == PETS
