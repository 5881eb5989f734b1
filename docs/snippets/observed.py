import asyncio

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opwire.observe.telemetry import instrument

from shop import registry

spans = InMemorySpanExporter()  # in a program of yours, one that sends them somewhere
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))

instrument(registry, tracer_provider=provider)
asyncio.run(
    registry.execute("shop.order", {"lines": [{"article": "tea", "price": 4.5}]})
)
for span in spans.get_finished_spans():
    print(span.name, span.status.is_ok)
