"""Collections that peers cannot grow without limit: `BoundedDict`, `Tally`, `SharedLimit`."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dict of at most `longest` entries: a new one replaces the oldest."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self._longest = longest

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._longest and key not in self:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class Tally(dict[K, int]):
    """Numbers by key, zero by default; one that falls to zero is forgotten, so that keys do not accumulate."""

    def __missing__(self, key: K) -> int:
        return 0

    def subtract(self, key: K, number: int = 1) -> None:
        """Reduce the number of a key."""
        remaining = self[key] - number
        if remaining > 0:
            self[key] = remaining
        else:
            self.pop(key, None)


class SharedLimit(Generic[K]):
    """A limit of bytes or places that owners share: `most` in all, and `most_each` for one of them."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._total = 0
        self.held: Tally[K] = Tally()  # by owner

    def take(self, owner: K, amount: int) -> bool:
        """Count what an owner takes; if there is no room for it, return False, and count nothing."""
        held_amount = self.held[owner] + amount
        if held_amount > self._most_each or self._total + amount > self._most:
            return False
        self._total += amount
        self.held[owner] = held_amount
        return True

    def give_back(self, owner: K, amount: int) -> None:
        """Count what an owner has taken no longer."""
        self._total -= amount
        self.held.subtract(owner, amount)
