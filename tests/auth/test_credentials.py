"""Signed requests: a credential is good for one request, by its holder, for a while, once."""

import logging
import threading
import time
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, Identity
from opwire.auth import Authority, Grant, Signer, SigningKey, Verifier
from opwire.auth import signed as credentials
from opwire.auth.signed import MAX_CREDENTIAL, MAX_LINKS, read_certificate
from opwire.protocol import CallRequested
from tests.auth.refusals import logged, refusal_of, unauthenticated, wrong_use

AUTHORITY, OTHER = Authority.generate(), Authority.generate()
NOT_VALID, EXPIRED, USED = (
    "the credential is not valid",
    "the credential has expired",
    "the credential was used before",
)


def unpadded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def request(id: str = "r1", operation: str = "shop.order", **fields: Any) -> CallRequested:
    return CallRequested(request_id=id, operation_id=operation, **fields)


def signer(name: str = "ann", *, authority: Authority = AUTHORITY, delegates: bool = False, **options: Any) -> Signer:
    key = SigningKey.generate()
    grant = Grant(Identity(id=name, scopes=("read",)), delegates=delegates)
    certificate = authority.issue(grant, key.public_pem, lifetime=options.pop("valid", 3600))
    return Signer(certificate, key, **options)


def verifier(**options: Any) -> Verifier:
    return Verifier(AUTHORITY.public_pem, **options)


def refused(credential: str | None, event: CallRequested, by: Verifier | None = None, **options: Any) -> str:
    return unauthenticated(refusal_of((by or verifier()).verify, credential, event, **options))


def passes(by: Verifier, credential: str, event: CallRequested) -> bool:
    try:
        by.verify(credential, event)
    except CallError as error:
        if error.message != USED:
            raise
        return False
    return True


ANN = signer()
BOB = signer("bob", delegates=True)
EVENT = request()
CHILD = request("r2", "stock.take", parent_request_id="r1")


def captured() -> str:
    """A credential that was intercepted."""
    return ANN.sign(EVENT)


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def test_a_signed_request_is_its_holders() -> None:
    assert verifier().verify(ANN.sign(EVENT), EVENT) == Identity(id="ann", scopes=("read",))


@pytest.mark.parametrize("credential", [None, ""])
def test_a_request_without_a_credential_is_asked_for_one(credential: str | None) -> None:
    assert refused(credential, EVENT) == "a signed request is needed"


@pytest.mark.parametrize(
    "event", [request("r2"), request(operation="shop.cancel"), request("r", "1shop.order"), request("r1s", "hop.order")]
)
def test_a_captured_credential_is_refused_for_another_request(event: CallRequested) -> None:
    assert refused(captured(), event) == NOT_VALID


@given(st.text(), st.text(), st.text(), st.text())
def test_a_credential_is_good_for_the_request_that_was_signed_and_for_no_other(
    id: str, operation: str, other_id: str, other_operation: str
) -> None:
    signed, other = request(id, operation), request(other_id, other_operation)
    credential = ANN.sign(signed)
    if (id, operation) != (other_id, other_operation):
        assert refused(credential, other) == NOT_VALID
    assert verifier().verify(credential, signed).id == "ann"


def test_the_input_is_bound_where_both_ends_give_its_bytes() -> None:
    credential = ANN.sign(EVENT, body=b'{"amount":1}')
    assert verifier().verify(credential, EVENT, body=b'{"amount":1}').id == "ann"
    for body in (b'{"amount":1000}', b""):
        assert refused(credential, EVENT, body=body) == NOT_VALID
    assert refused(ANN.sign(EVENT), EVENT, body=b'{"amount":1}') == NOT_VALID


def test_a_credential_with_any_bit_changed_is_refused() -> None:
    credential = ANN.sign(EVENT, on_behalf_of=None)
    for place in range(len(credential)):
        for bit in range(7):
            changed = credential[:place] + chr(ord(credential[place]) ^ 1 << bit) + credential[place + 1 :]
            assert refused(changed, EVENT) in (NOT_VALID, EXPIRED)
    assert verifier().verify(credential, EVENT)


@given(st.data())
def test_a_credential_that_is_cut_lengthened_or_mixed_is_refused(data: st.DataObject) -> None:
    good = captured()
    others = [good, BOB.sign(EVENT), ANN.sign(request("r2")), signer(authority=OTHER).sign(EVENT)]
    parts = [part for credential in others for part in credential.split("~")]
    mixed = "~".join(data.draw(st.lists(st.sampled_from([*parts, "", "e30"]), max_size=7)))
    start, end = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    for changed in (
        mixed,
        good[start:] if start else "x",
        good[:-end] if end else "x",
        good + data.draw(st.text(min_size=1, max_size=3)),
    ):
        if changed in others[:2]:  # put together again
            assert verifier().verify(changed, EVENT).id == ("ann" if changed == good else "bob")
        else:
            refused(changed, EVENT)


def test_a_certificate_is_worth_nothing_with_the_signature_of_another_key() -> None:
    certificate, statement, _ = captured().split("~")
    thief = SigningKey.generate()
    text = f"{certificate}~{statement}"
    signature = unpadded(thief.sign(b"opwire-call-1~" + text.encode()))
    assert refused(f"{text}~{signature}", EVENT) == NOT_VALID


def test_a_signature_for_another_protocol_is_not_a_credential() -> None:
    key = SigningKey.generate()
    text = f"{AUTHORITY.issue(Identity(id='ann'), key.public_pem, lifetime=60)}~{captured().split('~')[1]}"
    assert refused(f"{text}~{unpadded(key.sign(text.encode()))}", EVENT) == NOT_VALID


def test_a_certificate_of_another_authority_is_refused_unless_that_is_trusted_too() -> None:
    credential = signer(authority=OTHER).sign(EVENT)
    assert refused(credential, EVENT) == NOT_VALID
    assert Verifier(AUTHORITY.public_pem, OTHER.public_pem).verify(credential, EVENT).id == "ann"


@pytest.mark.parametrize(
    "statement",
    [
        b"[]",
        b"{}",
        b"null",
        b'["r1","shop.order"]',
        b'["r1","shop.order",9999999999999999999999,""]',
        b'["r1","shop.order",-1,""]',
        b'["r1","shop.order",1e400,""]',
        b'["r1","shop.order","9999999999999",""]',
        b'["r1","shop.order",9999999999999,"",1]',
        b"[" * 5_000,
        b"\xff",
    ],
)
def test_a_statement_of_another_shape_is_refused(statement: bytes) -> None:
    certificate, _, signature = captured().split("~")
    assert refused(f"{certificate}~{unpadded(statement)}~{signature}", EVENT) == NOT_VALID


def test_a_credential_made_to_cost_much_is_refused() -> None:
    """A token or credential above its limit of size is refused unread."""
    for text in ("x" * (MAX_CREDENTIAL + 1), "~" * MAX_CREDENTIAL, "~".join(["e30"] * 3 * (MAX_LINKS + 1))):
        assert refused(text, EVENT) == NOT_VALID


@given(st.text())
def test_garbage_is_refused(text: str) -> None:
    refused(text, EVENT)


def test_lone_surrogates_are_refused_on_both_sides() -> None:
    assert refused("\ud800~a~b", EVENT) == NOT_VALID
    assert refusal_of(ANN.sign, request("\ud800")).code is ErrorCode.VALIDATION_ERROR


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_credential_expires_with_its_lifetime_and_leeway_is_for_clocks_that_differ() -> None:
    clock = Clock()
    ann = signer(lifetime=20, clock=clock)
    for late, good in [(0, True), (24.9, True), (25.1, False), (1_000, False)]:
        credential = ann.sign(EVENT)
        fresh = verifier(leeway=5, clock=lambda late=late: clock.now + late)
        if good:
            assert fresh.verify(credential, EVENT)
        else:
            assert refused(credential, EVENT, fresh) == EXPIRED


def test_a_credential_expires_at_the_deadline_of_its_call_if_that_is_earlier() -> None:
    clock = Clock()
    event = request(timeout_ms=2_000)
    credential = signer(clock=clock).sign(event)
    assert verifier(leeway=0, clock=lambda: clock.now + 1.9).verify(credential, event)
    assert refused(credential, event, verifier(leeway=0, clock=lambda: clock.now + 2.1)) == EXPIRED


def test_a_credential_that_would_be_good_for_too_long_is_refused() -> None:
    assert refused(signer(lifetime=3_600).sign(EVENT), EVENT) == NOT_VALID
    assert verifier(max_lifetime=3_600).verify(signer(lifetime=3_600).sign(EVENT), EVENT)


def test_an_expired_certificate_is_refused_although_it_was_good_before() -> None:
    clock = Clock()
    ann = signer(valid=100, clock=clock)
    by = verifier(leeway=1, clock=clock)
    assert by.verify(ann.sign(EVENT), EVENT)
    clock.now += 98
    late = ann.sign(request("r2"))
    clock.now += 5
    assert refused(late, request("r2"), by) == EXPIRED


def test_a_holder_learns_at_once_that_its_own_certificate_has_expired() -> None:
    error = refusal_of(signer(valid=10, clock=lambda: time.time() + 20).sign, EVENT)
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert error.message == "this key certificate has expired: have the authority issue a new one"


# --- replays ----------------------------------------------------------------------------------------------------------


def test_the_same_request_passes_once_until_it_has_expired() -> None:
    clock = Clock()
    by, ann = verifier(clock=clock), signer(clock=clock)
    credential = ann.sign(EVENT)
    assert by.verify(credential, EVENT)
    assert refused(credential, EVENT, by) == USED
    assert refused(ann.sign(EVENT), EVENT, by) == USED
    clock.now += 64.9  # 60 s of lifetime, 5 s of leeway
    assert refused(credential, EVENT, by) == USED
    clock.now += 0.2
    assert refused(credential, EVENT, by) == EXPIRED


def test_holders_may_use_the_same_request_id() -> None:
    by = verifier()
    assert by.verify(ANN.sign(EVENT), EVENT).id == "ann"
    assert by.verify(BOB.sign(EVENT), EVENT).id == "bob"


def test_servers_that_call_on_for_the_same_caller_may_use_the_same_request_id() -> None:
    by, parent = verifier(), captured()
    for server in (BOB, signer("carl", delegates=True)):
        assert by.verify(server.sign(CHILD, on_behalf_of=parent), CHILD).id == "ann"


def test_what_was_refused_does_not_use_up_the_request() -> None:
    by = verifier()
    certificate, statement, _ = captured().split("~")
    assert refused(f"{certificate}~{statement}~{unpadded(bytes(64))}", EVENT, by) == NOT_VALID
    assert by.verify(captured(), EVENT).id == "ann"


def test_requests_beyond_the_replay_cache_are_deferred() -> None:
    clock = Clock()
    by, ann = verifier(remember=6, clock=clock), signer(clock=clock)
    for number in range(3):
        assert by.verify(ann.sign(request(str(number))), request(str(number)))
    error = refusal_of(by.verify, ann.sign(EVENT), EVENT)
    assert (error.code, error.retryable) == (ErrorCode.RATE_LIMITED, True)
    clock.now += 66
    assert by.verify(ann.sign(EVENT), EVENT)


def test_a_certificate_is_checked_once_and_the_memory_for_that_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verified certificate is not verified again, and the cache is bounded."""
    checked: list[str] = []

    def read(text: str, **options: Any) -> Any:
        checked.append(text)
        return read_certificate(text, **options)

    monkeypatch.setattr(credentials, "read_certificate", read)
    by, holders = verifier(max_certificates=3), [signer(f"user-{number}") for number in range(5)]
    for round in range(3):
        event = request(str(round))
        assert by.verify(holders[0].sign(event), event).id == "user-0"
    assert len(checked) == 1
    for holder in holders:
        by.verify(holder.sign(EVENT), EVENT)
    assert len(checked) == 5
    by.verify(holders[0].sign(request("again")), request("again"))
    assert len(checked) == 6  # it was forgotten for the others
    for number in range(10):
        forged = f"forged-{number}~" + captured().split("~", 1)[1]
        refused(forged, EVENT, by)
    assert len(checked) == 16
    for number in (3, 4, 0):
        by.verify(holders[number].sign(request("last")), request("last"))
    assert len(checked) == 16  # a rejected one takes up no room


def test_of_many_threads_with_the_same_credential_one_passes() -> None:
    """Authenticators and verifiers may be used by many tasks and threads at once."""
    by, start = verifier(), threading.Barrier(8)
    calls = [(ANN.sign(request(str(number))), request(str(number))) for number in range(20)]

    def race(_: int) -> int:
        start.wait(5)
        return sum(passes(by, credential, event) for credential, event in calls)

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(race, range(8))) == 20


# --- on behalf of others ----------------------------------------------------------------------------------------------


def test_a_server_makes_nested_calls_as_its_caller() -> None:
    credential = BOB.sign(CHILD, on_behalf_of=ANN.sign(EVENT))
    assert verifier().verify(credential, CHILD) == Identity(id="ann", scopes=("read",))


def test_without_that_it_calls_as_itself() -> None:
    assert verifier().verify(BOB.sign(CHILD), CHILD).id == "bob"


def test_a_chain_of_servers_calls_as_the_first_caller_up_to_a_limit() -> None:
    event, credential = EVENT, ANN.sign(EVENT)
    for number in range(2, MAX_LINKS + 1):
        event = request(f"r{number}", "a.b", parent_request_id=event.request_id)
        credential = signer(f"server-{number}", delegates=True).sign(event, on_behalf_of=credential)
        assert verifier().verify(credential, event).id == "ann"
    last = request("last", "a.b", parent_request_id=event.request_id)
    assert refused(BOB.sign(last, on_behalf_of=credential), last) == NOT_VALID


def test_one_parent_may_have_many_children_and_be_verified_itself() -> None:
    by, parent = verifier(), ANN.sign(EVENT)
    for number in range(3):
        event = request(f"child-{number}", "a.b", parent_request_id="r1")
        assert by.verify(BOB.sign(event, on_behalf_of=parent), event).id == "ann"
    assert by.verify(parent, EVENT).id == "ann"
    event = request("child-0", "a.b", parent_request_id="r1")
    assert refused(BOB.sign(event, on_behalf_of=parent), event, by) == USED


def test_only_a_certificate_that_allows_it_delegates() -> None:
    key = SigningKey.generate()
    certificate = AUTHORITY.issue(Grant(Identity(id="carl")), key.public_pem, lifetime=3600)
    carl = Signer(certificate, key)
    assert (carl.delegates, BOB.delegates) == (False, True)
    error = refusal_of(carl.sign, CHILD, on_behalf_of=captured())
    assert error.code is ErrorCode.ACCESS_DENIED
    # A holder that does not ask its own certificate first:
    forced = unpadded(b'["r2","stock.take",%d,""]' % int((time.time() + 30) * 1000))
    text = f"{captured()}~{certificate}~{forced}"
    signature = unpadded(key.sign(b"opwire-call-1~" + text.encode()))
    assert refused(f"{text}~{signature}", CHILD) == NOT_VALID


@pytest.mark.parametrize(
    "event",
    [
        request("r2", "stock.take"),
        request("r2", "stock.take", parent_request_id="r0"),
        request("r3", "stock.take", parent_request_id="r1"),
        request("r2", "stock.give", parent_request_id="r1"),
        request("r1", "shop.order"),
    ],
    ids=["no parent", "another parent", "another request", "another operation", "the parent itself"],
)
def test_a_delegated_credential_is_bound_to_its_request_and_its_parent(event: CallRequested) -> None:
    credential = BOB.sign(CHILD, on_behalf_of=captured())
    assert refused(credential, event) == NOT_VALID


def test_a_parent_that_is_expired_forged_or_of_another_authority_is_refused() -> None:
    clock = Clock()
    old = signer(lifetime=1, clock=lambda: clock.now - 30).sign(EVENT)
    assert refused(BOB.sign(CHILD, on_behalf_of=old), CHILD) == EXPIRED
    certificate, statement, _ = captured().split("~")
    unsigned = f"{certificate}~{statement}~{unpadded(bytes(64))}"
    foreign = signer(authority=OTHER).sign(EVENT)
    for parent in (unsigned, foreign, certificate, "", "garbage"):
        assert refused(BOB.sign(CHILD, on_behalf_of=parent), CHILD) == NOT_VALID


def test_a_link_cannot_be_taken_out_of_its_chain_or_put_into_another() -> None:
    delegated = BOB.sign(CHILD, on_behalf_of=captured())
    first, last = delegated.split("~")[:3], delegated.split("~")[3:]
    other_parent = signer("eve").sign(EVENT)
    own = BOB.sign(CHILD)
    for changed in (
        "~".join(last),  # as if it were for itself
        "~".join([other_parent, *last]),  # on behalf of another
        "~".join([*first, own]),  # a call of its own, put behind a captured one
        "~".join([*first, *first, *last]),
        "~".join([*last, *first]),
        "~".join([*first, *last, *last]),
    ):
        assert refused(changed, CHILD) == NOT_VALID
    assert verifier().verify(delegated, CHILD).id == "ann"


# --- construction, and what is shown ----------------------------------------------------------------------------------


def test_a_verifier_needs_an_authority() -> None:
    for keys in ((), ("not a key",), (AUTHORITY.to_pem(),)):
        wrong_use(Verifier, *keys)


def test_a_signer_needs_the_key_of_its_certificate() -> None:
    certificate = AUTHORITY.issue(Identity(id="ann"), SigningKey.generate().public_pem, lifetime=60)
    error = wrong_use(Signer, certificate, SigningKey.generate())
    assert str(error) == "this certificate was issued for another key"


def test_peers_learn_a_category_and_the_log_the_reason_and_neither_the_credential(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert repr(ANN) == "Signer('ann')"
    by, credential = verifier(), ANN.sign(EVENT)
    certificate, statement, signature = credential.split("~")
    with caplog.at_level(logging.DEBUG):
        by.verify(credential, EVENT)
        refused(credential, EVENT, by)
        refused(credential, request("r2"), by)
        refused(f"{certificate}~{statement}~{signature[::-1]}", EVENT, by)
        refused(f"{certificate[::-1]}~{statement}~{signature}", EVENT, by)
    lines = logged(caplog, credential, certificate, statement, signature, certificate[::-1], signature[::-1])
    assert lines[0] == "INFO the credential was used before: replayed request"
    assert lines[1] == "INFO the credential is not valid: signed for another request"
    assert [line.partition(":")[0] for line in lines[2:]] == ["INFO the credential is not valid"] * 2


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 10**400, True, "60"])
def test_lifetimes_are_numbers_above_zero(wrong: Any) -> None:
    for make in (
        lambda: signer(lifetime=wrong),
        lambda: signer(valid=wrong),
        lambda: verifier(max_lifetime=wrong),
        lambda: verifier(remember=wrong),
        lambda: verifier(max_certificates=wrong),
    ):
        wrong_use(make)
    if wrong != 0 or wrong is True:
        wrong_use(lambda: verifier(leeway=wrong))
