"""What carries the call protocol: one module a medium."""
