"""The machine of a caller: every call that was opened is settled exactly once, or still open."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from opwire import CallError, ErrorCode, ResponseEnvelope, is_resume_error, local_envelope
from opwire.protocol import CallAborted, CallCompleted, CallCredit, CallEvent, CallFailed, CallRequested, CallResponded
from opwire.protocol.call_table import Arrival, CallTable
from tests.properties import examples

ENVELOPE = local_envelope(3, "math.add")


def answer(id: str = "r", seq: int | None = None) -> CallResponded:
    return CallResponded(request_id=id, output=ENVELOPE, seq=seq)


def request(id: str) -> CallRequested:
    return CallRequested(request_id=id, operation_id="math.add")


def opened(*, streams: bool = False, peer: str | None = "server", id: str = "r") -> CallTable[str]:
    table: CallTable[str] = CallTable()
    table.open(request(id), "sink", streams=streams)
    if peer is not None:
        table.routed(id, peer)
    return table


def error_of(arrival: Arrival[str] | None) -> CallError:
    assert arrival is not None
    assert arrival.final
    assert isinstance(arrival.value, CallError)
    return arrival.value


def refusal(id: str = "r", *, not_started: bool | None = True) -> CallFailed:
    return CallFailed(request_id=id, code="UNAVAILABLE", message="leaving", not_started=not_started)


def test_a_subscription_that_starts_over_instead_of_resuming_is_failed_and_stopped() -> None:
    """A server that ignores the cursor is detected by its first item, and stopped."""
    table: CallTable[str] = CallTable()
    for id, resumed in (("old", None), ("new", True)):
        event = CallRequested(request_id=id, operation_id="log.follow", resume_from="7")
        table.open(event, "sink", streams=True)
        arrival = table.arrived(CallResponded(request_id=id, output=ENVELOPE, seq=1, resumed=resumed), "server")
        assert arrival is not None
        if resumed:
            assert (arrival.value, arrival.final) == (ENVELOPE, False)
            following = table.arrived(answer("new", 2), "server")
            assert following is not None
            assert following.value is ENVELOPE
        else:
            error = error_of(arrival)
            assert is_resume_error(error)
            assert "log.follow starts over" in error.message
            assert arrival.stop is not None


def test_a_request_that_a_server_has_not_begun_is_asked_of_another_and_stays_open() -> None:
    table = opened()
    arrival = table.arrived(refusal(), "server")
    assert arrival is not None
    assert (arrival.again, arrival.final) == (request("r"), False)
    table.routed("r", "server")  # the first `request` returns after its refusal has arrived
    table.routed("r", "another", arrival.move)
    assert table.arrived(answer(), "server") is None
    settled = table.arrived(answer(), "another")
    assert settled is not None
    assert settled.value is ENVELOPE


def test_a_request_moves_on_a_few_times_and_then_fails_with_the_last_refusal() -> None:
    table = opened()
    for _ in range(4):
        arrival = table.arrived(refusal(), "server")
        assert arrival is not None
        assert arrival.again is not None
    assert error_of(table.arrived(refusal(), "server")).code is ErrorCode.UNAVAILABLE
    assert len(table) == 0


@pytest.mark.parametrize("not_started", [None, False])
def test_a_failure_that_does_not_say_that_nothing_was_begun_is_the_end(not_started: bool | None) -> None:
    assert error_of(opened().arrived(refusal(not_started=not_started), "server")).message == "leaving"


def test_a_request_to_one_server_does_not_move() -> None:
    table: CallTable[str] = CallTable()
    table.open(request("r"), "sink", streams=False, movable=False)
    table.routed("r", "server")
    assert error_of(table.arrived(refusal(), "server")).message == "leaving"


def test_a_subscription_that_has_had_items_does_not_move() -> None:
    table = opened(streams=True)
    table.arrived(answer(seq=1), "server")
    assert error_of(table.arrived(refusal(), "server")).message == "leaving"


# --- one answer -------------------------------------------------------------------------------------------------------


def test_an_answer_settles_its_call() -> None:
    table = opened()
    assert table.arrived(answer(), "server") == Arrival("sink", ENVELOPE, True)
    assert len(table) == 0


def test_a_failure_settles_its_call_with_the_error() -> None:
    error = error_of(opened().arrived(CallFailed(request_id="r", code="TIMEOUT", message="late"), "server"))
    assert (error.code, error.message) == (ErrorCode.TIMEOUT, "late")


@pytest.mark.parametrize(("reason", "message"), [("closing", "closing"), (None, "the server stopped the call")])
@pytest.mark.parametrize("streams", [False, True])
def test_a_call_that_the_server_stopped_is_aborted(reason: str | None, message: str, streams: bool) -> None:
    """A call that the serving side stopped is ABORTED with its reason."""
    error = error_of(opened(streams=streams).arrived(CallAborted(request_id="r", reason=reason), "server"))
    assert (error.code, error.message) == (ErrorCode.ABORTED, message)


def test_a_call_that_is_completed_without_an_answer_is_a_protocol_error() -> None:
    assert error_of(opened().arrived(CallCompleted(request_id="r"), "server")).code is ErrorCode.PROTOCOL_ERROR


def test_an_item_of_a_subscription_is_not_a_response_to_a_call_and_its_server_is_stopped() -> None:
    table = opened()
    arrival = table.arrived(answer(seq=1), "server")
    assert error_of(arrival).code is ErrorCode.VALIDATION_ERROR
    assert arrival is not None
    assert arrival.stop
    assert "r" not in table


@pytest.mark.parametrize(
    "event",
    [
        answer("x"),
        CallCompleted(request_id="x"),
        CallFailed(request_id="x", code="", message=""),
        CallAborted(request_id="x"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_for_unknown_calls_are_ignored_and_counted(event: CallEvent) -> None:
    table = opened()
    assert table.arrived(event, "server") is None
    assert table.dropped == {"unknown": 1}
    assert "r" in table


def test_late_and_duplicate_answers_are_dropped_and_counted() -> None:
    table = opened()
    assert table.arrived(answer(), "server") is not None
    assert [table.arrived(answer(), "server") for _ in range(3)] == [None] * 3
    assert table.dropped == {"unknown": 3}


@pytest.mark.parametrize(
    "event",
    [CallCredit(request_id="r", n=1), CallRequested(request_id="r", operation_id="a.b")],
    ids=["credit", "request"],
)
def test_what_only_a_caller_may_send_settles_nothing(event: CallEvent) -> None:
    table = opened()
    assert table.arrived(event, "server") is None
    assert "r" in table


def test_only_the_peer_that_a_request_went_to_can_answer_it() -> None:
    table = opened()
    for event in (answer(), CallFailed(request_id="r", code="", message=""), CallAborted(request_id="r")):
        assert table.arrived(event, "somebody else") is None
    assert table.dropped == {"foreign": 3}
    assert table.arrived(answer(), "server") == Arrival("sink", ENVELOPE, True)


def test_if_only_the_response_names_the_server_the_first_one_counts() -> None:
    table = opened(streams=True, peer=None)
    assert table.peer("r") is None
    assert table.arrived(answer(seq=1), "first") is not None
    assert table.peer("r") == "first"
    assert table.arrived(answer(seq=2), "second") is None
    assert table.peer("r") == "first", "what is known is not forgotten"


def test_a_request_id_that_is_in_use_cannot_be_opened_again() -> None:
    table = opened()
    with pytest.raises(ValueError, match="'r' is in use"):
        table.open(request("r"), "other", streams=False)
    assert table.settle("r") == "sink"
    table.open(request("r"), "other", streams=False)
    assert table.settle("r") == "other"


def test_a_call_that_its_owner_ends_is_settled_once() -> None:
    table = opened()
    assert table.settle("r") == "sink"
    assert table.settle("r") is None
    assert table.arrived(answer(), "server") is None
    table.routed("r", "late")
    assert table.peer("r") is None


# --- subscriptions ----------------------------------------------------------------------------------------------------


def test_items_arrive_in_order_until_the_end() -> None:
    table = opened(streams=True)
    for seq in (1, 2, 3):
        assert table.arrived(answer(seq=seq), "server") == Arrival("sink", ENVELOPE, False)
    assert table.arrived(CallCompleted(request_id="r", seq=3), "server") == Arrival("sink", None, True)


def test_items_of_a_peer_that_does_not_number_them_are_taken_as_they_come() -> None:
    table = opened(streams=True)
    for _ in range(3):
        assert table.arrived(answer(), "server") == Arrival("sink", ENVELOPE, False)
    assert table.arrived(CallCompleted(request_id="r"), "server") == Arrival("sink", None, True)


def test_an_item_that_comes_twice_is_dropped_and_counted() -> None:
    table = opened(streams=True)
    table.arrived(answer(seq=1), "server")
    table.arrived(answer(seq=2), "server")
    assert table.arrived(answer(seq=1), "server") is None
    assert table.arrived(answer(seq=2), "server") is None
    assert table.dropped == {"duplicate": 2}
    assert table.arrived(answer(seq=3), "server") is not None


@pytest.mark.parametrize("event", [answer(seq=3), CallCompleted(request_id="r", seq=2)], ids=["item", "end"])
def test_a_lost_item_ends_the_stream_with_its_number_and_its_server_is_to_stop(event: CallEvent) -> None:
    table = opened(streams=True)
    table.arrived(answer(seq=1), "server")
    arrival = table.arrived(event, "server")
    error = error_of(arrival)
    assert error.code is ErrorCode.UNAVAILABLE
    assert "item 2" in error.message
    assert arrival is not None
    assert arrival.stop
    assert len(table) == 0


# --- lost peers -------------------------------------------------------------------------------------------------------


def test_a_lost_peer_ends_the_calls_that_it_serves_and_no_others() -> None:
    table: CallTable[str] = CallTable()
    for id, peer in (("a", "one"), ("b", "two"), ("c", "one"), ("d", None)):
        table.open(request(id), f"sink {id}", streams=False)
        if peer is not None:
            table.routed(id, peer)
    assert list(table.lost({"one"})) == [("one", "sink a"), ("one", "sink c")]
    assert ("b" in table, "d" in table, len(table)) == (True, True, 2)
    assert list(table.lost({"one", "two", "three"})) == [("two", "sink b")]
    assert list(table) == ["d"]


# --- every sequence of events -----------------------------------------------------------------------------------------

PEERS = st.sampled_from(["one", "two", "three"])


class Sink:
    """What a caller was told of one call."""

    def __init__(self, *, streams: bool, peer: str | None) -> None:
        self.streams = streams
        self.peer = peer
        self.items = 0
        self.ends: list[str] = []


class OpenCalls(RuleBasedStateMachine):
    """Calls to several peers, with foreign senders, duplicates, gaps, aborts, lost peers and the close."""

    ids = Bundle("ids")

    @initialize()
    def start(self) -> None:
        self.table: CallTable[Sink] = CallTable()
        self.sinks: dict[str, Sink] = {}
        self.dropped: Counter[str] = Counter()

    def end(self, sink: Sink, how: str) -> str:
        sink.ends.append(how)
        return how

    def is_open(self, id: str) -> bool:
        return not self.sinks[id].ends

    def tell(self, event: CallEvent, sender: str) -> str:
        """Apply an event to the table and to its sink; return its effect."""
        arrival = self.table.arrived(event, sender)
        if arrival is None:
            return "dropped"
        sink = self.sinks[event.request_id]
        assert arrival.sink is sink
        assert not sink.ends, "settled twice"
        if not arrival.final:
            assert sink.streams
            assert isinstance(arrival.value, ResponseEnvelope)
            sink.items += 1
            return "item"
        value = arrival.value
        return self.end(sink, value.code if isinstance(value, CallError) else type(value).__name__)

    def expect(self, id: str, sender: str, event: CallEvent, outcome: str) -> None:
        """An event of a sender has this outcome, unless the call is over or the sender has no say in it."""
        sink = self.sinks[id]
        if sink.ends:
            outcome = "dropped"
            self.dropped["unknown"] += 1
        elif sink.peer not in (None, sender):
            outcome = "dropped"
            self.dropped["foreign"] += 1
        else:
            sink.peer = sender
            if outcome == "dropped":
                self.dropped["duplicate"] += 1
        assert self.tell(event, sender) == outcome

    @rule(target=ids, streams=st.booleans(), peer=st.none() | PEERS)
    def open(self, streams: bool, peer: str | None) -> str:
        id = f"r{len(self.sinks)}"
        self.sinks[id] = Sink(streams=streams, peer=peer)
        self.table.open(request(id), self.sinks[id], streams=streams)
        if peer is not None:
            self.table.routed(id, peer)
        return id

    @rule(id=ids, sender=PEERS)
    def next_item_or_answer(self, id: str, sender: str) -> None:
        sink = self.sinks[id]
        seq = sink.items + 1 if sink.streams else None
        self.expect(id, sender, answer(id, seq), "item" if sink.streams else "ResponseEnvelope")

    @rule(id=ids, sender=PEERS, back=st.integers(0, 3))
    def item_again(self, id: str, sender: str, back: int) -> None:
        sink = self.sinks[id]
        seq = sink.items - back
        if sink.streams and seq >= 1:
            self.expect(id, sender, answer(id, seq), "dropped")

    @rule(id=ids, sender=PEERS, skipped=st.integers(1, 3))
    def item_after_a_gap(self, id: str, sender: str, skipped: int) -> None:
        sink = self.sinks[id]
        outcome = ErrorCode.UNAVAILABLE if sink.streams else ErrorCode.VALIDATION_ERROR
        self.expect(id, sender, answer(id, sink.items + 1 + skipped), outcome)

    @rule(id=ids, sender=PEERS, missing=st.integers(0, 1), counted=st.booleans())
    def completed(self, id: str, sender: str, missing: int, counted: bool) -> None:
        sink = self.sinks[id]
        event = CallCompleted(request_id=id, seq=sink.items + missing if counted else None)
        lost = ErrorCode.UNAVAILABLE if counted and missing else "NoneType"
        self.expect(id, sender, event, lost if sink.streams else ErrorCode.PROTOCOL_ERROR)

    @rule(id=ids, sender=PEERS)
    def failed(self, id: str, sender: str) -> None:
        self.expect(id, sender, CallFailed(request_id=id, code="INTERNAL", message="x"), ErrorCode.INTERNAL)

    @rule(id=ids, sender=PEERS)
    def stopped(self, id: str, sender: str) -> None:
        self.expect(id, sender, CallAborted(request_id=id), ErrorCode.ABORTED)

    @rule(id=consumes(ids))
    def given_up(self, id: str) -> None:
        was_open = self.is_open(id)
        sink = self.table.settle(id)
        assert (sink is not None) == was_open
        if sink is not None:
            assert sink is self.sinks[id]
            self.end(sink, "given up")

    @rule(sender=PEERS, id=st.sampled_from(["never", "seen"]))
    def unknown(self, sender: str, id: str) -> None:
        self.dropped["unknown"] += 1
        assert self.table.arrived(answer(id), sender) is None

    @rule(peer=PEERS)
    def lost(self, peer: str) -> None:
        expected = [id for id, sink in self.sinks.items() if not sink.ends and sink.peer == peer]
        told = [sink for _, sink in self.table.lost({peer})]
        assert told == [self.sinks[id] for id in expected]
        for sink in told:
            self.end(sink, "lost")

    @rule()
    def close(self) -> None:
        told = list(filter(None, map(self.table.settle, list(self.table))))
        assert told == [sink for sink in self.sinks.values() if not sink.ends]
        for sink in told:
            self.end(sink, "closed")
        assert len(self.table) == 0

    @invariant()
    def every_call_is_settled_once_or_still_open(self) -> None:
        if not hasattr(self, "table"):
            return
        for id, sink in self.sinks.items():
            assert len(sink.ends) <= 1
            assert (id in self.table) == (not sink.ends)
        assert len(self.table) == sum(not sink.ends for sink in self.sinks.values())

    @invariant()
    def whatever_was_dropped_is_counted(self) -> None:
        if hasattr(self, "table"):
            assert self.table.dropped == self.dropped


OpenCalls.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)


class TestBooks(OpenCalls.TestCase):  # type: ignore[name-defined,misc]
    """For any events in any order: each call is settled exactly once or still open."""


def test_the_machine_can_reach_every_way_in_which_a_call_ends() -> None:
    machine = OpenCalls()
    machine.start()
    one = "one"
    for streams in (False, True):
        for step in (
            lambda id: machine.next_item_or_answer(id=id, sender=one),
            lambda id: machine.item_after_a_gap(id=id, sender=one, skipped=1),
            lambda id: machine.completed(id=id, sender=one, missing=0, counted=True),
            lambda id: machine.failed(id=id, sender=one),
            lambda id: machine.stopped(id=id, sender=one),
            lambda id: machine.given_up(id=id),
            lambda id: machine.lost(peer=one),
        ):
            step(machine.open(streams=streams, peer=one))
    machine.open(streams=False, peer="two")
    machine.close()
    ends = Counter(how for sink in machine.sinks.values() for how in sink.ends)
    assert ends == {
        "ResponseEnvelope": 1,
        "NoneType": 1,
        "VALIDATION_ERROR": 1,
        "UNAVAILABLE": 1,
        "PROTOCOL_ERROR": 1,
        "INTERNAL": 2,
        "ABORTED": 2,
        "given up": 2,
        "lost": 3,  # the stream that had only got an item, too
        "closed": 1,
    }
    machine.every_call_is_settled_once_or_still_open()
    machine.whatever_was_dropped_is_counted()
