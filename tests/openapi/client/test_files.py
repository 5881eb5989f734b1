"""Files in an input."""

import io
import os
from base64 import b64encode
from collections.abc import Callable
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any

import pytest

from opwire import OperationRegistry, OperationSpec, Schema
from opwire.errors import CallError, ErrorCode
from opwire.model.operation import Operation
from opwire.openapi.client import from_openapi
from opwire.openapi.client.plan import CallPlan
from opwire.openapi.client.serialize import FILE_SCHEMA, File, prepare_files, read_file
from tests.openapi.client.echo import EchoServer

DATA = b"\x00\xffPNG"
TEXT = b64encode(DATA).decode()


def preparing(*places: tuple[str, ...]) -> Callable[[Any], Any]:
    return prepare_files(
        CallPlan(operation_id="shop.upload", method="POST", path="/", server="http://h", file_paths=places)
    )


def prepared(value: Any) -> Any:
    return preparing(("photo",))({"photo": value})["photo"]


@pytest.mark.parametrize("value", [DATA, bytearray(DATA), memoryview(DATA), io.BytesIO(DATA)])
def test_bytes_and_streams_become_base64(value: Any) -> None:
    assert prepared(value) == TEXT


def test_a_path_and_an_open_file_bring_their_name_and_content_type(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(DATA)
    plain = {"filename": "cat.png", "contentType": "image/png", "data": TEXT}
    assert prepared(path) == plain
    with path.open("rb") as file:
        assert prepared(file) == plain


def test_a_tuple_gives_the_name_and_may_give_the_content_type(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    octets = "application/octet-stream"
    assert prepared(("x.unknown-kind", DATA)) == {"filename": "x.unknown-kind", "contentType": octets, "data": TEXT}
    assert prepared(("cat.png", DATA)) == {"filename": "cat.png", "contentType": "image/png", "data": TEXT}
    assert prepared(("b", tmp_path / "a", "x/y")) == {"filename": "b", "contentType": "x/y", "data": TEXT}


def test_a_list_holds_several_files_and_places_may_lie_deep() -> None:
    prepare = preparing(("body", "photos"), ("body", "absent"))
    given = {"body": {"photos": [DATA, ("a.txt", b"")]}, "other": DATA}
    photos = [TEXT, {"filename": "a.txt", "contentType": "text/plain", "data": ""}]
    assert prepare(given) == {"body": {"photos": photos}, "other": DATA}
    assert given["body"] == {"photos": [DATA, ("a.txt", b"")]}  # what the caller gave stays as it was


@pytest.mark.parametrize("value", [None, TEXT, {"data": TEXT}])
def test_plain_data_stays_unchanged(value: Any) -> None:
    assert prepared(value) is value


@pytest.mark.parametrize("input", [None, [], "text", {}, {"photo": None}])
def test_an_input_without_the_place_stays_unchanged(input: Any) -> None:
    assert preparing(("photo",), ("photo", "deeper"))(input) == input


def failing(value: Any) -> str:
    with pytest.raises(CallError) as caught:
        prepared(value)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert caught.value.details["problems"][0]["path"] == "/photo"
    return caught.value.message


def test_what_cannot_be_read_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    assert failing(tmp_path / "absent").startswith("shop.upload: /photo: ")
    assert "is not a file" in failing(tmp_path)
    assert "binary mode" in failing(io.StringIO("text"))
    assert "(filename, content)" in failing((DATA, "name"))
    assert "from str" in failing(("a.txt", "text"))
    assert "from object" in failing(object())


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "is not a file" in failing(pipe)


async def test_only_a_caller_in_this_process_can_name_a_path(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    schema = Schema({"type": "object", "properties": {"photo": FILE_SCHEMA}})
    spec = OperationSpec(namespace="shop", name="upload", input_schema=schema)
    registry = OperationRegistry()
    registry.register_all([Operation(spec, lambda input, _: input, prepare=preparing(("photo",)))])
    by_path = await registry.execute("shop.upload", {"photo": tmp_path / "secret"})
    assert by_path.data["photo"]["data"] == b64encode(b"secret").decode()
    by_text = await registry.execute("shop.upload", {"photo": str(tmp_path / "secret")})
    assert by_text.data == {"photo": str(tmp_path / "secret")}  # a text is a text


def test_plain_data_is_read_back_as_a_file() -> None:
    assert read_file(TEXT) == File(DATA)
    assert read_file({"data": TEXT, "filename": "a", "contentType": "x/y"}) == File(DATA, "a", "x/y")
    assert read_file({"data": TEXT[:2] + "\n" + TEXT[2:]}) == File(DATA)


@pytest.mark.parametrize("name", ["filename", "contentType"])
def test_the_name_and_content_type_of_a_file_are_text(name: str) -> None:
    with pytest.raises(ValueError, match=f"the {name} of a file is text"):
        read_file({"data": TEXT, name: 7})


@pytest.mark.parametrize("value", ["no base64!", "abc", 7, {"data": None}, {}, {"data": "ä"}])
def test_what_is_not_base64_is_refused_with_the_forms_that_a_file_may_have(value: Any) -> None:
    with pytest.raises(ValueError, match=r"pathlib\.Path"):
        read_file(value)


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/photos": {
            "post": {
                "operationId": "upload",
                "requestBody": {
                    "required": True,
                    "content": {
                        "multipart/form-data": {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "note": {"type": "string"},
                                    "photo": {"type": "string", "format": "binary"},
                                    "more": {"type": "array", "items": {"type": "string", "format": "binary"}},
                                },
                            }
                        }
                    },
                },
                "responses": {"200": {"description": "what arrived"}},
            }
        }
    },
}


async def test_bytes_paths_and_tuples_arrive_as_files(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(DATA)
    async with EchoServer() as server, from_openapi(DOCUMENT, namespace="shop", base_url=server.url) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        more = [DATA, ("b.txt", io.BytesIO(b"text"))]
        await registry.execute("shop.upload", {"note": "hi", "photo": tmp_path / "cat.png", "more": more})
        (arrived,) = server.arrived
    head = f"Content-Type: {arrived.header('Content-Type')}\r\n\r\n".encode()
    parts = BytesParser(policy=HTTP).parsebytes(head + arrived.body).iter_parts()
    assert [
        (part["Content-Disposition"].params.get("filename"), part["Content-Type"], part.get_payload(decode=True))
        for part in parts
    ] == [
        (None, None, b"hi"),
        ("cat.png", "image/png", DATA),
        ("more", "application/octet-stream", DATA),
        ("b.txt", "text/plain", b"text"),
    ]
