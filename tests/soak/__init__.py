"""The soak: calls for minutes over each engine, while processes are killed at random, and a history with the outcome of
each call, which is checked afterwards.

    python -m tests.soak --minutes 10 [--engine hub|hubs|redis|nats] [--rate 50] [--calm 12] [--seed N] [--folder DIR]

`run` starts, kills and ends the processes, `serving`, `calling` and `poison` are their programs, `history` checks the
result.
"""
