"""Where a Redis server is, as its URL says it. No I/O."""

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from opwire.errors import CallError, ErrorCode

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
