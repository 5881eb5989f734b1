"""Signed requests: prove the caller of each request where the server sees no connection to authenticate.

    credential = link [~ link …]        one link for the caller, one more for each server that calls on its behalf
    link       = certificate ~ statement ~ signature
    statement  = base64url(JSON [requestId, operationId, expiry in epoch ms, digest of the input or ""])

A key certificate is a JSON Web Token, signed by an authority, that names its holder's public Ed25519 key (`cnf`, RFC
7800). It is not secret: without the private key it is worthless.

A signature covers everything to its left, so that a link cannot be taken out of its chain, and the name of this
protocol, so that it is not valid for another. A captured credential is valid for the same request only, until it
expires, at a server that has not seen it yet.

    signed = SignedRequests(Signer(certificate, key), Verifier(authority.public_pem))
    RedisTransport(url, signed=signed)
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
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

from opwire.auth.tokens import Grant, as_grant, grant_of, not_delegated, rejected
from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, check_counts, check_not_below_zero
from opwire.model.identity import Identity
from opwire.model.operation import is_own
from opwire.names import counted
from opwire.protocol.events import CallRequested
from opwire.protocol.transport import Address
from opwire.runtime.bounded import SharedLimit, Tally
from opwire.typed.plain import json_form, write_json

LIFETIME = 60.0
"""Default lifetime of a credential in seconds; it also ends with the deadline of its call."""

MAX_LINKS = 8
MAX_CREDENTIAL = 32 * 1024

_CERTIFICATE_TYPE = "opwire-key-certificate+jwt"  # other tokens of the same authority are not certificates
_ALGORITHM = "EdDSA"
_PROTOCOL = b"opwire-call-1~"
_NEEDED = "a signed request is needed"
_NOT_VALID = "the credential is not valid"
_EXPIRED = "the credential has expired"
_USED = "the credential was used before"
_CREDENTIAL_OVERHEAD_BYTES = 512  # besides its text, in the cache


# --- keys and certificates --------------------------------------------------------------------------------------------


class SigningKey:
    """An Ed25519 key to sign with.

    key = SigningKey.generate()
    key.public_pem  # may be published
    key.to_pem()  # the private key: store it like a password
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        verification_key = key.public_key()
        self.name = key_name(verification_key)
        self.public_pem = verification_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @classmethod
    def generate(cls) -> Self:
        """Return a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: str | bytes) -> Self:
        """Load a key that `to_pem` returned.

        Raises:
            UsageError: the PEM is invalid. The message does not show it.
        """
        try:
            key = load_pem_private_key(_as_bytes(pem), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            expected = "an Ed25519 key in PEM without a password, which begins with -----BEGIN PRIVATE KEY-----"
            raise UsageError(f"not {expected}")
        return cls(key)

    def to_pem(self) -> str:
        """Return the private key as PEM."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        return self._key.sign(message)


def public_key(pem: str | bytes) -> Ed25519PublicKey:
    """Load the key of `SigningKey.public_pem`.

    Raises:
        UsageError: the PEM is invalid.
    """
    try:
        key = load_pem_public_key(_as_bytes(pem))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("not an Ed25519 public key in PEM, which begins with -----BEGIN PUBLIC KEY-----")
    return key


def key_name(key: Ed25519PublicKey) -> str:
    """Return the public key in the 43 characters of a JSON Web Key."""
    return _b64(key.public_bytes_raw())


def _as_bytes(pem: str | bytes) -> bytes:
    return pem.encode("utf-8", "surrogatepass") if isinstance(pem, str) else pem


class KeyCertificate(Struct, frozen=True):
    """A decoded certificate."""

    grant: Grant
    key: Ed25519PublicKey
    holder: str  # the key's name
    expires: float

    @classmethod
    def of(cls, token: dict[str, Any]) -> "KeyCertificate":
        """Return the certificate of a decoded JSON Web Token.

        Raises:
            ValueError: it is another kind of token, or a claim is invalid.
        """
        if token["header"].get("typ") != _CERTIFICATE_TYPE:
            raise ValueError("this token is not a key certificate")
        claims = token["payload"]
        grant = grant_of(claims, {})
        try:
            key: Any = jwt.PyJWK(claims["cnf"]["jwk"], _ALGORITHM).key
        except (jwt.PyJWTError, ValueError, TypeError, LookupError, AttributeError):
            key = None
        if not isinstance(key, Ed25519PublicKey) or grant.expires is None:
            raise ValueError("the certificate names no key")
        return cls(grant, key, key_name(key), grant.expires)


class Authority(SigningKey):
    """A key that issues certificates.

        authority = Authority.generate()
        certificate = authority.issue(Grant(Identity(id="shop")), key.public_pem, lifetime=86_400)

    Verifiers get its `public_pem`. A certificate cannot be revoked, so keep its lifetime short.
    """

    def issue(self, grant: Grant | Identity, key: str | bytes, *, lifetime: float) -> str:
        """Return a certificate for the holder of a key (its public PEM) that is valid for `lifetime` seconds.

        Raises:
            UsageError: the key is not a public key, or the lifetime is not above zero.
        """
        check_above_zero(lifetime=lifetime)
        grant, now = as_grant(grant), time.time()
        until = now + lifetime if grant.expires is None else min(now + lifetime, grant.expires)
        holder = {"kty": "OKP", "crv": "Ed25519", "x": key_name(public_key(key))}
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
        return jwt.encode(claims, self._key, _ALGORITHM, headers={"typ": _CERTIFICATE_TYPE})


def read_certificate(text: str, authorities: Sequence[Ed25519PublicKey], leeway: float) -> KeyCertificate:
    """Decode a certificate that one of these authorities has signed. Expiry is not checked.

    Raises:
        ValueError: it is invalid, or its authority is unknown. The message does not show it.
    """
    for authority in authorities:
        try:
            token = jwt.decode_complete(text, authority, [_ALGORITHM], leeway=leeway, options={"verify_exp": False})
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(type(error).__name__) from None
        return KeyCertificate.of(token)
    raise ValueError("unknown authority: the certificate is not signed by a trusted one")


def own_certificate(text: str, key: SigningKey) -> KeyCertificate:
    """Decode the certificate of this process's own key; its peers verify the authority's signature.

    Raises:
        UsageError: it is not a certificate, or was issued for another key.
    """
    try:
        certificate = KeyCertificate.of(jwt.decode_complete(text, options={"verify_signature": False}))
    except (jwt.PyJWTError, ValueError):
        raise UsageError("this is not a key certificate: Authority.issue() returns one") from None
    if certificate.holder != key.name:
        raise UsageError("this certificate was issued for another key")
    return certificate


# --- credentials ------------------------------------------------------------------------------------------------------


class _Statement(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed part of a link."""

    request_id: str
    operation_id: str
    expires: Annotated[int, Meta(ge=0, le=2**53)]  # epoch milliseconds
    body: str


class _Link(Struct, frozen=True):
    certificate: str
    statement: _Statement
    signed: bytes
    signature: bytes


_encoder = msgspec.json.Encoder()
_body_encoder = msgspec.json.Encoder(enc_hook=json_form)
_decoder = msgspec.json.Decoder(_Statement)


class Signer:
    """Sign requests with a certified key.

        signer = Signer(certificate, key)
        credential = signer.sign(event)

    A credential is valid until its call's deadline, and for `lifetime` seconds at most.

    Raises:
        UsageError: the certificate is invalid or for another key, or `lifetime` is not above zero.
    """

    def __init__(
        self, certificate: str, key: SigningKey, *, lifetime: float = LIFETIME, clock: Callable[[], float] = time.time
    ) -> None:
        check_above_zero(lifetime=lifetime)
        self._text = certificate
        self._certificate = own_certificate(certificate, key)
        self._key = key
        self._lifetime = lifetime
        self._clock = clock

    def __repr__(self) -> str:
        return f"Signer({self._certificate.grant.identity.id!r})"

    @property
    def delegates(self) -> bool:
        """Whether the certificate allows calls on behalf of others."""
        return self._certificate.grant.delegates

    def sign(self, event: CallRequested, *, body: bytes = b"", on_behalf_of: str | None = None) -> str:
        """Return the credential of a request.

        `body` is the encoded input; the verifier needs the same bytes. Without it, a peer that reads the message in
        transit could replace the input. `on_behalf_of` is the credential of the request that is being served (the
        event's parent): the call is then made with the identity of its caller.

        Raises:
            CallError: UNAUTHENTICATED, if the certificate has expired; ACCESS_DENIED, if it does not allow calls on
                behalf of others; VALIDATION_ERROR, if the event's ids cannot be encoded.
        """
        now = self._clock()
        if now >= self._certificate.expires:
            expired = "this key certificate has expired: have the authority issue a new one"
            raise CallError(ErrorCode.UNAUTHENTICATED, expired)
        if on_behalf_of is not None and not self.delegates:
            raise CallError(ErrorCode.ACCESS_DENIED, "this key certificate does not allow calls on behalf of others")
        seconds_left = event.seconds_left(None)
        until = now + (self._lifetime if seconds_left is None else min(seconds_left, self._lifetime))
        statement = _Statement(event.request_id, event.operation_id, int(until * 1000), _digest(body))
        try:
            text = f"{self._text}~{_b64(_encoder.encode(statement))}"
        except ValueError as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"invalid request id or operation id: {error}") from error
        if on_behalf_of is not None:
            text = f"{on_behalf_of}~{text}"
        return f"{text}~{_b64(self._key.sign(_PROTOCOL + text.encode()))}"


class Verifier:
    """Verify credentials and return the identity of their callers.

        verifier = Verifier(authority.public_pem)
        identity = verifier.verify(credential, event)

    Pass several authorities while certificates are being replaced: the old one and the new one. `leeway` is the
    tolerated clock skew in seconds. A request is remembered until its credential expires, so that it is accepted once:
    `max_lifetime` bounds for how long, and `remember` how many. `max_certificates` verified certificates are cached.

    Raises:
        UsageError: no authority is given, one is not a public key in PEM, or a number is not above zero.
    """

    def __init__(
        self,
        *authorities: str | bytes,
        leeway: float = 5.0,
        max_lifetime: float = LIFETIME,
        remember: int = 200_000,
        max_certificates: int = 1_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not authorities:
            raise UsageError("a verifier needs at least one authority: give its public key")
        check_not_below_zero(leeway=leeway)
        check_above_zero(max_lifetime=max_lifetime)
        check_counts(remember=remember, max_certificates=max_certificates)
        keys = [public_key(pem) for pem in authorities]
        read_trusted = partial(read_certificate, authorities=keys, leeway=leeway)
        self._read_certificate = lru_cache(maxsize=max_certificates)(read_trusted)
        self._seen = SeenRequests(remember)
        self._leeway = leeway
        self._max_lifetime = max_lifetime
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Verifier, {counted(len(self._seen), 'request')} remembered>"

    @property
    def longest(self) -> float:
        """Seconds after which every credential that is valid now has expired."""
        return self._max_lifetime + self._leeway

    def verify(self, credential: str | None, event: CallRequested, *, body: bytes = b"") -> Identity:
        """Return the identity of the caller. `body` is the encoded input, as the signer got it.

        Raises:
            CallError: UNAUTHENTICATED; RATE_LIMITED, if there are more requests than can be remembered.
        """
        now = self._clock()
        links = _parse(credential)
        last_statement = links[-1].statement
        if (last_statement.request_id, last_statement.operation_id, last_statement.body) != (
            event.request_id,
            event.operation_id,
            _digest(body),
        ):
            raise rejected(_NOT_VALID, "signed for another request")
        if len(links) > 1 and links[-2].statement.request_id != event.parent_request_id:
            raise rejected(_NOT_VALID, "signed on behalf of another request than the parent")
        holders = [self._verified(link, now) for link in links]
        if not all(holder.grant.delegates for holder in holders[1:]):
            raise rejected(_NOT_VALID, "a holder may not make calls on behalf of others")
        if len(links) > 1 and any(is_own(link.statement.operation_id) for link in links):
            raise rejected(_NOT_VALID, "calls of opwire's own operations are not delegated")
        until = last_statement.expires / 1000 + self._leeway
        if not self._seen.is_new(holders[-1].holder, event.request_id, until, now):
            raise rejected(_USED, "replayed request")
        return holders[0].grant.identity

    def _verified(self, link: _Link, now: float) -> KeyCertificate:
        """Verify the signature and the lifetime of a link, and return its certificate."""
        expires = link.statement.expires / 1000
        if expires + self._leeway <= now:
            raise rejected(_EXPIRED, "the statement has expired")
        if expires > now + self._max_lifetime + self._leeway:
            raise rejected(_NOT_VALID, f"valid for longer than {self._max_lifetime:g} s")
        try:
            certificate = self._read_certificate(link.certificate)
        except ValueError as error:
            raise rejected(_NOT_VALID, str(error)) from None
        if certificate.expires + self._leeway <= now:
            raise rejected(_EXPIRED, "the certificate has expired")
        try:
            certificate.key.verify(link.signature, link.signed)
        except InvalidSignature:
            raise rejected(_NOT_VALID, "the signature is not that of the holder") from None
        return certificate


def _parse(credential: str | None) -> list[_Link]:
    if not credential:
        raise rejected(_NEEDED, "missing credential")
    if len(credential) > MAX_CREDENTIAL:
        raise rejected(_NOT_VALID, f"longer than {MAX_CREDENTIAL:,} characters")
    parts = credential.split("~")
    if len(parts) % 3 or len(parts) > 3 * MAX_LINKS:
        raise rejected(_NOT_VALID, f"not made of one to {MAX_LINKS} links")
    links: list[_Link] = []
    try:
        for end in range(3, len(parts) + 1, 3):
            certificate, statement, signature = parts[end - 3 : end]
            signed = _PROTOCOL + "~".join(parts[: end - 1]).encode("ascii")
            links.append(_Link(certificate, _decoder.decode(_unb64(statement)), signed, _unb64(signature)))
    except ValueError:
        raise rejected(_NOT_VALID, "invalid link") from None
    return links


def _digest(body: bytes) -> str:
    return _b64(sha256(body).digest()) if body else ""


def _b64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _b64(raw) != text:  # the decoder skips unknown characters: several texts would mean the same
        raise ValueError
    return raw


class SeenRequests:
    """Remember up to `limit` requests, each until its credential expires. No I/O, no clock: the time is an argument.

    When it is full, new requests are rejected: to forget one early would accept it a second time. One holder has room
    for half of them, so that it cannot exclude the others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._until: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # with the holder
        self._by_holder: Tally[str] = Tally()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._until)

    def is_new(self, holder: str, request_id: str, until: float, now: float) -> bool:
        """Remember a request; return whether its holder has used its id for the first time.

        Raises:
            CallError: RATE_LIMITED, if there are too many requests to remember.
        """
        # A digest, because a peer decides how long its request ids are.
        key = blake2b(f"{len(holder)} {holder}{request_id}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            while self._until and next(iter(self._until.values()))[0] <= now:  # lifetimes are alike: oldest first
                self._drop(next(iter(self._until)))
            if key in self._until:
                if self._until[key][0] > now:
                    return False
                self._drop(key)
            if len(self._until) >= self._limit or 2 * self._by_holder[holder] >= self._limit:
                raise CallError(ErrorCode.RATE_LIMITED, f"{len(self._until):,} calls are remembered", retry_after=1)
            self._until[key] = (until, holder)
            self._by_holder[holder] += 1
            return True

    def _drop(self, key: bytes) -> None:
        _, holder = self._until.pop(key)
        self._by_holder.subtract(holder)


# --- both sides of a transport ----------------------------------------------------------------------------------------


class _HeldCredential(NamedTuple):
    credential: str
    identity: Identity
    size: int
    until: float


class HeldCredentials:
    """The credentials of the requests that a server may call on behalf of, each until its call ends or it expires.

    At most `max_bytes` are kept, and a quarter of that per identity. When it is full, requests are rejected: to forget
    a credential early would change the identity of a nested call.
    """

    def __init__(self, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._held: dict[str, _HeldCredential] = {}  # by request id, the oldest first
        self._limit: SharedLimit[str] = SharedLimit(max_bytes, max_bytes // 4)  # by identity

    def __len__(self) -> int:
        return len(self._held)

    def get(self, request_id: str, identity: Identity | None) -> str | None:
        """Return the credential of a request that this identity has made, or None.

        Callers choose request ids, and another caller may choose the same one while the first call is in flight.
        """
        held_credential = self._held.get(request_id)
        if held_credential is None or held_credential.identity != identity:
            return None
        return held_credential.credential

    def add(self, request_id: str, credential: str, identity: Identity, until: float, now: float) -> None:
        """Keep a credential.

        Raises:
            CallError: RATE_LIMITED, if it does not fit; PROTOCOL_ERROR, if another identity uses the request id.
        """
        while self._held and next(iter(self._held.values())).until <= now:  # lifetimes are alike: the oldest go first
            self.discard(next(iter(self._held)))
        self.check_free(request_id, identity)
        self.discard(request_id)
        size = len(credential) + 4 * len(request_id) + _CREDENTIAL_OVERHEAD_BYTES
        if not self._limit.take(identity.id, size):
            raise CallError(ErrorCode.RATE_LIMITED, "too many signed requests are in flight already", retry_after=1)
        self._held[request_id] = _HeldCredential(credential, identity, size, until)

    def check_free(self, request_id: str, identity: Identity | None) -> None:
        """Reject the request id of another caller's request.

        A server that is called on behalf of a caller learns it. Its own request with that id, also an anonymous one,
        must not replace the credential, nor discard it by its end.

        Raises:
            CallError: PROTOCOL_ERROR.
        """
        held_credential = self._held.get(request_id)
        if held_credential is not None and (identity is None or held_credential.identity.id != identity.id):
            raise CallError(ErrorCode.PROTOCOL_ERROR, "the request id is in use by another caller")

    def discard(self, request_id: str) -> None:
        """Remove the credential of a request, if there is one."""
        held_credential = self._held.pop(request_id, None)
        if held_credential is not None:
            self._limit.give_back(held_credential.identity.id, held_credential.size)


def _signed_body(event: CallRequested) -> bytes:
    """Return what a signature covers besides ids and time: the input, and where to resume which version, if stated."""
    body = write_json(_body_encoder, event.input)  # the same JSON before and after its transport
    stated = (event.version, event.resume_from)
    return body if stated == (None, None) else body + write_json(_body_encoder, stated)


class SignedRequests:
    """Sign outgoing requests and verify incoming ones, for one side of a broker transport.

    A side that only calls needs no verifier, a side that only serves needs no signer. `held_credentials` bounds the
    memory for credentials of the requests that are being served, which are kept to call on behalf of their callers.

    A call with the context of a served call gets the identity of that call's caller if this side's certificate
    delegates (`Grant.delegates`), and is rejected otherwise.
    """

    def __init__(
        self,
        signer: Signer | None = None,
        verifier: Verifier | None = None,
        *,
        held_credentials: HeldCredentials | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._signer = signer
        self._verifier = verifier
        self._clock = clock
        self._held = HeldCredentials() if held_credentials is None else held_credentials

    def __repr__(self) -> str:
        does = [*["signs"] * (self._signer is not None), *["verifies"] * self.verifies]
        return f"<SignedRequests: {' and '.join(does) or 'neither signs nor verifies'}>"

    @property
    def verifies(self) -> bool:
        """Whether the identity of an incoming request is verified."""
        return self._verifier is not None

    def leaving(self, event: CallRequested, to: Address | None = None) -> CallRequested:
        """Return the outgoing form of a request: with a credential, and without its unproven identity.

        Raises:
            CallError: UNAUTHENTICATED, if the certificate has expired; VALIDATION_ERROR, if the input has no JSON form;
                ACCESS_DENIED, if this side may not pass on the identity of the caller.
        """
        if self._signer is None:
            return replace(event, identity=None)
        parent = None
        if event.parent_request_id is not None:
            if not self._signer.delegates:
                raise not_delegated(event.operation_id, "the key certificate of this server does not delegate")
            if is_own(event.operation_id):
                raise not_delegated(event.operation_id, "calls of opwire's own operations are never delegated")
            parent = self._held.get(event.parent_request_id, event.identity)
            if parent is None:
                raise not_delegated(event.operation_id, "its parent request is not being served here")
        body = _signed_body(event)
        return replace(event, identity=None, credential=self._signer.sign(event, body=body, on_behalf_of=parent))

    def arriving(self, event: CallRequested, here: Address | None = None) -> CallRequested:
        """Return the incoming form of a request: with the identity that its credential proves.

        Raises:
            CallError: UNAUTHENTICATED; RATE_LIMITED, if there are more in flight than can be remembered;
                PROTOCOL_ERROR, if the request of another caller has its id.
        """
        if self._verifier is None:
            return event
        if event.credential is None:  # anonymous: may call public operations
            self._held.check_free(event.request_id, None)
            return replace(event, identity=None)
        body = _signed_body(event)
        identity = self._verifier.verify(event.credential, event, body=body)
        self._held.check_free(event.request_id, identity)
        delegates = self._signer is not None and self._signer.delegates
        if delegates and not is_own(event.operation_id):  # a request for the server's description delegates nothing
            now = self._clock()
            self._held.add(event.request_id, event.credential, identity, now + self._verifier.longest, now)
        return replace(event, identity=identity, credential=None)

    def ended(self, request_id: str) -> None:
        """Forget the credential of a served request: its call has ended, and makes no further calls."""
        self._held.discard(request_id)
