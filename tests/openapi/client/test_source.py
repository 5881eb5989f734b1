"""`from_openapi`: HTTP APIs as sources of operations, against a real server."""

import asyncio
import gc
import gzip
import json
from base64 import b64decode
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.operation import OperationType
from opwire.openapi.client import OpenAPISource, from_openapi
from opwire.registry.source import Report
from tests.openapi.client.documents import answers, document, json_body, parameter
from tests.openapi.client.echo import EchoServer, Exchange, answer, events, json_answer, stream_head
from tests.properties import is_thorough
from tests.turns import counted_turns

SSE = "text/event-stream"
PET = {
    "type": "object",
    "properties": {"id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}, "tag": {"default": "none"}},
    "required": ["id", "name"],
}
PETS = document(
    {
        "/pets/{id}": {
            "parameters": [parameter("id", "path", schema={"type": "integer"})],
            "get": {"operationId": "pet", "responses": answers({"$ref": "#/components/schemas/Pet"})},
            "put": {"operationId": "change", "requestBody": json_body({"$ref": "#/components/schemas/Pet"})},
        },
        "/upload": {
            "post": {
                "operationId": "upload",
                "requestBody": {"content": {"application/octet-stream": {}}},
                "security": [{"key": []}],
            }
        },
        "/ticks": {"get": {"operationId": "ticks", "responses": answers({"type": "integer"}, content_type=SSE)}},
        "/bad": {"get": {"parameters": [{"$ref": "#/nowhere"}]}},
    },
    schemas={"Pet": PET},
    components={"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
)  # fmt: skip


@pytest.mark.parametrize("collected", [False, True], ids=["until the loop ends", "as garbage"])
def test_a_source_that_is_not_closed_closes_its_connections(
    collected: bool, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """A source that is never closed closes its connections with its event loop, or as garbage."""

    async def main() -> OperationRegistry | None:
        async with EchoServer() as server:
            registry = OperationRegistry()
            registry.register_all(from_openapi(PETS, namespace="pets", base_url=server.url))
            server.on("/pets/7", json_answer({"id": 7, "name": "Rex", "tag": "dog"}))
            assert (await registry.execute("pets.pet", {"id": 7})).data["name"] == "Rex"
            if not collected:
                return registry
            del registry
            gc.collect()
            await server.connections(0)
        return None

    registry = asyncio.run(main())
    del registry
    gc.collect()
    assert [str(each.message) for each in recwarn] == []
    assert caplog.messages == []


async def test_a_document_becomes_operations_that_can_be_called(server: EchoServer) -> None:
    registry = OperationRegistry()
    api = from_openapi(PETS, namespace="pets", base_url=f"{server.url}/v1")
    registry.register_all(api)
    server.on("/v1/pets/7", json_answer({"id": 7, "name": "Rex", "more": 1}))
    envelope = await registry.execute("pets.pet", {"id": 7})
    assert envelope.data == {"id": 7, "name": "Rex", "more": 1, "tag": "none"}
    await registry.execute("pets.change", {"id": 7, "name": "Max"})
    assert (server.arrived[1].method, server.arrived[1].path) == ("PUT", "/v1/pets/7")
    assert json.loads(server.arrived[1].body) == {"name": "Max"}
    with pytest.raises(CallError, match="id") as caught:
        await registry.execute("pets.pet", {"id": "seven"})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    await api.close()


async def test_an_address_is_loaded_by_entering_it(server: EchoServer) -> None:
    server.on("/api/openapi.json", json_answer({**PETS, "servers": [{"url": "v2"}]}))
    registry = OperationRegistry()
    async with from_openapi(f"{server.url}/api/openapi.json") as api:
        end = registry.follow(api)
        assert [spec.id for spec in registry.list()] == ["test.pet", "test.change", "test.upload", "test.ticks"]
        await registry.execute("test.change", {"id": 1, "name": "x"})
        assert server.arrived[-1].path == "/api/v2/pets/1"
        end()
    with pytest.raises(CallError, match="closed"):
        await registry.execute("test.change", {"id": 1, "name": "x"})


async def test_it_can_also_be_awaited(server: EchoServer) -> None:
    server.on("/openapi.json", json_answer(PETS))
    api = await from_openapi(f"{server.url}/openapi.json")
    assert len(api) == 4
    assert api is await api
    assert len(server.arrived) == 1
    await api.close()
    assert "4 operations" in repr(api)
    assert "not loaded" in repr(from_openapi("https://user:secret@api.test/"))
    assert "secret" not in repr(from_openapi("https://user:secret@api.test/"))


async def test_what_cannot_be_loaded_leaves_no_connection(server: EchoServer) -> None:
    with pytest.raises(CallError, match="not a usable OpenAPI document"):
        async with from_openapi(f"{server.url}/openapi.json"):
            pass
    await server.connections(0)


def test_the_report_says_what_was_left_out() -> None:
    api = from_openapi(PETS)
    assert len(api) == 4
    assert [(each.kind, each.name) for each in api.report.skipped] == [("GET", "/bad")]
    assert "there is no 'nowhere'" in api.report.skipped[0].reason


def test_a_source_that_cannot_change_tells_nothing() -> None:
    api = from_openapi(PETS)
    assert api.on_change(lambda change: pytest.fail(str(change)))() is None


async def test_a_stream_is_subscribed_to(server: EchoServer) -> None:
    registry = OperationRegistry()
    async with from_openapi(PETS, base_url=server.url) as api:
        registry.follow(api)
        server.on("/ticks", events(b"data: 1\n\n", b"data: 2\n\n"))
        assert [item.data async for item in registry.subscribe("test.ticks", {})] == [1, 2]


async def test_files_and_credentials_reach_the_api(server: EchoServer, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG")
    registry = OperationRegistry()
    async with from_openapi(PETS, base_url=server.url, credentials={"key": "k"}) as api:
        registry.follow(api)
        echo = (await registry.execute("test.upload", {"body": picture})).data
    assert b64decode(echo["body"]) == b"\x89PNG"
    assert dict(echo["headers"])["X-Key"] == "k"


async def test_the_first_call_reads_nothing_but_its_own_operation(server: EchoServer) -> None:
    """Plans and schemas are read when an operation is first used."""
    registry = OperationRegistry()
    async with from_openapi(PETS, base_url=server.url) as api:
        registry.follow(api)
        await registry.execute("test.change", {"id": 1, "name": "x"})
    schemas = {spec.name: spec.input_schema.is_deferred for spec in registry.list()}
    assert schemas == {"pet": True, "change": False, "upload": True, "ticks": True}


async def test_options_of_the_client_are_passed_on(server: EchoServer) -> None:
    registry = OperationRegistry()
    async with from_openapi(PETS, base_url=server.url, headers={"X-Own": "1"}, max_response=10) as api:
        registry.follow(api)
        with pytest.raises(CallError) as caught:
            await registry.execute("test.pet", {"id": 1})
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert server.arrived[0].header("X-Own") == "1"
    with pytest.raises(UsageError, match="from_openapi has no option"):
        from_openapi(PETS, no_such_option=1)  # pyright: ignore[reportCallIssue]


async def test_loading_does_not_hold_up_the_event_loop(server: EchoServer) -> None:
    text = b"openapi: 3.1.0\ninfo: {title: a}\ninfo: {title: b}\npaths: {/a: {get: 7}}"
    server.on("/openapi.yaml", answer(200, text))
    threads: list[int] = []

    class Spy(Report):
        def warn(self, warning: str) -> None:
            threads.append(get_ident())

        def skip(self, method: str, path: str, reason: str) -> None:
            threads.append(get_ident())

    api = from_openapi(f"{server.url}/openapi.yaml")
    api._report = api._loader._report = Spy()
    async with api:
        assert len(threads) == 2
    assert get_ident() not in threads


# --- real documents -------------------------------------------------------------------------------------------------

OPERATIONS = {  # and how many of them also stream
    "docker_engine_swagger.yaml": (108, 0),
    "github_api.json": (1223, 0),
    "httpbin.yaml": (78, 0),
    "kubernetes_swagger.json": (1123, 0),
    "mercure.yaml": (5, 0),
    "mistral.yaml": (173, 3),
    "museum.yaml": (8, 0),
    "openai.yaml": (288, 7),
    "stripe_spec3.json": (417, 0),
    "swagger_petstore3.yaml": (19, 0),
}
SAMPLES = 25 if is_thorough() else 8


def real(shared: Path, name: str) -> OpenAPISource:
    return from_openapi(shared / "openapi" / name, namespace="api")


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_of_real_documents_is_registered(shared: Path, name: str) -> None:
    api = real(shared, name)
    registry = OperationRegistry()
    registry.register_all(api)
    assert len(registry) == sum(OPERATIONS[name])
    assert api.report.skipped == []
    specs = registry.list()
    for spec in specs[:: len(specs) // SAMPLES or 1]:
        spec.input_schema.compile()
        spec.output_schema.compile()
    assert api.report.warnings == []


def test_what_openai_streams_are_operations_of_their_own(shared: Path) -> None:
    operations = {each.spec.name: each.spec for each in real(shared, "openai.yaml")}
    plain, stream = operations["createChatCompletion"], operations["createChatCompletion_stream"]
    assert (plain.type, stream.type) == (OperationType.MUTATION, OperationType.SUBSCRIPTION)
    for spec in (plain, stream):
        assert isinstance(spec.input_schema.json, dict)
        assert "stream" not in spec.input_schema.json["properties"]
        assert "messages" in spec.input_schema.json["properties"]
    assert stream.output_schema.is_valid(
        {"id": "1", "choices": [], "created": 1, "model": "m", "object": "chat.completion.chunk"}
    )


def test_githubs_answers_are_read_with_the_definitions_that_they_need(shared: Path) -> None:
    operations = {each.spec.name: each.spec for each in real(shared, "github_api.json")}
    json_schema: Any = operations["repos/get"].output_schema.json
    assert json_schema["title"] == "Full Repository"
    assert "full-repository" not in json_schema["$defs"]
    assert 5 < len(json_schema["$defs"]) < 20
    assert operations["repos/get"].input_schema.is_valid({"owner": "a", "repo": "b"})
    assert not operations["repos/get"].input_schema.is_valid({"owner": "a"})


async def test_neither_configured_headers_nor_credentials_are_told_if_the_api_repeats_them(server: EchoServer) -> None:
    async def script(exchange: Exchange) -> None:
        names = ("authorization", "x-token", "accept-language")
        problem = {
            "status": 403,
            "title": "No",
            "detail": " ".join(f"{exchange.request.header(each)}" for each in names),
        }
        if exchange.request.path == "/plain":
            await exchange.send(json_answer(problem, 403))
        else:
            body = f"event: error\ndata: {json.dumps(problem)}\n\n".encode()
            await exchange.send(stream_head(**{"Content-Length": str(len(body))}) + body)

    api = document(
        {
            "/plain": {"get": {"operationId": "plain", "responses": answers({})}},
            "/stream": {"get": {"operationId": "stream", "responses": answers({}, content_type=SSE)}},
        },
        components={"securitySchemes": {"login": {"type": "http", "scheme": "bearer"}}},
        security=[{"login": []}],
    )
    server.on("/plain", script)
    server.on("/stream", script)
    given = {"X-Token": "s3cret-of-the-file", "Accept-Language": "de-CH"}
    registry = OperationRegistry()
    async with from_openapi(
        api, base_url=server.url, credentials={"login": "s3cret-of-the-login"}, headers=given
    ) as own:
        registry.register_all(own)
        with pytest.raises(CallError) as plain:
            await registry.execute("test.plain", {})
        with pytest.raises(CallError) as stream:
            await anext(registry.subscribe("test.stream", {}))
    for failure in (plain.value, stream.value):
        assert failure.details["body"]["detail"] == "*** *** de-CH"
        assert "s3cret" not in f"{failure.message}{failure.details}"


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
async def test_the_event_loop_runs_while_a_large_invalid_text_is_decoded(kind: str, server: EchoServer) -> None:
    size = 2 * 1024 * 1024
    headers = {"Content-Type": f"{kind}; charset=utf-16", "Content-Encoding": "gzip"}
    server.on("/pets/7", answer(200, gzip.compress(b"\x00\xd8" * size), headers))
    registry = OperationRegistry()
    async with from_openapi(PETS, namespace="pets", base_url=server.url, normalize="off") as pets:
        registry.register_all(pets)
        async with counted_turns() as turns:
            envelope = await registry.execute("pets.pet", {"id": 7})
    assert envelope.data == "\ufffd" * size
    assert turns.count >= 60  # 10 of them while the response is received
