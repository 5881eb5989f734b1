"""JSON Web Tokens, checked with PyJWT.

The keys that JSON Web Tokens are checked with: one that is given, or those that an issuer publishes.

Rules: a key serves an algorithm only if it was made for it, which is decided before any token is seen. No token has a
say in that, so that a public key can never be taken for a shared secret.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol, cast

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

from opwire.auth.tokens import EXPIRED, NOT_VALID, ClaimNames, Grant, UserFunction, grant_of, presented, refused
from opwire.errors import CallError, ErrorCode, check_not_below_zero

logger = logging.getLogger("opwire.auth")

SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The algorithms with a shared secret, and how long it has to be: as long as what they make of it."""

ALGORITHMS = (*SECRET_BYTES, "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""All that can be chosen from."""

RSA_BITS = 2048

FRESH = 3600.0
"""Seconds after which published keys are fetched again, since one of them may have been withdrawn."""

PAUSE = 60.0
"""Seconds until they are fetched again at the earliest, however many tokens with unknown keys arrive."""

RETRY = 5.0
"""Seconds until the next attempt when one has failed."""

PATIENCE = 10.0
"""Seconds that an attempt may take."""

Key = Any  # what PyJWT makes of a key for one algorithm
Wanted = tuple[str | None, str]  # a key's id and the algorithm
Jwks = Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]


class Keyring(Protocol):
    """Where the key of a token is found."""

    async def find(self, id: str | None, algorithm: str) -> Key | None:
        """The key of this id, if there is one for this algorithm.

        Raises:
            CallError: UNAVAILABLE, if that cannot be known at the moment.
        """
        ...


class OneKey:
    """The same key for every token.

    Raises:
        CallError: VALIDATION_ERROR, if the key does not suit every one of the algorithms.
    """

    def __init__(self, key: Any, algorithms: Sequence[str]) -> None:
        try:
            self._keys = {algorithm: suited(key, algorithm) for algorithm in algorithms}
        except ValueError as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, str(error)) from None

    async def find(self, id: str | None, algorithm: str) -> Key | None:
        """The key, whatever its id."""
        return self._keys.get(algorithm)


class PublishedKeys:
    """The keys of a JSON Web Key Set, which a function fetches when they are needed.

    Raises:
        CallError: VALIDATION_ERROR, if one of the algorithms needs a secret: these keys are public.
    """

    def __init__(self, fetch: Jwks, algorithms: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        if secret := [each for each in algorithms if each in SECRET_BYTES]:
            wrong = f"published keys are no secret, which {', '.join(secret)} needs: leave it out"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        self._fetch = UserFunction(fetch, "the function that fetches the keys")
        self._algorithms = algorithms
        self._clock = clock
        self._keys: dict[Wanted, Key] = {}
        self._stale = self._not_before = -inf  # when to fetch them again
        self._fetching = asyncio.Lock()

    async def find(self, id: str | None, algorithm: str) -> Key | None:
        """The key of this id, if there is one for this algorithm.

        Raises:
            CallError: UNAVAILABLE, if there are no keys yet.
        """
        wanted = id, algorithm
        if self._is_due(wanted):
            async with self._fetching:
                if self._is_due(wanted):  # nobody has fetched them while we waited
                    await self._renew()
        if not self._keys:
            raise self._fetch.failed()
        return self._keys.get(wanted)

    def _is_due(self, wanted: Wanted) -> bool:
        now = self._clock()
        return now >= self._not_before and (wanted not in self._keys or now >= self._stale)

    async def _renew(self) -> None:
        """Replace the keys, or keep the old ones if no new ones can be had."""
        keys: dict[Wanted, Key] = {}
        try:
            async with asyncio.timeout(PATIENCE):
                keys = dict(_published(await self._fetch(), self._algorithms))
        except (CallError, TimeoutError) as error:
            logger.warning("the keys of the issuer could not be fetched: %s", type(error).__name__)
        now = self._clock()
        self._not_before = now + (PAUSE if keys else RETRY)
        if keys:
            self._keys, self._stale = keys, now + FRESH


def suited(key: Any, algorithm: str) -> Key:
    """The key in the form that this algorithm takes.

    Raises:
        ValueError: it is made for another one, too short, or private where it should be public.
    """
    try:
        prepared = jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    except (jwt.PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        prepared = None
    if prepared is None:  # not within `except`: the error there may show the key, and would be chained to this one
        raise ValueError(f"this is not a key for {algorithm}")
    if algorithm in SECRET_BYTES:
        if len(prepared) < SECRET_BYTES[algorithm]:
            raise ValueError(f"a secret for {algorithm} has at least {SECRET_BYTES[algorithm]} bytes")
    elif hasattr(prepared, "private_bytes"):
        raise ValueError("this is a private key: whoever checks tokens needs the public one alone")
    elif algorithm.startswith(("RS", "PS")) and prepared.key_size < RSA_BITS:
        raise ValueError(f"an RSA key has at least {RSA_BITS} bits")
    return prepared


def _published(document: object, algorithms: Sequence[str]) -> Iterator[tuple[Wanted, Key]]:
    """The usable keys of a key set: by their ids, and the algorithms that each can serve."""
    keys = cast("Mapping[str, Any]", document).get("keys") if isinstance(document, Mapping) else None
    if not isinstance(keys, list):
        logger.error("the function that fetches the keys returned no key set, which is an object with a list `keys`")
        return
    for key in cast("list[Any]", keys):
        if isinstance(key, dict):
            data = cast("dict[str, Any]", key)
            for algorithm in algorithms:
                prepared = _usable(data, algorithm)
                if prepared is not None:
                    yield (data.get("kid"), algorithm), prepared


def _usable(data: dict[str, Any], algorithm: str) -> Key | None:
    """A published key, if it is one for this algorithm. PyJWT reads a broken one in ways that end in many errors."""
    if data.get("use", "sig") != "sig" or data.get("alg", algorithm) != algorithm:
        return None
    if not isinstance(data.get("kid", ""), str):
        return None
    try:
        return suited(jwt.PyJWK(data, algorithm).key, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, LookupError, AttributeError):
        return None


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
