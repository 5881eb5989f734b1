"""From a URL to a transport."""

import builtins
import sys
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import Hub, connect
from opwire.transports.nats import NatsTransport
from opwire.transports.redis import RedisTransport
from opwire.transports.websocket import WebSocketTransport
from tests.requirements import requirement


@requirement("hub.connect")
@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("ws://127.0.0.1:1", WebSocketTransport),
        ("wss://127.0.0.1:1", WebSocketTransport),
        (["ws://127.0.0.1:1", "ws://127.0.0.1:2"], WebSocketTransport),
        ("redis://127.0.0.1:1", RedisTransport),
        ("nats://127.0.0.1:1", NatsTransport),
        (["nats://127.0.0.1:1", "nats://127.0.0.1:2"], NatsTransport),
    ],
)
def test_the_scheme_tells_the_engine(url: Any, kind: type) -> None:
    assert isinstance(connect(url), kind)


@requirement("hub.connect")
@pytest.mark.parametrize("url", ["carrier://pigeon", "nonsense", [], ["redis://127.0.0.1:1", "redis://127.0.0.1:2"]])
def test_a_url_that_no_engine_takes_is_a_validation_error(url: Any) -> None:
    with pytest.raises(CallError) as failure:
        connect(url)
    assert failure.value.code is ErrorCode.VALIDATION_ERROR


@requirement("hub.connect")
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "opwire.transports.websocket":
            raise ModuleNotFoundError("No module named 'websockets'", name="websockets")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for make in (connect, lambda url: Hub(None, url)):
        with pytest.raises(CallError, match="websockets") as failure:
            make("ws://127.0.0.1:1")
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert "opwire[websocket]" in failure.value.message
    assert "opwire.transports.websocket" in sys.modules


@requirement("hub.connect")
def test_a_missing_package_is_no_reason_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opwire.transports.websocket", None)
    for make in (connect, lambda url: Hub(None, url)):
        with pytest.raises(CallError) as failure:
            make("ws://127.0.0.1:1")
        assert (failure.value.code, failure.value.retryable) == (ErrorCode.UNAVAILABLE, False)


@requirement("hub.connect")
@pytest.mark.parametrize("url", ["ws://[", "ws://h:port", "ws://h:99999", "wss://"])
def test_a_url_that_cannot_be_parsed_is_a_validation_error(url: str) -> None:
    with pytest.raises(UsageError):
        connect(url)


@pytest.mark.parametrize("url", ["ws://[", "ws://h:port", "ws://h:99999"])
def test_a_hub_at_a_url_that_cannot_be_parsed_is_a_validation_error(url: str) -> None:
    with pytest.raises(CallError) as failure:
        Hub(None, url)
    assert failure.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize(
    "option", [{"heartbeat": 0}, {"max_message": -1}, {"connect_timeout": float("inf")}, {"max_backlog": 0}]
)
def test_an_option_that_cannot_work_is_a_validation_error(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        connect("ws://127.0.0.1:1", **option)
