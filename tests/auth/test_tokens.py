"""Static tokens, and doors that are open."""

import hmac
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import Identity
from opwire.auth import Grant, StaticTokens, allow_anonymous, tokens
from tests.auth.refusals import clean, logged, refusal, unauthenticated, wrong_use

SHOP, MATH = "shop-token-0123456789", "math-token-0123456789"
GRANTS = {SHOP: Grant(Identity(id="shop"), announces=("shop",)), MATH: Identity(id="math", scopes=("read",))}


async def test_each_token_gives_its_own_grant() -> None:
    """Static tokens give their own grants, and nothing else passes."""
    authenticator = StaticTokens(GRANTS)
    assert await authenticator.authenticate(SHOP) == GRANTS[SHOP]
    assert await authenticator.authenticate(MATH) == Grant(Identity(id="math", scopes=("read",)))


@pytest.mark.parametrize(
    "token",
    [SHOP[:-1], SHOP + "0", SHOP.upper(), " " + SHOP, "another-token-0123456789", "\ud800" * 20, "ü" * 20],
    ids=["cut", "longer", "upper case", "space before", "another", "surrogates", "not ASCII"],
)
async def test_what_is_not_one_of_the_tokens_is_not_valid(token: str) -> None:
    error = await refusal(StaticTokens(GRANTS).authenticate(token), token)
    assert unauthenticated(error) == "the token is not valid"


@pytest.mark.parametrize("token", [None, ""])
async def test_without_a_token_one_is_asked_for(token: str | None) -> None:
    assert unauthenticated(await refusal(StaticTokens(GRANTS).authenticate(token))) == "a token is needed"


async def test_without_configured_tokens_every_caller_is_rejected() -> None:
    assert unauthenticated(await refusal(StaticTokens({}).authenticate(SHOP))) == "the token is not valid"


@given(st.text(max_size=60))
async def test_no_other_text_is_taken_for_a_token(text: str) -> None:
    if text not in GRANTS:
        await refusal(StaticTokens(GRANTS).authenticate(text))


async def test_every_token_is_compared_by_its_digest_whether_or_not_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(tokens, "compare_digest", compare)
    authenticator = StaticTokens(GRANTS)
    await authenticator.authenticate(SHOP)  # the first fits
    await refusal(authenticator.authenticate("x"))  # none does
    assert len(compared) == 4
    assert {len(digest) for pair in compared for digest in pair} == {32}


async def test_nothing_but_the_comparison_in_constant_time_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    authenticator = StaticTokens(GRANTS)
    monkeypatch.setattr(tokens, "compare_digest", lambda one, other: False)
    await refusal(authenticator.authenticate(SHOP))
    monkeypatch.setattr(tokens, "compare_digest", lambda one, other: True)
    await authenticator.authenticate("x")


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("", "has 0 characters, and needs at least 16"),
        ("hunter2hunter2h", "has 15 characters, and needs at least 16"),
        (SHOP + "\n", "begins or ends with white space"),
        ("\t" + SHOP, "begins or ends with white space"),
    ],
    ids=["empty", "short", "new line after", "tab before"],
)
def test_a_weak_token_is_refused_when_it_is_configured_and_not_shown(token: str, problem: str) -> None:
    """A short, empty or padded static token is refused when it is configured."""
    error = wrong_use(StaticTokens, {MATH: Identity(id="math"), token: Identity(id="shop")})
    assert str(error).startswith(f"token number 2 {problem}")
    clean(error, token or "?", MATH)


async def test_a_token_of_sixteen_characters_is_long_enough() -> None:
    token = "a" * 16
    assert (await StaticTokens({token: Identity(id="a")}).authenticate(token)).identity.id == "a"


async def test_tokens_are_in_no_representation_attribute_or_log(caplog: pytest.LogCaptureFixture) -> None:
    authenticator = StaticTokens(GRANTS)
    assert repr(authenticator) == "StaticTokens(of shop, math)"
    assert not any(token in repr(vars(authenticator)) for token in GRANTS)
    with caplog.at_level(logging.DEBUG):
        await authenticator.authenticate(SHOP)
        await refusal(authenticator.authenticate("guess-of-somebody"), "guess-of-somebody")
    assert logged(caplog, SHOP, "guess") == ["INFO the token is not valid: not one of the static tokens"]


@pytest.mark.parametrize("token", [None, "", "anything"])
async def test_an_open_door_asks_for_nothing(token: str | None) -> None:
    """Connections are anonymous only where `allow_anonymous` says so."""
    guest = Identity(id="guest")
    assert await allow_anonymous(guest).authenticate(token) == Grant(guest)
    assert await allow_anonymous(Grant(guest, ("demo",))).authenticate(token) == Grant(guest, ("demo",))


def test_an_open_server_names_the_identity_of_its_callers() -> None:
    assert (
        repr(allow_anonymous(Identity(id="guest"))) == "allow_anonymous(Identity(id='guest', scopes=(), resources={}))"
    )
