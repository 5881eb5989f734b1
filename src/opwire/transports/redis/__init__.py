"""Calls over Redis 6.2 or newer, or Valkey: `pip install opwire[redis]`.

Requests and answers travel by publish/subscribe: at most once, and never over a disk. `medium` says how a request finds
a server, `opwire.transports.broker` what is the same for every broker.
"""

from ssl import SSLContext
from typing import TYPE_CHECKING

from opwire.call import MAX_MESSAGE
from opwire.errors import CallError, ErrorCode
from opwire.transports.broker import BrokerTransport
from opwire.transports.redis.connection import parse_url
from opwire.transports.redis.journal import RedisJournal
from opwire.transports.redis.transport import RedisBrokerConnection

if TYPE_CHECKING:  # it needs PyJWT, which an end that signs nothing does without
    from opwire.auth import SignedRequests

__all__ = ["RedisJournal", "RedisTransport"]


class RedisTransport(BrokerTransport):
    """One end of a Redis server: a `Transport`.

        async with PendingRequestMap(RedisTransport("redis://127.0.0.1:6379")) as calls:
            await calls.call("math.add", {"a": 1, "b": 2})

    The URL may begin with `redis://`, `rediss://` (TLS, by `ssl` where it is given) or `unix://`. Ends with the same
    `prefix` on the same database reach each other. A server whose `heartbeat` stays away for three beats gets no more
    requests, and the calls that it had fail.

    Raises:
        CallError: VALIDATION_ERROR, if the URL cannot be read.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        prefix: str = "opwire",
        heartbeat: float = 1.0,
        limit: int = MAX_MESSAGE,
        ssl: SSLContext | None = None,
        signed: "SignedRequests | None" = None,
    ) -> None:
        target = parse_url(url)
        if ssl is not None and not target.tls:
            raise CallError(ErrorCode.VALIDATION_ERROR, "a TLS context is for the URL of a TLS server, rediss://…")
        medium = RedisBrokerConnection(target, prefix=prefix, heartbeat=heartbeat, ssl=ssl)
        super().__init__(medium, heartbeat=heartbeat, max_message=limit, signed=signed)
