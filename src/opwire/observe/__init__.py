"""See what happens: the access log, the figures of a server, OpenTelemetry."""
