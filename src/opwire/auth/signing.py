"""Identities over a broker: every request that leaves is signed, and every one that arrives is verified.

signed = SignedRequests(Signer(passport, key), Verifier(authority.public_pem))
RedisTransport(url, signed=signed)
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from opwire.auth.credentials import Signer, Verifier
from opwire.auth.grants import is_own, not_delegated
from opwire.call import CallRequested
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity
from opwire.typed.plain import json_form
from opwire.typed.text import write_json

_encoder = msgspec.json.Encoder(enc_hook=json_form)


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
    return write_json(_encoder, event.input)
