"""What is wrong with settings although each of them alone is fine. No I/O."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from opwire.config.environment import IN_FILE, SET_IT, EnvText
from opwire.config.mistakes import Finding, did_you_mean
from opwire.config.places import Key
from opwire.config.settings import (
    AnySource,
    Config,
    HubSettings,
    JWTSettings,
    OpenAPISource,
    ProgramSource,
    ServerSource,
)

_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})


def check_settings(config: Config) -> Iterator[Finding]:
    """Everything that is wrong between several settings."""
    for name, source in config.sources.items():
        yield from _source(("sources", name), name, source)
    yield from _identities(config)
    if config.auth.jwt is not None:
        yield from _jwt(config.auth.jwt)
    if config.hub is not None:
        yield from _hub(config.hub)
    if config.spoke is not None:
        urls = config.spoke.url if isinstance(config.spoke.url, tuple) else (config.spoke.url,)
        for url in urls:
            yield from _url(("spoke", "url"), url)
        if not urls:
            yield Finding(("spoke", "url"), "is an empty list", "give the URL of a hub or broker")


def _source(key: Key, name: str, source: AnySource) -> Iterator[Finding]:
    if isinstance(source, ProgramSource | ServerSource | OpenAPISource):
        yield from _namespace(key, name, source.namespace)
    if isinstance(source, ProgramSource):
        yield from _command((*key, "command"), source.command.template)
    if isinstance(source, ServerSource | OpenAPISource):
        for header, value in source.headers.items():
            if header.lower() in _SECRET_HEADERS and not value.variables:
                yield Finding((*key, "headers", header), IN_FILE, SET_IT)
    if isinstance(source, ServerSource):
        yield from _url((*key, "url"), source.url)
    if isinstance(source, OpenAPISource):
        for field in ("openapi", "base_url", "proxy"):
            value: EnvText | None = getattr(source, field)
            if value is not None:
                yield from _url((*key, field), value)


def _namespace(key: Key, name: str, given: str | None) -> Iterator[Finding]:
    namespace = name if given is None else given
    if not namespace or "." in namespace or not namespace.isprintable():
        where = key if given is None else (*key, "namespace")
        yield Finding(where, "is no namespace: it is printable and has no dot", 'write namespace = "…"')


def _command(key: Key, command: str) -> Iterator[Finding]:
    """A whole command line. A path may hold spaces, the name of a program does not."""
    program, *rest = command.split() or [""]
    if not program:
        yield Finding(key, "is empty", "name a program")
    if rest and "/" not in command and "\\" not in command:
        # The rest is not shown: there may be a secret in it.
        yield Finding(key, "is the program alone", f'write command = "{program}", and the rest as args = ["…", "…"]')


def _url(key: Key, url: EnvText) -> Iterator[Finding]:
    """A password that stands in the file."""
    try:
        password = urlsplit(url.template).password
    except ValueError:
        return  # whoever uses it will say what is wrong with it
    if password and "${" not in password:
        yield Finding(key, f"holds a password, which {IN_FILE}", SET_IT)


def _identities(config: Config) -> Iterator[Finding]:
    """Names of identities that are used: are they there?"""
    used: list[tuple[Key, str | None]] = []
    mcp, http = config.serve.mcp, config.serve.http
    if mcp is not None:
        used += [(("serve", "mcp", "anonymous"), mcp.anonymous), (("serve", "mcp", "identity"), mcp.identity)]
    if http is not None:
        used.append((("serve", "http", "anonymous"), http.anonymous))
    if config.hub is not None:
        used.append((("hub", "anonymous"), config.hub.anonymous))
    if config.spoke is not None:
        used.append((("spoke", "anonymous"), config.spoke.anonymous))
    for key, name in used:
        if name is not None and name not in config.identities:
            hint = did_you_mean(name, config.identities) or f"add [identities.{name}]"
            yield Finding(key, f"names the identity {name!r}, which is not there", hint)


def _hub(hub: HubSettings) -> Iterator[Finding]:
    yield from _url(("hub", "url"), hub.url)
    if (hub.certificate is None) != (hub.private_key is None):
        missing = "private_key" if hub.private_key is None else "certificate"
        yield Finding(("hub",), f"has no {missing}", "certificate and private_key belong together")
    if hub.url.template.startswith("wss://") and hub.certificate is None:
        yield Finding(("hub", "url"), "is wss://, which needs a certificate", "give certificate and private_key")


def _jwt(jwt: JWTSettings) -> Iterator[Finding]:
    given = [name for name in ("key", "key_file", "jwks_url") if getattr(jwt, name) is not None]
    if len(given) != 1:
        has = " and ".join(given) or "no key"
        yield Finding(("auth", "jwt"), f"has {has}", "give one of key, key_file and jwks_url")
    if jwt.jwks_url is not None and not jwt.jwks_url.startswith("https://") and not _is_loopback(jwt.jwks_url):
        yield Finding(("auth", "jwt", "jwks_url"), "is not https://", "who could change the keys could be anybody")


def _is_loopback(url: str) -> bool:
    return url.startswith("http://") and urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
