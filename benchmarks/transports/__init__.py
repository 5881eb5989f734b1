"""The transports between processes, against what their libraries can do."""
