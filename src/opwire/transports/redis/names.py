"""What things are called in Redis, and what is written in front of a message. No I/O."""

from opwire.call import Address


class Names:
    """The names of channels and keys, all under one prefix: ends with different prefixes do not meet."""

    def __init__(self, prefix: str, db: int = 0) -> None:
        self._end = f"{prefix}:end:"
        self._serving = f"{prefix}:serving:"
        # Channels belong to the whole server, keys to one database: without its number, databases would meet here.
        self.all = f"{prefix}:all:{db}".encode()

    def end(self, address: Address) -> bytes:
        """An end: the channel of its inbox, the key of its lease, its entry in the lists of those who serve."""
        return (self._end + address).encode()

    def serving(self, operation_id: str) -> bytes:
        """The key of the list of those who serve an operation."""
        # A caller may ask for any text. One that has no UTF-8 is nobody's operation, and no reason to fail otherwise.
        return (self._serving + operation_id).encode("utf-8", "surrogatepass")


def seal(sender: bytes, token: str, message: bytes) -> bytes:
    """What is published."""
    return b"%b %b\n%b" % (sender, token.encode(), message)


def unseal(published: bytes) -> tuple[Address, str, bytes] | None:
    """Sender, token and message of what was published; None if it is not ours: anybody can publish anything."""
    head, newline, message = published.partition(b"\n")
    if not newline or not head.isascii():
        return None
    sender, space, token = head.decode().partition(" ")
    return (sender, token, message) if sender and space else None
