"""A request as the guard admits it, and the spelling of its path."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import quote

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
    is_counted: bool = False  # in the share of its identity
    share: str | None = None  # the id of that identity; None: the share of requests without a token

    @classmethod
    def of(cls, scope: Scope) -> "AdmittedRequest":
        """Return a request before anything of it is checked."""
        lines: list[Header] = scope["headers"]
        return cls(scope["method"], lines, dict(lines))

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


# --- paths ------------------------------------------------------------------------------------------------------------


def path_in_app(scope: Scope) -> str:
    """Return the path of a request below the one that its app is mounted at; the latter without a slash as it is."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def is_plain(scope: Scope) -> bool:
    """Return whether the path of a request came without percent-encoding, as that of the mounted app needs it.

    %61 is an `a` to us, and may not be to a proxy: its rules for a path could be evaded.
    """
    raw: bytes = scope.get("raw_path") or b""
    return b"%" not in raw or b"%" not in raw.removeprefix(quote(scope.get("root_path", "")).encode())


def is_spelled(scope: Scope, path: str) -> bool:
    """Return whether the path of a request, which begins with this one, came without percent-encoding so far."""
    raw: bytes = scope.get("raw_path") or b""
    sent = raw.removeprefix(quote(scope.get("root_path", "")).encode())
    return b"%" not in raw or sent.startswith(path.encode() + b"/")
