"""Passports: an authority says who holds which key.

A passport is a JSON Web Token, signed by the authority, that names its holder's public key (`cnf`, RFC 7800). It is no
secret: it is worth nothing without the private key.
"""

import time
from collections.abc import Sequence
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct

from opwire.auth.claims import grant_of
from opwire.auth.grants import Grant, as_grant
from opwire.auth.keys import SigningKey, name_of, public_key
from opwire.errors import CallError, ErrorCode, check_above_zero
from opwire.operation import Identity

_TYPE = "opwire-passport+jwt"  # so that no other token of the same authority can be taken for one
_ALGORITHM = "EdDSA"


class Passport(Struct, frozen=True):
    """What a passport says."""

    grant: Grant
    key: Ed25519PublicKey
    holder: str  # the key's name
    expires: float


class Authority(SigningKey):
    """A key that issues passports.

        authority = Authority.generate()
        passport = authority.issue(Grant(Identity(id="shop")), key.public_pem, lifetime=86_400)

    Verifiers are given its `public_pem`. A passport cannot be taken back, so that it should not live for long.
    """

    def issue(self, grant: Grant | Identity, key: str | bytes, *, lifetime: float) -> str:
        """A passport for the holder of a key (its public half, as PEM), good for so many seconds.

        Raises:
            CallError: VALIDATION_ERROR, if that is not a public key, or the lifetime not a number above zero.
        """
        check_above_zero(lifetime=lifetime)
        grant, now = as_grant(grant), time.time()
        until = now + lifetime if grant.expires is None else min(now + lifetime, grant.expires)
        holder = {"kty": "OKP", "crv": "Ed25519", "x": name_of(public_key(key))}
        claims: dict[str, Any] = {
            "sub": grant.identity.id,
            "scopes": list(grant.identity.scopes),
            "resources": {type: list(actions) for type, actions in grant.identity.resources.items()},
            "announce": list(grant.announces),
            "delegates": grant.delegates,
            "iat": int(now),
            "exp": int(until),
            "cnf": {"jwk": holder},
        }
        return jwt.encode(claims, self._key, _ALGORITHM, headers={"typ": _TYPE})


def read_passport(text: str, authorities: Sequence[Ed25519PublicKey], leeway: float) -> Passport:
    """What a passport says, if one of these authorities has signed it. It may have expired.

    Raises:
        ValueError: none has, or it is not a passport. The message does not show it.
    """
    for authority in authorities:
        try:
            token = jwt.decode_complete(text, authority, [_ALGORITHM], leeway=leeway, options={"verify_exp": False})
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(type(error).__name__) from None
        return _passport(token)
    raise ValueError("no authority that is known has signed the passport")


def own_passport(text: str, key: SigningKey) -> Passport:
    """What the passport of this very process says. Whether it is genuine is for others to judge.

    Raises:
        CallError: VALIDATION_ERROR, if it is none, or that of another key.
    """
    try:
        passport = _passport(jwt.decode_complete(text, options={"verify_signature": False}))
    except (jwt.PyJWTError, ValueError):
        raise CallError(ErrorCode.VALIDATION_ERROR, "this is not a passport: Authority.issue() makes one") from None
    if passport.holder != key.name:
        raise CallError(ErrorCode.VALIDATION_ERROR, "this passport was issued for another key")
    return passport


def _passport(token: dict[str, Any]) -> Passport:
    claims = token["payload"]
    if token["header"].get("typ") != _TYPE:
        raise ValueError("it is a token, and not a passport")
    grant = grant_of(claims, {})
    try:
        key: Any = jwt.PyJWK(claims["cnf"]["jwk"], _ALGORITHM).key
    except (jwt.PyJWTError, ValueError, TypeError, LookupError, AttributeError):
        key = None
    if not isinstance(key, Ed25519PublicKey) or grant.expires is None:
        raise ValueError("the passport names no key")
    return Passport(grant, key, name_of(key), grant.expires)
