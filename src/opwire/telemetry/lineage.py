"""Where a call belongs in a trace: below what runs here, or below what a peer says in `traceparent`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.context import Context as Surroundings
from opentelemetry.context import create_key, get_current, get_value, set_value
from opentelemetry.trace import Span, format_span_id, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from opwire.operation import Trace, trace_of

_w3c = TraceContextTextMapPropagator()
_SERVED = create_key("opwire-served")  # the traceparent of the call that is served in these surroundings


class Parent(NamedTuple):
    """What a call's span is to be a child of. `is_here`: it runs in this process."""

    surroundings: Surroundings
    is_here: bool


def parent_of(metadata: Mapping[str, Any]) -> Parent:
    """The parent of a call that has this metadata.

    The trace of the metadata is often that of a call which is served right here, and has grown since: its handler, or
    an instrumentation of the web server, may have opened spans of its own. Those are nearer, then. Else the metadata is
    right: the task that reads from a socket runs in the surroundings of whoever opened it.
    """
    here = get_current()
    trace = trace_of(metadata)
    if "traceparent" not in trace:
        return Parent(here, get_current_span(here).get_span_context().is_valid)
    said = trace["traceparent"]
    if get_value(_SERVED, here) == said or _is_child(get_current_span(here), said):
        return Parent(here, is_here=True)
    return Parent(_w3c.extract(trace, here), is_here=False)


def within(span: Span, parent: Parent) -> Surroundings:
    """The surroundings in which a span is the current one."""
    return set_span_in_context(span, parent.surroundings)


def serving(trace: Trace, surroundings: Surroundings) -> Surroundings:
    """The surroundings of a handler whose context carries this trace: calls that carry it, too, are made by it."""
    return set_value(_SERVED, trace.get("traceparent"), surroundings)


def carried_trace(surroundings: Surroundings) -> Trace:
    """The current span, as a context's metadata carries it; empty if nobody traces."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, surroundings)
    return trace_of(carrier)


def _is_child(span: Span, traceparent: str) -> bool:
    parent = getattr(span, "parent", None)  # a span of the SDK says whose child it is
    return parent is not None and format_span_id(parent.span_id) == traceparent.split("-")[2]
