"""From a URL to a transport: the engine is told by the scheme, and imported when it is first asked for."""

from collections.abc import Sequence
from typing import Any

from opwire.call import Transport
from opwire.errors import CallError, ErrorCode

_SCHEMES = {
    "ws": "websocket",
    "wss": "websocket",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "nats": "nats",
    "tls": "nats",
}


def connect(url: str | Sequence[str], **options: Any) -> Transport:
    """The transport for a URL, not started yet; the options are those of the transport.

        connect("ws://127.0.0.1:8700", token="…")
        connect("redis://127.0.0.1:6379", heartbeat=0.5)
        connect("nats://127.0.0.1:4222")
        connect(["ws://a:8700", "ws://b:8700"])  # of several hubs, one after the other is tried

    Raises:
        CallError: VALIDATION_ERROR, if no engine knows such a URL or an option is invalid; UNAVAILABLE, and not
            retryable, if its package is not installed.
    """
    urls = [url] if isinstance(url, str) else list(url)
    scheme = urls[0].partition("://")[0] if urls else ""
    engine = _SCHEMES.get(scheme)
    if engine is None:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise CallError(ErrorCode.VALIDATION_ERROR, f"there is no transport for {scheme!r}: a URL begins with {known}")
    if engine == "redis" and len(urls) > 1:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{scheme}:// takes one URL: several are for hubs and for NATS")
    try:
        return _ENGINES[engine](urls, options)
    except ModuleNotFoundError as error:
        missing = f"{scheme}:// needs the package {error.name}: pip install 'opwire[{engine}]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing, retryable=False) from error


def _websocket(urls: list[str], options: dict[str, Any]) -> Transport:
    from opwire.transports.websocket import WebSocketTransport

    return WebSocketTransport(urls, **options)


def _redis(urls: list[str], options: dict[str, Any]) -> Transport:
    from opwire.transports.redis import RedisTransport

    return RedisTransport(urls[0], **options)


def _nats(urls: list[str], options: dict[str, Any]) -> Transport:
    from opwire.transports.nats import NatsTransport

    return NatsTransport(urls, **options)


_ENGINES = {"websocket": _websocket, "redis": _redis, "nats": _nats}
