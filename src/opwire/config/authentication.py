"""Who callers are, as a configuration says it: known tokens, signed tokens, and those who show none."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

import msgspec

from opwire.auth import Authenticator, Grant, StaticTokens
from opwire.auth.claims import ClaimNames
from opwire.config.mistakes import dotted
from opwire.config.settings import Config, JWTSettings
from opwire.errors import CallError, ConfigError
from opwire.operation import Identity

_MAX_KEYS = 1024 * 1024  # bytes of a published key set
_PATIENCE = 10.0  # seconds for it to arrive


def build_authenticator(config: Config) -> Authenticator | None:
    """What `[identities]` and `[auth.jwt]` say of tokens; None if they say nothing.

    Raises:
        ConfigError: a token or key is not in the environment, or is no good.
    """
    grants = _grants(config)
    tokens = StaticTokens(grants) if grants else None
    jwts = None if config.auth.jwt is None else _jwts(config.auth.jwt, config.folder)
    return _EitherOf(tokens, jwts) if tokens and jwts else tokens or jwts


def identity_of(config: Config, name: str | None) -> Identity | None:
    """The identity of this name; None for None."""
    return None if name is None else _grant(config, name).identity


def or_anonymous(authenticator: Authenticator | None, config: Config, name: str | None) -> Authenticator | None:
    """An authenticator that takes those who show no token for the identity of this name."""
    return authenticator if name is None else _OrAnonymous(authenticator, _grant(config, name))


class _EitherOf:
    """Takes a token that is known, or else one that is signed."""

    def __init__(self, tokens: StaticTokens, jwts: Authenticator) -> None:
        self._tokens = tokens
        self._jwts = jwts

    async def authenticate(self, token: str | None) -> Grant:
        try:
            return await self._tokens.authenticate(token)
        except CallError:
            return await self._jwts.authenticate(token)


class _OrAnonymous:
    """Takes those who show no token for somebody; a token that is no good is still refused."""

    def __init__(self, authenticator: Authenticator | None, grant: Grant) -> None:
        self._authenticator = authenticator
        self._grant = grant

    async def authenticate(self, token: str | None) -> Grant:
        if token and self._authenticator is not None:
            return await self._authenticator.authenticate(token)
        return self._grant


def _grant(config: Config, name: str) -> Grant:
    settings = config.identities[name]
    identity = Identity(id=name, scopes=settings.scopes, resources=settings.resources)
    return Grant(identity, settings.announces, delegates=settings.delegates)


def _grants(config: Config) -> dict[str, Grant]:
    grants: dict[str, Grant] = {}
    for name, settings in config.identities.items():
        if settings.token is None:
            continue
        at = dotted(("identities", name, "token"))
        token, grant = settings.token.resolve(at), _grant(config, name)
        try:
            StaticTokens({token: grant})
        except CallError as error:
            raise ConfigError(f"{at}: {error.message.replace('token number 1', 'it')}") from error
        if token in grants:
            raise ConfigError(f"{at} is the token of {grants[token].identity.id} as well: each needs its own")
        grants[token] = grant
    return grants


def _jwts(settings: JWTSettings, folder: Path) -> Authenticator:
    try:
        from opwire.auth import JWTs
    except ModuleNotFoundError as error:
        raise ConfigError(f"auth.jwt: {error}") from error
    claims = {name: each for name, each in msgspec.structs.asdict(settings.claims).items() if each is not None}
    try:
        return JWTs(
            key=_key(settings, folder),
            jwks=None if settings.jwks_url is None else _fetcher(settings.jwks_url),
            algorithms=settings.algorithms,
            audience=None if settings.audience == "*" else settings.audience,
            issuer=None if settings.issuer == "*" else settings.issuer,
            leeway=settings.leeway,
            claims=cast("ClaimNames", claims),
        )
    except CallError as error:
        raise ConfigError(f"auth.jwt: {error.message}") from error


def _key(settings: JWTSettings, folder: Path) -> str | None:
    if settings.key is not None:
        return settings.key.resolve("auth.jwt.key")
    if settings.key_file is None:
        return None
    try:
        return (folder / Path(settings.key_file).expanduser()).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"auth.jwt.key_file cannot be read: {error}") from error


class _NoRedirects(HTTPRedirectHandler):
    """Whoever may send us elsewhere for the keys decides who everybody is."""

    def http_error_302(self, *_: Any, **__: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _fetcher(url: str) -> Callable[[], Mapping[str, Any]]:
    """A function that fetches a key set. It blocks: `JWTs` calls it on a thread, and deals with what it raises."""
    opener = build_opener(_NoRedirects)

    def fetch() -> Mapping[str, Any]:
        try:
            with opener.open(url, timeout=_PATIENCE) as response:
                return json.loads(response.read(_MAX_KEYS))
        except HTTPError as error:
            error.close()  # it holds the connection
            raise

    return fetch
