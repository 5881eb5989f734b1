"""Signed requests: who calls, proven anew for each call, where nobody stands at the door.

    credential = link [~ link …]        a link for the caller, one more for each server that calls on in its name
    link       = passport ~ statement ~ signature
    statement  = base64url(JSON [requestId, operationId, expiry in epoch ms, digest of the body or ""])

A signature covers everything to its left, so that no link can be taken out of its chain, and a name of this protocol,
so that it cannot be one of another. A credential that was captured is good for the same request alone, until it
expires, at a server that has not seen it yet.

Ed25519 keys as PEM and back. A private key is shown nowhere but in `to_pem`.

Passports: an authority says who holds which key.

A passport is a JSON Web Token, signed by the authority, that names its holder's public key (`cnf`, RFC 7800). It is no
secret: it is worth nothing without the private key.

Which requests were seen before. No I/O, no clock: the time is given.

Identities over a broker: every request that leaves is signed, and every one that arrives is verified.

signed = SignedRequests(Signer(passport, key), Verifier(authority.public_pem))
RedisTransport(url, signed=signed)
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from hashlib import blake2b, sha256
from threading import Lock
from typing import Annotated, Any, NamedTuple, Self

import jwt
import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from msgspec import Meta, Struct
from msgspec.structs import replace

from opwire.auth.tokens import Grant, as_grant, grant_of, is_own, not_delegated, refused
from opwire.call import CallRequested
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, check_not_below_zero
from opwire.operation import Identity
from opwire.typed.plain import json_form, write_json


class SigningKey:
    """What its holder signs with.

        key = SigningKey.generate()
        key.public_pem  # for everybody
        key.to_pem()  # for nobody but its holder

    `to_pem` is to be kept like a password: whoever has it is the holder.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        public = key.public_key()
        self.name = name_of(public)
        self.public_pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @classmethod
    def generate(cls) -> Self:
        """A new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: str | bytes) -> Self:
        """The key that `to_pem` wrote.

        Raises:
            CallError: VALIDATION_ERROR. The message does not show it.
        """
        try:
            key = load_pem_private_key(_bytes(pem), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            wrong = "not an Ed25519 key in PEM without a password, which begins with -----BEGIN PRIVATE KEY-----"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        return cls(key)

    def to_pem(self) -> str:
        """The private key as PEM."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""
        return self._key.sign(message)


def public_key(pem: str | bytes) -> Ed25519PublicKey:
    """The key that `SigningKey.public_pem` shows.

    Raises:
        CallError: VALIDATION_ERROR.
    """
    try:
        key = load_pem_public_key(_bytes(pem))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        wrong = "not an Ed25519 public key in PEM, which begins with -----BEGIN PUBLIC KEY-----"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
    return key


def name_of(key: Ed25519PublicKey) -> str:
    """The key itself, in the 43 characters that a JSON Web Key writes it with."""
    return urlsafe_b64encode(key.public_bytes_raw()).rstrip(b"=").decode()


def _bytes(pem: str | bytes) -> bytes:
    return pem.encode("utf-8", "surrogatepass") if isinstance(pem, str) else pem


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


class Replays:
    """Remembers each request for as long as its credential is good, and `limit` of them at most.

    What does not fit is refused: to forget one early would let it pass a second time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._until)

    def is_new(self, holder: str, request_id: str, until: float, now: float) -> bool:
        """Whether this holder's request is the first of its id; from then on it is not.

        Raises:
            CallError: RATE_LIMITED, if there are too many to remember.
        """
        # A digest, because a peer decides how long its request ids are.
        key = blake2b(f"{len(holder)} {holder}{request_id}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            self._forget(now)
            if self._until.get(key, now) > now:
                return False
            if len(self._until) >= self._limit:
                raise CallError(ErrorCode.RATE_LIMITED, f"{self._limit:,} calls are remembered already", retry_after=1)
            self._until[key] = until
            return True

    def _forget(self, now: float) -> None:
        """Drop what has expired. Lifetimes are alike, so that the oldest entries are nearly always the next to go."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)


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


_statement_encoder = msgspec.json.Encoder(enc_hook=json_form)


class _Held(NamedTuple):
    credential: str
    identity: Identity
    size: int
    until: float


class HeldCredentials:
    """The credentials of requests that a server may act on behalf of, each for as long as it is good.

    `max_bytes` of them are kept, and a quarter of that of one identity. What does not fit is refused: to forget one
    early would change as whom a call is made.
    """

    def __init__(self, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._held: dict[str, _Held] = {}  # by request id, the oldest first
        self._bytes = 0
        self._by_identity: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, request_id: str, identity: Identity | None) -> str | None:
        """Return the credential of a request, if that identity has made it.

        A request id is the caller's choice, and another caller may choose the same while the first call is in hand.
        """
        held = self._held.get(request_id)
        return held.credential if held is not None and held.identity == identity else None

    def add(self, request_id: str, credential: str, identity: Identity, until: float, now: float) -> None:
        """Keep a credential.

        Raises:
            CallError: RATE_LIMITED, if there is no room for it.
        """
        while self._held and next(iter(self._held.values())).until <= now:  # lifetimes are alike: the oldest go first
            self._drop(next(iter(self._held)))
        if request_id in self._held:
            self._drop(request_id)
        size = len(credential) + 4 * len(request_id) + _OVERHEAD
        if self._bytes + size > self._max_bytes or 4 * (self._by_identity[identity.id] + size) > self._max_bytes:
            raise CallError(ErrorCode.RATE_LIMITED, "too many signed requests are in hand already", retry_after=1)
        self._held[request_id] = _Held(credential, identity, size, until)
        self._bytes += size
        self._by_identity[identity.id] += size

    def _drop(self, request_id: str) -> None:
        held = self._held.pop(request_id)
        self._bytes -= held.size
        self._by_identity[held.identity.id] -= held.size
        if not self._by_identity[held.identity.id]:
            del self._by_identity[held.identity.id]


_OVERHEAD = 512  # bytes of an entry beside its text


class SignedRequests:
    """What one end does to requests. One that only calls needs no verifier, one that only serves needs no signer.

    A call that is made with the context of a served call has the identity of that call's caller if this end's passport
    delegates (`Grant.delegates`), and is refused otherwise.
    """

    def __init__(
        self, signer: Signer | None = None, verifier: Verifier | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._signer = signer
        self._verifier = verifier
        self._clock = clock
        self._held = HeldCredentials()

    @property
    def verifies(self) -> bool:
        """Whether the identity on a request that has arrived can be believed."""
        return self._verifier is not None

    def leaving(self, event: CallRequested) -> CallRequested:
        """A request as it is sent: with a credential, and without an identity that nobody would believe.

        Raises:
            CallError: UNAUTHENTICATED, if our passport has expired; VALIDATION_ERROR, if the input has no JSON form;
                ACCESS_DENIED, if it is made on behalf of a caller whose identity this end may not pass on.
        """
        if self._signer is None:
            return replace(event, identity=None)
        parent = None if event.parent_request_id is None else self._parent(event, event.parent_request_id)
        credential = self._signer.sign(event, body=_body(event), on_behalf_of=parent)
        return replace(event, identity=None, credential=credential)

    def _parent(self, event: CallRequested, parent: str) -> str:
        """Return the credential of the request that this one is part of, if its caller's identity may be passed on."""
        if self._signer is None or not self._signer.delegates:
            raise not_delegated(event.operation_id, "the passport of this server does not delegate")
        if is_own(event.operation_id):
            raise not_delegated(event.operation_id, "operations of opwire itself are never delegated")
        credential = self._held.get(parent, event.identity)
        if credential is None:
            raise not_delegated(event.operation_id, "the request that it is part of is not being served here")
        return credential

    def arriving(self, event: CallRequested) -> CallRequested:
        """A request as it is served: with the identity that its credential proves.

        Raises:
            CallError: UNAUTHENTICATED; RATE_LIMITED, if more are in hand than can be remembered.
        """
        if self._verifier is None:
            return event
        if event.credential is None:  # anonymous: what is public is still there for it
            return replace(event, identity=None)
        identity = self._verifier.verify(event.credential, event, body=_body(event))
        delegates = self._signer is not None and self._signer.delegates
        if delegates and not is_own(event.operation_id):  # what asks a server about itself gives it no authority
            now = self._clock()
            self._held.add(event.request_id, event.credential, identity, now + self._verifier.longest, now)
        return replace(event, identity=identity, credential=None)


def _body(event: CallRequested) -> bytes:
    """The input as JSON, which is the same before and after its journey."""
    return write_json(_statement_encoder, event.input)
