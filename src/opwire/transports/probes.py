"""Probes: ask the broker whether the servers of long calls are still connected.

The longer a call takes, the less often its server is probed. `ProbeSchedule` decides, without a clock; `Probes` adds
the timer.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from math import inf

from opwire.errors import CallError
from opwire.protocol.transport import Address
from opwire.runtime.text import get_logger
from opwire.transports.leases import MOMENT, Leases, OutgoingCall, OutgoingCalls

logger = get_logger("opwire.transports")

MAX_PROBES_AT_ONCE = 64

_SHORTEST_INTERVAL = 0.025  # seconds between two probes of a call that is up to a minute old
_LONGEST_INTERVAL = 0.25  # seconds, of a call that is ten minutes old or older
_SECONDS_PER_SERVER = 1e-4  # sending a probe takes 10 µs: probes take at most 10 % of the time
_SECONDS_PER_CALL = 4e-6  # checking a call takes 0.15 µs: checks take at most 4 % of the time

_Target = tuple[Address, str]  # a server, or an operation whose server is unknown


class ProbeSchedule:
    """Decides which servers to probe, and when to check again."""

    def __init__(self, calls: OutgoingCalls) -> None:
        self._calls = calls
        self._probed_at: dict[_Target, float] = {}  # or when its server last sent something
        self._next_check = inf

    def next_check(self, now: float) -> float:
        """Return when to call `due` again, after a call at `now`."""
        return max(self._next_check, now + MOMENT / 4, now + len(self._calls) * _SECONDS_PER_CALL)

    def due(self, now: float) -> list[OutgoingCall]:
        """Return the calls to probe: the latest of each server, and of each operation with an unknown server."""
        latest_calls: dict[_Target, OutgoingCall] = {}
        next_check = inf
        for call in self._calls:
            if now - call.sent_at < MOMENT:
                next_check = min(next_check, call.sent_at + MOMENT)
                break
            if call.server:
                latest_calls[call.server, ""] = call
            elif call.server is None and call.operation_id in self._calls.latest_servers:
                latest_calls["", call.operation_id] = call
            else:  # its server may be known at the next check
                next_check = min(next_check, now + _interval(now - call.sent_at))

        heard_at = self._calls.servers_heard  # a message is as good as a probe
        last_at = {
            target: max(self._probed_at.get(target, -inf), heard_at.get(target[0], -inf)) for target in latest_calls
        }
        shortest_interval = len(latest_calls) * _SECONDS_PER_SERVER

        def due_at(target: _Target) -> float:
            # The interval is that for the age of the call at its beginning: the one for the present age, which grows
            # meanwhile, would end after the check at its end, and take twice as long.
            return last_at[target] + max(_interval(last_at[target] - latest_calls[target].sent_at), shortest_interval)

        targets = sorted((target for target in latest_calls if due_at(target) <= now), key=last_at.__getitem__)
        calls_to_probe = [latest_calls[target] for target in targets[:MAX_PROBES_AT_ONCE]]
        last_at.update(dict.fromkeys(targets[:MAX_PROBES_AT_ONCE], now))
        for call in calls_to_probe:
            call.probed_at = 0.0 if call.server else now
        self._probed_at = last_at
        self._calls.servers_heard = {server: heard_at[server] for server, _ in latest_calls if server in heard_at}
        self._next_check = min(next_check, *map(due_at, latest_calls), inf)
        return calls_to_probe


def _interval(age: float) -> float:
    """Return the seconds between two probes of a call that has taken `age` seconds."""
    return min(max(age * _SHORTEST_INTERVAL / 60, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)


class Probes:
    """The timer that probes the servers of long calls, and reports long requests to their callers.

    `send` sends a probe to the server of a call, or to those of its operation; `report` sends the tokens of requests in
    flight to their callers.
    """

    def __init__(
        self,
        leases: Leases,
        send: Callable[[OutgoingCall], None],
        report: Callable[[Mapping[Address, list[str]]], None],
    ) -> None:
        self._leases = leases
        self._schedule = ProbeSchedule(leases.calls)
        self._send = send
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        self.next_check = inf

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to check."""
        return self._timer is None

    def check_soon(self, now: float) -> None:
        """Schedule a check for a new call or request."""
        if self.next_check > now + MOMENT:
            self._check_at(now + MOMENT)

    def stop(self) -> None:
        """Cancel the timer until there is a new call."""
        self._check_at(inf)

    def _check_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.next_check = None, when
        if when < inf:
            self._timer = asyncio.get_running_loop().call_later(when - time.monotonic(), self._check)

    def _check(self) -> None:
        now = time.monotonic()
        try:
            self._report(self._leases.requests.early_reports(now))
            for call in self._schedule.due(now):
                # If it cannot be delivered, the broker calls `BrokerListener.unreachable` or `undelivered`.
                try:
                    self._send(call)
                except CallError as error:
                    logger.debug("%s was not probed: %s", call.operation_id, error)
        except Exception:  # the timer has to go on
            logger.exception("calls in flight could not be probed")
        now = time.monotonic()
        next_report = inf if self._leases.requests.are_reported else now + MOMENT
        next_check = self._schedule.next_check(now) if len(self._leases.calls) else inf
        self._check_at(min(next_report, next_check))
