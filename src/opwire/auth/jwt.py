"""JSON Web Tokens, checked with PyJWT."""

from collections.abc import Sequence
from typing import Any

import jwt

from opwire.auth.claims import ClaimNames, grant_of
from opwire.auth.grants import EXPIRED, NOT_VALID, Grant, presented, refused
from opwire.auth.keyring import ALGORITHMS, Jwks, Keyring, OneKey, PublishedKeys
from opwire.errors import CallError, ErrorCode, check_not_below_zero


class JWTs:
    """Takes tokens that were signed with a key.

        JWTs(key=public_pem, algorithms=["ES256"], audience="opwire", issuer="https://id.example")
        JWTs(jwks=fetch, algorithms=["RS256"], audience="opwire", issuer="https://id.example")

    `key` is a shared secret (HS256 …) or a public key as PEM; `jwks` is a function, sync or async, that fetches the
    issuer's key set as a dict: it is asked when a key is unknown, and once an hour. `audience` and `issuer` are who a
    token has to be for and from; None has to be written where anything will do. `leeway` is by how many seconds clocks
    may differ.

    `sub` becomes the identity's id, `scope` or `scopes` its scopes, `resources` its resources, and `announce` the
    namespaces; `claims` names others: `claims={"id": "email", "scopes": "permissions"}`. A token without `exp` is
    refused, and so is one with `cnf`, which is worth nothing without the key that it names.

    Raises:
        CallError: VALIDATION_ERROR, if key and algorithms do not belong together, or `leeway` is below zero.
    """

    def __init__(
        self,
        *,
        key: Any = None,
        jwks: Jwks | None = None,
        algorithms: Sequence[str],
        audience: str | Sequence[str] | None,
        issuer: str | Sequence[str] | None,
        leeway: float = 5.0,
        claims: ClaimNames | None = None,
    ) -> None:
        check_not_below_zero(leeway=leeway)
        self._algorithms = _chosen(algorithms)
        self._keys = _keyring(key, jwks, self._algorithms)
        self._audience = audience
        self._issuer = issuer
        self._leeway = leeway
        self._claims = claims or ClaimNames()

    def __repr__(self) -> str:
        return f"JWTs({', '.join(self._algorithms)}, audience={self._audience!r}, issuer={self._issuer!r})"

    async def authenticate(self, token: str | None) -> Grant:
        """What this token gives.

        Raises:
            CallError: UNAUTHENTICATED; UNAVAILABLE, if the keys cannot be fetched.
        """
        token = presented(token)
        header = _header(token)
        algorithm = header.get("alg")
        if algorithm not in self._algorithms:
            raise refused(NOT_VALID, "it is signed with none of the algorithms that are taken")
        key = await self._keys.find(header.get("kid"), algorithm)
        if key is None:
            raise refused(NOT_VALID, "there is no such key")
        claims = self._decode(token, key)
        if "cnf" in claims:
            raise refused(NOT_VALID, "it is bound to a key, and was shown without a proof of that key")
        try:
            return grant_of(claims, self._claims)
        except ValueError as error:
            raise refused(NOT_VALID, str(error)) from None

    def _decode(self, token: str, key: Any) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp"]},
            )
        except jwt.ExpiredSignatureError:
            message, reason = EXPIRED, "its time has passed"
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            message, reason = NOT_VALID, type(error).__name__
        # Not within `except`: PyJWT's error may quote the token, and would be chained to this one.
        raise refused(message, reason)


def _header(token: str) -> dict[str, Any]:
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:  # nested 12,000 deep, for example
        reason = type(error).__name__
    raise refused(NOT_VALID, reason)


def _chosen(algorithms: Sequence[str]) -> list[str]:
    chosen = list(algorithms)
    if not chosen or not set(chosen) <= set(ALGORITHMS):
        message = f"algorithms is a list, with one or more of {', '.join(ALGORITHMS)}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return chosen


def _keyring(key: Any, jwks: Jwks | None, algorithms: list[str]) -> Keyring:
    if jwks is not None and key is None:
        return PublishedKeys(jwks, algorithms)
    if key is not None and jwks is None:
        return OneKey(key, algorithms)
    raise CallError(ErrorCode.VALIDATION_ERROR, "give either key= or jwks=")
