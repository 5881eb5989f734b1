"""`Observer`: the figures and the calls of every server behind a URL."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Self, Unpack

from opwire.client.client import Client, ConnectionOptions, shown_target
from opwire.errors import CallError, ErrorCode, check_instance
from opwire.observe.monitor import CALLS, STATISTICS, CallRecord, ServerStatistics
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address, Announcing, Transport
from opwire.runtime.text import get_logger
from opwire.transports.connect import connect

logger = get_logger("opwire.hub")

_STATISTICS_TIMEOUT = 5.0  # seconds
_MAX_BUFFERED_RECORDS = 1_000  # of all servers: while it is full, each server drops records and counts them
_SECONDS_BETWEEN_SEARCHES = 2.0  # for new servers on a broker
_DENIED = (ErrorCode.ACCESS_DENIED, ErrorCode.UNAUTHENTICATED)


class ObservedServer(NamedTuple):
    """A server and its figures, or the error with which it failed to return them."""

    address: Address
    statistics: ServerStatistics | None
    error: CallError | None = None


class Observer:
    """Observes a hub with its spokes, all servers on a broker, or one server over HTTP.

        async with Observer("ws://127.0.0.1:8700", token=…) as observer:
            for server in await observer.servers():
                print(server.statistics)
            async for record in observer.calls(operation="shop.*", outcome="ERROR"):
                print(record.operation_id, record.outcome, record.ms)

    The caller needs the scope `opwire:observe`. `url` may be a transport; `options` are those of `Client`.

    Raises:
        UsageError: the URL or an option is invalid.
    """

    def __init__(
        self,
        url: str | Sequence[str] | Transport,
        *,
        token: str | Callable[[], str] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self._shown = shown_target(url)
        self.target: Client | PendingRequestMap  # the latter for a hub or broker; other calls may share the connection
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            self.target = Client(url, token=token, **options)
        elif isinstance(url, str | Sequence):
            client_options: dict[str, Any] = {**options, **({} if token is None else {"token": token})}
            self.target = PendingRequestMap(connect(url, **client_options))
        else:
            check_instance(Transport, url=url)
            self.target = PendingRequestMap(url)

    def __repr__(self) -> str:
        return f"<Observer of {self._shown}>"

    async def __aenter__(self) -> Self:
        await self.target.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.target.close()

    async def servers(self, *, wait: float = 0.5) -> list[ObservedServer]:
        """Return all servers with their figures; over a broker, those that answer within `wait` seconds.

        Raises:
            CallError: UNAVAILABLE.
        """
        addresses = [""]
        if isinstance(self.target, PendingRequestMap):
            transport = self.target.transport
            hub = [transport.hub] if isinstance(transport, Announcing) else []
            addresses = list(dict.fromkeys([*hub, *await transport.servers(wait)]))
        return await asyncio.gather(*map(self._observe, addresses))

    async def _observe(self, address: Address) -> ObservedServer:
        target = self.target
        try:
            if not isinstance(target, PendingRequestMap):
                figures = await target.call(STATISTICS, output_type=ServerStatistics, timeout=_STATISTICS_TIMEOUT)
            else:
                envelope = await target.call(
                    STATISTICS, to=address, output_type=ServerStatistics, timeout=_STATISTICS_TIMEOUT
                )
                figures = envelope.data
            return ObservedServer(address, figures)
        except CallError as error:
            return ObservedServer(address, None, error)

    async def calls(
        self,
        *,
        id: str | None = None,
        operation: str | None = None,
        outcome: str | None = None,
        caller: str | None = None,
        rate: int | None = None,
    ) -> AsyncGenerator[CallRecord]:
        """Yield a record of every call that ends from now on, at any of the servers; the filters are optional.

        `id` is the start of a request id, `operation` a pattern such as `shop.*`, `outcome` is "OK", "ERROR" or an
        error code. With a `rate`, each server sends so many records per second beside those of errors, and counts the
        other calls in `dropped`. A hub shows the calls between its spokes. Servers that join a broker later are
        observed, too.

        Raises:
            CallError: ACCESS_DENIED or UNAUTHENTICATED; UNAVAILABLE, the connection was lost.
        """
        filters = {"id": id, "operation": operation, "outcome": outcome, "caller": caller, "rate": rate}
        input = {name: value for name, value in filters.items() if value is not None}
        target = self.target
        if not isinstance(target, PendingRequestMap):
            records = target.subscribe(CALLS, input, output_type=CallRecord)
        elif isinstance(target.transport, Announcing):
            # The hub sees every call: its spokes would show them a second time.
            records = _records(target, input, target.transport.hub)
        else:
            records = _BrokerCalls(target, input).records()
        async with aclosing(records):
            async for record in records:
                yield record


async def _records(calls: PendingRequestMap, input: dict[str, Any], address: Address) -> AsyncGenerator[CallRecord]:
    stream = calls.subscribe(CALLS, input, to=address, output_type=CallRecord)
    async with aclosing(stream):
        async for envelope in stream:
            yield envelope.data


class _BrokerCalls:
    """The records of all servers on a broker, which are searched for repeatedly."""

    def __init__(self, calls: PendingRequestMap, input: dict[str, Any]) -> None:
        self._calls = calls
        self._input = input
        self._queue: asyncio.Queue[CallRecord | CallError] = asyncio.Queue(_MAX_BUFFERED_RECORDS)
        self._observed: dict[Address, asyncio.Task[None]] = {}

    async def records(self) -> AsyncGenerator[CallRecord]:
        searching = asyncio.create_task(self._search())
        try:
            while True:
                record = await self._queue.get()
                if isinstance(record, CallError):
                    raise record
                yield record
        finally:
            tasks = [searching, *self._observed.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _search(self) -> None:
        while True:
            try:
                addresses = await self._calls.transport.servers()
            except CallError as error:
                await self._queue.put(error)
                return
            for address in self._observed.keys() - set(addresses):
                self._observed.pop(address).cancel()
            for address in addresses:
                if address not in self._observed:
                    self._observed[address] = asyncio.create_task(self._follow(address))
            await asyncio.sleep(_SECONDS_BETWEEN_SEARCHES)

    async def _follow(self, address: Address) -> None:
        try:
            async for record in _records(self._calls, self._input, address):
                await self._queue.put(record)
        except CallError as error:
            if error.code in _DENIED:
                await self._queue.put(error)
            logger.info("the server at %s is not observed: %s", address, error)
