"""Parents of calls."""

from opentelemetry.context import attach, detach
from opentelemetry.trace import get_current_span

from opwire.observe.telemetry import Parent, carried_trace, parent_of, serving, within
from tests.observe.tape import Tape

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def span_id(parent: Parent) -> int:
    return get_current_span(parent.surroundings).get_span_context().span_id


def test_without_a_trace_it_is_what_runs_here(tape: Tape) -> None:
    assert not parent_of({}).is_here
    with tape.tracer.start_as_current_span("mine") as mine:
        parent = parent_of({"traceparent": "malformed"})
        assert parent.is_here
        assert span_id(parent) == mine.get_span_context().span_id


def test_what_a_peer_says_is_nearer_than_what_happens_to_run_here(tape: Tape) -> None:
    with tape.tracer.start_as_current_span("whoever opened the socket"):
        parent = parent_of({"traceparent": PARENT, "tracestate": "a=1"})
    assert not parent.is_here
    assert span_id(parent) == 0xB7AD6B7169203331
    assert carried_trace(parent.surroundings) == {"traceparent": PARENT, "tracestate": "a=1"}


def test_the_span_of_a_web_server_is_nearer_than_the_header_that_it_has_read(tape: Tape) -> None:
    said = {"traceparent": PARENT}
    above = parent_of(said).surroundings
    with tape.tracer.start_as_current_span("POST /shop/price", context=above) as ours:
        parent = parent_of(said)
        assert parent.is_here
        assert span_id(parent) == ours.get_span_context().span_id


def test_spans_within_a_handler_are_nearer_than_the_trace_of_its_context(tape: Tape) -> None:
    above = parent_of({})
    surroundings = within(tape.tracer.start_span("served"), above)
    trace = carried_trace(surroundings)
    token = attach(serving(trace, surroundings))
    try:
        with tape.tracer.start_as_current_span("a"), tape.tracer.start_as_current_span("b") as nearest:
            parent = parent_of(dict(trace))
            assert parent.is_here
            assert span_id(parent) == nearest.get_span_context().span_id
    finally:
        detach(token)
    assert not parent_of(dict(trace)).is_here
