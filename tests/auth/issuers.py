"""An issuer of tokens, honest or not. Keys are created once, because an RSA key takes its time."""

import base64
import hashlib
import hmac
import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

SECRET = "a-shared-secret-that-is-64-bytes-long-which-is-what-HS512-needs!"


@cache
def private_key(algorithm: str, name: str = "") -> Any:
    """A key for an algorithm; another for each name."""
    match algorithm:
        case "HS256" | "HS384" | "HS512":
            return SECRET + name
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case "ES512":
            return ec.generate_private_key(ec.SECP521R1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "Ed448":
            return ed448.Ed448PrivateKey.generate()
        case "weak RSA":
            return rsa.generate_private_key(65537, 1024)
        case _ if algorithm != "RSA":  # one for all RS and PS
            return private_key("RSA", name)
        case _:
            return rsa.generate_private_key(65537, 2048)


def private_pem(algorithm: str) -> str:
    key = private_key(algorithm)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def verification_key(algorithm: str, name: str = "") -> str:
    """The key of a verifier: the secret, or the public key as PEM."""
    key = private_key(algorithm, name)
    if isinstance(key, str):
        return key
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def published(algorithm: str, name: str = "", **fields: Any) -> dict[str, Any]:
    """The public key as a JSON Web Key. Fields with None are left out."""
    public = private_key(algorithm, name).public_key()
    made: Any = jwt.get_algorithm_by_name({"Ed448": "EdDSA", "weak RSA": "RS256"}.get(algorithm, algorithm))
    data = {**made.to_jwk(public, as_dict=True), "kid": name or algorithm, "alg": algorithm, **fields}
    return {field: value for field, value in data.items() if value is not None}


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims with some changed; those with None are left out."""
    now = time.time()
    good = {"sub": "ann", "aud": "opwire", "iss": "https://id.example", "exp": int(now) + 300, "iat": int(now)}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def token(algorithm: str = "HS256", name: str = "", headers: dict[str, Any] | None = None, **changes: Any) -> str:
    """A token that is signed as it should be."""
    return jwt.encode(claims(**changes), private_key(algorithm, name), algorithm, headers)


def forged(header: dict[str, Any], payload: Any, secret: bytes = b"") -> str:
    """A token with any header and payload, signed with HMAC regardless of the header; unsigned without a secret."""
    text = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(payload).encode())}"
    signature = hmac.digest(secret, text.encode(), hashlib.sha256) if secret else b""
    return f"{text}.{_b64(signature)}"


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
