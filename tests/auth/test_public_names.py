"""What `opwire.auth` gives, and what it needs for that."""

import subprocess
import sys

import pytest

import opwire.auth
from opwire.auth import Authority, Grant, Signer, SigningKey, Verifier
from opwire.model.identity import Identity
from opwire.protocol import CallRequested


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_every_public_name_is_there() -> None:
    assert sorted(opwire.auth.__all__) == opwire.auth.__all__
    assert [name for name in opwire.auth.__all__ if not hasattr(opwire.auth, name)] == []


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Passwords'"):
        _ = opwire.auth.Passwords


def test_without_signed_tokens_neither_pyjwt_nor_cryptography_is_loaded() -> None:
    loaded = python("import sys, opwire.auth; print(*sys.modules)").split()
    assert {"jwt", "cryptography"} & set(loaded) == set()


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
@pytest.mark.parametrize("name", ["Authority", "JWTs", "Signer", "Verifier"])
def test_where_the_extra_is_not_installed_the_error_names_it(name: str, missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from opwire.auth import StaticTokens, allow_anonymous, callback
from opwire.errors import MissingExtraError
try:
    from opwire.auth import {name}
except MissingExtraError as error:
    print(error)
"""
    assert python(code) == f"the package {missing} is not installed; run: pip install 'opwire[auth]'\n"


def test_a_signed_request_goes_as_the_documentation_says() -> None:
    event = CallRequested(request_id="r1", operation_id="shop.order")
    authority = Authority.generate()
    key = SigningKey.generate()
    certificate = authority.issue(Grant(Identity(id="shop")), key.public_pem, lifetime=86_400)
    credential = Signer(certificate, key).sign(event)
    assert Verifier(authority.public_pem).verify(credential, event) == Identity(id="shop")
