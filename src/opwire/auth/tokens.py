"""Tokens that are known beforehand, and doors that are open."""

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest

from opwire.auth.grants import NOT_VALID, Authenticator, Grant, as_grant, presented, refused
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity

MIN_LENGTH = 16
"""Characters of a token: a shorter one could be guessed. `secrets.token_urlsafe()` makes one of 43."""


class StaticTokens:
    """Takes these tokens and no others.

        StaticTokens({os.environ["SHOP_TOKEN"]: Grant(Identity(id="shop"), announces=("shop",))})

    Only digests are kept. A token is compared with every one of them, in a time that does not depend on how much of
    it is right.

    Raises:
        CallError: VALIDATION_ERROR, if one of the tokens is no good. The message does not show it.
    """

    def __init__(self, grants: Mapping[str, Grant | Identity]) -> None:
        for number, token in enumerate(grants, 1):
            _check(number, token)
        self._grants = [(_digest(token), as_grant(grant)) for token, grant in grants.items()]

    def __repr__(self) -> str:
        return f"StaticTokens(of {', '.join(grant.identity.id for _, grant in self._grants)})"

    async def authenticate(self, token: str | None) -> Grant:
        """What this token gives.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        digest, found = _digest(presented(token)), None
        for known, grant in self._grants:  # to the end, whichever it is
            if compare_digest(known, digest):
                found = grant
        if found is None:
            raise refused(NOT_VALID, "it is none of the static tokens")
        return found


class _Open:
    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    def __repr__(self) -> str:
        return f"anybody({self._grant.identity!r})"

    async def authenticate(self, token: str | None) -> Grant:
        return self._grant


def anybody(identity: Identity | Grant) -> Authenticator:
    """An authenticator that asks for no token: whoever comes is this one."""
    return _Open(as_grant(identity))


def _check(number: int, token: str) -> None:
    problem = None
    if len(token) < MIN_LENGTH:
        problem = f"has {len(token)} characters, and needs at least {MIN_LENGTH}: make one with secrets.token_urlsafe()"
    elif token != token.strip():
        problem = "begins or ends with white space, which headers and files do not keep: strip it"
    if problem is not None:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"token number {number} {problem}")


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
