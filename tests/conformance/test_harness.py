"""Ends of one medium for a check, and waiting that ends."""

import asyncio
from typing import Any

import pytest

from opwire.model.context import Context
from opwire.protocol import CallRequested
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire_conformance.harness import PATIENCE, TransportHarness, expect, item, soon
from tests.chaos.virtual_time import run_virtually


def harness() -> TransportHarness:
    bus = MemoryBus()
    return TransportHarness(lambda: MemoryTransport(bus))


def test_an_expectation_that_does_not_hold_is_reported() -> None:
    expect(True, "never told")
    with pytest.raises(AssertionError, match="told"):
        expect(False, "told")


def test_waiting_in_vain_ends_and_says_for_what() -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(AssertionError, match="after 20 s: the moon rises"):
            await soon("the moon rises", asyncio.Event().wait())
        return loop.time() - began

    assert run_virtually(run()) == PATIENCE


async def test_what_happens_in_time_is_given_back() -> None:
    assert await soon("a value", asyncio.sleep(0, "value")) == "value"


async def test_scenes_on_the_same_medium_do_not_meet() -> None:
    bus = MemoryBus()
    async with (
        TransportHarness(lambda: MemoryTransport(bus)) as first,
        TransportHarness(lambda: MemoryTransport(bus)) as second,
    ):
        assert first.id("echo") != second.id("echo")


async def test_a_probe_keeps_what_arrives_and_from_whom() -> None:
    async with harness() as stage:
        server, caller = await stage.probe("talk"), await stage.probe()
        event = CallRequested(request_id="r", operation_id=stage.id("talk"))
        caller.transport.request(event)
        await server.count(1)
        assert server.events == [event]
        answer = item("r", 1)
        server.transport.send(answer, server.senders[0])
        await caller.count(1)
        assert caller.events == [answer]


async def test_a_conversation_gives_each_side_the_others_address() -> None:
    async with harness() as stage:
        talk = await stage.conversation()
        assert talk.server.senders == [talk.caller_address]
        assert talk.caller.senders == [talk.server_address]
        assert talk.caller_address != talk.server_address


async def test_a_server_serves_functions_and_generators() -> None:
    async def one(input: Any, _: Context) -> Any:
        return input

    async def many(input: Any, _: Context) -> Any:
        for number in range(input):
            yield number

    async with harness() as stage:
        await stage.server(one=one, many=many)
        caller = await stage.caller()
        assert (await caller.call(stage.id("one"), 7)).data == 7
        assert [each.data async for each in caller.subscribe(stage.id("many"), 3)] == [0, 1, 2]


async def test_leaving_a_scene_closes_its_ends_and_stops_what_was_begun() -> None:
    before = asyncio.all_tasks()
    began, stopped = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with harness() as stage:
        await stage.server(wait=wait)
        caller = await stage.caller()
        call = stage.begin(caller.call(stage.id("wait")))
        await soon("the handler begins", began.wait())
    assert call.cancelled()
    await soon("the handler stops", stopped.wait())
    assert asyncio.all_tasks() == before


async def test_a_call_that_fails_unobserved_does_not_disturb_the_end_of_the_harness() -> None:
    async def fail() -> None:
        raise KeyError("unseen")

    async with harness() as stage:
        task = stage.begin(fail())
        await asyncio.wait([task])
    assert isinstance(task.exception(), KeyError)
