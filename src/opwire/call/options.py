"""What calls and subscriptions take beside the call itself."""

from typing import TypedDict

from opwire.call.inbox import Overflow
from opwire.call.transport import Address


class CallOptions(TypedDict, total=False):
    """What `call` takes beside the call itself."""

    timeout: float | None
    to: Address | None
    sticky_key: str | None


class StreamOptions(CallOptions, total=False):
    """What `subscribe` takes beside the call itself."""

    idle_timeout: float | None
    overflow: Overflow
