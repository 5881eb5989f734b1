"""Claims as a grant."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import Identity
from opwire.auth import Grant
from opwire.auth.tokens import ClaimNames, grant_of

PLAIN = {"sub": "ann", "exp": 2_000_000_000}


def identity(claims: dict[str, Any], names: ClaimNames | None = None) -> Identity:
    return grant_of({**PLAIN, **claims}, names or {}).identity


def test_the_subject_is_the_id_and_the_expiry_is_kept() -> None:
    assert grant_of(PLAIN, {}) == Grant(Identity(id="ann"), (), 2_000_000_000.0)
    assert grant_of({"sub": "ann", "exp": 12.5}, {}).expires == 12.5


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "read write"}, ("read", "write")),
        ({"scope": ""}, ()),
        ({"scope": ["read", "a b"]}, ("read", "a b")),
        ({"scopes": ["read"]}, ("read",)),
        ({"scopes": "read write"}, ("read", "write")),
        ({"scope": "read write", "scopes": ["write", "purge"]}, ("read", "write", "purge")),
        ({"scope": None}, ()),
        ({}, ()),
    ],
)
def test_scopes_are_words_in_one_string_or_a_list(claims: dict[str, Any], scopes: tuple[str, ...]) -> None:
    assert identity(claims).scopes == scopes


def test_namespaces_and_resources_are_read() -> None:
    assert grant_of({**PLAIN, "announce": ["shop", "math"]}, {}).announces == ("shop", "math")
    assert identity({"resources": {"file": ["read", "write"], "disk": "read"}}).resources == {
        "file": ("read", "write"),
        "disk": ("read",),
    }


def test_other_claims_can_be_named() -> None:
    names: ClaimNames = {"id": "email", "scopes": "https://x/roles", "announces": "ns", "resources": "rights"}
    claims = {"email": "ann@x", "https://x/roles": ["admin"], "scope": "no", "ns": ["shop"], "rights": {"a": ["b"]}}
    grant = grant_of({**PLAIN, **claims}, names)
    assert grant.identity == Identity(id="ann@x", scopes=("admin",), resources={"a": ("b",)})
    assert grant.announces == ("shop",)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"sub": 17}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": None}, "sub"),
        ({"sub": ["ann"]}, "sub"),
        ({"sub": "ann\n"}, "sub"),
        ({"sub": "\ud800"}, "sub"),
        ({"sub": "\x1b[2J"}, "sub"),
        ({"scope": "read \ud800"}, "scope"),
        ({"scopes": ["a\x00"]}, "scopes"),
        ({"exp": "2000000000"}, "exp"),
        ({"exp": None}, "exp"),
        ({"exp": True}, "exp"),
        ({"scope": 5}, "scope"),
        ({"scopes": [1, 2]}, "scopes"),
        ({"scopes": {"admin": True}}, "scopes"),
        ({"announce": [["*"]]}, "announce"),
        ({"announce": True}, "announce"),
        ({"resources": ["file"]}, "resources"),
        ({"resources": {"file": [1]}}, "file"),
    ],
)
def test_a_claim_of_another_kind_is_an_error_that_names_it(claims: dict[str, Any], name: str) -> None:
    """A claim of the wrong kind is refused."""
    with pytest.raises(ValueError, match=f"^the claim {name} is n"):
        grant_of({**PLAIN, **claims}, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["sub", "exp", "scope", "scopes", "resources", "announce"]), JSON))
def test_any_claims_give_a_grant_of_text_alone_or_a_value_error(claims: dict[str, Any]) -> None:
    try:
        grant = grant_of(claims, {})
    except ValueError:
        return
    words = [grant.identity.id, *grant.identity.scopes, *grant.announces]
    words += [word for actions in grant.identity.resources.values() for word in actions]
    assert {type(word) for word in words} == {str}
