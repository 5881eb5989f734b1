"""Tokens that are known beforehand, and doors that are open.

How much one connection may ask for, and how much of it is logged. No I/O, no clock: the time is given.

What a token is worth, and who decides that. No I/O.

Rules: a peer learns that its token is missing, not valid or expired, and nothing more. What was wrong with it goes to
the log, and never the token itself.

The claims of a signed token as a grant. No I/O.

A user's own function as an authenticator.

Such a function may take its time, and anybody can make up tokens for it to look at. So tokens that were good lately are
looked up apart from the others, and of the others the newest comes first: those that wait longest in a flood are most
likely part of it.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from inspect import isawaitable, iscoroutinefunction
from math import inf
from typing import Any, Protocol, TypedDict, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, check_not_below_zero
from opwire.operation import Identity
from opwire.workers import WorkerPool


class RateLimit:
    """A bucket of `burst` calls that fills up again at `per_second`. One for each connection.

        if wait := limit.take(time.monotonic()):
            raise CallError(ErrorCode.RATE_LIMITED, retry_after=wait)

    Raises:
        CallError: VALIDATION_ERROR, if one of the numbers is not above zero.
    """

    __slots__ = ("_burst", "_left", "_per_second", "_time")

    def __init__(self, per_second: float, burst: int = 1) -> None:
        check_above_zero(per_second=per_second)
        check_counts(burst=burst)
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._time = -inf  # of the last call: long ago

    def take(self, now: float) -> float:
        """Take one call out: 0 if it may pass, else the seconds after which to try again."""
        if now > self._time:
            self._left = min(self._burst, self._left + (now - self._time) * self._per_second)
            self._time = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_second


class LogLimit(logging.Filter):
    """Lets a logger write so many lines that a stranger can cause, and says how many it left out.

        logging.getLogger("uvicorn.error").addFilter(LogLimit())

    Lines above the level `most`, and those that do not begin with `start`, are not counted.
    """

    def __init__(
        self, *, most: int = logging.WARNING, start: str = "", per_second: float = 5.0, burst: int = 500
    ) -> None:
        super().__init__()
        self._most = most
        self._start = start
        self._limit = RateLimit(per_second, burst)
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a line is written."""
        if record.levelno > self._most or not str(record.msg).startswith(self._start):
            return True
        if self._limit.take(record.created):
            self._left_out += 1
            return False
        if self._left_out:
            record.msg = f"{record.getMessage()} ({self._left_out:,} lines before this one were left out)"
            record.args = ()
            self._left_out = 0
        return True


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


MIN_LENGTH = 16
"""Characters of a token: a shorter one could be guessed. `secrets.token_urlsafe()` makes one of 43."""


class StaticTokens:
    """Takes these tokens and no others.

        StaticTokens({os.environ["SHOP_TOKEN"]: Grant(Identity(id="shop"), announces=("shop",))})

    Only digests are kept. A token is compared with every one of them, in a time that does not depend on how much of
    it is right.

    Raises:
        CallError: VALIDATION_ERROR, if one of the tokens is no good. The message does not show it.
    """

    def __init__(self, grants: Mapping[str, Grant | Identity]) -> None:
        for number, token in enumerate(grants, 1):
            _check(number, token)
        self._grants = [(_digest(token), as_grant(grant)) for token, grant in grants.items()]

    def __repr__(self) -> str:
        return f"StaticTokens(of {', '.join(grant.identity.id for _, grant in self._grants)})"

    async def authenticate(self, token: str | None) -> Grant:
        """What this token gives.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        digest, found = _digest(presented(token)), None
        for known, grant in self._grants:  # to the end, whichever it is
            if compare_digest(known, digest):
                found = grant
        if found is None:
            raise refused(NOT_VALID, "it is none of the static tokens")
        return found


class _Open:
    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    def __repr__(self) -> str:
        return f"anybody({self._grant.identity!r})"

    async def authenticate(self, token: str | None) -> Grant:
        return self._grant


def anybody(identity: Identity | Grant) -> Authenticator:
    """An authenticator that asks for no token: whoever comes is this one."""
    return _Open(as_grant(identity))


def _check(number: int, token: str) -> None:
    problem = None
    if len(token) < MIN_LENGTH:
        problem = f"has {len(token)} characters, and needs at least {MIN_LENGTH}: make one with secrets.token_urlsafe()"
    elif token != token.strip():
        problem = "begins or ends with white space, which headers and files do not keep: strip it"
    if problem is not None:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"token number {number} {problem}")


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


_MAX_TIME = 2**53  # seconds: NaN, an infinity and an integer of 400 digits are not times


class ClaimNames(TypedDict, total=False):
    """Which claims hold what, where they are not `sub`, `scope` or `scopes`, `resources`, `announce`, `delegates`."""

    id: str
    scopes: str
    resources: str
    announces: str
    delegates: str


def grant_of(claims: Mapping[str, Any], names: ClaimNames) -> Grant:
    """What these claims give. Several words are a list, or one string with spaces between them.

    Raises:
        ValueError: a claim is not what it should be. The message names it, and does not show its value.
    """
    name = names.get("id", "sub")
    id = claims.get(name)
    if not isinstance(id, str) or not id:
        raise ValueError(f"the claim {name} is not a name")
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or isinstance(expires, bool) or not 0 <= expires <= _MAX_TIME:
        raise ValueError("the claim exp is not a number")
    scopes = (names["scopes"],) if "scopes" in names else ("scope", "scopes")
    identity = Identity(
        id=id,
        scopes=tuple(dict.fromkeys(word for each in scopes for word in _words(claims, each))),
        resources=_resources(claims, names.get("resources", "resources")),
    )
    delegates = claims.get(names.get("delegates", "delegates")) is True
    return Grant(identity, _words(claims, names.get("announces", "announce")), float(expires), delegates)


def _words(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claims.get(name)
    if value is None:
        return ()
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in cast("list[object]", words)):
        raise ValueError(f"the claim {name} is neither a string nor a list of strings")
    return tuple(cast("list[str]", words))


def _resources(claims: Mapping[str, Any], name: str) -> dict[str, tuple[str, ...]]:
    value = claims.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"the claim {name} is not an object")
    resources = cast("dict[str, object]", value)
    return {type: _words(resources, type) for type in resources}


Answer = Grant | Identity | None

ROOM = 8
"""Tokens that were not good before are looked up so many at a time."""

MAX_WAITING = 1_000
"""So many more of them wait."""

MAX_PROVEN = 10_000
"""Tokens that are remembered as good, by their hashes."""

PATIENCE = 30.0
"""Seconds that a function may take, the time that its token waits included."""


class UserFunction:
    """Calls a function that is not ours: an async one on the event loop, any other on a worker thread.

    A `CallError` that it raises is passed on. Whatever else it raises is UNAVAILABLE for the peer, and in the log
    without its text: `users[token]` raises a KeyError that shows the token.
    """

    def __init__(self, function: Callable[..., Any], purpose: str) -> None:
        self._function = function
        self._purpose = purpose
        self._threads = None if iscoroutinefunction(function) else WorkerPool(8)

    async def __call__(self, *arguments: str) -> Any:
        """What the function returns.

        Raises:
            CallError: what the function raised, or UNAVAILABLE.
        """
        try:
            if self._threads is None:
                return await self._function(*arguments)
            answer = await self._threads.run(partial(self._function, *arguments), self._purpose)
            return await answer if isawaitable(answer) else answer
        except CallError:
            raise
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s raised %s:\n%s", self._purpose, type(error).__name__, where)
        # Not within `except`: the error would be chained to this one, and shown with it.
        raise self.failed()

    def failed(self) -> CallError:
        """The error for the peer when the function did not do its work."""
        return CallError(ErrorCode.UNAVAILABLE, "the token cannot be checked at the moment")


class _NewestFirst:
    """A semaphore whose newest waiter is next. When too many wait, the oldest is refused."""

    def __init__(self, room: int, max_waiting: int) -> None:
        self._room = room
        self._max_waiting = max_waiting
        self._waiting: dict[asyncio.Future[None], None] = {}  # the newest last

    async def __aenter__(self) -> None:
        if self._room > 0:
            self._room -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        if len(self._waiting) > self._max_waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            wrong = "too many tokens are being checked: try again"
            oldest.set_exception(CallError(ErrorCode.UNAVAILABLE, wrong, retry_after=1))
        try:
            await turn
        except BaseException:
            if self._waiting.pop(turn, turn) is turn and not turn.cancelled() and turn.exception() is None:
                self._leave()  # it had its turn, and was cancelled in the same moment
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._waiting:
            turn, _ = self._waiting.popitem()
            turn.set_result(None)
        else:
            self._room += 1


class _Callback:
    def __init__(self, function: Callable[..., Any]) -> None:
        purpose = "the function of callback()"
        self._known, self._new = UserFunction(function, purpose), UserFunction(function, purpose)
        self._line = _NewestFirst(ROOM, MAX_WAITING)
        self._proven: dict[int, None] = {}  # hashes of tokens that were good, the last one last

    async def authenticate(self, token: str | None) -> Grant:
        token = presented(token)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._look_up(token)
        except TimeoutError:
            logger.error("the function of callback() did not answer within %g s", PATIENCE)
            raise self._new.failed() from None
        if answer is None:
            raise refused(NOT_VALID, "the function does not know it")
        if not isinstance(answer, Grant | Identity):
            kind = type(answer).__name__
            logger.error("the function of callback() returns a Grant, an Identity or None, and not %s", kind)
            raise self._new.failed()
        return as_grant(answer)

    async def _look_up(self, token: str) -> Any:
        key = hash(token)
        if key in self._proven:
            answer = await self._known(token)
            if answer is None:
                self._proven.pop(key, None)
            return answer
        async with self._line:
            answer = await self._new(token)
        if answer is not None:
            self._proven[key] = None
            if len(self._proven) > MAX_PROVEN:
                del self._proven[next(iter(self._proven))]
        return answer


def callback(function: Callable[[str], Answer | Awaitable[Answer]]) -> Authenticator:
    """An authenticator that asks a function: the token's Grant or Identity, or None if it is not good.

        callback(lambda token: users.get(token))

    A plain function runs on a worker thread, so that it may wait for a database. Tokens that were good before are not
    held up by those that were not; they are looked up each time, so that one can be withdrawn.
    """
    return _Callback(function)
