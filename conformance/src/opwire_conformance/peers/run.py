"""Run the checks of a role against a peer, in bounded time, and report what it keeps."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeVar, Unpack
from urllib.parse import urlsplit

from msgspec import Struct, field

from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, check_known, system_message
from opwire.transports.broker import BrokerTransport
from opwire.transports.connect import TransportOptions, connect
from opwire_conformance.peers import hub, listening
from opwire_conformance.peers.server import BROKER_CHECKS, SERVER_CHECKS, find_server, open_end
from opwire_conformance.peers.wires import NotChecked, Problems

T = TypeVar("T")

TIMEOUT = 120.0
"""Seconds after which a run ends, by default."""

_CHECK_TIMEOUT = 25.0  # seconds of one check
_MAX_MESSAGE = 300  # characters of a complaint

Status = Literal["kept", "broken", "skipped"]


class ConformanceResult(Struct, frozen=True):
    """The result of one check. `section` is a heading of the protocol's page."""

    role: str
    promise: str
    section: str
    status: Status
    message: str = ""


class ConformanceReport(Struct):
    """The results of a run."""

    results: list[ConformanceResult] = field(default_factory=list[ConformanceResult])

    @property
    def broken(self) -> list[ConformanceResult]:
        """The promises that the peer breaks."""
        return [result for result in self.results if result.status == "broken"]


class _Run:
    """A run: checks one after the other, until the time is up."""

    def __init__(self, timeout: float, only: str) -> None:
        check_above_zero(timeout=timeout)
        self._only = only
        self.problems = Problems()
        self.report = ConformanceReport()
        self._end = time.monotonic() + timeout

    async def check(self, role: str, checks: Mapping[str, tuple[str, Callable[[T], Awaitable[None]]]], peer: T) -> bool:
        """Run checks; return whether the first of them is kept. The others need not be run if it is not."""
        first: Status | None = None
        for promise, (section, check) in checks.items():
            if self._only not in promise:
                continue
            status, message = await self._one(check, peer)
            first = first or status
            self.add(role, promise, section, status, message)
            if isinstance(peer, hub.HubUnderTest):
                await peer.close()
            if first == "broken":
                break
        return first != "broken"

    async def _one(self, check: Callable[[T], Awaitable[None]], peer: T) -> tuple[Status, str]:
        remaining_seconds = self._end - time.monotonic()
        if remaining_seconds <= 0:
            return "broken", "not checked: the time of the run is up"
        try:
            async with asyncio.timeout(min(remaining_seconds, _CHECK_TIMEOUT)):
                await check(peer)
        except NotChecked as reason:
            return "skipped", str(reason)
        except TimeoutError:
            return "broken", "it took too long"
        except (AssertionError, CallError, OSError) as error:
            return "broken", str(error)
        except Exception as error:  # what a peer sends is untrusted: no form of it may end the run
            return "broken", f"unexpected data: {type(error).__name__}: {error}"
        return "kept", ""

    def add(self, role: str, promise: str, section: str, status: Status, message: str) -> None:
        """Add a result."""
        self.report.results.append(ConformanceResult(role, promise, section, status, message[:_MAX_MESSAGE]))

    def finish(self) -> ConformanceReport:
        """Add the result of what was checked for every event, and return the report."""
        problem_lines = self.problems.found
        message = (
            problem_lines[0] + (f" (and {len(problem_lines) - 1} more)" if len(problem_lines) > 1 else "")
            if problem_lines
            else ""
        )
        status: Status = "broken" if problem_lines else "kept" if self.problems.events else "skipped"
        self.add("events", "every event agrees with its schema", "Calls", status, message)
        return self.report


async def check_hub(
    url: str, *, token: str | None = None, timeout: float = TIMEOUT, only: str = ""
) -> ConformanceReport:
    """Check the promises of a hub. With a token that may announce `conformance`, its relay is checked as well.

    `only` selects the promises that contain a text; `timeout` is the time of the whole run in seconds.

    Raises:
        CallError: UNAVAILABLE, it cannot be reached; UNAUTHENTICATED, it refuses the token.
        UsageError: the URL is not that of a hub.
    """
    if not url.startswith(("ws://", "wss://")):
        raise UsageError("expected the URL of a hub: ws:// or wss://")
    run = _Run(timeout, only)
    peer = hub.HubUnderTest(url, token, run.problems)
    try:
        await peer.check_token()
        if await run.check("hub", hub.HUB_CHECKS, peer):
            try:
                server = await hub.hub_as_server(peer)
            except (AssertionError, CallError) as error:
                run.add("server", "operations are described on request", "Announcing", "broken", str(error))
            else:
                await run.check("server", SERVER_CHECKS, server)
    finally:
        await peer.close()
    return run.finish()


async def check_broker(
    url: str, *, timeout: float = TIMEOUT, only: str = "", **options: Unpack[TransportOptions]
) -> ConformanceReport:
    """Check the promises of a server on Redis or NATS; of several, that which serves `conformance.*`.

    Raises:
        CallError: UNAVAILABLE, the broker cannot be reached, or no server is found.
        UsageError: the URL is not that of a broker.
    """
    run = _Run(timeout, only)
    transport = connect(url, **options)
    if not isinstance(transport, BrokerTransport):
        raise UsageError("expected the URL of a broker: redis:// or nats://")
    end = await open_end(transport.connection, run.problems)
    try:
        server = await find_server(end)
        if await run.check("server", SERVER_CHECKS, server):
            await run.check("broker", BROKER_CHECKS, server)
    finally:
        await end.connection.close()
    return run.finish()


async def check_connecting_peer(
    url: str = "ws://127.0.0.1:0",
    *,
    listening_at: Callable[[str], None] = lambda _: None,
    wait: float = 30.0,
    timeout: float = TIMEOUT,
    only: str = "",
) -> ConformanceReport:
    """Listen as a hub, and check the first peer that connects: its session, what it announces, and what it calls.

    `listening_at` is called with the URL. A peer that announces nothing is watched until it leaves, or for `wait`
    seconds.

    Raises:
        CallError: UNAVAILABLE, the URL cannot be listened on, or no peer connects within `wait` seconds.
    """
    run = _Run(timeout, only)
    parts = urlsplit(url)
    listening_hub = listening.ListeningHub(parts.hostname or "127.0.0.1", parts.port or 0, run.problems)
    try:
        listening_at(await listening_hub.start())
        peer = await listening_hub.peer(wait)
        if await run.check("session", listening.SESSION_CHECKS, peer):
            if peer.operations:
                await run.check("server", SERVER_CHECKS, listening.as_server(peer))
            else:
                await listening.watch(peer, wait)
            await run.check("caller", listening.CALLER_CHECKS, peer)
        await peer.close()
    except TimeoutError:
        raise CallError(ErrorCode.UNAVAILABLE, f"no peer connected within {wait:g} s") from None
    except OSError as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"cannot listen on {url}: {system_message(error)}") from error
    finally:
        await listening_hub.close()
    return run.finish()


async def check_peer(
    url: str, *, timeout: float = TIMEOUT, only: str = "", **options: Unpack[TransportOptions]
) -> ConformanceReport:
    """Check a hub (ws://, wss://; its only option is `token`), or a server on a broker (redis://, nats://).

    Raises:
        CallError, UsageError: as `check_hub` and `check_broker`.
    """
    if not url.startswith(("ws://", "wss://")):
        return await check_broker(url, timeout=timeout, only=only, **options)
    check_known(options, ["token"], "check_peer of a hub")
    token = options.get("token")
    return await check_hub(url, token=token() if callable(token) else token, timeout=timeout, only=only)
