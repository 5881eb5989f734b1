"""Calls over a broker that take longer than a moment: servers name them early, and callers probe their servers.

When, and which, is decided in `leases`; this file has the timer, and sends.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from math import inf

from opwire.call import Address
from opwire.call.session import Waiting, encode_session
from opwire.errors import CallError
from opwire.transports.leases import MOMENT, Asked, Leases
from opwire.transports.medium import Medium

logger = logging.getLogger("opwire.transports")

_STILL_WAITING = encode_session(Waiting())  # a probe: it says nothing new, but the broker knows whether it arrives


class Probes:
    """The probes of one end. `name` tells callers which calls are in hand: tokens by caller."""

    def __init__(self, leases: Leases, medium: Medium, name: Callable[[Mapping[Address, list[str]]], None]) -> None:
        self._leases = leases
        self._medium = medium
        self._name = name
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf  # when the next look is due

    def soon(self, now: float) -> None:
        """Look at calls in a moment: there is a new one."""
        if self._at > now + MOMENT:
            self._later(MOMENT)

    def stop(self) -> None:
        """Look no more, until there is a new call."""
        self._later(None)

    def _later(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, inf
        if seconds is not None:
            self._at = time.monotonic() + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        try:
            self._name(self._leases.news())
            for asked in self._leases.watch(time.monotonic()):
                self._probe(asked)
        except Exception:  # the next time has to come all the same
            logger.exception("calls in flight could not be probed")
        self._later(self._leases.pause(time.monotonic()))

    def _probe(self, asked: Asked) -> None:
        """Send something to the server of a call, or to one that serves its operation.

        If there is none the broker says so, and `Listener.unreachable` or `undelivered` is called.
        """
        try:
            if asked.server:
                self._medium.tell(asked.server, asked.token, _STILL_WAITING, control=True)
            else:
                self._medium.ask(asked.operation_id, asked.token, _STILL_WAITING)
        except CallError as error:
            logger.debug("%s was not probed: %s", asked.operation_id, error)
