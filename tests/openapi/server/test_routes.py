"""An operation seen from its path."""

from typing import Any

import pytest

from opwire import CallError, ErrorCode, OperationSpec, OperationType, Schema
from opwire.asgi.request import AdmittedRequest
from opwire.openapi.server.request import OperationRoute, Request

FLAT = Schema({"type": "object", "properties": {"a": {"type": "integer"}}})


def route(input_schema: Schema = FLAT, type: OperationType = OperationType.QUERY) -> OperationRoute:
    return OperationRoute.of(OperationSpec(namespace="a", name="b", type=type, input_schema=input_schema))


def input_of(route: OperationRoute, method: str, query: bytes = b"", body: bytes = b"") -> Any:
    headers = [(b"content-type", b"application/json")]
    admitted = AdmittedRequest(method, headers, dict(headers), body=body)
    return route.input(Request({"type": "http", "path": "/a/b", "query_string": query}, admitted))


def test_the_methods_of_an_operation_follow_from_its_type_and_input() -> None:
    assert route().methods == ("GET", "HEAD", "POST")
    assert route(type=OperationType.SUBSCRIPTION).methods == ("GET", "POST")
    assert route(type=OperationType.MUTATION).methods == ("POST",)
    assert route(Schema(True)).methods == ("POST",)


def test_input_is_read_from_the_query_string_or_from_the_body() -> None:
    assert input_of(route(), "GET", query=b"a=1", body=b'{"a": 2}') == {"a": 1}
    assert input_of(route(), "POST", query=b"a=1", body=b'{"a": 2}') == {"a": 2}
    assert input_of(route(), "POST") is None


def test_null_is_not_an_object_and_otherwise_a_value_like_any_other() -> None:
    with pytest.raises(CallError) as raised:
        input_of(route(), "POST", body=b"null")
    assert raised.value.code is ErrorCode.VALIDATION_ERROR
    assert raised.value.details == {"problems": [{"path": "", "message": 'the value is not of type "object"'}]}
    assert input_of(route(Schema(True)), "POST", body=b"null") is None


def test_a_missing_body_is_not_null() -> None:
    maybe = route(Schema({"type": ["integer", "null"]}))
    assert input_of(maybe, "POST", body=b"null") is None
    with pytest.raises(CallError, match="the body is missing") as raised:
        input_of(maybe, "POST")
    assert raised.value.code is ErrorCode.VALIDATION_ERROR
    assert input_of(route(Schema(True)), "POST") is None
