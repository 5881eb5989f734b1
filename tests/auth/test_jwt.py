"""JSON Web Tokens: what is taken, and every way of getting in that is known not to work."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import ErrorCode, Identity
from opwire.auth import Authority, Grant, JWTs, SigningKey
from opwire.auth.jwt import ALGORITHMS
from tests.auth.issuers import SECRET, claims, forged, private_key, private_pem, published, token, verification_key
from tests.auth.refusals import clean, logged, refusal, unauthenticated, wrong_use

NOT_VALID, EXPIRED = "the token is not valid", "the token has expired"


def jwts(algorithm: str = "HS256", **options: Any) -> JWTs:
    given: dict[str, Any] = {
        "key": None if "jwks" in options else verification_key(algorithm),
        "algorithms": [algorithm],
        "audience": "opwire",
        "issuer": "https://id.example",
        **options,
    }
    return JWTs(**given)


async def message(authenticator: JWTs, shown: str | None) -> str:
    return unauthenticated(await refusal(authenticator.authenticate(shown), *([shown] if shown else [])))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_of_every_algorithm_is_taken_with_its_own_key_and_no_other(algorithm: str) -> None:
    authenticator = jwts(algorithm)
    assert (await authenticator.authenticate(token(algorithm))).identity == Identity(id="ann")
    assert await message(authenticator, token(algorithm, "another")) == NOT_VALID


async def test_claims_become_the_grant() -> None:
    exp = int(time.time()) + 60
    shown = token(scope="read write", announce=["shop"], resources={"file": ["read"]}, exp=exp)
    identity = Identity(id="ann", scopes=("read", "write"), resources={"file": ("read",)})
    assert await jwts(leeway=5).authenticate(shown) == Grant(identity, ("shop",), exp + 5)


async def test_other_claims_can_be_named() -> None:
    authenticator = jwts(claims={"id": "email", "scopes": "permissions"})
    grant = await authenticator.authenticate(token(sub=None, email="ann@x", permissions=["admin"], scope="no"))
    assert grant.identity == Identity(id="ann@x", scopes=("admin",))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exp": 1}, EXPIRED),
        ({"exp": int(time.time()) - 10}, EXPIRED),
        ({"exp": None}, NOT_VALID),
        ({"exp": "9999999999"}, NOT_VALID),
        ({"exp": "soon"}, NOT_VALID),
        ({"exp": [9999999999]}, NOT_VALID),
        ({"exp": float("inf")}, NOT_VALID),
        ({"nbf": int(time.time()) + 86_400}, NOT_VALID),
        ({"iat": int(time.time()) + 86_400}, NOT_VALID),
        ({"aud": "another"}, NOT_VALID),
        ({"aud": ["another", "third"]}, NOT_VALID),
        ({"aud": {"opwire": 1}}, NOT_VALID),
        ({"aud": None}, NOT_VALID),
        ({"iss": "https://id.example.evil"}, NOT_VALID),
        ({"iss": None}, NOT_VALID),
        ({"sub": None}, NOT_VALID),
        ({"sub": 17}, NOT_VALID),
        ({"sub": {"$ne": ""}}, NOT_VALID),
        ({"scope": 5}, NOT_VALID),
        ({"announce": [1]}, NOT_VALID),
        ({"jti": 7}, NOT_VALID),
        ({"cnf": {"jkt": "x"}}, NOT_VALID),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",  # the same in every process: no times
)
async def test_a_token_with_wrong_claims_is_refused(changes: dict[str, Any], expected: str) -> None:
    assert await message(jwts(), token(**changes)) == expected


async def test_leeway_is_for_clocks_that_differ() -> None:
    shown = token(exp=int(time.time()) - 3)
    assert (await jwts(leeway=60).authenticate(shown)).identity.id == "ann"
    assert await message(jwts(leeway=0), shown) == EXPIRED


async def test_one_of_several_audiences_and_issuers_is_enough() -> None:
    authenticator = jwts(audience=["opwire", "other"], issuer=["https://id.example", "https://b"])
    assert await authenticator.authenticate(token(aud=["x", "other"], iss="https://b"))


async def test_without_an_audience_or_issuer_that_has_to_be_written() -> None:
    with pytest.raises(TypeError, match="audience"):
        JWTs(key=SECRET, algorithms=["HS256"], issuer=None)  # pyright: ignore[reportCallIssue]
    authenticator = jwts(audience=None, issuer=None)
    assert await authenticator.authenticate(token(aud=None, iss="anybody"))
    assert await message(authenticator, token()) == NOT_VALID  # it has an audience, which may be another server


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 0, ["HS256"], {}])
@pytest.mark.parametrize("taken", ["HS256", "RS256", "EdDSA"])
async def test_a_token_that_is_not_signed_is_refused_however_it_says_so(taken: str, algorithm: Any) -> None:
    """Unsigned, confused, altered, oversized and malformed JSON Web Tokens are refused."""
    assert await message(jwts(taken), forged({"alg": algorithm, "typ": "JWT"}, claims())) == NOT_VALID


@pytest.mark.parametrize("taken", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_a_public_key_is_never_taken_for_a_shared_secret(taken: str) -> None:
    pem = verification_key(taken).encode()
    for secret in (pem, pem.strip(), verification_key(taken).replace("\n", "\r\n").encode()):
        assert await message(jwts(taken), forged({"alg": "HS256"}, claims(), secret)) == NOT_VALID
        assert await message(jwts(taken), forged({"alg": taken}, claims(), secret)) == NOT_VALID
        authenticator = jwts(jwks=lambda: {"keys": [published(taken)]}, algorithms=[taken])
        assert await message(authenticator, forged({"alg": "HS256", "kid": taken}, claims(), secret)) == NOT_VALID


async def test_an_algorithm_that_is_not_in_the_list_is_refused_even_with_the_right_key() -> None:
    assert await message(jwts("RS256"), token("RS512")) == NOT_VALID
    assert await message(jwts("RS256"), token("PS256")) == NOT_VALID
    assert await message(jwts("HS256"), token("HS512")) == NOT_VALID


async def test_keys_that_a_token_brings_along_are_not_looked_at() -> None:
    key = published("RS256", "evil")
    for headers in ({"jwk": key}, {"jku": "https://evil.example"}, {"x5c": ["x"]}, {"x5u": "https://evil.example"}):
        for kid in ("evil", "../../dev/null", "' OR 1=1", "RS256"):
            shown = token("RS256", "evil", {**headers, "kid": kid})
            assert await message(jwts("RS256"), shown) == NOT_VALID
            assert await message(jwts("RS256", jwks=lambda: {"keys": [published("RS256")]}), shown) == NOT_VALID


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "HS256", "crit": ["x"], "x": 1},
        {"alg": "HS256", "crit": ["b64"], "b64": False},
        {"alg": "HS256", "kid": 17},
        {"alg": "HS256", "kid": ["a"]},
        {},
        [],
        "HS256",
        None,
    ],
    ids=json.dumps,
)
async def test_a_header_that_cannot_be_honoured_is_refused(header: Any) -> None:
    assert await message(jwts(), forged(header, claims(), SECRET.encode())) == NOT_VALID


@pytest.mark.parametrize(
    "payload", [None, [], "ann", 17, [claims()]], ids=["null", "list", "text", "number", "in list"]
)
async def test_a_payload_that_is_not_an_object_is_refused(payload: Any) -> None:
    assert await message(jwts(), forged({"alg": "HS256"}, payload, SECRET.encode())) == NOT_VALID


@pytest.mark.parametrize(
    "shown",
    ["x" * 100_000, "a." * 8_000, base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.e30", "." * 16_000],
    ids=["long", "many dots", "deep", "dots alone"],
)
async def test_a_token_made_to_cost_much_is_refused(shown: str) -> None:
    assert await message(jwts(), shown) == NOT_VALID


async def test_a_deep_payload_and_a_number_of_many_digits_are_refused() -> None:
    for text in ("[" * 5_000, '{"exp": ' + "9" * 5_000 + "}"):
        payload = base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
        head = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=").decode()
        signature = secret_signature(f"{head}.{payload}")
        assert await message(jwts(), f"{head}.{payload}.{signature}") == NOT_VALID


def secret_signature(text: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(SECRET.encode(), text.encode(), hashlib.sha256)).rstrip(b"=").decode()


async def test_a_certificate_is_not_a_token_even_if_its_authority_is_trusted() -> None:
    authority = Authority.generate()
    certificate = authority.issue(Identity(id="ann"), SigningKey.generate().public_pem, lifetime=60)
    authenticator = JWTs(key=authority.public_pem, algorithms=["EdDSA"], audience=None, issuer=None)
    assert await message(authenticator, certificate) == NOT_VALID


GOOD = token(exp=int(time.time()) + 86_400)


async def test_a_token_with_any_bit_changed_is_refused() -> None:
    authenticator = jwts()
    assert await authenticator.authenticate(GOOD)
    for place in range(len(GOOD)):
        for bit in range(7):
            changed = GOOD[:place] + chr(ord(GOOD[place]) ^ 1 << bit) + GOOD[place + 1 :]
            assert await message(authenticator, changed) in (NOT_VALID, EXPIRED)


@given(st.text(max_size=80) | st.lists(st.text(alphabet="eyJ0_-aA=."), min_size=3, max_size=3).map(".".join))
async def test_garbage_is_refused_and_nothing_else_happens(shown: str) -> None:
    expected = NOT_VALID if shown else "a token is needed"
    assert unauthenticated(await refusal(jwts().authenticate(shown))) == expected


async def test_lone_surrogates_are_refused() -> None:
    assert unauthenticated(await refusal(jwts().authenticate("\ud800.a.b"))) == NOT_VALID


# --- construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithms",
    [[], "HS256", ["none"], ["HS256", "none"], ["HS1"], ["RS256", "ES256K"], ["hs256"], [""]],
    ids=repr,
)
def test_algorithms_are_named_and_never_none(algorithms: Any) -> None:
    error = wrong_use(jwts, algorithms=algorithms)
    assert str(error).startswith("algorithms is a list of one or more of HS256, ")


@pytest.mark.parametrize(
    ("algorithms", "key"),
    [
        (["HS256"], verification_key("RS256")),
        (["HS256"], verification_key("ES256").encode()),
        (["HS256"], private_key("EdDSA").public_key()),
        (["HS256"], json.dumps(published("RS256"))),
        (["HS256"], "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ and so on and on"),
        (["HS256", "RS256"], verification_key("RS256")),
        (["RS256", "HS256"], SECRET),
        (["RS256", "ES256"], verification_key("RS256")),
        (["ES256"], verification_key("ES384")),
        (["EdDSA"], verification_key("ES256")),
        (["RS256"], "some text"),
        (["ES256"], "some text"),
        (["EdDSA"], b"\xff\xfe"),
        (["RS256"], 17),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_a_key_that_is_not_made_for_every_algorithm_is_refused(algorithms: list[str], key: Any) -> None:
    error = clean(wrong_use(jwts, algorithms=algorithms, key=key), str(key))
    assert str(error).startswith("this is not a key for ")


@pytest.mark.parametrize(
    ("algorithms", "key", "problem"),
    [
        (["HS256"], "x" * 31, "a secret for HS256 has at least 32 bytes"),
        (["HS256", "HS512"], "x" * 63, "a secret for HS512 has at least 64 bytes"),
        (["RS256"], verification_key("weak RSA"), "an RSA key has at least 2048 bits"),
        (["PS512"], verification_key("weak RSA"), "an RSA key has at least 2048 bits"),
        (["RS256"], private_pem("RS256"), "this is a private key"),
        (["ES256"], private_key("ES256"), "this is a private key"),
        (["EdDSA"], private_pem("EdDSA"), "this is a private key"),
    ],
    ids=["short", "short for one", "weak RSA", "weak PSS", "private RSA", "private EC", "private Ed25519"],
)
def test_a_weak_or_private_key_is_refused_and_not_shown(algorithms: list[str], key: Any, problem: str) -> None:
    error = clean(wrong_use(jwts, algorithms=algorithms, key=key), str(key))
    assert str(error).startswith(problem)


def test_published_keys_are_not_secrets_and_exclude_a_given_key() -> None:
    error = wrong_use(jwts, jwks=dict, algorithms=["RS256", "HS256"])
    assert str(error) == "published keys are not secret, but HS256 uses a secret: remove it"
    for given_keys in ({"key": None}, {"key": SECRET, "jwks": dict}):
        assert str(wrong_use(jwts, **given_keys)) == "give either key= or jwks="


async def test_published_keys_are_fetched_by_a_function_sync_or_async() -> None:
    async def fetch() -> dict[str, Any]:
        return {"keys": [published("RS256"), published("ES256")]}

    for jwks in (fetch, lambda: {"keys": [published("RS256"), published("ES256")]}):
        authenticator = jwts(jwks=jwks, algorithms=["RS256", "ES256"])
        for algorithm in ("RS256", "ES256"):
            assert await authenticator.authenticate(token(algorithm, headers={"kid": algorithm}))
        assert await message(authenticator, token("RS256", headers={"kid": "unknown"})) == NOT_VALID
        assert await message(authenticator, token("RS256", headers={"kid": "ES256"})) == NOT_VALID


async def test_while_the_keys_cannot_be_had_the_token_is_not_called_wrong() -> None:
    async def fetch() -> dict[str, Any]:
        raise OSError("the issuer is down")

    error = await refusal(jwts(jwks=fetch, algorithms=["RS256"]).authenticate(token("RS256")), "the issuer is down")
    assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)


# --- what is shown ----------------------------------------------------------------------------------------------------


async def test_neither_key_nor_token_is_in_a_representation_or_log(caplog: pytest.LogCaptureFixture) -> None:
    authenticator = jwts()
    assert repr(authenticator) == "JWTs(HS256, audience='opwire', issuer='https://id.example')"
    shown = [GOOD, token(aud="another"), token(exp=1), token(sub=17), token("HS256", "another"), "garbage-0123456789"]
    with caplog.at_level(logging.DEBUG):
        assert await authenticator.authenticate(GOOD)
        for each in shown[1:]:
            await refusal(authenticator.authenticate(each), each)
    assert logged(caplog, SECRET, *shown, *(part for each in shown for part in each.split("."))) == [
        "INFO the token is not valid: InvalidAudienceError",
        "INFO the token has expired: exp has passed",
        "INFO the token is not valid: InvalidSubjectError",
        "INFO the token is not valid: InvalidSignatureError",
        "INFO the token is not valid: DecodeError",
    ]


async def test_many_tokens_are_distinguished_at_the_same_time() -> None:
    authenticator = jwts()
    attempts = [authenticator.authenticate(token(sub=f"user-{number}")) for number in range(50)]
    assert [grant.identity.id for grant in await asyncio.gather(*attempts)] == [f"user-{n}" for n in range(50)]


@pytest.mark.parametrize(
    "header", ['{"alg":' + "[" * 11_000, '{"alg":"HS256","kid":' + "[" * 5_000 + "]" * 5_000 + "}"]
)
async def test_a_header_that_is_nested_too_deeply_is_refused_like_any_other(header: str) -> None:
    shown = base64.urlsafe_b64encode(header.encode()).decode().rstrip("=") + ".e30.e30"
    assert await message(jwts(), shown) == NOT_VALID


@pytest.mark.parametrize("exp", [10**400, float("inf"), float("nan"), 2.0**60])
async def test_an_expiry_that_is_not_a_time_is_refused_even_if_it_is_signed(exp: float) -> None:
    assert await message(jwts(), token(exp=exp)) == NOT_VALID


@pytest.mark.parametrize("leeway", [-1, float("nan"), float("inf"), "5"])
def test_the_leeway_is_a_number_from_zero_on(leeway: Any) -> None:
    wrong_use(lambda: jwts(leeway=leeway))
