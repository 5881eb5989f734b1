"""One connection to a Redis server: the URL, the RESP3 protocol, error replies, and commands in flight.

Redis replies in the order of the commands; published messages arrive in between, as pushes. The push that confirms
SUBSCRIBE or UNSUBSCRIBE counts as the reply, so that every command has exactly one: these name one channel each.

Only `RedisConnection` does I/O.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any, Protocol, TypeGuard, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from hiredis import PushNotification, Reader, ReplyError, pack_command  # pyright: ignore[reportUnknownVariableType]

from opwire.errors import CallError, ErrorCode, UsageError, system_message
from opwire.runtime.tasks import reject
from opwire.transports.link import Link

Part = bytes | str | int
Done = Callable[[Any], None]  # receives a reply, plain data or a `hiredis.ReplyError`; must not raise

MAX_REPLY_BYTES = 128 * 1024 * 1024  # a longer one ends the connection

_pack = cast("Callable[[tuple[Part, ...]], bytes]", pack_command)
_PUSH: Any = PushNotification
_CONFIRMATIONS = (b"subscribe", b"unsubscribe")
_INCOMPLETE = object()  # not a plain value, which could be a reply

# --- the URL ----------------------------------------------------------------------------------------------------------

INVALID_URL = (
    "not the URL of a Redis server; expected redis://[user:password@]host[:port][/db], rediss://… for TLS, "
    "unix://[user:password@]/path[?db=0], redis+sentinel://[user:password@]host[:port],host[:port]/service[/db], "
    "or redis+cluster://[user:password@]host[:port],host[:port]"
)


class RedisServers(Protocol):
    """What a transport or a journal connects to: here one server, in `servers` the primary of several."""

    @property
    def name(self) -> str:
        """Return the name for messages, without a password."""
        ...

    async def primary(self) -> "Target":
        """Return the server to connect to.

        Raises:
            CallError: UNAVAILABLE.
        """
        ...

    def follow(self, connection: "RedisConnection") -> None:
        """Abort an open connection as soon as another server is the primary; a single server stays the same."""

    def key_prefix(self, prefix: str) -> str:
        """Return the start of all keys and channels with a prefix."""
        return prefix

    async def channel_prefix(self, connection: "RedisConnection", prefix: str) -> str:
        """Return the start of channels that are counted on to have all their subscribers at this server.

        Raises:
            CallError: UNAVAILABLE.
        """
        return prefix


@dataclass(frozen=True, slots=True)
class Target(RedisServers):
    """A server and the credentials for it. The password is never shown."""

    host: str
    port: int
    path: str | None = None  # of a Unix socket; overrides host and port
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    ssl: SSLContext | None = field(default=None, repr=False, compare=False)
    kind: str = "Redis"

    @property
    def address(self) -> str:
        """Return the socket, or host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"

    @property
    def name(self) -> str:
        """Return the server's name for messages."""
        return f"{self.kind} at {self.address}"

    async def primary(self) -> "Target":
        """Return this server: it is the only one."""
        return self


def parse_url(url: str, ssl: SSLContext | None = None, *, port: int = 6379) -> Target:
    """Parse the URL of a Redis server; `ssl` overrides the default TLS context of `rediss://`, `port` the default port.

    Raises:
        UsageError: the URL is invalid. The message does not repeat it: it may contain a password.
    """
    try:
        parts = urlsplit(url)
        unix = parts.scheme == "unix"
        if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment:
            raise ValueError
        if unix and (parts.hostname or not parts.path):
            raise ValueError
        # The database is in the path or in `?db=`; neither may contain anything else.
        path = "" if unix else parts.path[1:]
        query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        db = query.pop("db", path or "0")
        if query or (path and db != path) or not (db.isascii() and db.isdigit()):
            raise ValueError
        port = parts.port or port
    except ValueError:
        raise UsageError(INVALID_URL) from None
    tls = parts.scheme == "rediss"
    if ssl is not None and not tls:
        raise UsageError("`ssl` needs the URL of a TLS server, rediss://…")
    return Target(
        host=parts.hostname or "localhost",
        port=port,
        path=unquote(parts.path) if unix else None,
        tls=tls,
        user=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else unquote(parts.password),
        db=int(db),
        ssl=create_default_context() if tls and ssl is None else ssl,
    )


# --- error replies ----------------------------------------------------------------------------------------------------

_CLUSTER = (
    "is part of a cluster and does not have these keys: connect with redis+cluster://, or try again after a failover"
)
_MEANINGS = {
    "NOAUTH": "requires a password: put it into the URL, as in redis://user:password@host, or for Sentinels in "
    "?sentinel_password=",
    "WRONGPASS": "rejected this user and password: check the URL",
    "NOPERM": "denies this user a command that opwire needs: check its ACL",
    "DENIED": "is in protected mode and accepts local clients only: give it a password",
    "LOADING": "is still loading its data: try again in a moment",
    "BUSY": "is running a script that does not end: see SCRIPT KILL",
    "OOM": "is out of memory: raise its maxmemory, or let it evict keys",
    "MISCONF": "rejects writes because it cannot save its data: see its log",
    "READONLY": "is a read-only replica, perhaps a demoted primary: connect to its primary",
    "NOREPLICAS": "rejects writes because too few replicas are connected: see min-replicas-to-write",
    "SENTINEL": "is a Sentinel, which holds no data: connect with redis+sentinel://host:port/service",
    "MASTERDOWN": "is a replica that has lost its primary: connect to the primary",
    "MOVED": _CLUSTER,
    "CLUSTERDOWN": "is part of a cluster that is down: see CLUSTER INFO",
    "CROSSSLOT": _CLUSTER,
    "NOPROTO": "does not support RESP3: opwire needs Redis 6.2 or newer",
}
_SCRIPT = re.compile(r"ERR Error running script \(call to \w+\): (?:@user_script: ?\d+: )*-?")


def is_refusal(reply: object, *codes: str) -> TypeGuard[ReplyError]:
    """Return whether a reply is an error, and has one of these codes if any are given."""
    return isinstance(reply, ReplyError) and (not codes or _split(reply)[0] in codes)


def refusal(name: str, reply: ReplyError) -> CallError:
    """Return the error for an error reply, with advice.

    An unknown reply is quoted, unless it is about an unknown command: Redis then quotes the arguments, and the password
    may be among them.
    """
    code, text = _split(reply)
    if code in _MEANINGS:
        meaning = f"{_MEANINGS[code]} ({code})"
    elif "unknown command" in text.lower():
        meaning = "does not support a command: opwire needs Redis 6.2 or newer, without renamed commands"
    else:
        meaning = f"refused: {text:.200}"
    return CallError(ErrorCode.UNAVAILABLE, f"{name} {meaning}")


def _split(reply: ReplyError) -> tuple[str, str]:
    """Return the error code and the whole text, without the prefix that Redis 6 adds to errors inside scripts."""
    text = _SCRIPT.sub("", str(reply))
    return text.partition(" ")[0], text


# --- the largest message ----------------------------------------------------------------------------------------------

# A larger message does not just fail: Redis closes the connection of the sender, or of the receiver.
_MIB = 1024 * 1024
_DEFAULTS = {
    b"proto-max-bulk-len": 512 * _MIB,
    b"client-query-buffer-limit": 1024 * _MIB,
    b"client-output-buffer-limit": 32 * _MIB,
}
_BYTES = re.compile(rb"(?:.*\bpubsub )?([0-9]{1,18})(?![0-9])")  # a number, or "normal 0 0 0 slave … pubsub <bytes> …"
_FRAMING_BYTES = 64 * 1024  # of a message, and the part of the next command that Redis has buffered

SETTINGS = tuple(_DEFAULTS)  # to request by CONFIG GET


def largest_message(replies: Iterable[Any]) -> int:
    """Return the bytes that the replies to CONFIG GET allow; defaults replace settings that a server does not show."""
    limits = dict(_DEFAULTS)
    for reply in replies:
        if isinstance(reply, dict):
            for setting, value in cast("dict[bytes, bytes]", reply).items():
                if (size := _BYTES.match(value)) is not None:
                    limits[setting] = int(size[1])
    # Of its output Redis counts allocated bytes, up to a quarter more than needed, and more may be queued.
    limits[b"client-output-buffer-limit"] //= 2
    return max(1, min(filter(None, limits.values())) - _FRAMING_BYTES)  # 0 means unlimited


# --- RESP3 ------------------------------------------------------------------------------------------------------------


def command(*parts: Part) -> bytes:
    """Encode a command."""
    return _pack(parts)


class Script:
    """A script, and the digest by which Redis caches it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest().encode()


def load_script(folder: Path, *files: str) -> Script:
    """Load a script without its comments, after the functions that it shares with others."""
    texts = ((folder / f"{file}.lua").read_text(encoding="utf-8") for file in files)
    return Script("".join(re.sub(r"^--.*\n", "", text, flags=re.MULTILINE) for text in texts))


class Replies:
    """Parse the bytes of a server: replies go to the callbacks of their commands, published messages to `pushed`."""

    def __init__(self, pushed: Callable[[bytes, bytes], None], *, limit: int = MAX_REPLY_BYTES) -> None:
        self._pushed = pushed
        self._limit = limit
        self._fed = 0  # bytes since the last complete reply
        self._reader = Reader(protocolError=ValueError, notEnoughData=_INCOMPLETE)
        self._callbacks: deque[Done] = deque()
        self.expect: Callable[[Done], None] = self._callbacks.append  # queues the callback of a command that was sent

    def feed(self, data: bytes) -> None:
        """Parse bytes and dispatch the complete replies.

        Raises:
            ValueError: invalid data, or a reply that is too long.
        """
        self._fed += len(data)
        self._reader.feed(data)
        while True:
            try:
                reply: Any = self._reader.gets()
            except MemoryError:  # hiredis allocates all the items that an array announces
                raise ValueError("a reply announces too many items") from None
            except ValueError as error:
                raise ValueError(f"{error}; check that the server at this port is Redis") from None
            if reply is _INCOMPLETE:
                break
            self._fed = 0
            if type(reply) is _PUSH:
                kind = reply[0] if reply else b""
                if kind == b"message" and len(reply) == 3:
                    self._pushed(reply[1], reply[2])
                    continue
                if kind not in _CONFIRMATIONS:  # a kind of push that newer versions send
                    continue
            if not self._callbacks:
                description = str(reply)[:200] if isinstance(reply, ReplyError) else f"a {type(reply).__name__}"
                raise ValueError(f"a reply without a command: {description}")
            self._callbacks.popleft()(reply)
        if self._fed > self._limit:
            raise ValueError(f"a reply has more than {self._limit:,} bytes")


class RedisConnection:
    """A connection. `pushed` receives channel and text of published messages; `lost` the reason, once, when it ends."""

    def __init__(self, target: Target, pushed: Callable[[bytes, bytes], None], lost: Callable[[str], None]) -> None:
        self.target = target
        self._lost = lost
        self._replies = Replies(pushed)
        self._expect = self._replies.expect
        self.link = Link(self._received, self._ended)
        self._waiting: set[asyncio.Future[list[Any]]] = set()
        self._attached: asyncio.Task[None] | None = None
        self._end_reason: str | None = None
        self.heard = False  # set by incoming data, reset by the caller

    async def open(self) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """
        loop, target = asyncio.get_running_loop(), self.target
        try:
            if target.path is not None:
                await loop.create_unix_connection(lambda: self.link, target.path)
            else:
                await loop.create_connection(lambda: self.link, target.host, target.port, ssl=target.ssl)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            reason = system_message(error)
            raise CallError(ErrorCode.UNAVAILABLE, f"{target.name} cannot be reached: {reason}") from error

    async def hello(self) -> dict[bytes, Any]:
        """Authenticate, and return the properties of the server.

        Raises:
            CallError: UNAVAILABLE, if the server refuses.
        """
        target = self.target
        hello: list[Part] = [b"HELLO", 3]
        if target.user is not None or target.password is not None:
            hello += [b"AUTH", target.user or b"default", target.password or b""]
        (properties,) = await self.ask(command(*hello, b"SETNAME", b"opwire"))
        return properties

    async def greet(self, *commands: bytes) -> None:
        """Authenticate, select the database, and run the first commands.

        Raises:
            CallError: UNAVAILABLE, if Redis refuses, or is a read-only replica or a Sentinel.
        """
        target = self.target
        match await self.hello():
            case {b"mode": b"sentinel"}:
                raise refusal(target.name, ReplyError("SENTINEL"))
            case {b"role": b"replica"}:
                raise refusal(target.name, ReplyError("READONLY"))
            case _:
                pass
        await self.ask(*([command(b"SELECT", target.db)] if target.db else []), *commands)

    def send(self, command: bytes, done: Done, *, control: bool = False) -> None:
        """Send a command. `done` receives the reply, unless the connection ends before it.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is queued.
        """
        if control:
            self.link.control(command)
        else:
            self.link.write(command)
        self._expect(done)

    async def ask(self, *commands: bytes) -> list[Any]:
        """Send commands and return their replies.

        Raises:
            CallError: UNAVAILABLE, if one is refused or the connection is lost; RATE_LIMITED.
        """
        if not commands:
            return []
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        replies: list[Any] = []

        def done(reply: Any) -> None:
            replies.append(reply)
            if future.done():
                return
            if is_refusal(reply):
                future.set_exception(refusal(self.target.name, reply))
            elif len(replies) == len(commands):
                future.set_result(replies)

        if self._end_reason is not None:
            raise CallError(ErrorCode.UNAVAILABLE, self._end_reason)
        for sent_command in commands:
            self.send(sent_command, done, control=True)
        self._waiting.add(future)
        try:
            return await future
        finally:
            self._waiting.discard(future)

    def attach(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until it returns or the connection ends."""
        self._attached = asyncio.get_running_loop().create_task(work)

    def abort(self, reason: str) -> None:
        """End the connection at once; `lost` is called with the reason."""
        self.link.abort(reason)

    async def close(self) -> None:
        """End the connection; `lost` is not called."""
        await self.link.close()
        self._settle("it was closed")
        if self._attached is not None:
            await asyncio.wait([self._attached])

    def _received(self, data: bytes) -> None:
        self.heard = True
        self._replies.feed(data)

    def _ended(self, reason: str) -> None:
        self._settle(reason)
        self._lost(reason)

    def _settle(self, reason: str) -> None:
        message = f"the connection to {self.target.name} was lost: {reason}"
        self._end_reason = self._end_reason or message
        if self._attached is not None:
            self._attached.cancel()
        for future in self._waiting:
            reject(future, CallError(ErrorCode.UNAVAILABLE, message))
