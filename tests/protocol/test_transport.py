"""The interface between the protocol and its transports."""

import inspect
from typing import Any

import pytest

from opwire import CallError, ErrorCode
from opwire.protocol import CallAborted, CallRequested, PendingRequestMap, Receiver, Transport
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.protocol.harness import Recorder, peer


def methods(interface: type[Any]) -> dict[str, Any]:
    return {name: each for name, each in vars(interface).items() if inspect.isfunction(each) and name[0] != "_"}


@pytest.mark.parametrize(("interface", "kind"), [(Transport, MemoryTransport), (Receiver, PendingRequestMap)])
def test_what_implements_an_interface_has_each_of_its_methods_with_the_same_parameters(
    interface: type[Any], kind: type[Any]
) -> None:
    assert methods(interface)
    for name, method in methods(interface).items():
        given = getattr(kind, name)
        assert list(inspect.signature(given).parameters) == list(inspect.signature(method).parameters)
        assert inspect.iscoroutinefunction(given) is inspect.iscoroutinefunction(method), name


def test_the_interface_is_two_properties_and_seven_methods_of_which_two_may_not_wait() -> None:
    """The interface of a transport is one small file: six methods and whether peers are trusted; sending never
    waits."""
    assert all(isinstance(inspect.getattr_static(Transport, name), property) for name in ("local", "trusted"))
    waits = {name: inspect.iscoroutinefunction(method) for name, method in methods(Transport).items()}
    assert waits == {
        "start": True,
        "announce": True,
        "withdraw": True,
        "servers": True,
        "request": False,
        "send": False,
        "close": True,
    }


def test_every_method_of_the_interface_says_what_it_does() -> None:
    assert [name for name, method in methods(Transport).items() if not inspect.getdoc(method)] == []


async def test_the_sender_of_an_event_is_stamped_by_the_transport() -> None:
    bus = MemoryBus()
    served, seen = await peer(bus, "a.b")
    caller, answers = await peer(bus)
    request = CallRequested(request_id="r", operation_id="a.b")
    address = caller.request(request)
    assert seen.events == [request]
    served.send(CallAborted(request_id="r"), seen.senders[0])
    assert answers.senders == [address]


async def test_a_transport_that_is_closed_or_without_peers_fails_at_once() -> None:
    """Sending through a closed transport or without a receiver is UNAVAILABLE."""
    bus = MemoryBus()
    caller, _ = await peer(bus)
    request = CallRequested(request_id="r", operation_id="a.b")
    attempts: list[Any] = [
        lambda: caller.request(request),
        lambda: caller.send(CallAborted(request_id="r"), "nobody"),
        lambda: caller.send(CallAborted(request_id="r"), None),
    ]
    for attempt in attempts:
        with pytest.raises(CallError) as caught:
            attempt()
        assert caught.value.code is ErrorCode.UNAVAILABLE
    await caller.close()
    await caller.close()
    for attempt in attempts:
        with pytest.raises(CallError, match="UNAVAILABLE"):
            attempt()
    with pytest.raises(CallError, match="UNAVAILABLE"):
        await caller.announce(["a.b"])


def test_a_recorder_is_a_receiver_too() -> None:
    receiver: Receiver = Recorder()
    assert receiver
