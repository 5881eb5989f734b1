"""Keys, tokens and certificates for servers under test, made on the spot. They are worth nothing elsewhere."""

import json
import ssl
from base64 import b32encode, urlsafe_b64encode
from binascii import crc_hqx
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3


class Nkey:
    """A pair of keys: of an operator, an account or a user."""

    def __init__(self, owner: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public = _text(bytes([owner]) + self._key.public_key().public_bytes_raw())
        kind = bytes([18 << 3 | owner >> 5, (owner & 31) << 3])
        self.seed = _text(kind + self._key.private_bytes_raw())

    def jwt(self, subject: str, kind: str, **claims: Any) -> str:
        """A token in which this key vouches for another one."""
        body = {
            "jti": "x",
            "iat": 1_700_000_000,
            "iss": self.public,
            "sub": subject,
            "name": kind,
            "nats": {"type": kind, "version": 2} | claims,
        }
        text = f"{_url({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_url(body)}"
        return f"{text}.{_b64(self._key.sign(text.encode()))}"


def _text(raw: bytes) -> str:
    return b32encode(raw + crc_hqx(raw, 0).to_bytes(2, "little")).rstrip(b"=").decode()


def _url(value: Any) -> str:
    return _b64(json.dumps(value).encode())


def _b64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class Realm:
    """An operator, an account and its user: what a server with JWTs is set to, and a `.creds` file for it."""

    def __init__(self) -> None:
        operator, account, user = Nkey(OPERATOR), Nkey(ACCOUNT), Nkey(USER)
        limits = {"subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1}
        member = account.jwt(user.public, "user", subs=-1, data=-1, payload=-1)
        vouched = operator.jwt(account.public, "account", limits=limits)
        self.settings = {
            "operator": operator.jwt(operator.public, "operator"),
            "resolver": "MEMORY",
            "resolver_preload": {account.public: vouched},
        }
        self.creds = (
            f"-----BEGIN NATS USER JWT-----\n{member}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )


class Certificate:
    """A certificate for 127.0.0.1 that vouches for itself, in a folder."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a server under test")])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        self._file, self._key = folder / "server.pem", folder / "server.key"
        self._file.write_bytes(made.public_bytes(pem))
        self._key.write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))

    @property
    def settings(self) -> dict[str, str]:
        """What a server is set to."""
        return {"cert_file": str(self._file), "key_file": str(self._key)}

    @property
    def trust(self) -> ssl.SSLContext:
        """For a client that believes this certificate."""
        return ssl.create_default_context(cafile=str(self._file))
