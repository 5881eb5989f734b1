"""HTTP Digest (RFC 7616), against a server that verifies it."""

import hashlib
import re
import secrets
from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.errors import CallError
from opwire.openapi.client import from_openapi
from tests.openapi.client.documents import document, json_body
from tests.openapi.client.echo import EchoServer, Exchange, answer, json_answer, redirect

OK: dict[str, Any] = {"security": [{"digest": []}], "responses": {"200": {"description": ""}}}
ROOT = document(
    {"/x": {"get": {"operationId": "get", **OK}, "post": {"operationId": "post", "requestBody": json_body({}), **OK}}},
    components={"securitySchemes": {"digest": {"type": "http", "scheme": "digest"}}},
)


class DigestServer:
    """Accepts ada with the password s3cret, and each nonce with growing counts."""

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm
        self._nonce = secrets.token_hex()
        self._counts: list[str] = []

    def _hash(self, *parts: str) -> str:
        kind = "sha256" if self._algorithm == "SHA-256" else "md5"
        return hashlib.new(kind, ":".join(parts).encode()).hexdigest()

    async def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        given = dict(re.findall(r'(\w+)="?([^",]*)"?', request.header("authorization") or ""))
        proof = self._hash(
            self._hash("ada", "realm", "s3cret"),
            *(given.get(name, "") for name in ("nonce", "nc", "cnonce", "qop")),
            self._hash(request.method, given.get("uri", "")),
        )
        fresh = given.get("nonce") == self._nonce and given.get("nc") not in self._counts
        if fresh and given.get("response") == proof and given["uri"] == request.path:
            self._counts.append(given["nc"])
            await exchange.send(json_answer(len(request.body)))
            return
        challenge = f'Digest realm="realm", qop="auth", algorithm={self._algorithm}, nonce="{self._nonce}"'
        await exchange.send(answer(401, headers={"WWW-Authenticate": challenge}))


async def called(server: EchoServer, *calls: tuple[str, Any], credential: Any = ("ada", "s3cret")) -> list[Any]:
    async with from_openapi(ROOT, namespace="api", base_url=server.url, credentials={"digest": credential}) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        return [(await registry.execute(f"api.{name}", input)).data for name, input in calls]


@pytest.mark.parametrize("algorithm", ["MD5", "SHA-256"])
async def test_a_password_is_proven_and_never_sent(server: EchoServer, algorithm: str) -> None:
    """HTTP Digest proves a password to the API's origin, challenged once."""
    server.on("/x", DigestServer(algorithm))
    large = {"body": "x" * 2_000_000}
    assert await called(server, ("post", large), ("get", {}), ("get", {})) == [2_000_002, 0, 0]
    assert len(server.arrived) == 4  # only the first one was challenged
    assert not any(b"s3cret" in f"{each.headers}".encode() + each.body for each in server.arrived)


async def test_a_wrong_password_is_an_error_without_it(server: EchoServer) -> None:
    server.on("/x", DigestServer("SHA-256"))
    with pytest.raises(CallError, match="HTTP 401") as caught:
        await called(server, ("get", {}), credential=("ada", "wr0ng"))
    assert "wr0ng" not in f"{caught.value} {caught.value.details}"
    assert len(server.arrived) == 2


async def test_another_origin_gets_no_proof(server: EchoServer) -> None:
    async with EchoServer() as other:
        other.on("/x", DigestServer("SHA-256"))
        server.on("/x", redirect(307, f"{other.url}/x"))
        with pytest.raises(CallError, match="HTTP 401"):
            await called(server, ("get", {}))
        assert [each.header("authorization") for each in other.arrived] == [None]
