"""Transports by URL: the scheme selects the transport, which is imported lazily."""

from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from os import PathLike
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from opwire.errors import UsageError, check_instance, check_known, needs_extra
from opwire.protocol.transport import Transport

if TYPE_CHECKING:
    from opwire.transports.broker_connection import RequestSigner

_TRANSPORTS = {
    "websocket": ("WebSocketTransport", ("ws", "wss")),
    "redis": (
        "RedisTransport",
        ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
    ),
    "nats": ("NatsTransport", ("nats", "tls")),
}
SCHEMES = {scheme: engine for engine, (_, schemes) in _TRANSPORTS.items() for scheme in schemes}
"""The transports by the scheme of their URLs."""


class TransportOptions(TypedDict, total=False):
    """The options of all transports; each has some of them."""

    token: str | Callable[[], str] | None
    heartbeat: float | None
    max_message: int
    max_backlog: int
    connect_timeout: float
    ssl: SSLContext | None
    tls_first: bool
    prefix: str
    queue: str
    user: str | None
    password: str | None
    credentials_file: str | PathLike[str] | None
    signed: "RequestSigner | None"


def option_names(accepts: Callable[..., Any]) -> list[str]:
    """Return the keyword-only parameters of a callable."""
    return [
        name for name, parameter in signature(accepts).parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY
    ]


def connect(url: str | Sequence[str], **options: Unpack[TransportOptions]) -> Transport:
    """Return the transport for a URL, not started yet; the options are those of the transport.

        connect("ws://127.0.0.1:8700", token="…")
        connect("redis://127.0.0.1:6379", heartbeat=0.5)
        connect("redis+sentinel://a:26379,b:26379,c:26379/main")
        connect("redis+cluster://a:6379,b:6379")
        connect("nats://127.0.0.1:4222")
        connect("ws://a:8700,b:8700")  # several hubs: tries one after the other; or a list of URLs

    Raises:
        UsageError: the URL or an option is invalid.
        MissingExtraError: the transport needs an optional dependency.
    """
    check_instance(str | Sequence, url=url)
    urls = [url] if isinstance(url, str) else list(url)
    scheme, separator, _ = urls[0].partition("://") if urls else ("", "", "")
    engine = SCHEMES.get(scheme)
    if not separator:  # the text is not repeated: it may have a password
        raise UsageError("a URL without a scheme; write ws://… for a hub, redis://…, nats://…, or for Client https://…")
    if engine is None:
        schemes = ", ".join(f"{scheme_name}://" for scheme_name in SCHEMES)
        raise UsageError(f"unknown URL scheme {scheme!r}; expected one of {schemes}; Client takes http(s):// as well")
    if engine == "redis" and len(urls) > 1:
        raise UsageError(f"{scheme}:// takes one URL; only hubs and NATS take several")
    with needs_extra(engine):
        transport = getattr(import_module(f"opwire.transports.{engine}"), _TRANSPORTS[engine][0])
    check_known(options, option_names(transport), f"{scheme}://")
    return transport(urls[0] if engine == "redis" else urls, **options)
