"""What opwire costs, as ratios to a control of the same run: `make bench`, or `python -m benchmarks [ladder ...]`."""
