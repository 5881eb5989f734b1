"""Which subjects stand for what. No I/O.

    <prefix>.call.math.add          requests for math.add; those who serve it are a queue group
    <prefix>.in.<address>.-         messages for one end: answers, and whatever steers a call
    <prefix>.all                    messages for every end

The reply of a message, `<prefix>.in.<address>.<token>`, says who sent it and shows the token of its call, so that its
payload stays a plain event. If nobody listens, the server says so there. What is for one end has its name behind the
token, `<token>-<receiver>`, so that the server's word names it. Whoever knows nothing of this answers a request where
its reply says.

A plain NATS client asks with a reply of its own, such as `_INBOX.…`. Its address here is that subject behind an `@`.
"""

import re
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote, unquote

from opwire.call import Address
from opwire.errors import CallError, ErrorCode

ABSENT = "-"
FOREIGN = "@"  # what the address of a plain NATS client begins with

_MAX_OPERATION = 1024  # bytes: a line may have 4,096, with two subjects in it
_MAX_NAME = 256
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PUBLICATION = re.compile(r'Publish to "([^"]*)"')


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
            CallError: UNAVAILABLE, if that end has not said where it can be reached.
        """
        if not address:
            raise CallError(ErrorCode.UNAVAILABLE, "the peer has not said where it can be reached")
        return address[1:] if address[0] == FOREIGN else f"{self._inboxes}{address}.{ABSENT}"

    def sender(self, reply: str) -> tuple[Address, str]:
        """Who sent a message with this reply, and the token that it shows; empty where it says nothing."""
        if reply.startswith(self._inboxes):
            address, _, token = reply[len(self._inboxes) :].partition(".")
            return address, plain_token(token)
        return (FOREIGN + reply if reply else ""), ""

    def asker(self, reply: str) -> tuple[Address, str] | None:
        """Who sent a request with this reply, and its token; None where it must not be answered.

        We publish answers with our own permissions: nobody is to have them sent to `$JS.API.STREAM.DELETE.…`, or to
        somebody else's operation.
        """
        if reply.startswith(self._inboxes):
            address, _, token = reply[len(self._inboxes) :].partition(".")
            return address, plain_token(token)
        if not reply or reply[0] == "$" or reply.startswith(self._own):
            return None
        return FOREIGN + reply, ""

    def forbidden(self, complaint: str) -> str | None:
        """The operation that we may not ask for, if that is what the server complains about."""
        match = _PUBLICATION.search(complaint)
        if match is None or not match[1].startswith(self._calls):
            return None
        return unquote(match[1][len(self._calls) :])


def plain_token(token: str) -> str:
    """The token at the end of a subject, without the receiver behind it; empty where there is none."""
    return token.partition(ABSENT)[0]


def receipt(address: Address) -> str:
    """What follows a token, so that the server's word about a lost receiver names it."""
    return ABSENT + (quote(address, safe="").replace(".", "%2E") if address[0] == FOREIGN else address)


def receiver(token: str) -> Address:
    """Whom a receipt names; empty where it is none."""
    return unquote(token.partition(ABSENT)[2])


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
