"""From a URL to a transport."""

import sys
from typing import Any

import pytest

from opwire.client import Client
from opwire.errors import MissingExtraError, UsageError
from opwire.hub import Hub, Spoke
from opwire.transports.connect import TransportOptions, connect, option_names
from opwire.transports.nats import NatsTransport
from opwire.transports.redis import RedisTransport
from opwire.transports.websocket import WebSocketTransport
from opwire.transports.websocket.server import ServerOptions, WebSocketServer


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


@pytest.mark.parametrize("url", ["carrier://pigeon", "nonsense", [], ["redis://127.0.0.1:1", "redis://127.0.0.1:2"]])
def test_a_url_that_no_engine_takes_is_refused(url: Any) -> None:
    with pytest.raises(UsageError):
        connect(url)


@pytest.mark.parametrize("make", [connect, lambda url: Hub(None, url), lambda url: Spoke(None, url)])
def test_a_package_that_is_missing_is_named_with_its_extra(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("opwire.transports.websocket")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.partition(".")[0] == "websockets"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"websockets.*opwire\[websocket\]"):
        make("ws://127.0.0.1:1")


@pytest.mark.parametrize("url", ["ws://[", "ws://h:port", "ws://h:99999", "wss://"])
def test_a_url_that_cannot_be_parsed_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        connect(url)


@pytest.mark.parametrize(
    "option", [{"heartbeat": 0}, {"max_message": -1}, {"connect_timeout": float("inf")}, {"max_backlog": 0}]
)
def test_an_option_that_cannot_work_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        connect("ws://127.0.0.1:1", **option)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda option: connect("ws://a.example", **option), "ws:// has no option 'odd'; its options are token, "),
        (lambda option: Spoke(None, "redis://a.example", **option), "redis:// has no option 'odd'; "),
        (lambda option: Hub(**option), "Hub, whose address is its URL, has no option 'odd'; "),
        (lambda option: Client("https://a.example", **option), "a client of an HTTP address has no option 'odd'; "),
    ],
)
def test_an_unknown_option_is_refused_beside_those_that_exist(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make({"odd": 1})
    assert str(caught.value).startswith(message)


def test_the_types_of_options_are_complete() -> None:
    transports = (WebSocketTransport, RedisTransport, NatsTransport)
    assert TransportOptions.__optional_keys__ == {name for each in transports for name in option_names(each)}
    assert ServerOptions.__optional_keys__ == set(option_names(WebSocketServer))
