"""Client certificates and own authorities, with real certificates and servers."""

import json
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from opwire import OperationRegistry
from opwire.config import load_config, open_config
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.http.client import ClientOptions
from opwire.http.tls import client_context
from opwire.openapi.client import from_openapi
from tests.mcp.client.connections import http_server
from tests.openapi.client.documents import document
from tests.openapi.client.echo import EchoServer, json_answer, redirect


class Authority:
    """Issues certificates for 127.0.0.1 into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = str(self._write(f"{name}.pem", self._certificate(self._name, self._key, is_ca=True)))

    def issue(self, name: str, *, password: str | None = None, apart: bool = False) -> str:
        """Return the file of a certificate and its key; `apart`: the key is in NAME.key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        encryption: Any = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        if apart:
            self._write(f"{name}.key", pem)
        return str(self._write(f"{name}.pem", self._certificate(subject, key) + (b"" if apart else pem)))

    def server(self, *, demands: bool = True) -> ssl.SSLContext:
        """Return the context of a server that demands certificates of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue("server"))
        if demands:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.file)
        return context

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool = False) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(_usage(is_ca=is_ca), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path


def _usage(*, is_ca: bool) -> x509.KeyUsage:  # Python 3.13 requires it of an authority
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    never = dict.fromkeys((*others, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **never)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


ROOT = document({"/x": {"get": {"operationId": "get", "responses": {"200": {"description": ""}}}}})


async def called(url: str, **options: Any) -> Any:
    async with from_openapi(ROOT, namespace="api", base_url=url, **options) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        return (await registry.execute("api.get")).data


@pytest.mark.parametrize("kind", ["together", "apart", "encrypted"])
async def test_an_api_gets_the_certificate_that_it_demands(authority: Authority, tmp_path: Path, kind: str) -> None:
    password = "s3cret" if kind == "encrypted" else None
    options: dict[str, Any] = {
        "ca_file": authority.file,
        "client_certificate": authority.issue("robot", password=password, apart=kind == "apart"),
        "client_key": str(tmp_path / "robot.key") if kind == "apart" else None,
        "client_key_password": password,
    }
    async with EchoServer(tls=authority.server()) as server:
        assert (await called(server.url, **options))["path"] == "/x"
        with pytest.raises(CallError) as caught:
            await called(server.url, ca_file=authority.file)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        with pytest.raises(CallError, match="cannot be reached: its certificate is not trusted: self-signed"):
            await called(
                server.url,
                client_certificate=options["client_certificate"],
                client_key_password=password,
                client_key=options["client_key"],
            )


async def test_a_certificate_is_not_shown_to_another_origin(authority: Authority) -> None:
    robot = authority.issue("robot")
    async with EchoServer(tls=authority.server()) as other, EchoServer(tls=authority.server()) as server:
        server.on("/x", redirect(302, f"{other.url}/x"), json_answer("here"))
        with pytest.raises(CallError) as caught:
            await called(server.url, ca_file=authority.file, client_certificate=robot)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert not other.arrived
        server.on("/x", redirect(302, "/y"))
        server.on("/y", json_answer("here"))
        assert await called(server.url, ca_file=authority.file, client_certificate=robot) == "here"


async def test_checks_can_be_skipped_with_a_certificate(authority: Authority) -> None:
    async with EchoServer(tls=authority.server()) as server:
        assert await called(server.url, ssl=False, client_certificate=authority.issue("robot"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_certificate": "missing.pem"}, "client_certificate .*missing.pem: No such file"),
        ({"client_certificate": "authority.pem"}, "not a PEM certificate with its key"),
        ({"client_certificate": "locked.pem"}, "encrypted with another password"),
        ({"client_certificate": "locked.pem", "client_key_password": "wrong"}, "encrypted with another password"),
        ({"ca_file": "missing.pem"}, "ca_file .*missing.pem: No such file"),
        ({"ca_file": "text.pem"}, "ca_file .*text.pem: not a PEM"),
        ({"client_key": "robot.key"}, "client_key needs client_certificate"),
    ],
)
def test_an_unusable_file_is_named_at_once_and_never_asked_for(
    authority: Authority, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    authority.issue("locked", password="s3cret")
    (tmp_path / "text.pem").write_text("text")
    given = {name: value if name.endswith("password") else str(tmp_path / value) for name, value in options.items()}
    with pytest.raises(UsageError, match=message):
        from_openapi(ROOT, **given)  # pyright: ignore[reportArgumentType]


def test_a_context_excludes_files() -> None:
    with pytest.raises(UsageError, match="ssl is a context already"):
        ClientOptions(ssl=client_context(), ca_file="ca.pem")


async def test_files_of_the_configuration_are_relative_to_it(authority: Authority, tmp_path: Path) -> None:
    """Certificates of sources behind a URL are files relative to the configuration."""
    authority.issue("robot", password="s3cret", apart=True)
    seen: list[str] = []

    async def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        seen.append(method)
        return 404, {}, b""

    async with EchoServer(tls=authority.server()) as server, http_server(answer, authority.server()) as mcp:
        tls = 'tls = { ca_file = "authority.pem", client_certificate = "robot.pem", client_key = "robot.key", '
        tls += 'client_key_password = "${ROBOT_PASSWORD}" }\n'
        (tmp_path / "api.json").write_bytes(json.dumps(ROOT).encode())
        (tmp_path / "opwire.toml").write_text(
            f'[sources.api]\nopenapi = "api.json"\nbase_url = "{server.url}"\nmax_connections = 2\n{tls}'
            f'[sources.mcp]\nurl = "{mcp}/mcp"\n{tls}'
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROBOT_PASSWORD", "s3cret")
            async with open_config(load_config(tmp_path / "opwire.toml")) as opened:
                assert (await opened.registry.execute("api.get")).data["path"] == "/x"
                assert "HTTP 404" in str(opened.failures["mcp"])
    assert seen
