"""What things are called in Redis, and what is written in front of a message. No I/O."""

from opwire.call import Address

_MAX_HEAD = 128  # bytes of an address and a token


class Names:
    """The names of channels and keys, all under one prefix: ends with different prefixes do not meet."""

    def __init__(self, prefix: str, db: int = 0) -> None:
        self._end = f"{prefix}:end:"
        self.ends = self._end.encode()  # what the names of all ends begin with
        self._serving = f"{prefix}:serving:"
        # Channels belong to the whole server, keys to one database: without its number, databases would meet here.
        self.all = f"{prefix}:all:{db}".encode()

    def end(self, address: Address) -> bytes:
        """An end: the channel of its inbox, the key of its lease, its entry in the lists of those who serve."""
        return (self._end + address).encode(errors="replace")

    def address(self, end: bytes) -> Address:
        """The address of an end, from its name."""
        return end[len(self.ends) :].decode(errors="replace")

    def serving(self, operation_id: str) -> bytes:
        """The key of the list of those who serve an operation."""
        # A caller may ask for any text. One that has no UTF-8 is nobody's operation, and no reason to fail otherwise.
        return (self._serving + operation_id).encode("utf-8", "surrogatepass")


def seal(sender: bytes, token: str, message: bytes) -> bytes:
    """What is published."""
    return b"%b %b\n%b" % (sender, token.encode(), message)


def unseal(published: bytes) -> tuple[Address, str, bytes] | None:
    """Return sender, token and message of what was published; None if it is not ours: any client can publish."""
    head, newline, message = published.partition(b"\n")
    sender, space, token = head.partition(b" ")
    if not (newline and space and sender.isalnum() and (not token or token.isalnum()) and len(head) <= _MAX_HEAD):
        return None
    return sender.decode(), token.decode(), message
