"""What a token is worth, and who decides that. No I/O.

Rules: a peer learns that its token is missing, not valid or expired, and nothing more. What was wrong with it goes to
the log, and never the token itself.
"""

import logging
from typing import Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from opwire.auth.limits import LogLimit
from opwire.errors import CallError, ErrorCode, check_not_below_zero
from opwire.operation import Identity

logger = logging.getLogger("opwire.auth")
log_limit = LogLimit(most=logging.INFO)  # anybody can have a token refused
logger.addFilter(log_limit)

MAX_TOKEN = 16 * 1024
"""Characters of a token: what is longer is refused unread."""

NEEDED = "a token is needed"
NOT_VALID = "the token is not valid"
EXPIRED = "the token has expired"


class Grant(Struct, frozen=True):
    """What a token gives: who calls, and the namespaces in which it may announce operations ("*": in all).

    `expires` is the time (Unix epoch, in seconds) after which it gives nothing more; None: it is good for ever.
    `delegates`: its holder may make calls with the identity of a caller while it serves that caller's call. Give it to
    servers that may be trusted with everything that any of their callers may do.
    """

    identity: Identity
    announces: tuple[str, ...] = ()
    expires: float | None = None
    delegates: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.announces, str):  # `("shop")` is a string, of which "sh" is a part
            wrong = f"announces is a tuple of namespaces: write ({self.announces!r},)"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        force_setattr(self, "announces", tuple(self.announces))
        check_not_below_zero(expires=self.expires)  # NaN is never over

    def may_announce(self, operation_id: str) -> bool:
        """Whether an operation of this id may be announced."""
        return "*" in self.announces or operation_id.partition(".")[0] in self.announces


def is_own(operation_id: str) -> bool:
    """Whether an operation is one of those with which a server describes itself."""
    return operation_id.startswith("opwire.")


def not_delegated(operation_id: str, reason: str) -> CallError:
    """Return the error of a call that would be made with the identity of another caller, and may not be."""
    instead = "Grant(…, delegates=True) allows it; context.detached() calls with the server's own identity"
    return CallError(
        ErrorCode.ACCESS_DENIED, f"{operation_id} is called on behalf of a caller, but {reason}. {instead}"
    )


class Authenticator(Protocol):
    """Decides what a token is worth."""

    async def authenticate(self, token: str | None) -> Grant:
        """What this token gives; None: the peer showed none.

        Raises:
            CallError: UNAUTHENTICATED; UNAVAILABLE, if it cannot be decided at the moment.
        """
        ...


def as_grant(given: Grant | Identity) -> Grant:
    """An identity alone may call, and announces nothing."""
    return given if isinstance(given, Grant) else Grant(given)


def presented(token: str | None) -> str:
    """The token, if there is one that is worth reading.

    Raises:
        CallError: UNAUTHENTICATED.
    """
    if not token:
        raise refused(NEEDED, "none was shown")
    if len(token) > MAX_TOKEN:
        raise refused(NOT_VALID, f"it has more than {MAX_TOKEN:,} characters")
    return token


def refused(message: str, reason: str) -> CallError:
    """Return the error for the peer. The reason is for our own log: it must not hold anything of the token."""
    logger.info("%s: %s", message, reason)
    return CallError(ErrorCode.UNAUTHENTICATED, message)
