"""Calls over NATS."""

from collections.abc import Iterable
from os import PathLike
from ssl import SSLContext
from typing import TYPE_CHECKING

from opwire.call import MAX_MESSAGE, Describing
from opwire.transports.broker import BrokerTransport
from opwire.transports.nats.connection import Security
from opwire.transports.nats.credentials import Credentials
from opwire.transports.nats.medium import NatsMedium
from opwire.transports.nats.servers import Servers
from opwire.transports.nats.service import ServiceInfo, service_info
from opwire.transports.nats.subjects import Subjects

if TYPE_CHECKING:  # it needs PyJWT, which an end that signs nothing does without
    from opwire.auth import SignedRequests


class NatsTransport(BrokerTransport):
    """One end on a NATS server or cluster.

        async with PendingRequestMap(NatsTransport("nats://127.0.0.1:4222")) as calls:
            envelope = await calls.call("math.add", {"a": 1, "b": 2})

    Ends with the same `prefix` reach each other. Those who serve an operation share its requests; `queue` is the name
    of their group. `user` and `password`, `token` or `credentials` (a `.creds` file, or one with the seed of an NKEY)
    are for servers whose URL has no user. TLS is used where the server demands it, the URL says `tls://` or `ssl` is
    given; `tls_first` is for servers that are set to `handshake_first`.

    Plain NATS clients can call operations too: a request is a `call.requested` event on `<prefix>.call.<operation id>`,
    and its reply subject is an inbox (`_INBOX.…`, or `_INBOX_<name>.…` for private ones). Others are not answered.
    NATS' own tools (`nats service ls`, `info`, `stats`) show what is served.

    Raises:
        CallError: VALIDATION_ERROR, for a URL or a prefix that cannot be used.
    """

    def __init__(
        self,
        servers: str | Iterable[str] = "nats://127.0.0.1:4222",
        *,
        prefix: str = "opwire",
        queue: str = "q",
        heartbeat: float = 1.0,
        limit: int = MAX_MESSAGE,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | PathLike[str] | None = None,
        ssl: SSLContext | None = None,
        tls_first: bool = False,
        signed: "SignedRequests | None" = None,
    ) -> None:
        self._subjects = Subjects(prefix, queue)
        security = Security(Credentials(user, password, token, credentials), ssl, tls_first)
        medium = NatsMedium(Servers(servers), self._subjects, security, describe=self._describe)
        super().__init__(medium, heartbeat=heartbeat, limit=limit, signed=signed)

    def _describe(self) -> ServiceInfo | None:
        """What is served here, for NATS' own tools."""
        described = self._receiver.describe() if isinstance(self._receiver, Describing) else None
        return None if described is None else service_info(described, self._subjects)
