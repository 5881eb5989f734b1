"""Which subjects stand for what. No I/O.

    <prefix>.call.math.add          requests for math.add; those who serve it are a queue group
    <prefix>.in.<address>.-         messages for one end: answers, and whatever steers a call
    <prefix>.all                    messages for every end

The reply of a message, `<prefix>.in.<address>.<token>`, says who sent it and shows the token of its call, so that its
payload stays a plain event. If nobody listens, the server says so there. What is for one end has a receipt behind the
token, `<token>-<receipt>`, which names the receiver (see `Receipts`). A peer that knows nothing of this answers a
request where its reply says.

A plain NATS client asks with a reply of its own, such as `_INBOX.…`. Its address here is that subject behind an `@`.

Rule: answers are published with our own permissions, so they go to inboxes alone: those of opwire ends under this
prefix, those that NATS clients make (`_INBOX.…`, `_INBOX_name.…`) and those that a NATS server makes for requests from
another account (`_R_.…`). A message with any other reply, such as `$JS.API.STREAM.DELETE.orders`, is ignored.
"""

import re
from functools import lru_cache
from hashlib import blake2s, sha256
from hmac import compare_digest
from secrets import token_bytes
from urllib.parse import quote, unquote

from opwire.call import Address
from opwire.errors import CallError, ErrorCode

ABSENT = "-"
FOREIGN = "@"  # what the address of a plain NATS client begins with

_MAX_OPERATION = 1024  # bytes: a line may have 4,096, with two subjects in it
_MAX_NAME = 256
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PUBLICATION = re.compile(r'Publish to "([^"]*)"')
_INBOX = re.compile(r"(?:_INBOX(?:_[A-Za-z0-9_-]{0,64})?|_R_)(?:\.[A-Za-z0-9_-]{1,64}){1,8}")
_MAX_WORD = 64  # characters of an address or a token, which are letters and digits


class Subjects:
    """The subjects under one prefix, and the name of the queue groups.

    Raises:
        CallError: VALIDATION_ERROR, for a prefix or a name that NATS cannot use.
    """

    def __init__(self, prefix: str, queue: str = "q") -> None:
        for what, name in (("prefix", prefix), ("queue", queue)):
            if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
                wrong = f"{name[:80]!r} is no {what} for NATS: use letters, digits, _ and -, with dots in between"
                raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        self.queue = queue
        self._own = f"{prefix}."
        self._calls = f"{prefix}.call."
        self._inboxes = f"{prefix}.in."
        self.all = f"{prefix}.all"

    def call(self, operation_id: str) -> str:
        """Where requests for an operation go."""
        return self._calls + encode_id(operation_id)

    def inbox(self, address: Address) -> str:
        """What the subjects for one end begin with; a token follows."""
        return f"{self._inboxes}{address}."

    def to(self, address: Address) -> str:
        """Where a message for one end goes.

        Raises:
            CallError: UNAVAILABLE, if that is not the address of an inbox.
        """
        if _is_word(address):
            return f"{self._inboxes}{address}.{ABSENT}"
        if address[:1] == FOREIGN and _INBOX.fullmatch(address, 1) is not None:
            return address[1:]
        wrong = f"{address[:80]!r} is not the address of an inbox" if address else "the peer gave no reply subject"
        raise CallError(ErrorCode.UNAVAILABLE, wrong)

    def asker(self, reply: str) -> tuple[Address, str] | None:
        """Return the address and the token that a reply shows; None where it is not an inbox."""
        if reply.startswith(self._inboxes):  # by hand, since a regular expression takes twice as long
            address, _, shown = reply[len(self._inboxes) :].partition(".")
            token = plain_token(shown)
            return (address, token) if _is_word(address) and token is not None and shown else None
        if reply.startswith(self._own) or _INBOX.fullmatch(reply) is None:
            return None
        return FOREIGN + reply, ""

    def forbidden(self, complaint: str) -> str | None:
        """The operation that we may not ask for, if that is what the server complains about."""
        match = _PUBLICATION.search(complaint)
        if match is None or not match[1].startswith(self._calls):
            return None
        return unquote(match[1][len(self._calls) :])


class Receipts:
    """What follows a token, so that the server's "no responders" names the receiver that is gone.

    Any client that may publish to our inbox can write such a status. It is believed only with a receipt of ours: the
    receiver's address, signed with a key that never leaves this process. The receiver sees its receipt, so all that it
    can forge is its own absence.
    """

    _DIGITS = 16
    _KEPT = 4096

    def __init__(self) -> None:
        self._key = token_bytes(32)
        self._made: dict[Address, str] = {}

    def make(self, address: Address) -> str:
        """Return the receipt for a receiver: one token of a subject, with a hyphen in front."""
        made = self._made.get(address)
        if made is None:
            if len(self._made) >= self._KEPT:
                self._made.clear()
            named = quote(address, safe="").replace(".", "%2E") if address[0] == FOREIGN else address
            made = self._made[address] = f"{ABSENT}{self._signature(address)}{named}"
        return made

    def receiver(self, shown: str) -> Address:
        """Return the receiver that a token with a receipt names; empty where the receipt is missing or not ours."""
        receipt = shown.partition(ABSENT)[2]
        signature, address = receipt[: self._DIGITS], unquote(receipt[self._DIGITS :])
        genuine = compare_digest(signature.encode("latin-1", "replace"), self._signature(address).encode())
        return address if address and genuine else ""

    def _signature(self, address: Address) -> str:
        named = address.encode(errors="replace")
        return blake2s(named, key=self._key, digest_size=self._DIGITS // 2).hexdigest()


def plain_token(shown: str) -> str | None:
    """Return the token at the end of a subject, without the receipt behind it; None where it is not a token."""
    token = shown.partition(ABSENT)[0]
    return token if not token or _is_word(token) else None


def _is_word(text: str) -> bool:
    return text.isalnum() and text.isascii() and len(text) <= _MAX_WORD


@lru_cache(maxsize=4096)
def encode_id(operation_id: str) -> str:
    """An operation's id in the form that subjects can have: escaped as in URLs, and no two ids alike.

    Dots stay what they are, `github.repos/get` becomes `github.repos%2Fget`. A dot with nothing before or after it is
    escaped, too. An id that is too long for a subject is replaced by its hash.
    """
    quoted = re.sub(r"^\.|(?<=\.)\.|\.$", "%2E", quote(operation_id, safe="", errors="surrogatepass"))
    if len(quoted) > _MAX_OPERATION:
        return f"%sha256.{sha256(operation_id.encode(errors='surrogatepass')).hexdigest()}"
    return quoted or "%"
