"""HTTP without a registry: the client, server-sent events, TLS, host names."""
