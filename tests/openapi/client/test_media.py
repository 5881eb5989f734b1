"""Content types: which of several is taken."""

from opwire.openapi.client.document import Located, SourceDocument
from opwire.openapi.client.endpoints import (
    MediaContent,
    accept_header,
    is_form,
    is_multipart,
    is_text,
    preferred,
)
from opwire.openapi.client.plan import media_type


def content(*types: str) -> list[MediaContent]:
    return [MediaContent(each, Located({}, SourceDocument({}))) for each in types]


def chosen(*types: str) -> str | None:
    found = preferred(content(*types))
    return None if found is None else found.content_type


def test_json_itself_comes_before_its_relatives_and_those_before_the_rest() -> None:
    assert chosen("application/vnd.x+json", "application/json;v=2", "application/json") == "application/json"
    assert chosen("application/vnd.x+json", "application/json;v=2") == "application/json;v=2"
    assert chosen("text/plain", "application/vnd.x+json") == "application/vnd.x+json"
    assert chosen("image/png", "*/*") == "*/*"
    assert chosen("image/png", "text/plain") == "text/plain"
    assert chosen("image/png", "image/gif") == "image/png"
    assert chosen() is None


def test_kinds_of_content() -> None:
    assert media_type("text/event-stream;charset=utf-8").stream == "sse"
    assert media_type("application/json").stream is None
    assert is_form("multipart/form-data; boundary=x")
    assert not is_form("multipart/mixed")
    assert is_multipart("multipart/mixed")
    assert is_text("application/xml")
    assert not is_text("text/json")
    assert not is_text("application/x-www-form-urlencoded")
    assert media_type("Application/HAL+JSON").is_json
    assert not media_type("application/stream+json").is_json


def test_what_is_asked_for_cannot_carry_a_second_header() -> None:
    assert accept_header(["application/json"] * 2, ["application/x+json"]) == "application/json, */*;q=0.1"
    assert accept_header(["text/x\r\nEvil: 1"], ["text/x\r\nEvil: 1"]) == "*/*"
    assert accept_header([], []) == "*/*"


def test_a_request_does_not_ask_for_thousands_of_types() -> None:
    types = [f"application/x{number}+json" for number in range(20_000)]
    assert accept_header(types, types).count(",") == 50
