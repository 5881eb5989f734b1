"""From a URL to a transport: the engine is told by the scheme, and imported when it is first asked for."""

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


def connect(url: str, **options: Any) -> Transport:
    """The transport for a URL, not started yet; the options are those of the transport.

        connect("ws://127.0.0.1:8700", token="…")
        connect("redis://127.0.0.1:6379", heartbeat=0.5)
        connect("nats://127.0.0.1:4222")

    Raises:
        CallError: VALIDATION_ERROR, if no engine knows such a URL; UNAVAILABLE, if its package is not installed.
    """
    scheme = url.partition("://")[0]
    engine = _SCHEMES.get(scheme)
    if engine is None:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise CallError(ErrorCode.VALIDATION_ERROR, f"there is no transport for {scheme!r}: a URL begins with {known}")
    try:
        return _ENGINES[engine](url, options)
    except ModuleNotFoundError as error:
        missing = f"{scheme}:// needs the package {error.name}: pip install 'opwire[{engine}]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing) from error


def _websocket(url: str, options: dict[str, Any]) -> Transport:
    from opwire.transports.websocket import WebSocketTransport

    return WebSocketTransport(url, **options)


def _redis(url: str, options: dict[str, Any]) -> Transport:
    from opwire.transports.redis import RedisTransport

    return RedisTransport(url, **options)


def _nats(url: str, options: dict[str, Any]) -> Transport:
    from opwire.transports.nats import NatsTransport

    return NatsTransport(url, **options)


_ENGINES = {"websocket": _websocket, "redis": _redis, "nats": _nats}
