"""What operations ask of credentials."""

from typing import Any

import pytest

from opwire.openapi.client.plan import SecurityRequirement, SecurityScheme
from tests.openapi.client.documents import Read, document


def needs(scheme: Any, version: str = "3.1.0") -> SecurityScheme:
    if version == "2.0":
        root = document({"/a": {"get": {}}}, version, securityDefinitions={"s": scheme}, security=[{"s": []}])
    else:
        root = document(
            {"/a": {"get": {}}}, version, components={"securitySchemes": {"s": scheme}}, security=[{"s": []}]
        )
    ((need,),) = Read({**root, "servers": [{"url": "https://api.test/v1/"}]}).only.plan.security
    return need.scheme


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"type": "apiKey", "in": "header", "name": "K"}, {"kind": "apiKey", "location": "header", "parameter": "K"}),
        ({"type": "apiKey", "in": "cookie", "name": "k"}, {"kind": "apiKey", "location": "cookie", "parameter": "k"}),
        ({"type": "http", "scheme": "Basic"}, {"kind": "basic"}),
        ({"type": "http", "scheme": "BEARER", "bearerFormat": "JWT"}, {"kind": "bearer"}),
        ({"type": "http", "scheme": "digest"}, {"kind": "other", "declared_as": "http digest"}),
        ({"type": "mutualTLS"}, {"kind": "other", "declared_as": "mutualTLS"}),
        (
            {"type": "openIdConnect", "openIdConnectUrl": "https://x"},
            {"kind": "openIdConnect", "metadata_url": "https://x"},
        ),
        (
            {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/token", "scopes": {}}}},
            {"kind": "oauth2", "token_url": "/token"},
        ),
        ({"type": "oauth2", "flows": {"implicit": {}}}, {"kind": "oauth2"}),
        ({"type": "apiKey", "in": "body", "name": "k"}, {"kind": "other", "declared_as": "apiKey"}),
        ({}, {"kind": "other", "declared_as": "not declared"}),
        (None, {"kind": "other", "declared_as": "not declared"}),
        ({"$ref": "#/nowhere"}, {"kind": "other", "declared_as": "not declared"}),
    ],
)  # fmt: skip
def test_every_kind_of_scheme_is_read(given: Any, read: dict[str, Any]) -> None:
    """Security schemes and requirements are read as alternatives of needs."""
    assert needs(given) == SecurityScheme(name="s", **read)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"type": "basic"}, {"kind": "basic"}),
        ({"type": "apiKey", "in": "query", "name": "k"}, {"kind": "apiKey", "location": "query", "parameter": "k"}),
        ({"type": "oauth2", "flow": "application", "tokenUrl": "https://t.test"}, {"kind": "oauth2", "token_url": "https://t.test"}),
        ({"type": "oauth2", "flow": "password", "tokenUrl": "https://t.test"}, {"kind": "oauth2"}),
    ],
)  # fmt: skip
def test_swagger_has_its_own_spelling(given: Any, read: dict[str, Any]) -> None:
    assert needs(given, "2.0") == SecurityScheme(name="s", **read)


def test_an_operation_has_its_own_alternatives_or_those_of_the_document() -> None:
    schemes = {name: {"type": "http", "scheme": "bearer"} for name in "ab"}
    root = document(
        {
            "/own": {"get": {"operationId": "own", "security": [{"a": ["read"], "b": []}, {}]}},
            "/none": {"get": {"operationId": "none", "security": []}},
            "/usual": {"get": {"operationId": "usual"}},
        },
        components={"securitySchemes": schemes},
        security=[{"b": ["x", "y"]}],
    )
    read = Read(root)
    a, b = (SecurityScheme(name=name, kind="bearer") for name in "ab")
    assert read["own"].plan.security == ((SecurityRequirement(a, ("read",)), SecurityRequirement(b)), ())
    assert read["none"].plan.security == ()
    assert read["usual"].plan.security == ((SecurityRequirement(b, ("x", "y")),),)


def test_what_is_not_declared_is_reported() -> None:
    read = Read(document({"/a": {"get": {"security": [{"nobody": []}]}}}))
    assert read.only.plan.security[0][0].scheme.kind == "other"
    assert read.report.warnings == ["the security scheme 'nobody' is not declared"]
