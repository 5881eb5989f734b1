"""Key certificates: issued, read, and distinguished from other data."""

import time
from typing import Any

import jwt
import pytest
from msgspec.structs import replace

from opwire import Identity
from opwire.auth import Authority, Grant, SigningKey
from opwire.auth.signed import KeyCertificate, own_certificate, public_key, read_certificate
from tests.auth.issuers import published
from tests.auth.refusals import wrong_use

AUTHORITY, OTHER = Authority.generate(), Authority.generate()
KEY = SigningKey.generate()
SHOP = Grant(Identity(id="shop", scopes=("a", "b c"), resources={"file": ("read",)}), announces=("shop", "*"))


def read(text: str, *authorities: Authority) -> KeyCertificate:
    return read_certificate(text, [public_key(each.public_pem) for each in authorities or [AUTHORITY]], leeway=5)


def handmade(*, typ: str | None = "opwire-key-certificate+jwt", **changes: Any) -> str:
    """A certificate that the authority has signed, with other claims than it would write. None: left out."""
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": KEY.name}
    claims = {"sub": "shop", "exp": int(time.time()) + 60, "cnf": {"jwk": jwk}, **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, AUTHORITY.to_pem(), "EdDSA", {"typ": typ})


@pytest.mark.parametrize("delegates", [False, True])
def test_a_certificate_says_what_it_was_issued_for(delegates: bool) -> None:
    text = AUTHORITY.issue(replace(SHOP, delegates=delegates), KEY.public_pem, lifetime=60)
    certificate = read(text)
    assert (certificate.grant.identity, certificate.grant.announces) == (SHOP.identity, SHOP.announces)
    assert certificate.grant.delegates is delegates
    assert certificate.holder == KEY.name
    assert certificate.expires == certificate.grant.expires == pytest.approx(time.time() + 60, abs=5)
    certificate.key.verify(KEY.sign(b"x"), b"x")


def test_a_certificate_names_the_public_key_and_holds_nothing_private() -> None:
    text = AUTHORITY.issue(SHOP, KEY.public_pem, lifetime=60)
    claims = jwt.decode(text, options={"verify_signature": False})
    assert claims["cnf"] == {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": KEY.name}}
    assert claims["delegates"] is False


def test_a_certificate_never_outlives_the_grant() -> None:
    until = int(time.time()) + 30
    text = AUTHORITY.issue(Grant(Identity(id="a"), (), until), KEY.public_pem, lifetime=3600)
    assert read(text).expires == until


def test_an_identity_alone_can_be_given() -> None:
    assert read(AUTHORITY.issue(Identity(id="a"), KEY.public_pem, lifetime=60)).grant.identity == Identity(id="a")


def test_only_a_public_key_gets_a_certificate() -> None:
    wrong_use(AUTHORITY.issue, SHOP, KEY.to_pem(), lifetime=60)


def test_a_certificate_of_another_authority_is_refused_unless_that_is_trusted_too() -> None:
    text = OTHER.issue(SHOP, KEY.public_pem, lifetime=60)
    with pytest.raises(ValueError, match="unknown authority"):
        read(text)
    assert read(text, AUTHORITY, OTHER).grant.identity == SHOP.identity


ALMOST: dict[str, str] = {
    "another type": handmade(typ="JWT"),
    "no type": handmade(typ=None),
    "no cnf": handmade(cnf=None),
    "empty cnf": handmade(cnf={}),
    "cnf is text": handmade(cnf="x"),
    "key is a list": handmade(cnf={"jwk": []}),
    "key is not base64": handmade(cnf={"jwk": {"kty": "OKP", "crv": "Ed25519", "x": "!"}}),
    "key is a secret": handmade(cnf={"jwk": {"kty": "oct", "k": "c2VjcmV0"}}),
    "key of Ed448": handmade(cnf={"jwk": published("Ed448")}),
    "key of RSA": handmade(cnf={"jwk": published("RS256")}),
    "private key": handmade(cnf={"jwk": {"kty": "OKP", "crv": "Ed25519", "x": KEY.name, "d": OTHER.name}}),
    "no subject": handmade(sub=None),
    "subject is a number": handmade(sub=17),
    "no expiry": handmade(exp=None),
    "expiry is text": handmade(exp="9999999999"),
    "scopes are numbers": handmade(scopes=[1]),
    "not yet": handmade(nbf=int(time.time()) + 86_400),
    "longer": handmade() + "x",
    "cut": handmade()[:-1],
    "empty": "",
    "garbage": "a.b.c",
    "surrogate": "\ud800",
}


@pytest.mark.parametrize("text", ALMOST.values(), ids=ALMOST)
def test_what_is_not_quite_a_certificate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(text)


@pytest.mark.parametrize("flag", ["true", 1, [True], {}, None])
def test_nothing_but_true_lets_a_holder_delegate(flag: Any) -> None:
    assert not read(handmade(delegates=flag)).grant.delegates
    assert read(handmade(delegates=True)).grant.delegates


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_a_certificate_of_another_algorithm_is_refused(algorithm: str) -> None:
    head, body, _ = handmade().split(".")
    claims = jwt.decode(f"{head}.{body}.", options={"verify_signature": False})
    secret = "" if algorithm == "none" else AUTHORITY.name
    text = jwt.encode(claims, secret, algorithm, {"typ": "opwire-key-certificate+jwt"})
    with pytest.raises(ValueError, match="InvalidAlgorithmError"):
        read(text)


def test_ones_own_certificate_is_read_without_knowing_the_authority() -> None:
    assert own_certificate(OTHER.issue(SHOP, KEY.public_pem, lifetime=60), KEY).grant.identity == SHOP.identity


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "this is not a key certificate: Authority.issue() returns one"),
        ("a.b.c", "this is not a key certificate: Authority.issue() returns one"),
        (handmade(typ="JWT"), "this is not a key certificate: Authority.issue() returns one"),
        (AUTHORITY.issue(SHOP, OTHER.public_pem, lifetime=60), "this certificate was issued for another key"),
    ],
    ids=["empty", "garbage", "another token", "another key"],
)
def test_an_invalid_own_certificate_is_reported_at_once(text: str, problem: str) -> None:
    assert str(wrong_use(own_certificate, text, KEY)) == problem
