"""JSON Web Tokens, verified with PyJWT, and the keys to verify them with: a fixed key, or a published key set.

Rules: which key may be used with which algorithm is decided when keys are loaded, before any token is parsed. A token
has no influence on it, so that a public key can never be used as a shared secret.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, cast

from opwire.auth.tokens import (
    EXPIRED,
    NOT_VALID,
    ClaimNames,
    Grant,
    UserFunction,
    failure_limit,
    grant_of,
    presented,
    rejected,
)
from opwire.errors import CallError, UsageError, check_not_below_zero, needs_extra
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict

with needs_extra("auth"):
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm

logger = get_logger("opwire.auth", failure_limit)

SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Algorithms with a shared secret, and its minimum length: the length of their digest."""

ALGORITHMS = (*SECRET_BYTES, "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The supported algorithms."""

RSA_BITS = 2048

MAX_AGE = 3600.0
"""Seconds for which published keys are cached; one of them may have been revoked since."""

MIN_INTERVAL = 60.0
"""Seconds between two fetches, regardless of how many tokens with unknown keys arrive."""

RETRY_INTERVAL = 5.0
"""Seconds until the next fetch after one that failed."""

FETCH_TIMEOUT = 10.0
"""Seconds for one fetch."""

MAX_DELAY = 1.0
"""Seconds of a fetch in which tokens with known keys wait for it; then the old keys are used until it has ended."""

MAX_KEYS = 100
"""Keys of a key set; the rest is ignored, because parsing a key takes up to 0.1 ms."""

VerificationKey = Any  # a key as PyJWT prepares it for one algorithm
KeyName = tuple[str | None, str]  # a key's id and the algorithm
Jwks = Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]


class OneKey:
    """The same key for every token.

    Raises:
        UsageError: the key does not fit all of the algorithms.
    """

    def __init__(self, key: Any, algorithms: Sequence[str]) -> None:
        try:
            self._keys = {algorithm: prepare_key(key, algorithm) for algorithm in algorithms}
        except ValueError as error:
            raise UsageError(str(error)) from None

    async def find(self, id: str | None, algorithm: str) -> VerificationKey | None:
        """Return the key for this algorithm; the id is ignored."""
        return self._keys.get(algorithm)


class PublishedKeys:
    """The keys of a JSON Web Key Set, fetched lazily by a function and cached.

    Raises:
        UsageError: an algorithm uses a shared secret; published keys are public.
    """

    def __init__(self, fetch: Jwks, algorithms: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        if secret := [algorithm for algorithm in algorithms if algorithm in SECRET_BYTES]:
            raise UsageError(f"published keys are not secret, but {', '.join(secret)} uses a secret: remove it")
        self._fetch = UserFunction(fetch, "the function that fetches the keys")
        self._algorithms = algorithms
        self._clock = clock
        self._keys: dict[KeyName, VerificationKey] = {}
        self._stale = self._not_before = -inf  # times of the next fetch
        self._fetching: asyncio.Task[None] | None = None
        self._use_old = -inf  # from this time on, while fetching

    async def find(self, id: str | None, algorithm: str) -> VerificationKey | None:
        """Return the key of this id for this algorithm, or None.

        Raises:
            CallError: UNAVAILABLE, if no keys could be fetched yet.
        """
        name = id, algorithm
        now = self._clock()
        if now >= self._not_before and (name not in self._keys or now >= self._stale):
            fetching, loop = self._fetching, asyncio.get_running_loop()
            if fetching is None or fetching.done() or fetching.get_loop() is not loop:  # that of another thread
                fetching = self._fetching = loop.create_task(self._refresh())
                self._use_old = now + MAX_DELAY
            # An issuer that hangs would delay every token, by up to 10 s during 10 of every 15 s.
            patience = max(0.0, self._use_old - now) if name in self._keys else None
            await asyncio.wait((fetching,), timeout=patience)
        if not self._keys:
            raise self._fetch.failed()
        return self._keys.get(name)

    async def _refresh(self) -> None:
        keys: dict[KeyName, VerificationKey] = {}
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                keys = dict(_usable_keys(await self._fetch(), self._algorithms))
        except (CallError, TimeoutError) as error:
            logger.warning("the issuer's keys could not be fetched: %s", type(error).__name__)
        now = self._clock()
        self._not_before = now + (MIN_INTERVAL if keys else RETRY_INTERVAL)
        if keys:  # otherwise the old ones are kept
            self._keys, self._stale = keys, now + MAX_AGE


def prepare_key(key: Any, algorithm: str) -> VerificationKey:
    """Return the key in PyJWT's form for this algorithm.

    Raises:
        ValueError: it is a key for another algorithm, too short, or private where it should be public.
    """
    try:
        prepared = jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    except (jwt.PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        prepared = None
    if prepared is None:  # outside `except`: that error may show the key, and would be chained to this one
        raise ValueError(f"this is not a key for {algorithm}")
    if algorithm in SECRET_BYTES:
        if len(prepared) < SECRET_BYTES[algorithm]:
            raise ValueError(f"a secret for {algorithm} has at least {SECRET_BYTES[algorithm]} bytes")
    elif hasattr(prepared, "private_bytes"):
        raise ValueError("this is a private key: tokens are verified with the public key")
    elif algorithm.startswith(("RS", "PS")) and prepared.key_size < RSA_BITS:
        raise ValueError(f"an RSA key has at least {RSA_BITS} bits")
    return prepared


def _usable_keys(document: object, algorithms: Sequence[str]) -> Iterator[tuple[KeyName, VerificationKey]]:
    """Yield the keys of a key set for each algorithm that they fit; ignore invalid ones."""
    keys = cast("Mapping[str, Any]", document).get("keys") if isinstance(document, Mapping) else None
    if not isinstance(keys, list):
        logger.error("the function that fetches the keys did not return a key set: an object with a list `keys`")
        return
    for data in map(as_dict, cast("list[Any]", keys)[:MAX_KEYS]):
        if not isinstance(data.get("kid", ""), str) or data.get("use", "sig") != "sig":
            continue
        for algorithm in algorithms:
            if data.get("alg", algorithm) != algorithm:
                continue
            try:
                key = prepare_key(jwt.PyJWK(data, algorithm).key, algorithm)
            except (jwt.PyJWTError, ValueError, TypeError, LookupError, AttributeError):
                continue  # PyJWT raises any of these for an invalid key
            yield (data.get("kid"), algorithm), key


class JWTs:
    """Accept signed JSON Web Tokens.

        JWTs(key=public_pem, algorithms=["ES256"], audience="opwire", issuer="https://id.example")
        JWTs(jwks=fetch, algorithms=["RS256"], audience="opwire", issuer="https://id.example")

    `key` is a shared secret (HS256 …) or a public key as PEM; `jwks` is a function, sync or async, that returns the
    issuer's key set as a dict: it is called for unknown keys, and once per hour. `audience` and `issuer` are the
    required `aud` and `iss`; pass None explicitly to accept any issuer, and tokens without an audience: one that names
    another is rejected. `leeway` is the tolerated clock skew in seconds.

    `sub` becomes the identity's id, `scope` or `scopes` its scopes, `resources` its resources, and `announce` the
    namespaces; `claims` overrides these names: `claims={"id": "email", "scopes": "permissions"}`. Tokens without `exp`
    are rejected, and so are tokens with `cnf`, which need a proof of the key that they name.

    Raises:
        UsageError: key and algorithms do not fit, or `leeway` is below zero.
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
        self._algorithms = list(algorithms)
        if not self._algorithms or not set(self._algorithms) <= set(ALGORITHMS):
            raise UsageError(f"algorithms is a list of one or more of {', '.join(ALGORITHMS)}")
        if (key is None) == (jwks is None):
            raise UsageError("give either key= or jwks=")
        self._keys = OneKey(key, self._algorithms) if jwks is None else PublishedKeys(jwks, self._algorithms)
        self._audience = audience
        self._issuer = issuer
        self._leeway = leeway
        self._claims = claims or ClaimNames()

    def __repr__(self) -> str:
        return f"JWTs({', '.join(self._algorithms)}, audience={self._audience!r}, issuer={self._issuer!r})"

    async def authenticate(self, token: str | None) -> Grant:
        """Return the grant of a token.

        Raises:
            CallError: UNAUTHENTICATED; UNAVAILABLE, if the keys cannot be fetched.
        """
        token = presented(token)
        try:
            header, reason = jwt.get_unverified_header(token), ""
        except (jwt.PyJWTError, ValueError, RecursionError) as error:  # nested 12,000 deep, for example
            header, reason = {}, type(error).__name__
        if reason:  # outside `except`: PyJWT's error may quote the token, and would be chained to this one
            raise rejected(NOT_VALID, reason)
        algorithm = header.get("alg")
        if algorithm not in self._algorithms:
            raise rejected(NOT_VALID, "its algorithm is not accepted")
        key = await self._keys.find(header.get("kid"), algorithm)
        if key is None:
            raise rejected(NOT_VALID, "unknown key")
        claims: dict[str, Any] = {}
        message, reason = NOT_VALID, ""
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp"]},
            )
        except jwt.ExpiredSignatureError:
            message, reason = EXPIRED, "exp has passed"
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            reason = type(error).__name__
        if reason:  # outside `except`, as above
            raise rejected(message, reason)
        if "cnf" in claims:
            raise rejected(NOT_VALID, "it is bound to a key, and came without a proof of that key")
        try:
            return grant_of(claims, self._claims, self._leeway)
        except ValueError as error:
            raise rejected(NOT_VALID, str(error)) from None
