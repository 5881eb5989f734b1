"""Transports by URL: the scheme selects the transport, which is imported lazily."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from opwire.call.transport import Transport
from opwire.errors import UsageError, needs_extra

_TRANSPORTS = {
    "websocket": ("WebSocketTransport", ("ws", "wss")),
    "redis": (
        "RedisTransport",
        ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
    ),
    "nats": ("NatsTransport", ("nats", "tls")),
}
_SCHEMES = {scheme: engine for engine, (_, schemes) in _TRANSPORTS.items() for scheme in schemes}


def connect(url: str | Sequence[str], **options: Any) -> Transport:
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
    urls = [url] if isinstance(url, str) else list(url)
    scheme = urls[0].partition("://")[0] if urls else ""
    engine = _SCHEMES.get(scheme)
    if engine is None:
        schemes = ", ".join(f"{each}://" for each in _SCHEMES)
        raise UsageError(f"unknown URL scheme {scheme!r}; expected one of {schemes}")
    if engine == "redis" and len(urls) > 1:
        raise UsageError(f"{scheme}:// takes one URL; only hubs and NATS take several")
    with needs_extra(engine):
        transport = getattr(import_module(f"opwire.transports.{engine}"), _TRANSPORTS[engine][0])
    return transport(urls[0] if engine == "redis" else urls, **options)
