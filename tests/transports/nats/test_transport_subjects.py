"""Subjects. That a real server takes them is in test_broker_connection.py."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.transports.nats.transport import Receipts, Subjects, encode_id, plain_token

OWN = Subjects("acme.opwire")
ids = st.text(max_size=40) | st.text(st.sampled_from("a.*> %/\r\nà😀"), max_size=12)
addresses = st.from_regex(r"[0-9a-f]{16}", fullmatch=True) | st.from_regex(
    r"@_INBOX(\.[A-Za-z0-9_-]{1,20}){1,3}", fullmatch=True
)


def is_legal(subject: str) -> bool:
    """Whether a subject has only tokens that are not a wildcard, a separator or the end of a line."""
    return all(re.fullmatch(r"[A-Za-z0-9_~%-]+", token) for token in subject.split("."))


@pytest.mark.parametrize(
    ("operation_id", "subject"),
    [
        ("math.add", "math.add"),
        ("github.repos/get-content", "github.repos%2Fget-content"),
        ("a.b c*d>e", "a.b%20c%2Ad%3Ee"),
        ("a.100%", "a.100%25"),
        ("a..b", "a.%2Eb"),
        (".a.", "%2Ea%2E"),
        ("...", "%2E%2E%2E"),
        ("a.ü", "a.%C3%BC"),
        ("a.\r\nPUB x 0", "a.%0D%0APUB%20x%200"),
        ("", "%"),
    ],
)
def test_an_operations_subject_is_its_id_with_the_rest_escaped(operation_id: str, subject: str) -> None:
    """Every operation id has a legal NATS subject of its own, readable where it can be."""
    assert encode_id(operation_id) == subject
    assert OWN.call(operation_id) == f"acme.opwire.call.{subject}"


@given(ids)
def test_every_id_has_a_legal_subject_that_it_can_be_read_from_again(operation_id: str) -> None:
    subject = encode_id(operation_id)
    assert is_legal(subject)
    assert unquote(subject) == (operation_id or "%")


@given(st.lists(ids | st.just("%"), min_size=2, max_size=20, unique=True))
def test_no_two_ids_have_the_same_subject(operation_ids: list[str]) -> None:
    assert len(set(map(encode_id, operation_ids))) == len(operation_ids)


def test_an_id_that_is_too_long_for_a_subject_has_one_made_of_its_hash() -> None:
    long, longer = encode_id("a." + "x" * 5000), encode_id("a." + "x" * 5001)
    assert long != longer
    assert len(long) < 100
    assert is_legal(long)
    assert encode_id("a." + "x" * 1022) == "a." + "x" * 1022
    assert is_legal(encode_id("a.\ud800"))


def test_a_request_has_its_sender_and_token() -> None:
    assert OWN.sender("acme.opwire.in.12ab.t0ken") == ("12ab", "t0ken")
    assert OWN.sender("acme.opwire.in.12ab.-") == ("12ab", "")
    assert OWN.sender("acme.opwire.in.12ab.t0ken-34cd") == ("12ab", "t0ken")
    assert OWN.sender("_INBOX.abc.1") == ("@_INBOX.abc.1", "")
    assert OWN.sender("_INBOX_ann.abc.1") == ("@_INBOX_ann.abc.1", "")
    assert OWN.sender("_R_.abc.1") == ("@_R_.abc.1", "")  # a request from another account


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "$JS.API.STREAM.DELETE.orders",
        "$SYS.x",
        "payroll.pay",
        "answers",
        "_INBOX",
        "_INBOX.",
        "_INBOXES.x",
        "_INBOX.*",
        "_INBOX.a.>",
        "_INBOX.a\r\nPUB",
        "_INBOX." + "x" * 65,
        "_INBOX" + ".x" * 9,
        "acme.opwire.all",
        "acme.opwire.call.a.b",
        "acme.opwire.in.",
        "acme.opwire.in.12ab",
        "acme.opwire.in.12ab.t.x",
        "acme.opwire.in.*.t",
        "acme.opwire.in.>",
        "acme.opwire.in.12ab.*",
        "acme.opwire.in.12ab.t 5",
        "acme.opwire.in.12ab.",
        "acme.opwire.in." + "a" * 65 + ".t",
        "acme.opwire.in.12ab." + "t" * 65,
        "acmeXopwire.in.12ab.t",
        "acme.opwire.in.12ab.t\n",
    ],
)
def test_answers_are_sent_to_inboxes_alone(reply: str) -> None:
    assert OWN.sender(reply) is None


def test_a_message_goes_to_the_inbox_of_its_receiver() -> None:
    assert OWN.to("12ab") == OWN.inbox("12ab") + "-" == "acme.opwire.in.12ab.-"
    assert OWN.to("@_INBOX.abc.1") == "_INBOX.abc.1"
    with pytest.raises(CallError, match="gave no reply subject") as failure:
        OWN.to("")
    assert failure.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize(
    "address", ["a.b", "a b", "*", ">", "a\r\nPUB x 0", "@$JS.API.INFO", "@payroll", "@", "x" * 65]
)
def test_nothing_is_sent_to_what_is_not_the_address_of_an_inbox(address: str) -> None:
    with pytest.raises(CallError, match="not the address of an inbox") as failure:
        OWN.to(address)
    assert failure.value.code is ErrorCode.UNAVAILABLE


@given(addresses)
def test_a_receipt_is_one_token_that_names_the_receiver(address: str) -> None:
    receipts = Receipts()
    shown = "t0ken" + receipts.make(address)
    assert is_legal(shown)
    assert "." not in shown
    assert receipts.receiver(shown) == receipts.receiver(receipts.make(address)) == address
    assert plain_token(shown) == "t0ken"
    assert OWN.sender(f"acme.opwire.in.12ab.{shown}") == ("12ab", "t0ken")


@given(st.text(max_size=40), st.sampled_from(["12ab", "@_INBOX.a.1"]))
def test_a_receipt_that_another_end_made_names_no_receiver(text: str, address: str) -> None:
    receipts, others = Receipts(), Receipts()
    assert receipts.receiver(f"t-{text}") == ""
    assert receipts.receiver("t" + others.make(address)) == ""
    assert receipts.receiver(receipts.make("34cd").replace("34cd", address)) == ""


def test_a_token_is_not_a_receipt() -> None:
    receipts = Receipts()
    assert receipts.receiver("t0ken") == receipts.receiver("-") == receipts.receiver("") == ""
    assert plain_token("t0ken") == "t0ken"
    assert plain_token("-") == plain_token("") == ""
    assert plain_token("t k") is plain_token("*") is plain_token("x" * 65) is None


def test_the_operation_that_may_not_be_asked_for_is_read_from_the_complaint() -> None:
    complaint = 'Permissions Violation for Publish to "{}"'
    assert OWN.forbidden(complaint.format("acme.opwire.call.github.repos%2Fget")) == ("github.repos/get", None)
    assert OWN.forbidden(complaint.format("acme.opwire.in.12ab.-")) == (None, "12ab")
    assert OWN.forbidden(complaint.format("acme.other.in.12ab.-")) == (None, None)
    assert OWN.forbidden("Stale Connection") == (None, None)


@pytest.mark.parametrize("name", ["", "a b", "a.", ".a", "a..b", "a.*", ">", "a\r\n", "ü", "x" * 257])
def test_names_that_nats_cannot_use_are_refused(name: str) -> None:
    for wrong in (lambda: Subjects(name), lambda: Subjects("opwire", name)):
        with pytest.raises(UsageError, match="for NATS: use letters"):
            wrong()
