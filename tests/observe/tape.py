"""What OpenTelemetry's own SDK has recorded, kept in memory."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext


class Tape:
    """Providers to instrument with, and what they were given. The providers of the process are left alone."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader])

    @property
    def providers(self) -> Any:
        """Keyword arguments for `instrument`."""
        return {"tracer_provider": self.tracer_provider, "meter_provider": self.meter_provider}

    @property
    def tracer(self) -> Any:
        return self.tracer_provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def span(self, name: str, kind: str | None = None) -> ReadableSpan:
        """The only span of this name, and kind."""
        (found,) = (span for span in self.spans if span.name == name and kind in (None, span.kind.name))
        return found

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """The data points of a metric: attributes, and how often or how many."""
        data = self._reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), getattr(point, "count", None) or getattr(point, "value", 0))
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether a span is a child of another one, in the same trace."""
    above = span.parent
    return above is not None and above.span_id == _ids(parent).span_id and trace_id(span) == trace_id(parent)


def trace_id(span: ReadableSpan) -> int:
    return _ids(span).trace_id


def _ids(span: ReadableSpan) -> SpanContext:
    ids = span.get_span_context()
    assert ids is not None
    return ids
