"""The credentials that are sent to a server. That servers accept them is in test_connection.py."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opwire.errors import CallError, ErrorCode, MissingExtraError
from opwire.transports.nats.connection import NatsCredentials, sign
from tests.transports.nats.keys import ACCOUNT, USER, Nkey


def test_the_fields_of_connect_are_those_that_were_given() -> None:
    assert NatsCredentials().fields("nonce") == {}
    assert NatsCredentials("ann", "s3cret").fields("nonce") == {"user": "ann", "pass": "s3cret"}
    assert NatsCredentials("ann").fields("nonce") == {"user": "ann", "pass": ""}
    assert NatsCredentials(token="t0ken").fields("nonce") == {"auth_token": "t0ken"}


def test_credentials_do_not_show_what_is_secret() -> None:
    shown = repr(NatsCredentials("ann", "s3cret", "t0ken", "file.creds"))
    assert "ann" in shown
    assert "s3cret" not in shown
    assert "t0ken" not in shown


def test_a_seed_gives_the_public_key_that_belongs_to_it_and_signs_each_number_otherwise() -> None:
    key = Nkey(USER)
    public, signature = sign(key.seed, "one")
    assert public == key.public
    assert public.startswith("U")
    assert sign(key.seed, "one") == (public, signature)
    assert sign(key.seed, "two") != (public, signature)


def test_a_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file, keys = tmp_path / "user.nk", [Nkey(USER), Nkey(USER)]
    for key in keys:
        file.write_text(f"{key.seed}\n")
        assert NatsCredentials(file=file).fields("nonce")["nkey"] == key.public


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: "", "checksum is wrong"),
        (lambda: "what is this?", "not an NKEY seed"),
        (lambda: "\x00\xff", "not an NKEY seed"),
        (lambda: Nkey(USER).seed[:-1], r"not an NKEY seed|checksum is wrong"),
        (lambda: Nkey(USER).seed[:-10], r"not an NKEY seed|checksum is wrong"),
        (lambda: Nkey(USER).seed[:20] + "AAAA" + Nkey(USER).seed[24:], "checksum is wrong"),
        (lambda: Nkey(ACCOUNT).seed, "not the seed of a user"),
    ],
)
def test_a_file_without_usable_credentials_is_refused_and_its_content_not_shown(
    tmp_path: Path, make: Callable[[], str], complaint: str
) -> None:
    file, text = tmp_path / "user.creds", make()
    file.write_text(text)
    with pytest.raises(CallError, match=complaint) as failure:
        NatsCredentials(file=file).fields("nonce")
    assert failure.value.code is ErrorCode.UNAVAILABLE
    assert str(file) in failure.value.message
    assert not text or text not in failure.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"no-such\.creds cannot be read"):
        NatsCredentials(file=tmp_path / "no-such.creds").fields("nonce")


def test_without_the_package_that_signs_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'opwire\[nats\]'"):
        sign(Nkey(USER).seed, "nonce")
