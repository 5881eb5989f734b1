"""Fault injection for the call protocol: a transport that misbehaves, and thousands of calls through it.

`python -m tests.chaos --calls 100000 --seed 1` is the long run; it takes place in virtual time.
"""
