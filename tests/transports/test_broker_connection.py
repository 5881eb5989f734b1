"""The interface between brokers and what they have in common: few methods, of which none that sends may wait."""

import inspect

from opwire.transports.broker import BrokerTransport
from opwire.transports.broker_connection import BrokerConnection, BrokerListener
from opwire.transports.nats.transport import NatsBrokerConnection
from opwire.transports.redis.transport import RedisBrokerConnection
from tests.transports.broker_in_memory import MemoryBrokerConnection


def methods(kind: type) -> dict[str, bool]:
    return {name: inspect.iscoroutinefunction(method) for name, method in vars(kind).items() if name[0] != "_"}


def test_methods_that_send_never_wait_and_those_that_change_the_servers_do() -> None:
    assert methods(BrokerConnection) == {
        "connect": True,
        "serve": True,
        "unserve": True,
        "request": False,
        "send": False,
        "broadcast": False,
        "beat": False,
        "close": True,
    }
    assert not any(methods(BrokerListener).values())


def test_every_medium_has_the_methods_of_the_interface_and_the_transport_listens() -> None:
    for medium in (MemoryBrokerConnection, NatsBrokerConnection, RedisBrokerConnection):
        for name in methods(BrokerConnection):
            wanted, given = inspect.signature(getattr(BrokerConnection, name)), inspect.signature(getattr(medium, name))
            assert list(given.parameters) == list(wanted.parameters), f"{medium.__name__}.{name}"
    assert methods(BrokerListener).keys() <= {name for name in dir(BrokerTransport) if name[0] != "_"}
