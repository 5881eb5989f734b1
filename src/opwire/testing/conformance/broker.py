"""The promises of a server on a broker, beside those of every server."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from secrets import randbelow, token_hex
from typing import cast

from opwire.errors import CallError, ErrorCode
from opwire.testing.conformance.server import (
    NAMESPACE,
    Server,
    describe,
    envelope_data,
    running,
    start_waiting,
    stop_waiting,
)
from opwire.testing.conformance.wires import (
    PATIENCE,
    SETTLE,
    BrokerWire,
    Problems,
    ServerLine,
    ServerRoute,
    broken,
    expect,
    shown,
)
from opwire.transports.broker_connection import BrokerConnection

_MAX_SERVERS = 20  # that are asked what they serve


async def open_end(connection: BrokerConnection, problems: Problems) -> BrokerWire:
    """Connect an end to a broker.

    Raises:
        CallError: UNAVAILABLE.
    """
    end = BrokerWire(connection, problems)
    async with asyncio.timeout(PATIENCE):
        await connection.connect(end.address, end)
    return end


async def find_server(end: BrokerWire) -> Server:
    """Return the server that serves `conformance.*`, or else any.

    Raises:
        CallError: UNAVAILABLE, there is none.
    """
    await end.send("session.who", id=1 + randbelow(2**31))
    await asyncio.sleep(5 * SETTLE)
    addresses = dict.fromkeys(str(each["sender"]) for each in end.here(type="session.here"))
    found: Server | None = None
    for address in list(addresses)[:_MAX_SERVERS]:
        line = ServerLine(end, ServerRoute({}, address))
        try:
            server = Server(line, {each["id"] for each in await describe(line)})
        except AssertionError:
            server = Server(line, set())  # checked as far as it goes
        if found is None or any(id.startswith(f"{NAMESPACE}.") for id in server.operations):
            found = server
    if found is None:
        raise CallError(ErrorCode.UNAVAILABLE, f"no server answers session.who on {end.connection.name}")
    return found


async def who_is_answered(server: Server) -> None:
    """Ask for all servers."""
    end, number = cast("BrokerWire", server.line.wire), 1 + randbelow(2**31)
    await end.send("session.who", id=number)
    here = await end.take("session.here", type="session.here", id=number)
    expect(here["peers"] == [here["sender"]], f"an end names another address than its own: {shown(here)}")


async def requests_are_routed(server: Server) -> None:
    """Send a request by its operation."""
    end, id, token = cast("BrokerWire", server.line.wire), server.needs("echo"), token_hex(8)
    request = {"type": "call.requested", "requestId": token, "operationId": id, "input": {"a": 1}}
    end.connection.request(id, token, json.dumps(request).encode())
    answer = await end.take("the response", type=("call.responded", "call.error"), requestId=token)
    expect(answer["token"] == token, f"the response has another token: {shown(answer)}")
    expect(envelope_data(answer) == {"a": 1}, f"it was answered by {shown(answer)}")


async def calls_in_flight_are_confirmed(server: Server) -> None:
    """Wait for the confirmation of a call in flight, and answer it."""
    end = cast("BrokerWire", server.line.wire)
    request_id, before = await start_waiting(server)
    token = server.line.token(request_id)
    try:
        async with asyncio.timeout(PATIENCE):
            while not any(token in each["tokens"] for each in end.here(type="session.serving")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        broken(f"session.serving did not name a call in flight within {PATIENCE:g} s")
    finally:
        await stop_waiting(server, request_id, before)


async def calls_end_with_their_caller(server: Server) -> None:
    """Report that the caller is gone; the handler is stopped."""
    request_id, before = await start_waiting(server)
    token = server.line.token(request_id)
    left = json.dumps({"type": "session.left", "tokens": [token]}).encode()
    cast("BrokerWire", server.line.wire).connection.send(server.line.end, token, left, control=True)
    try:
        await running(server, before)
    except TimeoutError:
        broken("the handler was not stopped")


BrokerCheck = Callable[[Server], Awaitable[None]]

BROKER_CHECKS: Mapping[str, tuple[str, BrokerCheck]] = {
    "all servers are found": ("Brokers", who_is_answered),
    "requests are routed by their operation": ("Brokers", requests_are_routed),
    "calls in flight are confirmed": ("Brokers", calls_in_flight_are_confirmed),
    "a call ends with its caller": ("Brokers", calls_end_with_their_caller),
}
