"""OpenTelemetry spans and metrics of calls. Needs `pip install 'opwire[otel]'`, and an SDK that exports them.

    instrument(registry)  # what is executed here, whoever asks for it
    instrument(spoke)  # what a spoke or a hub serves, and what it calls

A call that crosses a network stays one trace: the `traceparent` of W3C's Trace Context goes along over every transport,
in the `_meta` of MCP and in the headers of HTTP, with or without this package.
"""

from opwire.telemetry.instrument import Instrumentable, instrument

__all__ = ["Instrumentable", "instrument"]
