"""Which requests were seen before. No I/O, no clock: the time is given."""

from collections import OrderedDict
from hashlib import blake2b
from threading import Lock

from opwire.errors import CallError, ErrorCode


class Replays:
    """Remembers each request for as long as its credential is good, and `limit` of them at most.

    What does not fit is refused: to forget one early would let it pass a second time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._until)

    def is_new(self, holder: str, request_id: str, until: float, now: float) -> bool:
        """Whether this holder's request is the first of its id; from then on it is not.

        Raises:
            CallError: RATE_LIMITED, if there are too many to remember.
        """
        # A digest, because a peer decides how long its request ids are.
        key = blake2b(f"{len(holder)} {holder}{request_id}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            self._forget(now)
            if self._until.get(key, now) > now:
                return False
            if len(self._until) >= self._limit:
                raise CallError(ErrorCode.RATE_LIMITED, f"{self._limit:,} calls are remembered already", retry_after=1)
            self._until[key] = until
            return True

    def _forget(self, now: float) -> None:
        """Drop what has expired. Lifetimes are alike, so that the oldest entries are nearly always the next to go."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
