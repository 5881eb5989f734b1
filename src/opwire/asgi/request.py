"""A request as the guard admits it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from msgspec import Struct

from opwire.asgi.problem import Header, Send
from opwire.auth.tokens import Grant, grant_ended
from opwire.errors import CallError
from opwire.model.identity import Identity
from opwire.observe.logs import AccessEntry

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ADMITTED = "opwire.request"
"""Key of the ASGI scope: the `AdmittedRequest`."""

UPGRADE = b"upgrade"
"""The header of a request for another protocol."""


class AdmittedRequest(Struct):
    """A request as the guard admits it, for the app behind. `receive` is for disconnects alone."""

    method: str
    lines: list[Header]
    headers: Mapping[bytes, bytes]  # by name; the guard has checked that those that decide anything are unique
    access: AccessEntry | None = None  # None if the access log is disabled
    identity: Identity | None = None
    token: str | None = None  # the verified token of its caller
    expires: float | None = None  # when that expires (Unix epoch, in seconds)
    regrant: "Callable[[AdmittedRequest], Awaitable[Grant | None]] | None" = None  # checks its token again
    offers_oauth: bool = False  # clients can get a token, or one with more scopes
    body: bytes = b""  # complete
    reserved_bytes: int = 0  # of the memory for large bodies
    is_counted: bool = False  # in the share of its identity
    share: str | None = None  # the id of that identity; None: the share of requests without a token

    async def ended(self) -> CallError:
        """Wait until its caller may not read a stream any longer, and return the reason; forever without a token."""
        if self.regrant is None or self.identity is None:
            return await asyncio.get_running_loop().create_future()
        return await grant_ended(Grant(self.identity, expires=self.expires), partial(self.regrant, self))

    def take_body(self) -> bytes:
        """Return the body, and drop it: a stream would keep it."""
        body, self.body = self.body, b""
        return body


def has_no_token(scope: Mapping[str, Any]) -> bool:
    """Return whether a request was admitted without a token by a guard that authenticates."""
    request: AdmittedRequest | None = scope.get(ADMITTED)
    return request is not None and request.is_counted and request.share is None
