"""AWS Signature Version 4, against published signatures."""

from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.errors import CallError
from opwire.http.client import HTTPRequest
from opwire.openapi.client import AWSCredentials, from_openapi
from opwire.openapi.client.security import aws_signed
from tests.openapi.client.documents import document
from tests.openapi.client.echo import EchoServer, redirect

ACCOUNT = AWSCredentials(
    access_key="AKIDEXAMPLE",
    secret_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    region="us-east-1",
    service="service",
)
NOON = 1440938160.0  # 2015-08-30T12:36:00Z
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("method", "target", "content_type", "body", "signature"),
    [
        ("GET", "/", None, None, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", None, None, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            None,
            None,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "GET",
            "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            None,
            None,
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        ("POST", "/", FORM, b"Param1=value1", "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"),
    ],
)
def test_the_signatures_are_those_of_the_published_test_suite(
    method: str, target: str, content_type: str | None, body: bytes | None, signature: str
) -> None:
    headers = [] if content_type is None else [("Content-Type", content_type)]
    request = HTTPRequest(method=method, url=f"https://example.amazonaws.com{target}", headers=headers, body=body)
    given = dict(aws_signed(request, ACCOUNT, NOON).headers)
    names = "content-type;host;x-amz-date" if content_type else "host;x-amz-date"
    scope = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"
    assert given["Authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}"
    )
    assert given["x-amz-date"] == "20150830T123600Z"


# What botocore 1.44.0 signs, at the same time.
@pytest.mark.parametrize(
    ("service", "signature"),
    [
        (
            "execute-api",
            "099f1de1c7518e1509b24803bd2f9659a5bd049ed7528099d3c25262c576bd49",
        ),
        ("s3", "c308a700d295f76f0283f834dec4f074e75b756c4a8daff496458015a05a2beb"),
    ],
)
def test_encoded_paths_and_queries_are_signed_as_botocore_does(service: str, signature: str) -> None:
    account = AWSCredentials(
        access_key="AKIDEXAMPLE",
        secret_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        region="us-east-1",
        service=service,
        session_token="tok/en==",
    )
    url = f"https://{service}.amazonaws.com:8443/a%2Fb/c%20d?q=x%20y&q=%2B&e="
    request = HTTPRequest(method="PUT", url=url, headers=[], body=b"x")
    result = aws_signed(request, account, NOON)
    assert dict(result.headers)["Authorization"].endswith(f"Signature={signature}")
    assert {"authorization", "x-amz-security-token"} <= result.secret_headers


HMAC = {
    "type": "apiKey",
    "name": "Authorization",
    "in": "header",
    "x-amazon-apigateway-authtype": "awsSigv4",
}
ROOT = document(
    {"/x": {"get": {"operationId": "get", "security": [{"hmac": []}], "responses": {"200": {"description": ""}}}}},
    components={"securitySchemes": {"hmac": HMAC}},
)


async def called(server: EchoServer, credential: Any) -> Any:
    async with from_openapi(
        ROOT, namespace="aws", base_url=server.url, credentials={"hmac": credential}, headers={"X-Team": "a"}
    ) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        return (await registry.execute("aws.get")).data


async def test_an_operation_is_signed_and_the_signature_stays_at_its_origin(server: EchoServer) -> None:
    """Requests are signed by AWS Signature Version 4 as AWS's own signatures are."""
    fields = {"access_key": "AK", "secret_key": "s3cret", "region": "eu-west-1", "service": "s3", "session_token": "t"}
    await called(server, fields)
    arrived = server.arrived[0]
    assert (arrived.header("authorization") or "").startswith("AWS4-HMAC-SHA256 Credential=AK/")
    assert arrived.header("x-amz-security-token") == "t"
    async with EchoServer() as other:
        server.on("/x", redirect(307, f"{other.url}/x"))
        await called(server, fields)
        assert other.arrived[0].header("authorization") is None
        assert other.arrived[0].header("x-amz-security-token") is None
    assert "s3cret" not in repr(AWSCredentials(**fields))


async def test_incomplete_credentials_are_named(server: EchoServer) -> None:
    with pytest.raises(CallError, match=r"'hmac' cannot be used: expected AWS credentials: .*secret_key") as caught:
        await called(server, {"access_key": "AK-s3cret"})
    assert "AK-s3cret" not in caught.value.message
