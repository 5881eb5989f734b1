"""Ed25519 keys as PEM and back."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from opwire.auth import Authority, SigningKey
from opwire.auth.signed import key_name, public_key
from tests.auth.refusals import clean, wrong_use

KEY = SigningKey.generate()


def pem(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey, password: bytes | None = None) -> str:
    encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


@pytest.mark.parametrize("kind", [SigningKey, Authority])
def test_a_key_survives_as_pem(kind: type[SigningKey]) -> None:
    key = kind.generate()
    for written in (key.to_pem(), key.to_pem().encode()):
        again = kind.from_pem(written)
        assert type(again) is kind
        assert again.public_pem == key.public_pem
        assert again.sign(b"message") == key.sign(b"message")


def test_the_public_half_checks_what_the_private_one_signed() -> None:
    key = public_key(KEY.public_pem)
    key.verify(KEY.sign(b"message"), b"message")
    assert key_name(key) == KEY.name
    assert len(KEY.name) == 43


def test_every_key_is_another() -> None:
    assert len({SigningKey.generate().name for _ in range(10)}) == 10


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not a key",
        KEY.public_pem,
        KEY.to_pem()[:60],
        pem(ec.generate_private_key(ec.SECP256R1())),
        pem(ed25519.Ed25519PrivateKey.generate(), b"password"),
        "\ud800",
    ],
    ids=["empty", "text", "public", "cut", "another curve", "encrypted", "surrogate"],
)
def test_what_is_not_a_private_key_is_refused_and_not_shown(text: str) -> None:
    clean(wrong_use(SigningKey.from_pem, text), text or "?")


@pytest.mark.parametrize("text", ["", "not a key", KEY.to_pem(), "\ud800"], ids=["empty", "text", "private", "odd"])
def test_what_is_not_a_public_key_is_refused_and_not_shown(text: str) -> None:
    clean(wrong_use(public_key, text), text or "?")


@pytest.mark.parametrize("kind", [SigningKey, Authority])
def test_a_private_key_is_shown_by_to_pem_alone(kind: type[SigningKey]) -> None:
    key = kind.generate()
    secret = "".join(key.to_pem().splitlines()[1:-1])
    assert repr(key) == f"{kind.__name__}({key.name})"
    assert secret[24:] not in repr(vars(key)) + str(key)
