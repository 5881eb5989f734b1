"""Which operations an end serves, and the commands that tell Redis so. No I/O."""

from collections.abc import Iterable
from math import ceil

from opwire.call import Address
from opwire.transports.redis.names import Names
from opwire.transports.redis.resp import command
from opwire.transports.redis.scripts import ENTER, PRUNE

_ROUND = 60.0  # seconds within which every list that we are in is renewed, some of them at each beat
_KEPT = 3_600_000  # milliseconds until a list is gone that nobody renews
_PRUNED = 50  # lists that are looked through at a beat, for servers that are gone
_LOOKED_AT = 200  # entries of them, at most: Redis is kept busy for a fifth of a millisecond
_AT_ONCE = 500  # lists in one script, which keeps everybody else waiting for about a millisecond


class Presence:
    """A lease that lasts three beats, and an entry in the list of each operation."""

    def __init__(self, names: Names, heartbeat: float) -> None:
        self._names = names
        self._lease = ceil(3000 * heartbeat)  # milliseconds
        self.end = b""  # our name
        self._served: dict[str, None] = {}
        self._due: list[str] = []  # what is left to renew in this round
        self._to_prune: list[str] = []  # and to look through

    @property
    def served(self) -> list[str]:
        """The operations that are served."""
        return list(self._served)

    def begin(self, address: Address) -> None:
        """Another connection, with another address: nothing is served there yet."""
        self.end = self._names.end(address)
        self._served, self._due, self._to_prune = {}, [], []

    def add(self, operation_ids: Iterable[str]) -> list[str]:
        """Serve these, too. Those that were not served before."""
        new = [each for each in dict.fromkeys(operation_ids) if each not in self._served]
        self._served.update(dict.fromkeys(new))
        return new

    def remove(self, operation_ids: Iterable[str]) -> None:
        """Serve these no longer."""
        for each in operation_ids:
            self._served.pop(each, None)

    def entries(self, operation_ids: list[str]) -> list[bytes]:
        """Commands that enter us in the lists of these operations. Each gives 1 if there was no lease."""
        starts = range(0, len(operation_ids), _AT_ONCE)
        return [self._entry(operation_ids[start : start + _AT_ONCE]) for start in starts]

    def _entry(self, operation_ids: list[str]) -> bytes:
        lists = map(self._names.serving, operation_ids)
        return command(b"EVAL", ENTER, 1 + len(operation_ids), self.end, *lists, self._lease, _KEPT)

    def departures(self, operation_ids: Iterable[str]) -> list[bytes]:
        """Commands that take us off the lists of these operations."""
        return [command(b"LREM", self._names.serving(each), 0, self.end) for each in operation_ids]

    def absence(self) -> list[bytes]:
        """Commands that take us off all lists, our lease with them."""
        return [*self.departures(self._served), command(b"DEL", self.end)]

    def renewal(self, every: float) -> bytes:
        """The command of one beat: it renews the lease and some of the lists, and gives 1 if there was no lease."""
        if not self._served:  # then there is no lease; trying to renew it tells whether the server takes writes
            return command(b"PEXPIRE", self.end, self._lease)
        if not self._due:
            self._due = self.served
        number = ceil(len(self._served) * every / _ROUND)
        due, self._due = self._due[:number], self._due[number:]
        return self._entry([each for each in due if each in self._served])

    def pruning(self) -> list[bytes]:
        """Return the command of one beat that takes servers that are gone off some of the lists, if there are any."""
        if not self._to_prune:
            self._to_prune = self.served
        due, self._to_prune = self._to_prune[:_PRUNED], self._to_prune[_PRUNED:]
        lists = [self._names.serving(each) for each in due]
        return [command(b"EVAL", PRUNE, len(lists), *lists, self._names.ends, _LOOKED_AT)] if lists else []
