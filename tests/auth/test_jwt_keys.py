"""Where the keys of tokens come from: fetched once, renewed in time, and never in a hurry."""

import asyncio
import logging
from typing import Any

import pytest

from opwire import CallError, ErrorCode
from opwire.auth import jwt
from opwire.auth.jwt import MAX_AGE, MIN_INTERVAL, RETRY_INTERVAL, OneKey, PublishedKeys, prepare_key
from tests.auth.issuers import published, verification_key
from tests.auth.refusals import logged, refusal


class Issuer:
    """Publishes keys, and counts how often it is asked."""

    def __init__(self, *keys: Any) -> None:
        self.document: Any = {"keys": list(keys)}
        self.asked = 0
        self.now = 1_000.0
        self.down: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()

    async def fetch(self) -> Any:
        self.asked += 1
        await self.answering.wait()
        if self.down is not None:
            raise self.down
        return self.document

    def keys(self, *algorithms: str) -> PublishedKeys:
        return PublishedKeys(self.fetch, algorithms or ("RS256", "ES256"), clock=lambda: self.now)


async def test_keys_are_fetched_when_first_needed_and_then_kept() -> None:
    issuer = Issuer(published("RS256", "a"), published("RS256", "b"))
    keys = issuer.keys()
    assert issuer.asked == 0
    first = await keys.find("a", "RS256")
    assert first is not None
    assert await keys.find("a", "RS256") is first
    assert await keys.find("b", "RS256") not in (None, first)
    assert issuer.asked == 1


async def test_an_unknown_key_has_them_fetched_again_but_not_more_than_once_in_a_while() -> None:
    issuer = Issuer(published("RS256", "a"))
    keys = issuer.keys()
    assert await keys.find("a", "RS256")
    issuer.document = {"keys": [published("RS256", "a"), published("RS256", "new")]}
    for number in range(1_000):
        assert await keys.find(f"made-up-{number}", "RS256") is None
    assert issuer.asked == 1
    issuer.now += MIN_INTERVAL
    assert await keys.find("new", "RS256")
    for number in range(1_000):
        assert await keys.find(f"made-up-{number}", "RS256") is None
    assert issuer.asked == 2


async def test_a_key_that_was_withdrawn_is_rejected() -> None:
    issuer = Issuer(published("RS256", "a"), published("RS256", "b"))
    keys = issuer.keys()
    assert await keys.find("a", "RS256")
    issuer.document = {"keys": [published("RS256", "b")]}
    issuer.now += MAX_AGE - 1
    assert await keys.find("a", "RS256")
    issuer.now += 1
    assert await keys.find("a", "RS256") is None
    assert await keys.find("b", "RS256")


@pytest.mark.parametrize("document", [None, [], "keys", {}, {"keys": None}, {"keys": {}}, {"keys": []}], ids=repr)
async def test_when_the_issuer_fails_the_old_keys_stay_and_it_is_asked_again_soon(
    document: Any, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer(published("RS256", "a"))
    keys = issuer.keys()
    assert await keys.find("a", "RS256")
    good, issuer.document = issuer.document, document
    issuer.now += MAX_AGE
    assert await keys.find("a", "RS256")
    assert await keys.find("a", "RS256")
    assert issuer.asked == 2
    issuer.document, issuer.down = good, OSError("down")
    issuer.now += RETRY_INTERVAL
    assert await keys.find("a", "RS256")
    assert issuer.asked == 3
    issuer.down = None
    issuer.now += RETRY_INTERVAL
    assert await keys.find("a", "RS256")
    assert await keys.find("a", "RS256")
    assert issuer.asked == 4
    assert "WARNING the issuer's keys could not be fetched: CallError" in logged(caplog)


async def test_without_any_keys_nothing_can_be_said_of_a_token() -> None:
    issuer = Issuer()
    issuer.down = OSError("down")
    keys = issuer.keys()
    for _ in range(10):
        error = await refusal(keys.find("a", "RS256"), "down")
        assert error.code is ErrorCode.UNAVAILABLE
    assert issuer.asked == 1
    issuer.down, issuer.document = None, {"keys": [published("RS256", "a")]}
    issuer.now += RETRY_INTERVAL
    assert await keys.find("a", "RS256")


async def test_however_many_need_the_keys_they_are_fetched_once() -> None:
    issuer = Issuer(published("RS256", "a"))
    issuer.answering.clear()
    keys = issuer.keys()
    waiting = [asyncio.ensure_future(keys.find("a", "RS256")) for _ in range(50)]
    await asyncio.sleep(0)
    issuer.answering.set()
    assert all(await asyncio.wait_for(asyncio.gather(*waiting), 5))
    assert issuer.asked == 1


async def test_one_that_gives_up_while_the_keys_are_fetched_does_not_stop_the_others() -> None:
    issuer = Issuer(published("RS256", "a"))
    issuer.answering.clear()
    keys = issuer.keys()
    first, second = (asyncio.ensure_future(keys.find("a", "RS256")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    issuer.answering.set()
    assert await asyncio.wait_for(second, 5)
    assert first.cancelled()


async def test_an_issuer_that_does_not_answer_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jwt, "FETCH_TIMEOUT", 0.01)
    issuer = Issuer(published("RS256", "a"))
    issuer.answering.clear()
    error = await asyncio.wait_for(refusal(issuer.keys().find("a", "RS256")), 5)
    assert error.code is ErrorCode.UNAVAILABLE
    assert logged(caplog) == ["WARNING the issuer's keys could not be fetched: TimeoutError"]


async def test_an_issuer_that_hangs_does_not_delay_tokens_with_known_keys_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jwt, "MAX_DELAY", 0.01)
    issuer = Issuer(published("RS256", "a"))
    keys = issuer.keys()
    known = await keys.find("a", "RS256")
    issuer.answering.clear()
    issuer.now += MAX_AGE
    for _ in range(3):
        assert await asyncio.wait_for(keys.find("a", "RS256"), 5) is known
    issuer.now += 0.01
    assert await asyncio.wait_for(keys.find("a", "RS256"), 5) is known  # without any delay
    unknown = asyncio.ensure_future(keys.find("b", "RS256"))
    issuer.document = {"keys": [published("RS256", "b")]}
    issuer.answering.set()
    assert await asyncio.wait_for(unknown, 5) is not None
    assert await keys.find("a", "RS256") is None
    assert issuer.asked == 2


UNUSABLE: dict[str, Any] = {
    "for another algorithm": published("RS256", "a", alg="RS512"),
    "for encryption": published("RS256", "a", use="enc"),
    "an id that is no text": published("RS256", "a", kid=["a"]),
    "another kind": published("RS256", "a", kty="EC"),
    "no kind": published("RS256", "a", kty=None),
    "no number": published("RS256", "a", n=None),
    "a bare number": published("RS256", "a", n=5),
    "not base64": published("RS256", "a", n="!"),
    "weak": published("weak RSA", "a", alg="RS256"),
    "a secret": {"kty": "oct", "k": "c2VjcmV0", "kid": "a"},
    "a curve": published("ES256", "a"),
    "text": "a key",
    "null": None,
    "a list": [],
}


@pytest.mark.parametrize("key", UNUSABLE.values(), ids=UNUSABLE)
async def test_a_published_key_that_is_for_something_else_or_broken_is_left_out(key: Any) -> None:
    keys = Issuer(key, published("RS256", "good")).keys("RS256")
    assert await keys.find("good", "RS256")
    assert await keys.find("a", "RS256") is None


async def test_a_published_key_serves_the_algorithms_of_its_kind() -> None:
    rsa, p384 = published("RS256", "rsa", alg=None), published("ES384", "p384", alg=None)
    keys = Issuer(rsa, p384).keys("RS256", "PS512", "ES256", "ES384", "EdDSA")
    found = [
        (id, algorithm)
        for id in ("rsa", "p384")
        for algorithm in ("RS256", "PS512", "ES256", "ES384", "EdDSA")
        if await keys.find(id, algorithm) is not None
    ]
    assert found == [("rsa", "RS256"), ("rsa", "PS512"), ("p384", "ES384")]


async def test_a_key_without_an_id_is_for_tokens_without_one() -> None:
    keys = Issuer(published("RS256", kid=None)).keys()
    assert await keys.find(None, "RS256")
    assert await keys.find("RS256", "RS256") is None


async def test_one_key_is_for_every_id_and_for_its_algorithms_alone() -> None:
    keys = OneKey(verification_key("RS256"), ["RS256", "PS256"])
    assert await keys.find(None, "RS256")
    assert await keys.find("any", "PS256")
    assert await keys.find("any", "RS512") is None


def test_a_key_of_ed448_is_one_for_eddsa_too() -> None:
    assert prepare_key(verification_key("Ed448"), "EdDSA")


async def test_an_error_that_the_function_chose_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    issuer = Issuer()
    issuer.down = CallError("RATE_LIMITED", "secret address")
    await refusal(issuer.keys().find("a", "RS256"), "secret address")
    assert logged(caplog, "secret address") == ["WARNING the issuer's keys could not be fetched: CallError"]
