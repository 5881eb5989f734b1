"""AWS Signature Version 4: signs a request with a key that is not sent. No I/O, no clock."""

import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from opwire.http_client import HTTPRequest

_ALGORITHM = "AWS4-HMAC-SHA256"


class AWSCredentials(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The credentials of an AWS account, for schemes with `awsSigv4`. The repr omits the secrets."""

    access_key: str
    secret_key: str
    region: str
    service: str  # as in signatures: "s3", "execute-api"
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"<AWSCredentials {self.access_key}>"


def read_credentials(given: Any) -> AWSCredentials | None:
    """Return the credentials, or None if this is another kind of credential.

    Raises:
        ValueError: fields are missing or invalid; the message names fields and types, and no values.
    """
    if isinstance(given, Mapping) and "access_key" in given:
        try:
            return msgspec.convert(given, AWSCredentials)
        except msgspec.ValidationError as error:
            raise ValueError(f"expected AWS credentials: {error}") from None
    return given if isinstance(given, AWSCredentials) else None


def signed(request: HTTPRequest, credentials: AWSCredentials, now: float) -> HTTPRequest:
    """Return the request with a signature over its method, URL, body and host. `now` is a Unix time."""
    url = URL(request.url, encoded=True)
    time = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = sha256(request.body or b"").hexdigest()
    own = {"x-amz-date": time}
    if credentials.service == "s3":
        own["x-amz-content-sha256"] = digest
    if credentials.session_token is not None:
        own["x-amz-security-token"] = credentials.session_token
    others = [pair for pair in request.headers if pair[0].lower() not in (*own, "authorization", "host")]
    covered = {"host": url.host_port_subcomponent or "", **own}
    for name, value in others:
        if name.lower() == "content-type" or name.lower().startswith("x-amz-"):
            covered[name.lower()] = " ".join(value.split())
    names = ";".join(sorted(covered))
    path = url.raw_path or "/"
    query = [each.partition("=")[::2] for each in url.raw_query_string.split("&") if each]
    fields = sorted(tuple(quote(unquote(part), safe="-_.~") for part in pair) for pair in query)
    canonical = "\n".join(
        [
            request.method,
            path if credentials.service == "s3" else quote(path, safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in fields),
            *(f"{name}:{covered[name]}" for name in sorted(covered)),
            "",
            names,
            digest,
        ]
    )
    scope = f"{time[:8]}/{credentials.region}/{credentials.service}/aws4_request"
    text = "\n".join([_ALGORITHM, time, scope, sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    proof = f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return replace(
        request,
        headers=[*others, *own.items(), ("Authorization", proof)],
        secret_headers=request.secret_headers | {"authorization", "x-amz-security-token"},
    )
