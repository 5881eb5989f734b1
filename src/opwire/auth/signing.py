"""Identities over a broker: every request that leaves is signed, and every one that arrives is verified.

signed = SignedRequests(Signer(passport, key), Verifier(authority.public_pem))
RedisTransport(url, signed=signed)
"""

from collections import OrderedDict

import msgspec
from msgspec.structs import replace

from opwire.auth.credentials import Signer, Verifier
from opwire.auth.grants import is_own, not_delegated
from opwire.call import CallRequested
from opwire.operation import Identity
from opwire.typed.plain import json_form
from opwire.typed.text import write_json

_REMEMBERED = 100_000  # credentials of requests in hand, for calls on behalf of their callers

_encoder = msgspec.json.Encoder(enc_hook=json_form)


class SignedRequests:
    """What one end does to requests. One that only calls needs no verifier, one that only serves needs no signer.

    A call that is made with the context of a served call has the identity of that call's caller if this end's passport
    delegates (`Grant.delegates`), and is refused otherwise.
    """

    def __init__(self, signer: Signer | None = None, verifier: Verifier | None = None) -> None:
        self._signer = signer
        self._verifier = verifier
        # Credentials by request id, each with whose it is: a request id is the caller's choice, and another caller may
        # choose the same while the first call is in hand.
        self._held: OrderedDict[str, tuple[str, Identity]] = OrderedDict()

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
        credential, caller = self._held.get(parent, (None, None))
        if credential is None or caller != event.identity:
            raise not_delegated(event.operation_id, "the request that it is part of is not being served here")
        if self._signer is None or not self._signer.delegates:
            raise not_delegated(event.operation_id, "the passport of this server does not delegate")
        if is_own(event.operation_id):
            raise not_delegated(event.operation_id, "operations of opwire itself are never delegated")
        return credential

    def arriving(self, event: CallRequested) -> CallRequested:
        """A request as it is served: with the identity that its credential proves.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        if self._verifier is None:
            return event
        if event.credential is None:  # nobody: what is public is still there for it
            return replace(event, identity=None)
        identity = self._verifier.verify(event.credential, event, body=_body(event))
        if is_own(event.operation_id):  # what asks a server about itself gives it no authority
            return replace(event, identity=identity, credential=None)
        self._held[event.request_id] = event.credential, identity
        if len(self._held) > _REMEMBERED:
            self._held.popitem(last=False)
        return replace(event, identity=identity, credential=None)


def _body(event: CallRequested) -> bytes:
    """The input as JSON, which is the same before and after its journey."""
    return write_json(_encoder, event.input)
