"""What a transport to an MCP server is: messages out, messages in, and the reason of its end."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import ClassVar, Protocol

from opwire.errors import CallError
from opwire.mcp.messages import ReceivedMessage, RequestId, RPCMessage, RPCNotification


class TransportEvents(Protocol):
    """What a transport reports, in the order of events. All of these are called on the event loop."""

    def received(self, message: ReceivedMessage, request: RequestId | None = None) -> Awaitable[None] | None:
        """Handle a message; the transport reads on after what is returned.

        `request` is the one of this end that it belongs to, if the transport has a stream for each request.
        """
        ...

    def failed(self, id: RequestId, error: Exception) -> None:
        """Fail one request; the transport itself works."""
        ...

    def ended(self) -> None:
        """Handle the end; `failure` is its reason."""
        ...


class ClientTransport(ABC):
    """An open connection to a server. The code that opened it closes it."""

    has_headers: ClassVar[bool] = True
    """Whether requests have HTTP headers."""

    failure: CallError | None = None
    """The reason of its end."""

    @property
    def last_output(self) -> str:
        """The last lines of the server's log, for an error message, if the transport has them."""
        return ""

    @abstractmethod
    def write(self, message: RPCMessage, headers: Mapping[str, str] | None = None) -> Awaitable[None] | None:
        """Send a message, or return what to wait for until it is sent. `headers` are for HTTP.

        The response to a request is reported later. What is returned raises the same.

        Raises:
            CallError: the transport has ended.
            TypeError, ValueError, RecursionError: the message has no JSON form.
        """

    async def send(self, message: RPCMessage, headers: Mapping[str, str] | None = None) -> None:
        """Send a message, as `write`, and wait until it is sent."""
        wait_for = self.write(message, headers)
        if wait_for is not None:
            await wait_for

    @abstractmethod
    def cancel(self, id: RequestId, notification: RPCNotification | None) -> None:
        """Stop waiting for the response to a request, and notify the server, without blocking."""
