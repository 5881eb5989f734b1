"""Ids that nobody else makes or guesses."""

from collections.abc import Iterator
from secrets import token_hex

_AT_ONCE = 128  # drawn together: one by one they cost 1 µs each, so 0.1


def random_ids(size: int) -> Iterator[str]:
    """Texts of so many random bytes, in hexadecimal digits."""
    while True:
        many = token_hex(size * _AT_ONCE)
        for start in range(0, len(many), 2 * size):
            yield many[start : start + 2 * size]
