"""Signed requests: who calls, proven anew for each call, where nobody stands at the door.

    credential = link [~ link …]        a link for the caller, one more for each server that calls on in its name
    link       = passport ~ statement ~ signature
    statement  = base64url(JSON [requestId, operationId, expiry in epoch ms, digest of the body or ""])

A signature covers everything to its left, so that no link can be taken out of its chain, and a name of this protocol,
so that it cannot be one of another. A credential that was captured is good for the same request alone, until it
expires, at a server that has not seen it yet.
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import sha256
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from msgspec import Meta, Struct

from opwire.auth.grants import is_own, refused
from opwire.auth.keys import SigningKey, public_key
from opwire.auth.passports import Passport, own_passport, read_passport
from opwire.auth.replays import Replays
from opwire.call import CallRequested
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, check_not_below_zero
from opwire.operation import Identity

LIFETIME = 60.0
"""Seconds that a credential is good for, unless its call ends earlier."""

MAX_LINKS = 8
MAX_CREDENTIAL = 32 * 1024

_NAME = b"opwire-call-1~"
_NEEDED = "a signed request is needed"
_NOT_VALID = "the credential is not valid"
_EXPIRED = "the credential has expired"
_USED = "the credential was used before"


class _Statement(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a holder signs."""

    request_id: str
    operation_id: str
    expires: Annotated[int, Meta(ge=0, le=2**53)]  # epoch milliseconds
    body: str


class _Link(Struct, frozen=True):
    passport: str
    statement: _Statement
    signed: bytes
    signature: bytes


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Statement)


class Signer:
    """Signs requests as the holder of a passport.

        signer = Signer(passport, key)
        credential = signer.sign(event)

    A credential is good until its call's deadline, and for `lifetime` seconds at most.

    Raises:
        CallError: VALIDATION_ERROR, if the passport is none, or that of another key, or `lifetime` is not above zero.
    """

    def __init__(
        self, passport: str, key: SigningKey, *, lifetime: float = LIFETIME, clock: Callable[[], float] = time.time
    ) -> None:
        check_above_zero(lifetime=lifetime)
        self._text = passport
        self._passport = own_passport(passport, key)
        self._key = key
        self._lifetime = lifetime
        self._clock = clock

    def __repr__(self) -> str:
        return f"Signer({self._passport.grant.identity.id!r})"

    @property
    def delegates(self) -> bool:
        """Whether this passport allows calls on behalf of others."""
        return self._passport.grant.delegates

    def sign(self, event: CallRequested, *, body: bytes = b"", on_behalf_of: str | None = None) -> str:
        """The credential of a request.

        `body` is the request's input as it travels, for a verifier that is given the same bytes: without it, whoever
        reads the message on its way could send another input in its place. `on_behalf_of` is the credential of the
        request that is being served (the event's parent): the call is then made as whoever had made that one.

        Raises:
            CallError: UNAUTHENTICATED, if this passport has expired; ACCESS_DENIED, if it does not allow calls on
                behalf of others; VALIDATION_ERROR, if the event's ids are not text.
        """
        now = self._clock()
        if now >= self._passport.expires:
            raise CallError(ErrorCode.UNAUTHENTICATED, "this passport has expired: have the authority issue a new one")
        if on_behalf_of is not None and not self.delegates:
            raise CallError(ErrorCode.ACCESS_DENIED, "this passport does not allow calls on behalf of others")
        left = event.seconds_left(None)
        until = now + (self._lifetime if left is None else min(left, self._lifetime))
        statement = _Statement(event.request_id, event.operation_id, int(until * 1000), _digest(body))
        try:
            text = f"{self._text}~{_b64(_encoder.encode(statement))}"
        except ValueError as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"the ids of a request are text: {error}") from error
        if on_behalf_of is not None:
            text = f"{on_behalf_of}~{text}"
        return f"{text}~{_b64(self._key.sign(_NAME + text.encode()))}"


class Verifier:
    """Says whose requests these are.

        verifier = Verifier(authority.public_pem)
        identity = verifier.verify(credential, event)

    Several authorities may be given: the old and the new one, while passports are replaced. `leeway` is by how many
    seconds clocks may differ. A request is remembered as long as its credential is good, so that it passes once:
    `max_lifetime` bounds how long that is, and `remember` how many they are. Verified passports are cached.

    Raises:
        CallError: VALIDATION_ERROR, if there is no authority, one is not a public key in PEM, or a number is not above
            zero.
    """

    def __init__(
        self,
        *authorities: str | bytes,
        leeway: float = 5.0,
        max_lifetime: float = LIFETIME,
        remember: int = 200_000,
        passports: int = 1_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not authorities:
            raise CallError(ErrorCode.VALIDATION_ERROR, "a verifier trusts at least one authority: give its public key")
        check_not_below_zero(leeway=leeway)
        check_above_zero(max_lifetime=max_lifetime)
        check_counts(remember=remember, passports=passports)
        keys = [public_key(pem) for pem in authorities]
        self._passport = lru_cache(maxsize=passports)(partial(read_passport, authorities=keys, leeway=leeway))
        self._replays = Replays(remember)
        self._leeway = leeway
        self._max_lifetime = max_lifetime
        self._clock = clock

    @property
    def longest(self) -> float:
        """Seconds after which every credential that is good now has expired."""
        return self._max_lifetime + self._leeway

    def verify(self, credential: str | None, event: CallRequested, *, body: bytes = b"") -> Identity:
        """Who makes this request. `body` is what the signer was given.

        Raises:
            CallError: UNAUTHENTICATED; RATE_LIMITED, if more requests came than can be remembered.
        """
        now = self._clock()
        links = _links(credential)
        _check_bound(links, event, body)
        holders = [self._holder(link, now) for link in links]
        if not all(holder.grant.delegates for holder in holders[1:]):
            raise refused(_NOT_VALID, "a holder may not make calls on behalf of others")
        if len(links) > 1 and any(is_own(link.statement.operation_id) for link in links):
            raise refused(_NOT_VALID, "the authority of an operation of opwire itself is not passed on")
        until = links[-1].statement.expires / 1000 + self._leeway
        if not self._replays.is_new(holders[-1].holder, event.request_id, until, now):
            raise refused(_USED, "the same request came twice")
        return holders[0].grant.identity

    def _holder(self, link: _Link, now: float) -> Passport:
        """Who has signed a link, if it is good now."""
        expires = link.statement.expires / 1000
        if expires + self._leeway <= now:
            raise refused(_EXPIRED, "its time has passed")
        if expires > now + self._max_lifetime + self._leeway:
            raise refused(_NOT_VALID, f"it is good for longer than {self._max_lifetime:g} s")
        try:
            passport = self._passport(link.passport)
        except ValueError as error:
            raise refused(_NOT_VALID, str(error)) from None
        if passport.expires + self._leeway <= now:
            raise refused(_EXPIRED, "the time of its passport has passed")
        try:
            passport.key.verify(link.signature, link.signed)
        except InvalidSignature:
            raise refused(_NOT_VALID, "the signature is not that of the holder") from None
        return passport


def _links(credential: str | None) -> list[_Link]:
    if not credential:
        raise refused(_NEEDED, "there is no credential")
    if len(credential) > MAX_CREDENTIAL:
        raise refused(_NOT_VALID, f"it has more than {MAX_CREDENTIAL:,} characters")
    parts = credential.split("~")
    if len(parts) % 3 or len(parts) > 3 * MAX_LINKS:
        raise refused(_NOT_VALID, f"it is not made of one to {MAX_LINKS} links")
    try:
        return [_link(parts[:end]) for end in range(3, len(parts) + 1, 3)]
    except ValueError:
        raise refused(_NOT_VALID, "a link cannot be read") from None


def _link(parts: list[str]) -> _Link:
    passport, statement, signature = parts[-3:]
    signed = "~".join(parts[:-1]).encode("ascii")
    return _Link(passport, _decoder.decode(_unb64(statement)), _NAME + signed, _unb64(signature))


def _check_bound(links: list[_Link], event: CallRequested, body: bytes) -> None:
    """Whether a credential was made for this very request."""
    said = links[-1].statement
    if (said.request_id, said.operation_id, said.body) != (event.request_id, event.operation_id, _digest(body)):
        raise refused(_NOT_VALID, "it was made for another request")
    if len(links) > 1 and links[-2].statement.request_id != event.parent_request_id:
        raise refused(_NOT_VALID, "it was made on behalf of another request than the parent")


def _digest(body: bytes) -> str:
    return _b64(sha256(body).digest()) if body else ""


def _b64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _b64(raw) != text:  # the decoder skips what it does not know: several texts would mean the same
        raise ValueError
    return raw
