"""`Reroutes`: send requests around a server that does not respond, while the broker still routes requests to it.

NATS routes requests to a frozen server until that misses its pings, minutes later. When a call expires without a word
from any server, requests for its operation go to the server that responded last, for a minute. The broker routes one
request in three heartbeats, as a sample; if that expires too, the minute begins again.

No I/O, no clock, no tasks.
"""

from math import inf

from msgspec import Struct

from opwire.errors import ErrorCode
from opwire.protocol.events import CallFailed
from opwire.protocol.transport import Address

SECONDS_OF_REROUTE = 60.0


class Reroute(Struct, gc=False):
    """The server that gets the requests for an operation. `sampled_at` is when the broker last routed one."""

    server: Address
    silent_at: float
    sampled_at: float = -inf


class Reroutes(dict[str, Reroute]):
    """The reroutes of one connection, by operation. Nearly always there is none."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience
        self._is_forbidden = False

    def server(self, operation_id: str, now: float) -> Address | None:
        """Return the server to which a request has to be sent; None if the broker routes it."""
        reroute = self.get(operation_id)
        if reroute is None:
            return None
        if now - reroute.silent_at >= SECONDS_OF_REROUTE:
            del self[operation_id]
            return None
        # A sample that expires is followed by other requests, not by the next sample.
        if now - max(reroute.sampled_at, reroute.silent_at) > self._patience:
            reroute.sampled_at = now
            return None
        return reroute.server

    def failed(self, operation_id: str, failure: CallFailed) -> None:
        """End the reroute to a server that drains, or does not serve the operation any more."""
        if failure.not_started or failure.code == ErrorCode.OPERATION_NOT_FOUND:
            self.pop(operation_id, None)

    def unanswered(self, operation_id: str, latest_server: Address, now: float) -> None:
        """Reroute requests for an operation, since one has expired without a word from any server.

        `latest_server` is the one that responded last, and empty if that is gone.
        """
        reroute = self.get(operation_id)
        if reroute is not None:
            reroute.silent_at = now
        elif latest_server and not self._is_forbidden:
            self[operation_id] = Reroute(latest_server, now)

    def lost_server(self, server: Address) -> None:
        """End the reroutes to a server that is gone or silent."""
        for operation_id in [id for id, reroute in self.items() if reroute.server == server]:
            del self[operation_id]

    def forbid(self) -> None:
        """Reroute nothing over this connection: the broker does not allow messages to servers."""
        self._is_forbidden = True
        self.clear()

    def reset(self) -> None:
        """End all reroutes: the connection is lost."""
        self._is_forbidden = False
        self.clear()
