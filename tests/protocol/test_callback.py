"""Requests are answered by a callback, without a registry."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.hub import Hub, Spoke
from opwire.model.envelope import local_envelope
from opwire.protocol import Address, CallbackHandler, CallRequested, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire.transports.websocket import WebSocketTransport
from opwire_conformance.harness import soon
from tests.hub.meeting import OPEN

Ends = tuple[PendingRequestMap, PendingRequestMap]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """A server that announces `shop.price`, and a caller."""
    bus = MemoryBus()
    async with PendingRequestMap(MemoryTransport(bus)) as server, PendingRequestMap(MemoryTransport(bus)) as caller:
        await server.transport.announce(["shop.price"])
        yield server, caller


async def test_a_callback_answers_at_once_or_later(ends: Ends) -> None:
    server, caller = ends
    asked: list[CallRequested] = []
    CallbackHandler(server, asked.append)
    call = asyncio.create_task(caller.call("shop.price", {"article": "tea"}))
    await asyncio.sleep(0)
    assert [(each.operation_id, each.input) for each in asked] == [("shop.price", {"article": "tea"})]
    assert server.respond(asked[0].request_id, local_envelope(4.5, "shop.price"))
    assert (await soon("it is answered", call)).data == 4.5

    async def answer(request: CallRequested) -> None:
        await asyncio.sleep(0)
        server.respond(request.request_id, local_envelope(5, "shop.price"))

    CallbackHandler(server, answer)
    assert (await soon("it is answered", caller.call("shop.price"))).data == 5


async def test_a_callback_sends_items_and_their_end(ends: Ends) -> None:
    server, caller = ends

    def answer(request: CallRequested) -> None:
        for seq in (1, 2):
            server.respond(request.request_id, local_envelope(seq, "shop.price"), seq)
        server.complete(request.request_id, 2)

    CallbackHandler(server, answer)
    assert [item.data async for item in caller.subscribe("shop.price")] == [1, 2]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_exception_of_a_callback_fails_its_request_without_its_text(ends: Ends, is_async: bool) -> None:
    server, caller = ends
    errors: list[Exception] = [ValueError("secret"), CallError("RATE_LIMITED", "later")]

    def fail(_: CallRequested) -> Any:
        raise errors.pop(0)

    async def fail_later(request: CallRequested) -> None:
        fail(request)

    CallbackHandler(server, fail_later if is_async else fail)
    for code in (ErrorCode.EXECUTION_ERROR, ErrorCode.RATE_LIMITED):
        with pytest.raises(CallError) as failure:
            await soon("it is answered", caller.call("shop.price"))
        assert failure.value.code is code
        assert "secret" not in str(failure.value)


@pytest.mark.parametrize("how", ["aborted", "caller lost", "another caller lost"])
async def test_a_coroutine_is_cancelled_with_its_request(ends: Ends, how: str) -> None:
    server, caller = ends
    began, stopped = asyncio.Event(), asyncio.Event()
    callers: list[Address] = []

    async def wait(_: CallRequested) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    handler = CallbackHandler(server, wait)
    requested = handler.requested
    handler.requested = lambda event, caller: (callers.append(caller), requested(event, caller))[1]  # type: ignore[method-assign]
    call = asyncio.create_task(caller.call("shop.price"))
    await soon("it begins", began.wait())
    if how == "another caller lost":
        server.lost("another", "gone")
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stopped.is_set()
    if how == "caller lost":
        server.lost(callers[0], "gone")
        await soon("it is stopped", stopped.wait())
    call.cancel()
    await soon("it is stopped", stopped.wait())


async def test_a_spoke_is_written_with_a_callback() -> None:
    async with (
        Hub(None, "ws://127.0.0.1:0", authenticate=OPEN) as hub,
        PendingRequestMap(WebSocketTransport(hub.url)) as calls,
        Spoke(None, hub.url) as caller,
    ):

        def answer(request: CallRequested) -> None:
            if request.operation_id == "opwire.operations":
                for seq, id in enumerate(request.input["operations"], 1):
                    described = local_envelope({"id": id, "type": "query"}, request.operation_id)
                    calls.respond(request.request_id, described, seq)
                calls.complete(request.request_id)
            else:
                calls.respond(request.request_id, local_envelope(4.5, request.operation_id))

        CallbackHandler(calls, answer)
        await soon("it is announced", calls.transport.announce(["shop.price"]))
        assert await soon("it is answered", caller.call("shop.price")) == 4.5
