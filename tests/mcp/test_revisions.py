"""Revisions, envelopes and headers; the SDK's own functions are the judge."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from mcp_types import version

from opwire.mcp import revisions
from opwire.mcp.messages import RPCError
from opwire.mcp.revisions import (
    argument_headers,
    check_argument_headers,
    decode_header,
    encode_header,
    read_envelope,
    request_headers,
    write_argument_headers,
)


def rejected(check: Callable[[], object]) -> RPCError | None:
    try:
        check()
    except RPCError as error:
        return error
    return None


def test_the_revisions_are_those_of_the_sdk() -> None:
    assert revisions.HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert revisions.STATELESS_VERSIONS == version.MODERN_PROTOCOL_VERSIONS


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_every_text_survives_a_header(text: str) -> None:
    encoded = encode_header(text)
    assert decode_header(encoded) == text
    assert encoded == inbound.encode_header_value(text)


@given(
    st.text(st.sampled_from("=?base64AQ "))
    | st.text(st.characters(codec="ascii")).map(lambda text: f"=?base64?{text}?=")
)
def test_headers_are_read_as_by_the_sdk(value: str) -> None:
    assert decode_header(value) == inbound.decode_header_value(value)


_PROPERTY = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "boolean", "number", "object", ["string"], 5]),
        "x-mcp-header": st.sampled_from(["Region", "region", "X-Y", "a b", "", 5]),
    },
)
_SCHEMA = st.recursive(
    _PROPERTY,
    lambda inner: st.fixed_dictionaries(
        {"properties": st.dictionaries(st.sampled_from("abc"), inner | st.just(5), max_size=3)},
        optional={"items": inner, "anyOf": st.lists(inner, max_size=2), "$defs": st.dictionaries(st.just("d"), inner)},
    ),
    max_leaves=5,
)


@given(_SCHEMA | st.just(None))
def test_schemas_with_headers_are_judged_as_by_the_sdk(schema: Any) -> None:
    reason = inbound.find_invalid_x_mcp_header(schema)
    if reason is None:
        found = argument_headers(schema)
        assert {each.path: each.token for each in found} == inbound.x_mcp_header_map(schema)
    else:
        with pytest.raises(ValueError):
            argument_headers(schema)


DECLARED = {
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "n": {"type": "integer", "x-mcp-header": "N"},
        "inner": {"properties": {"on": {"type": "boolean", "x-mcp-header": "On"}}},
    }
}
_VALUE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([1])
_ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"region": _VALUE, "n": _VALUE, "inner": _VALUE | st.just({"on": True})}
)


@given(_ARGUMENTS)
def test_arguments_are_written_as_the_sdk_writes_them_and_are_then_accepted(arguments: dict[str, Any]) -> None:
    try:
        expected = inbound.mcp_param_headers(inbound.x_mcp_header_map(DECLARED), arguments)
    except UnicodeEncodeError:
        return
    declared = argument_headers(DECLARED)
    assert write_argument_headers(declared, arguments) == expected
    check_argument_headers(declared, arguments, {name.lower(): value for name, value in expected.items()})


@given(_ARGUMENTS, st.dictionaries(st.sampled_from(["mcp-param-region", "mcp-param-n", "mcp-param-on"]), st.text()))
def test_headers_that_differ_from_the_arguments_are_rejected_as_by_the_sdk(
    arguments: dict[str, Any], headers: dict[str, str]
) -> None:
    rejection = inbound.validate_mcp_param_headers(DECLARED, arguments, headers)
    error = rejected(lambda: check_argument_headers(argument_headers(DECLARED), arguments, headers))
    assert (error and error.code) == (rejection and rejection.code)


ENVELOPE = {revisions.VERSION_META: "2026-07-28", revisions.CLIENT_CAPABILITIES_META: {}}


@given(
    st.sampled_from(["tools/call", "ping", "resources/read"]),
    st.none() | st.dictionaries(st.sampled_from(["name", "uri"]), st.sampled_from(["a", "é", 5])),
    st.none()
    | st.fixed_dictionaries({}, optional={key: st.sampled_from(["2026-07-28", "x", {}, 5]) for key in ENVELOPE}),
    st.none()
    | st.dictionaries(
        st.sampled_from(["mcp-protocol-version", "mcp-method", "mcp-name"]),
        st.sampled_from(["2026-07-28", "tools/call", "ping", "a", "=?base64?w6k=?="]),
    ),
    st.booleans(),
)
def test_a_stateless_request_is_judged_as_by_the_sdk(
    method: str, params: dict[str, Any] | None, meta: dict[str, Any] | None, headers: Any, complete: bool
) -> None:
    params = None if params is None else {**params, "_meta": ENVELOPE if complete else meta}
    if headers is not None and complete:
        headers = {**request_headers("2026-07-28", method, params or {}), **headers}
    verdict = inbound.classify_inbound_request({"method": method, "params": params}, headers=headers)
    error = rejected(lambda: read_envelope(method, params, headers))
    if error is None:
        assert isinstance(verdict, inbound.InboundModernRoute)
    else:
        assert isinstance(verdict, inbound.InboundLadderRejection)
        assert (error.code, error.data) == (verdict.code, verdict.data)
