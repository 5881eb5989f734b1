"""What a token is worth."""

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from opwire import CallError, Identity
from opwire.auth import Grant, tokens
from opwire.auth.tokens import MAX_TOKEN, as_grant, grant_ended, presented, rejected
from tests.auth.refusals import logged, refusal_of, unauthenticated, wrong_use

ANN = Identity(id="ann")


def test_a_grant_allows_announcements_in_its_namespaces_alone() -> None:
    grant = Grant(ANN, announces=("shop", "math"))
    assert grant.may_announce("shop.order")
    assert grant.may_announce("math.add.twice")
    assert not grant.may_announce("shopping.order")
    assert not grant.may_announce("sho.order")
    assert not grant.may_announce("other.shop.order")
    assert not grant.may_announce("*.x")


def test_by_default_a_grant_allows_none_and_a_star_allows_all() -> None:
    assert not Grant(ANN).may_announce("shop.order")
    assert Grant(ANN, announces=("*",)).may_announce("shop.order")


def test_a_string_in_place_of_the_namespaces_is_refused_with_the_way_to_write_it() -> None:
    assert "('shop',)" in str(wrong_use(Grant, ANN, "shop"))


def test_namespaces_may_be_given_as_a_list() -> None:
    assert Grant(ANN, ["shop"]).announces == ("shop",)  # pyright: ignore[reportArgumentType]


def test_an_identity_alone_announces_nothing() -> None:
    assert as_grant(ANN) == Grant(ANN)
    grant = Grant(ANN, ("shop",), 12.0)
    assert as_grant(grant) is grant


WHOLE = Grant(Identity(id="ann", scopes=("a", "b"), resources={"file": ("read", "write")}), ("shop",), 9.0, True, True)


@pytest.mark.parametrize(
    "other",
    [
        replace(WHOLE, expires=None),
        replace(WHOLE, announces=("*",)),
        replace(WHOLE, identity=replace(WHOLE.identity, scopes=("c", "b", "a"))),
        replace(WHOLE, identity=replace(WHOLE.identity, scopes=("*",))),
    ],
)
def test_a_grant_covers_one_that_grants_as_much_or_less(other: Grant) -> None:
    assert other.covers(WHOLE)
    assert other.covers(Grant(ANN))


@pytest.mark.parametrize(
    "other",
    [
        replace(WHOLE, announces=()),
        replace(WHOLE, delegates=False),
        replace(WHOLE, undescribed=False),
        replace(WHOLE, identity=replace(WHOLE.identity, id="bob")),
        replace(WHOLE, identity=replace(WHOLE.identity, scopes=("a",))),
        replace(WHOLE, identity=replace(WHOLE.identity, resources={"file": ("read",)})),
        replace(WHOLE, identity=replace(WHOLE.identity, resources={})),
    ],
)
def test_a_grant_that_lacks_anything_does_not_cover_it(other: Grant) -> None:
    assert not other.covers(WHOLE)


async def test_a_grant_that_is_renewed_lasts_and_one_that_cannot_be_checked_expires(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, checks = 0, 0

    async def check() -> Grant:
        nonlocal now, checks
        now, checks = now + 50, checks + 1
        if checks < 4:
            return Grant(ANN, expires=now + 60)
        raise LookupError("s3cret")

    monkeypatch.setattr(tokens, "RECHECK", 0.001)
    monkeypatch.setattr(tokens, "time", SimpleNamespace(time=lambda: now))
    ended = await asyncio.wait_for(grant_ended(Grant(ANN, expires=60), check), 5)
    assert (ended.message, checks) == ("the token has expired", 5)
    assert "LookupError" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_check_that_hangs_does_not_prolong_a_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> Grant:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(tokens, "RECHECK", 0.001)
    ended = await asyncio.wait_for(grant_ended(Grant(ANN, expires=time.time() + 0.05), check), 5)
    assert ended.message == "the token has expired"


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_one_is_asked_for(token: str | None) -> None:
    assert unauthenticated(refusal_of(presented, token)) == "a token is needed"


def test_a_token_of_the_greatest_length_is_read_and_a_longer_one_is_not() -> None:
    assert presented("x" * MAX_TOKEN) == "x" * MAX_TOKEN
    assert unauthenticated(refusal_of(presented, "x" * (MAX_TOKEN + 1))) == "the token is not valid"


def test_the_reason_of_a_refusal_is_for_the_log_and_not_for_the_peer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "opwire.auth"):
        error = rejected("the token is not valid", "its issuer is another")
    assert isinstance(error, CallError)
    assert unauthenticated(error) == "the token is not valid"
    assert logged(caplog) == ["INFO the token is not valid: its issuer is another"]


@pytest.mark.parametrize("expires", [float("nan"), float("inf"), -1, "soon"])
def test_a_grant_expires_at_a_time_or_never(expires: Any) -> None:
    wrong_use(Grant, ANN, (), expires)
    assert Grant(ANN).expires is None
