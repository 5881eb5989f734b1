"""Requests that avoid a server which NATS still routes requests to, although it does not respond."""

from opwire.model.envelope import local_envelope
from opwire.protocol import CallFailed, CallResponded
from opwire.protocol.events import CallEvent, Serving
from opwire.transports.leases import Leases

ADD = "math.add"
PATIENCE = 3.0


class Caller:
    """A caller of two servers."""

    def __init__(self) -> None:
        self.leases = Leases(PATIENCE)

    def receive(self, event: CallEvent, server: str, now: float = 0.0) -> None:
        """Make a call that ends with this event."""
        call = self.leases.calls.start(event.request_id, ADD, now)
        assert self.leases.accept(event, server, call.token, now)

    def respond(self, *servers: str) -> None:
        for server in servers:
            self.receive(CallResponded(request_id="answered", output=local_envelope(3, ADD)), server)

    def lose_request(self, now: float, request_id: str = "lost") -> None:
        """Let a request expire that the broker routed to a server which has not reported it."""
        self.leases.calls.start(request_id, ADD, now - PATIENCE - 1)
        assert self.leases.expire(now)

    def server(self, now: float, operation_id: str = ADD) -> str | None:
        """Where a request is sent at this time; None: the broker routes it."""
        return self.leases.calls.reroutes.server(operation_id, now)


def test_after_a_request_without_any_reply_requests_go_to_the_server_that_responded_last_except_for_samples() -> None:
    caller = Caller()
    caller.respond("frozen", "alive")
    assert caller.server(9.0) is None, "the broker spreads the requests"
    caller.lose_request(10.0)
    caller.respond("frozen")  # a late response changes nothing
    assert [caller.server(10.0 + number / 10) for number in range(10)] == ["alive"] * 10
    assert caller.server(10.5, "math.sub") is None
    seconds = [caller.server(11.0 + number) for number in range(12)]
    assert seconds.count(None) == 3, "one in three heartbeats"
    assert set(seconds) == {None, "alive"}


def test_a_sample_without_a_reply_begins_the_minute_again() -> None:
    caller = Caller()
    caller.respond("alive")
    caller.lose_request(10.0)
    caller.lose_request(60.0, "sample")
    assert [caller.server(60.0 + number) for number in range(4)] == ["alive"] * 4, "no other sample follows at once"
    assert caller.server(119.0) is None
    assert caller.server(119.5) == "alive"
    assert caller.server(120.0) is None
    assert not caller.leases.calls.reroutes


def test_without_a_server_that_responded_the_broker_routes_all_requests() -> None:
    caller = Caller()
    caller.lose_request(10.0)
    assert caller.server(10.1) is None
    caller.respond("")  # a plain client of the broker
    caller.lose_request(20.0)
    assert caller.server(20.1) is None


def test_a_server_that_is_silent_itself_is_not_preferred() -> None:
    caller = Caller()
    caller.respond("silent")
    call = caller.leases.calls.start("reported", ADD, 1.0)
    caller.leases.handle(Serving(tokens=[call.token]), "silent", "", 1.0)
    caller.leases.calls.start("lost", ADD, 1.0)
    assert len(caller.leases.expire(6.0)) == 2
    assert caller.server(6.1) is None


def test_a_reroute_ends_when_its_server_is_gone_or_drains_or_does_not_serve_the_operation_any_more() -> None:
    rejections = [
        CallFailed(request_id="r", code="UNAVAILABLE", message="it drains", not_started=True),
        CallFailed(request_id="r", code="OPERATION_NOT_FOUND", message="unknown"),
    ]
    for end in (
        lambda caller: caller.leases.lose("alive"),
        lambda caller: caller.leases.clear(),
        *(lambda caller, event=rejection: caller.receive(event, "alive") for rejection in rejections),
    ):
        caller = Caller()
        caller.respond("alive")
        caller.lose_request(10.0)
        assert caller.server(10.1) == "alive"
        end(caller)
        assert caller.server(10.2) is None


def test_without_permission_to_send_to_servers_the_requests_are_made_again_and_nothing_is_rerouted() -> None:
    caller = Caller()
    caller.respond("alive")
    caller.lose_request(10.0)
    calls = caller.leases.calls
    calls.start("denied", ADD, 10.1, server="alive", rerouted=True)
    reported = calls.start("reported", ADD, 10.1, server="alive", rerouted=True)
    calls.start("addressed", ADD, 10.1, server="alive")
    caller.leases.handle(Serving(tokens=[reported.token]), "alive", "", 10.2)
    (action,) = calls.forbidden("alive")
    assert isinstance(action.event, CallFailed)
    assert (action.event.request_id, action.event.not_started) == ("denied", True)
    caller.lose_request(20.0)
    assert caller.server(20.1) is None
    caller.leases.clear()
    caller.respond("alive")
    caller.lose_request(30.0)
    assert caller.server(30.1) == "alive", "the next connection may have the permission"
