"""Compiling: closed to the network, the file system and slow patterns."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import SchemaError
from opwire.schema import Dialect, Schema
from opwire.schema.validator import compile_validator


class Server:
    """A server on the loopback that offers a schema and counts its requests."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        hits = self.hits

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hits.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"type": "integer"}')

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


EVERY_DIALECT: tuple[Dialect, ...] = ("2020-12", "2019-09", "draft-07", "draft-06", "draft-04", "openapi-3.0")
REMOTE: list[tuple[Any, Dialect]] = [
    *(({"$ref": "{}"}, dialect) for dialect in EVERY_DIALECT),
    *(({"$ref": "{}#/type"}, dialect) for dialect in EVERY_DIALECT),
    *(({"properties": {"a": {"items": {"$ref": "{}"}}}}, dialect) for dialect in EVERY_DIALECT),
    ({"$dynamicRef": "{}#x"}, "2020-12"),
    ({"$id": "{}/folder/", "$ref": "other.json"}, "2020-12"),
    ({"$id": "{}/folder/", "allOf": [{"$ref": "other.json"}]}, "draft-07"),
    ({"id": "{}/folder/", "allOf": [{"$ref": "other.json"}]}, "draft-04"),
]


def filled(schema: Any, address: str) -> Any:
    if isinstance(schema, dict):
        return {key: filled(value, address) for key, value in schema.items()}
    if isinstance(schema, list):
        return [filled(each, address) for each in schema]
    return schema.replace("{}", address)


@pytest.mark.parametrize(("schema", "dialect"), REMOTE)
def test_a_reference_to_the_network_is_an_error_and_is_never_followed(
    schema: Any, dialect: Dialect, server: Server
) -> None:
    with pytest.raises(SchemaError, match=r"not a valid JSON Schema.*(127\.0\.0\.1|other\.json)"):
        Schema(filled(schema, f"{server.address}/schema.json"), dialect=dialect).compile()
    assert server.hits == []


def test_a_foreign_meta_schema_is_never_fetched(server: Server) -> None:
    schema = Schema({"$schema": f"{server.address}/meta.json", "type": "integer"})
    assert schema.is_valid(1)
    assert not schema.is_valid("x")
    assert server.hits == []


def test_a_reference_to_a_file_is_an_error_though_the_file_is_there(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    for ref in (file.as_uri(), str(file), "schema.json"):
        with pytest.raises(SchemaError, match="not a valid JSON Schema"):
            Schema({"$ref": ref}).compile()


HOSTILE_PATTERNS = {
    "nested quantifiers": (r"^(a+)+$", "a" * 5_000 + "b"),
    "alternatives": (r"^(a|aa)+$", "a" * 5_000 + "b"),
    "lookahead": (r"^(?=(a+)+$)", "a" * 50 + "b"),
    "lookbehind": (r"(?<!x)(a+)+$", "a" * 50 + "b"),
    "back-reference": (r"^(a+)\1+$", "a" * 5_000 + "b"),
    "back-references": (r"(.*)(.*)(.*)(.*)\1\2\3\4x", "a" * 200),
}


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties", "propertyNames"])
@pytest.mark.parametrize(("pattern", "text"), HOSTILE_PATTERNS.values(), ids=HOSTILE_PATTERNS)
@pytest.mark.timeout(10)  # Python's own `re` takes years
def test_a_hostile_pattern_ends_at_once(keyword: str, pattern: str, text: str) -> None:
    schemas: dict[str, tuple[Any, Any]] = {
        "pattern": ({"pattern": pattern}, text),
        "patternProperties": ({"patternProperties": {pattern: True}, "additionalProperties": False}, {text: 1}),
        "propertyNames": ({"propertyNames": {"pattern": pattern}}, {text: 1}),
    }
    schema, value = schemas[keyword]
    assert Schema(schema).is_valid(value) is False
    assert Schema(schema).problems(value)


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        (r"^(?!-)[a-z-]+(?<!-)$", "a-b", "a-"),
        (r"^(['\"]).*\1$", "'a'", "'a\""),
        (r"^\p{L}+$", "é", "5"),
        (r"^\d+$", "5", "٥"),
        (r"a", "banana", "x"),
        (r"^(?=.*[0-9])(?=.*[a-z]).{8,}$", "abcdefg1" * 500, "abcdefgh"),
    ],
)
def test_ordinary_patterns_with_lookarounds_and_back_references_work(pattern: str, fits: str, fails: str) -> None:
    validator = compile_validator({"pattern": pattern})
    assert validator.is_valid(fits)
    assert not validator.is_valid(fails)


@pytest.mark.timeout(20)
def test_a_pattern_that_would_grow_without_bounds_is_refused() -> None:
    with pytest.raises(SchemaError):
        compile_validator({"pattern": "((a{1,1000}){1,1000}){1,1000}"}).is_valid("a")


@pytest.mark.parametrize("wrap", ["[value]", "{'a': value}", "(value,)"])
def test_a_recursive_schema_and_a_value_nested_100_000_deep_do_not_end_the_process(wrap: str) -> None:
    script = f"""
        from opwire.schema import Schema
        value = 0
        for _ in range(100_000):
            value = {wrap}
        schema = Schema({{"items": {{"$ref": "#"}}, "additionalProperties": {{"$ref": "#"}}}})
        assert schema.is_valid(value) is False
        assert len(schema.problems(value)) == 1
        schema.fit(value)
        print("alive")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.stdout, result.returncode) == ("alive\n", 0), result.stderr


def test_a_schema_that_refers_to_itself_without_end_does_not_crash() -> None:
    for schema in (
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ):
        command = [sys.executable, "-c", f"from opwire.schema import Schema\nprint(Schema({schema!r}).is_valid(1))"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert result.returncode in (0, 1), result.stderr
        assert "SchemaError" in result.stderr or result.stdout in ("True\n", "False\n")


def test_an_error_says_where_in_the_schema_it_is_and_echoes_no_other_part_of_it() -> None:
    with pytest.raises(SchemaError) as caught:
        compile_validator({"properties": {"a": {"type": "secret-type"}}, "title": "secret-title"})
    assert "at properties/a/type" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_formats_are_asserted_in_every_dialect() -> None:
    for address in ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"):
        validator = compile_validator({"$schema": address, "format": "date"})
        assert validator.is_valid("2026-05-16")
        assert not validator.is_valid("2026-02-30")
