"""Authenticators: from a token to the identity of its caller and what the caller may do.

`StaticTokens` looks tokens up in a table, `callback` in a function of the application, `allow_anonymous` asks for none.
Signed tokens are in `opwire.auth.jwt`.

Rules: a peer learns that its token is missing, invalid or expired, and nothing else. The reason goes to the log, and
the token itself never does.
"""

import asyncio
import logging
import random
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol, TypedDict, cast, runtime_checkable

from msgspec import Struct
from msgspec.structs import force_setattr

from opwire.errors import CallError, ErrorCode, UsageError, check_not_below_zero
from opwire.model.identity import Identity, holds
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.limits import LogLimit
from opwire.runtime.text import get_logger
from opwire.runtime.workers import WorkerPool

MAX_TOKEN = 16 * 1024
"""Longest token, in characters; longer ones are rejected without being parsed."""

MIN_TOKEN = 16
"""Shortest static token, in characters; a shorter one could be guessed. `secrets.token_urlsafe()` returns 43."""

MAX_LOOKUPS = 8
"""Concurrent callbacks for tokens that were not valid before."""

MAX_WAITING = 1_000
"""Further tokens in the queue for a callback."""

MAX_KNOWN = 10_000
"""Hashes of valid tokens in the cache."""

LOOKUP_TIMEOUT = 30.0
"""Seconds for a callback, including the time in the queue."""

RECHECK = 15.0
"""Seconds at most between two checks of the token of an open stream."""

WELL_KNOWN_RESOURCE = "/.well-known/oauth-protected-resource"
"""Where a surface publishes its `ResourceMetadata`."""

NEEDED = "a token is needed"
NOT_VALID = "the token is not valid"
EXPIRED = "the token has expired"
GRANTS_LESS = "the token grants less than before: connect again"

_MAX_EXPIRY_SECONDS = 2**53  # excludes NaN, infinities and an integer of 400 digits


# --- limits -----------------------------------------------------------------------------------------------------------

log_limit = LogLimit(most=logging.INFO)  # any peer can send invalid tokens
# And each of them is an error while a database or an issuer is out of reach.
failure_limit = LogLimit(least=logging.WARNING, most=logging.ERROR, burst=50)
logger = get_logger("opwire.auth", log_limit, failure_limit)


# --- grants -----------------------------------------------------------------------------------------------------------


class Grant(Struct, frozen=True):
    """What a token grants: an identity, and the namespaces in which it may announce operations ("*": all).

    `expires` is the end of the grant (Unix epoch, in seconds), None if it does not expire. With `delegates` the holder
    may make calls with the identity of a caller while it serves that caller's call: grant it only to servers that are
    trusted with everything that any of their callers may do. With `undescribed` it may announce operations that it does
    not describe: they are mutations with unknown schemas.

    Raises:
        UsageError: `announces` is a single string, or `expires` is not a time.
    """

    identity: Identity
    announces: tuple[str, ...] = ()
    expires: float | None = None
    delegates: bool = False
    undescribed: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.announces, str):  # `("shop")` is a string, and "sh" would be in it
            raise UsageError(f"announces is a tuple of namespaces: write ({self.announces!r},)")
        force_setattr(self, "announces", tuple(self.announces))
        check_not_below_zero(expires=self.expires)  # NaN would never expire

    def may_announce(self, operation_id: str) -> bool:
        """Return whether an operation of this id may be announced."""
        return "*" in self.announces or operation_id.partition(".")[0] in self.announces

    def covers(self, other: "Grant") -> bool:
        """Return whether this grants all that another one grants, to the same identity."""
        identity, other_identity = self.identity, other.identity
        return (
            identity.id == other_identity.id
            and all(holds(identity, scope) for scope in other_identity.scopes)
            and all(
                {*actions} <= {*identity.resources.get(kind, ())} for kind, actions in other_identity.resources.items()
            )
            and ("*" in self.announces or {*other.announces} <= {*self.announces})
            and self.delegates >= other.delegates
            and self.undescribed >= other.undescribed
        )


def as_grant(grant: Grant | Identity) -> Grant:
    """Return the grant; an identity alone may call, and announce nothing."""
    return grant if isinstance(grant, Grant) else Grant(grant)


def not_delegated(operation_id: str, reason: str) -> CallError:
    """Return the error for a call on behalf of another caller that is not allowed."""
    instead = "Grant(…, delegates=True) allows it; context.detached() calls with the server's own identity"
    message = f"{operation_id} is called on behalf of a caller, but {reason}. {instead}"
    return CallError(ErrorCode.ACCESS_DENIED, message)


class ClaimNames(TypedDict, total=False):
    """Override the names of claims: by default `sub`, `scope` and `scopes`, `resources`, `announce`, `delegates`."""

    id: str
    scopes: str
    resources: str
    announces: str
    delegates: str


def grant_of(claims: Mapping[str, Any], names: ClaimNames, leeway: float = 0.0) -> Grant:
    """Return the grant that these claims describe. A list may also be one string of words separated by spaces.

    It expires `leeway` seconds after `exp`, for surfaces that compare that with their clock.

    Raises:
        ValueError: a claim is missing or invalid. The message names the claim without its value.
    """
    name = names.get("id", "sub")
    id = claims.get(name)
    if not isinstance(id, str) or not id.isprintable() or not id:  # it goes into logs, and over wires in UTF-8
        raise ValueError(f"the claim {name} is not a name")
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or isinstance(expires, bool) or not 0 <= expires <= _MAX_EXPIRY_SECONDS:
        raise ValueError("the claim exp is not a number")
    scopes = (names["scopes"],) if "scopes" in names else ("scope", "scopes")
    name = names.get("resources", "resources")
    resources = claims.get(name)
    if not isinstance(resources, dict | None):
        raise ValueError(f"the claim {name} is not an object")
    actions_by_type = cast("dict[str, object]", resources or {})
    identity = Identity(
        id=id,
        scopes=tuple(dict.fromkeys(word for claim in scopes for word in _words(claims, claim))),
        resources={type: _words(actions_by_type, type) for type in actions_by_type},
    )
    delegates = claims.get(names.get("delegates", "delegates")) is True
    return Grant(identity, _words(claims, names.get("announces", "announce")), expires + leeway, delegates)


def _words(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claims.get(name)
    words = [] if value is None else value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(
        isinstance(word, str) and word.isprintable() for word in cast("list[object]", words)
    ):
        raise ValueError(f"the claim {name} is neither a string nor a list of strings, or has control characters")
    return tuple(cast("list[str]", words))


class ResourceMetadata(Struct, frozen=True):
    """What a surface publishes of its protection by OAuth (RFC 9728).

    `required_scopes` are those that every token has to grant, `scopes` all that clients may request.
    """

    resource: str
    issuer: str
    required_scopes: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The published document."""
        scopes = {"scopes_supported": [*dict.fromkeys(self.scopes)]} if self.scopes else {}
        servers = {"authorization_servers": [self.issuer]}
        return {"resource": self.resource, **servers, **scopes, "bearer_methods_supported": ["header"]}


# --- authenticators ---------------------------------------------------------------------------------------------------


@runtime_checkable
class Authenticator(Protocol):
    """The interface of an authenticator.

    One with an attribute `protected_resource`, a `ResourceMetadata`, makes a surface publish it.
    """

    async def authenticate(self, token: str | None) -> Grant:
        """Return the grant of a token; None if the peer sent none.

        Raises:
            CallError: UNAUTHENTICATED; UNAVAILABLE, if the token cannot be checked at the moment.
        """
        ...


def presented(token: str | None) -> str:
    """Return the token if it can be checked at all.

    Raises:
        CallError: UNAUTHENTICATED, if it is missing or too long.
    """
    if not token:
        raise rejected(NEEDED, "missing")
    if len(token) > MAX_TOKEN:
        raise rejected(NOT_VALID, f"longer than {MAX_TOKEN:,} characters")
    return token


def rejected(message: str, reason: str) -> CallError:
    """Log the reason, which must not contain any part of the token, and return the error for the peer."""
    logger.info("%s: %s", message, reason)
    return CallError(ErrorCode.UNAUTHENTICATED, message)


async def grant_ended(grant: Grant, check: Callable[[], Awaitable[Grant | None]]) -> CallError:
    """Wait until a grant ends, and return the error for its holder, whose stream has to end.

    It has expired, or `check` rejects its token now, or returns a lesser grant, or None. A check that fails otherwise
    decides nothing, so that a database or an issuer that is out of reach does not end all streams: the grant lasts
    until it expires. Checks are at random intervals, since thousands of streams may begin together, after a restart.
    """
    expires = grant.expires
    while True:
        seconds_left = None if expires is None else expires - time.time()
        if seconds_left is not None and seconds_left <= 0:
            return CallError(ErrorCode.UNAUTHENTICATED, EXPIRED)
        try:
            async with asyncio.timeout(seconds_left):
                await asyncio.sleep(RECHECK * random.uniform(2 / 3, 1))  # noqa: S311 - not a secret
                current_grant = await check()
            if current_grant is None or not current_grant.covers(grant):
                return CallError(ErrorCode.UNAUTHENTICATED, GRANTS_LESS)
            expires = current_grant.expires
        except TimeoutError:
            continue
        except CallError as error:
            if error.code in (ErrorCode.UNAUTHENTICATED, ErrorCode.ACCESS_DENIED):
                return error
        except Exception as error:  # an authenticator of the application; the text of its error may show the token
            logger.error("a token could not be checked again: %s", type(error).__name__)


class StaticTokens:
    """Accept a fixed set of tokens.

        StaticTokens({os.environ["SHOP_TOKEN"]: Grant(Identity(id="shop"), announces=("shop",))})

    Only digests are kept. A token is compared with each of them in constant time.

    Raises:
        UsageError: a token is too short, or begins or ends with white space. The message does not show it.
    """

    def __init__(self, grants: Mapping[str, Grant | Identity]) -> None:
        for number, token in enumerate(grants, 1):
            if len(token) < MIN_TOKEN:
                needed = f"at least {MIN_TOKEN}: generate one with secrets.token_urlsafe()"
                raise UsageError(f"token number {number} has {len(token)} characters, and needs {needed}")
            if token != token.strip():
                problem = "begins or ends with white space, which headers and files do not preserve: strip it"
                raise UsageError(f"token number {number} {problem}")
        self._grants = [(token_digest(token), as_grant(grant)) for token, grant in grants.items()]

    def __repr__(self) -> str:
        return f"StaticTokens(of {', '.join(grant.identity.id for _, grant in self._grants)})"

    async def authenticate(self, token: str | None) -> Grant:
        """Return the grant of a token.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        digest, matching_grant = token_digest(presented(token)), None
        for known_digest, grant in self._grants:  # no early exit: the time must not depend on which one matches
            if compare_digest(known_digest, digest):
                matching_grant = grant
        if matching_grant is None:
            raise rejected(NOT_VALID, "not one of the static tokens")
        return matching_grant


def token_digest(token: str) -> bytes:
    """Return what is stored instead of a token."""
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


class _AllowAnonymous:
    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    def __repr__(self) -> str:
        return f"allow_anonymous({self._grant.identity!r})"

    async def authenticate(self, token: str | None) -> Grant:
        return self._grant


def allow_anonymous(identity: Identity | Grant) -> Authenticator:
    """Return an authenticator that ignores tokens and gives every connection this identity."""
    return _AllowAnonymous(as_grant(identity))


# --- callbacks --------------------------------------------------------------------------------------------------------

LookupResult = Grant | Identity | None


def callback(function: Callable[[str], LookupResult | Awaitable[LookupResult]]) -> Authenticator:
    """Return an authenticator that calls a function: token -> Grant, Identity, or None if the token is invalid.

        callback(lambda token: users.get(token))

    A sync function runs on a worker thread, so that it may wait for a database. Every request calls it again, and
    every 15 s an open stream, so that a token can be revoked; tokens that were valid before do not wait in the queue of
    unknown ones.
    """
    return _CallbackAuthenticator(function)


class UserFunction:
    """Call a function of the application: an async one on the event loop, a sync one on a worker thread.

    A `CallError` is raised unchanged. Any other error becomes UNAVAILABLE, and is logged without its text:
    `users[token]` raises a KeyError that shows the token.
    """

    def __init__(self, function: Callable[..., Any], purpose: str) -> None:
        self._function = function
        self._purpose = purpose
        self._threads = None if iscoroutinefunction(function) else WorkerPool(8)

    async def __call__(self, *arguments: str) -> Any:
        """Return the result of the function.

        Raises:
            CallError: raised by the function, or UNAVAILABLE.
        """
        try:
            if self._threads is None:
                return await self._function(*arguments)
            result = await self._threads.run(partial(self._function, *arguments), self._purpose)
            return await result if isawaitable(result) else result
        except CallError:
            raise
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("%s raised %s:\n%s", self._purpose, type(error).__name__, where)
        # Outside `except`: otherwise the error would be chained to this one, and shown with it.
        raise self.failed()

    def failed(self) -> CallError:
        """Return the error for the peer of a function that failed."""
        return CallError(ErrorCode.UNAVAILABLE, "the token cannot be checked at the moment")


class _NewestFirst:
    """A semaphore that wakes its newest waiter. When the queue is full, the oldest waiter is rejected.

    The tokens that wait longest in a flood are most likely part of it.
    """

    def __init__(self, limit: int, max_waiting: int) -> None:
        self._free = limit
        self._max_waiting = max_waiting
        self._waiting: dict[asyncio.Future[None], None] = {}  # the newest last

    async def __aenter__(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        if len(self._waiting) > self._max_waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            full = CallError(ErrorCode.UNAVAILABLE, "too many tokens are being checked: try again", retry_after=1)
            oldest.set_exception(full)
        try:
            await turn
        except BaseException:
            if self._waiting.pop(turn, turn) is turn and not turn.cancelled() and turn.exception() is None:
                await self.__aexit__()  # woken and cancelled in the same iteration of the loop
            raise

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._waiting.popitem()[0].set_result(None)
        else:
            self._free += 1


class _CallbackAuthenticator:
    """Anyone can invent tokens, and a lookup may be slow: unknown tokens use threads and a queue of their own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        purpose = "the function of callback()"
        self._check_known, self._check_new = UserFunction(function, purpose), UserFunction(function, purpose)
        self._queue = _NewestFirst(MAX_LOOKUPS, MAX_WAITING)
        self._known: BoundedDict[int, None] = BoundedDict(MAX_KNOWN)  # hashes of tokens that were valid

    async def authenticate(self, token: str | None) -> Grant:
        token = presented(token)
        key = hash(token)
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT):
                if key in self._known:
                    result = await self._check_known(token)
                else:
                    async with self._queue:
                        result = await self._check_new(token)
        except TimeoutError:
            logger.error("the function of callback() did not return within %g s", LOOKUP_TIMEOUT)
            raise self._check_new.failed() from None
        if result is None:
            self._known.pop(key, None)
            raise rejected(NOT_VALID, "the function of callback() returned None")
        self._known[key] = None
        if not isinstance(result, Grant | Identity):
            kind = type(result).__name__
            logger.error("the function of callback() returns a Grant, an Identity or None, and not %s", kind)
            raise self._check_new.failed()
        return as_grant(result)
