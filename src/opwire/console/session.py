"""Sessions of the console, and the links that open one. No I/O, no tasks.

Rules: the cookie is a random number and holds no credential. The server stores its hash. A session that was opened with
a token asks the authenticator at every request, so that it ends when the token does. A link works once, within minutes.
Sessions and links are bounded in number and time; the oldest one of an identity makes room for its next.
"""

import time
from collections.abc import Mapping
from hashlib import sha256
from secrets import token_urlsafe
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from opwire.asgi.guard import FoundSession
from opwire.auth.tokens import Authenticator, Grant
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity
from opwire.runtime.bounded import BoundedDict

LIFETIME = 12 * 3600.0
"""Seconds for which a session lasts."""

LINK_LIFETIME = 300.0
"""Seconds for which a link can be used."""

MAX_SESSIONS = 1_000
MAX_SESSIONS_OF_IDENTITY = 20
MAX_LINKS = 20

ACT_AS = "opwire:act-as"
"""The scope that allows calls as another identity, which may have no scopes beyond those of the caller."""

_COOKIE = "opwire_console"
_INVALID_LINK = "this link is not valid: it works once, for five minutes; sign in by a token, or start the server again"


class Session(Struct, frozen=True):
    """The session behind a cookie. `token` is the one of the login, or None if a link opened it."""

    grant: Grant
    token: str | None
    expires: float


class NewSession(NamedTuple):
    """A new session, and the secret that goes into the cookie."""

    secret: str
    session: Session


class SessionStore:
    """The sessions of one console."""

    def __init__(self, authenticator: Authenticator | None) -> None:
        self._authenticator = authenticator
        self._sessions: dict[bytes, Session] = {}  # by the hash of the secret, the oldest first
        self._links: BoundedDict[bytes, tuple[Grant, float]] = BoundedDict(MAX_LINKS)  # with the end of their lifetime

    def create_link(self, identity: Identity) -> str:
        """Return the code of a new link that opens a session with this identity, once."""
        code = token_urlsafe(32)
        self._links[_digest(code)] = Grant(identity), time.time() + LINK_LIFETIME
        return code

    async def open(self, *, token: str | None = None, link: str | None = None) -> NewSession:
        """Open a session for a token or for the code of a link.

        Raises:
            CallError: UNAUTHENTICATED.
        """
        if link is not None:
            grant, until = self._links.pop(_digest(link), (None, 0.0))
            if grant is None or until < time.time():
                raise CallError(ErrorCode.UNAUTHENTICATED, _INVALID_LINK)
        elif self._authenticator is None:
            raise CallError(ErrorCode.UNAUTHENTICATED, "this server has no tokens: sign in by the link that it prints")
        else:
            grant = await self._authenticator.authenticate(token)
        secret = token_urlsafe(32)
        now = time.time()
        session = Session(grant, token, min(now + LIFETIME, grant.expires or float("inf")))
        self._sessions = {key: session for key, session in self._sessions.items() if session.expires > now}
        keys_of_identity = [
            key for key, session in self._sessions.items() if session.grant.identity.id == grant.identity.id
        ]
        if len(keys_of_identity) >= MAX_SESSIONS_OF_IDENTITY:
            del self._sessions[keys_of_identity[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_digest(secret)] = session
        return NewSession(secret, session)

    def key(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return what identifies the session of a request; None if it has none."""
        key = _digest(_secret_of(headers))
        return key if key in self._sessions else None

    def has_ended(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request belongs to a session that has ended, or that a server before this one had."""
        return bool(_secret_of(headers)) and self.key(headers) is None

    def close(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """End the session of a request; return its key, or None if it has none."""
        key = self.key(headers)
        if key is not None:
            del self._sessions[key]
        return key

    async def find(self, headers: Mapping[bytes, bytes]) -> FoundSession | None:
        """Return the session that a request belongs to; None if there is none, or it has ended."""
        key = _digest(_secret_of(headers))
        session = self._sessions.get(key)
        if session is None:
            return None
        grant = session.grant
        if session.token is not None and self._authenticator is not None:
            try:
                grant = await self._authenticator.authenticate(session.token)
            except CallError as error:
                if error.code is not ErrorCode.UNAUTHENTICATED:
                    raise
                self._sessions.pop(key, None)
                return None
        until = min(session.expires, grant.expires or session.expires)
        if until <= time.time():
            self._sessions.pop(key, None)
            return None
        return FoundSession(replace(grant, expires=until), session.token)


def cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the name of the cookie: browsers send the cookies of a host to all of its ports."""
    host, _, port = headers.get(b"host", b"").decode("latin-1").rpartition(":")
    return f"{_COOKIE}_{port}" if host and port.isascii() and port.isdigit() else _COOKIE


def acting(identity: Identity | None, other: Identity) -> Identity:
    """Return the identity of a call that a person makes as another one.

    Raises:
        CallError: ACCESS_DENIED, the person may not, or the other one would have more scopes.
    """
    own_scopes = () if identity is None else identity.scopes
    if "*" in own_scopes:
        return other
    if ACT_AS not in own_scopes:
        raise CallError(ErrorCode.ACCESS_DENIED, f"calling as another identity needs the scope {ACT_AS}")
    if more := [scope for scope in other.scopes if scope not in own_scopes]:
        raise CallError(ErrorCode.ACCESS_DENIED, f"you have not the scope {more[0][:200]!r}, and cannot pass it on")
    return other


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()


def _secret_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the secret in the cookie of a request; empty without one, or with two, which a browser never sends."""
    name = cookie_name(headers)
    pairs = (cookie.strip().partition("=") for cookie in headers.get(b"cookie", b"").decode("latin-1").split(";"))
    secrets = [value for key, _, value in pairs if key == name]
    return secrets[0] if len(secrets) == 1 else ""
