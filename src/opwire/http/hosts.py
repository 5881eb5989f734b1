"""The host names that a surface answers to. A page under a name that resolves to this machine sends another."""

from collections.abc import Iterable

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""The names that are accepted by default, with any port."""


class HostNames:
    """Accepted host names, in the forms that `RequestGuard` takes."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = [name.lower() for name in names]
        self.any = "*" in listed
        self._names = frozenset(name for name in listed if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in listed if name.startswith("*."))

    def include(self, host: str) -> bool:
        """Return whether a Host header, in lower case, is accepted. A name without a port matches any port."""
        if self.any or host in self._names:
            return True
        name = without_port(host)
        return name in self._names or name.endswith(self._suffixes) or host.endswith(self._suffixes)


def without_port(host: str) -> str:
    """Return the name of a Host header: "localhost" for "localhost:8000", "[::1]" for "[::1]:8000"."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
