"""Every document of the public directory loads completely, and requests say what was meant."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.judges import programs
from tests.judges.directory.__main__ import judge, summary
from tests.judges.directory.decoding import Request, Wrong, check_body, check_query, query_pairs
from tests.judges.directory.reading import Body, Document, Parameter, newest
from tests.judges.directory.values import NoValue, Values

FOLDER = "OPWIRE_OPENAPI_DIRECTORY"
EVERY = "OPWIRE_OPENAPI_EVERY"


@pytest.fixture(scope="session", autouse=True)
def judges() -> None:
    """Replaces that of the other judges: only js-yaml is needed here, by one of the tests."""


@pytest.mark.timeout(6 * 60 * 60)
def test_every_document_of_the_directory_is_complete_and_no_request_is_wrong() -> None:
    """Every document of the public directory that is YAML loads completely, and an independent decoder finds no
    wrong request."""
    folder = os.environ.get(FOLDER)
    if not folder:
        pytest.skip(f"{FOLDER} does not name a local copy of APIs-guru/openapi-directory")
    if not programs.NODE.exists():
        pytest.skip("js-yaml is missing: run `make judges`")
    paths = newest(Path(folder))[:: int(os.environ.get(EVERY, "1"))]
    assert paths, f"{folder} has no documents"
    verdicts = list(judge(paths, calls=60, processes=2))
    assert not [each for each in verdicts if each.error or each.skipped or each.wrong], summary(verdicts)


# --- the judge itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "explode", "value", "query"),
    [
        ("form", True, [1, "a,b"], "x=1&x=a%2Cb"),
        ("form", False, [1, "a,b"], "x=1,a%2Cb"),
        ("form", True, {"a": True, "b": "c d"}, "a=true&b=c%20d"),
        ("form", False, {"a": 1.5, "b": [1]}, "x=a,1.5,b,%5B1%5D"),
        ("pipeDelimited", False, ["a", "b"], "x=a%7Cb"),
        ("deepObject", True, {"a": {"b": [1]}}, "x%5Ba%5D%5Bb%5D%5B0%5D=1"),
        ("json", False, {"a": "é"}, "x=%7B%22a%22:%22%C3%A9%22%7D"),
    ],
)
def test_the_judge_reads_a_query_by_its_style_and_finds_every_mistake(
    style: str, explode: bool, value: Any, query: str
) -> None:
    parameter = Parameter("x", "query", {}, style, explode, True)
    check_query(query_pairs(query.split("&")), [(parameter, value)])
    for broken in (query + "0", query + "&y=1", query.replace("1", "2").replace("a", "A")):
        with pytest.raises(Wrong):
            check_query(query_pairs(broken.split("&")), [(parameter, value)])


@pytest.mark.parametrize(
    ("content_type", "value", "data"),
    [
        ("application/json", {"a": 1}, b'{"a":1}'),
        ("application/x-www-form-urlencoded", {"a": ["x y", "&"]}, b"a=x+y&a=%26"),
        ("multipart/form-data", {"a": "x", "b": {"c": 1}}, None),
        ("application/xml", {"a": ["x", "y"], "id": 7}, b'<T id="7"><a>x</a><a>y</a></T>'),
    ],
)
def test_the_judge_reads_a_body_by_its_content_type(content_type: str, value: Any, data: bytes | None) -> None:
    schema = {"properties": {"id": {"xml": {"attribute": True}}, "a": {"type": "array", "items": {}}}}
    sent = content_type
    if data is None:
        sent += "; boundary=xx"
        pieces = [b'--xx\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % pair for pair in
                  [(b"a", b"x"), (b"b", b'{"c":1}')]]  # fmt: skip
        data = b"".join([*pieces, b"--xx--\r\n"])
    body = Body(content_type, schema, True, {})

    def check(data: bytes) -> None:
        request = Request("POST", "/", "", [("Content-Type", sent)], data)
        check_body(body, value, request, Document({"openapi": "3.1.0"}), set())

    check(data)
    with pytest.raises(Wrong):
        check(data.replace(b"x", b"z", 1) if b"x" in data else data.replace(b"1", b"2"))


def test_the_judge_makes_values_that_their_schemas_describe() -> None:
    from opwire import Schema

    schemas: list[dict[str, Any]] = [
        {"type": "string", "pattern": "^[a-c]{3}-\\d+$", "maxLength": 9},
        {"type": "integer", "minimum": 7, "maximum": 9, "exclusiveMinimum": 7},
        {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "array"}}, "required": ["a"]},
        {"allOf": [{"type": "object", "required": ["x"]}, {"properties": {"x": {"type": "boolean"}}}]},
    ]
    values = Values(Document({}), random.Random(1))
    for schema in schemas:
        assert Schema(schema).problems(values.make(schema)) == []
    with pytest.raises(NoValue):
        values.make({"type": "integer", "minimum": 5, "maximum": 4})
