"""One connection to a Redis server: commands go out, each with somebody who waits for its reply.

RESP3, the protocol of Redis: commands as bytes, and bytes as replies. No I/O.

Replies come in the order of the commands. What Redis has to tell comes in between, as a push. The push that confirms
SUBSCRIBE or UNSUBSCRIBE counts as the reply, so that every command has one: these name one channel.

Where a Redis server is, as its URL says it. No I/O.

What Redis refuses, in words that say what to do about it.

How large a message a Redis server lets through. No I/O.

A larger one does not fail alone: Redis closes the connection of whoever sends it, or of whoever it is for.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, TypeGuard, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from hiredis import PushNotification, Reader, ReplyError, pack_command  # pyright: ignore[reportUnknownVariableType]

from opwire.errors import CallError, ErrorCode
from opwire.transports.link import Link

Part = bytes | str | int
Done = Callable[[Any], None]
"""Takes a reply: plain data, or a `hiredis.ReplyError`. Raises nothing."""

_pack = cast("Callable[[tuple[Part, ...]], bytes]", pack_command)
_PUSH: Any = PushNotification
MAX_REPLY = 128 * 1024 * 1024
"""Bytes of one reply: a server that goes on for longer is given up."""

_MORE = object()  # "not enough data yet": any plain value could be a reply


def command(*parts: Part) -> bytes:
    """A command as Redis reads it."""
    return _pack(parts)


class Replies:
    """Hands every reply to whoever waits for it, and every message of a channel to `pushed`."""

    def __init__(self, pushed: Callable[[bytes, bytes], None], *, limit: int = MAX_REPLY) -> None:
        self._pushed = pushed
        self._limit = limit
        self._fed = 0  # bytes since the last reply that was complete
        self._reader = Reader(protocolError=ValueError, notEnoughData=_MORE)
        self._waiting: deque[Done] = deque()

    def expect(self, done: Done) -> None:
        """A command is on its way; its reply goes to `done`."""
        self._waiting.append(done)

    def feed(self, data: bytes) -> None:
        """Bytes arrived.

        Raises:
            ValueError: invalid data, or a reply without end.
        """
        self._fed += len(data)
        self._reader.feed(data)
        while (reply := self._next()) is not _MORE:
            self._fed = 0
            if type(reply) is _PUSH:
                self._push(reply)
            else:
                self._answer(reply)

        if self._fed > self._limit:
            raise ValueError(f"a reply has more than {self._limit:,} bytes")

    def _next(self) -> Any:
        try:
            return self._reader.gets()
        except MemoryError:  # it announces more items than there can be, and hiredis makes room for all of them
            raise ValueError("a reply announces too many items") from None

    def _push(self, push: list[Any]) -> None:
        match push:
            case [b"message", channel, message]:
                self._pushed(channel, message)
            case [b"subscribe" | b"unsubscribe", *_]:
                self._answer(push)
            case _:  # something that a newer Redis tells everybody
                pass

    def _answer(self, reply: Any) -> None:
        if not self._waiting:
            said = str(reply)[:200] if isinstance(reply, ReplyError) else f"a {type(reply).__name__}"
            raise ValueError(f"a reply without a command: {said}")
        self._waiting.popleft()(reply)


_FORMS = "redis://[user:password@]host[:port][/db], rediss://… for TLS, or unix://[user:password@]/path[?db=0]"


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and who we are there. The password is shown nowhere."""

    host: str
    port: int
    path: str | None = None  # of a Unix socket, which then stands for host and port
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0

    @property
    def name(self) -> str:
        """What messages to people call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"Redis at {self.path or f'{host}:{self.port}'}"


def parse_url(url: str) -> Target:
    """What a URL says.

    Raises:
        CallError: VALIDATION_ERROR. The URL is not repeated in it: there may be a password inside.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment:
            raise ValueError
        unix = parts.scheme == "unix"
        return Target(
            host=parts.hostname or "localhost",
            port=parts.port or 6379,
            path=_socket_path(parts) if unix else None,
            tls=parts.scheme == "rediss",
            user=unquote(parts.username) if parts.username else None,
            password=None if parts.password is None else unquote(parts.password),
            db=_db(dict(parse_qsl(parts.query, strict_parsing=bool(parts.query))), "" if unix else parts.path[1:]),
        )
    except ValueError:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"not the URL of a Redis server, which is {_FORMS}") from None


def _socket_path(parts: SplitResult) -> str:
    if parts.hostname or not parts.path:
        raise ValueError
    return unquote(parts.path)


def _db(query: dict[str, str], path: str) -> int:
    """The number of the database: in the path or as `?db=`, and nothing else in either."""
    number = query.pop("db", path or "0")
    if query or (path and number != path) or not (number.isascii() and number.isdigit()):
        raise ValueError
    return int(number)


_MEANINGS = {
    "NOAUTH": "wants a password: put it into the URL, as in redis://user:password@host",
    "WRONGPASS": "does not know this user with this password: look at the URL",
    "NOPERM": "does not permit this user what opwire needs: look at its ACL",
    "DENIED": "is in protected mode, which lets in clients of its own machine alone: give it a password",
    "LOADING": "is still loading its data: try again in a moment",
    "BUSY": "is busy with a script that does not end: see SCRIPT KILL",
    "OOM": "has no memory left: raise its maxmemory, or let it evict keys",
    "MISCONF": "refuses to write, since it cannot save its data: see its log",
    "READONLY": "is a read-only replica, perhaps a primary that was demoted: connect to its primary",
    "SENTINEL": "is a Sentinel, which holds no data: connect to the primary that it watches, as told by "
    "`redis-cli -p <port> SENTINEL GET-MASTER-ADDR-BY-NAME <name>`",
    "MASTERDOWN": "is a replica that has lost its primary: connect to the primary",
    "MOVED": "is part of a cluster, and opwire needs a single server",
    "CLUSTERDOWN": "is part of a cluster, and opwire needs a single server",
    "CROSSSLOT": "is part of a cluster, and opwire needs a single server",
    "NOPROTO": "does not speak RESP3: opwire needs Redis 6.2 or newer",
}


_SCRIPT = re.compile(r"ERR Error running script \(call to \w+\): (?:@user_script: ?\d+: )*-?")


def is_refusal(reply: object, *codes: str) -> TypeGuard[ReplyError]:
    """Whether a reply is an error, and one of these where some are named."""
    return isinstance(reply, ReplyError) and (not codes or _split(reply)[0] in codes)


def refusal(name: str, reply: ReplyError) -> CallError:
    """The error for what a server refused.

    A reply that is not foreseen is repeated, unless it is about an unknown command: Redis then repeats the arguments
    itself, and the password may be among them.
    """
    code, text = _split(reply)
    if code in _MEANINGS:
        meaning = f"{_MEANINGS[code]} ({code})"
    elif "unknown command" in text.lower():
        meaning = "does not know a command: opwire needs Redis 6.2 or newer, with no commands renamed"
    else:
        meaning = f"refused: {text:.200}"
    return CallError(ErrorCode.UNAVAILABLE, f"{name} {meaning}")


def _split(reply: ReplyError) -> tuple[str, str]:
    """The first word, which says what it is, and all of it. Redis 6 hides both where a script was refused something."""
    text = _SCRIPT.sub("", str(reply))
    return text.partition(" ")[0], text


class Connection:
    """`pushed` gets the channel and the text of what is published, `lost` the reason, once, when it is over."""

    def __init__(self, target: Target, pushed: Callable[[bytes, bytes], None], lost: Callable[[str], None]) -> None:
        self._target = target
        self._lost = lost
        self._replies = Replies(pushed)
        self._link = Link(self._received, self._ended)
        self._waiting: set[asyncio.Future[list[Any]]] = set()
        self._over: str | None = None  # why there is no connection any more
        self.heard = False  # whether anything came since somebody set this to False

    async def open(self, ssl: SSLContext | None) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """
        loop, target = asyncio.get_running_loop(), self._target
        try:
            if target.path is not None:
                await loop.create_unix_connection(lambda: self._link, target.path)
            else:
                await loop.create_connection(lambda: self._link, target.host, target.port, ssl=ssl)
        except (OSError, UnicodeError) as error:  # the latter: a host that no name server could be asked for
            raise CallError(ErrorCode.UNAVAILABLE, f"{target.name} cannot be reached: {error}") from error

    async def greet(self, *commands: bytes) -> None:
        """Say who we are, and send the first commands.

        Raises:
            CallError: UNAVAILABLE, if Redis refuses, or is a read-only replica or a Sentinel.
        """
        target = self._target
        hello: list[Part] = [b"HELLO", 3]
        if target.user is not None or target.password is not None:
            hello += [b"AUTH", target.user or b"default", target.password or b""]
        about, *_ = await self.ask(command(*hello, b"SETNAME", b"opwire"))
        match about:
            case {b"mode": b"sentinel"}:
                raise refusal(target.name, ReplyError("SENTINEL"))
            case {b"role": b"replica"}:
                raise refusal(target.name, ReplyError("READONLY"))
            case _:
                pass
        await self.ask(*([command(b"SELECT", target.db)] if target.db else []), *commands)

    def send(self, command: bytes, done: Done, *, control: bool = False) -> None:
        """Send a command. `done` gets the reply, unless the connection is lost before.

        Raises:
            CallError: UNAVAILABLE, RATE_LIMITED if too much is waiting to be sent.
        """
        if control:
            self._link.control(command)
        else:
            self._link.write(command)
        self._replies.expect(done)

    async def ask(self, *commands: bytes) -> list[Any]:
        """Send commands, and wait for their replies.

        Raises:
            CallError: UNAVAILABLE, if one is refused or the connection is gone; RATE_LIMITED.
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
                future.set_exception(refusal(self._target.name, reply))
            elif len(replies) == len(commands):
                future.set_result(replies)

        if self._over is not None:
            raise self._gone(self._over)
        for each in commands:
            self.send(each, done, control=True)
        self._waiting.add(future)
        try:
            return await future
        finally:
            self._waiting.discard(future)

    def abort(self, reason: str) -> None:
        """End it at once; `lost` is called with the reason."""
        self._link.abort(reason)

    async def close(self) -> None:
        """End it; `lost` is not called."""
        await self._link.close()
        self._settle("it was closed")

    def _received(self, data: bytes) -> None:
        self.heard = True
        self._replies.feed(data)

    def _ended(self, reason: str) -> None:
        self._settle(reason)
        self._lost(reason)

    def _settle(self, reason: str) -> None:
        self._over = self._over or reason
        for future in self._waiting:
            if not future.done():
                future.set_exception(self._gone(reason))

    def _gone(self, reason: str) -> CallError:
        return CallError(ErrorCode.UNAVAILABLE, f"the connection to {self._target.name} was lost: {reason}")


_MIB = 1024 * 1024
_USUAL = {
    b"proto-max-bulk-len": 512 * _MIB,
    b"client-query-buffer-limit": 1024 * _MIB,
    b"client-output-buffer-limit": 32 * _MIB,
}
_BYTES = re.compile(rb"(?:.*\bpubsub )?([0-9]{1,18})(?![0-9])")  # a number, or "normal 0 0 0 slave … pubsub <bytes> …"
_ROOM = 64 * 1024  # bytes, for what stands around a message, and what Redis has read of the next command

SETTINGS = tuple(_USUAL)
"""The settings that say how large."""


def largest_message(replies: Iterable[Any]) -> int:
    """Bytes that the replies to CONFIG GET allow. What a server refuses to say is taken to be as Redis comes."""
    limits = dict(_USUAL)
    for reply in replies:
        if isinstance(reply, dict):
            for setting, value in cast("dict[bytes, bytes]", reply).items():
                if (found := _BYTES.match(value)) is not None:
                    limits[setting] = int(found[1])
    # Of its output Redis counts what it has allocated, up to a quarter more than it needs, and more may be waiting.
    limits[b"client-output-buffer-limit"] //= 2
    return max(1, min(filter(None, limits.values())) - _ROOM)  # 0 is no limit
