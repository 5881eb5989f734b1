"""The cache of a peer's specs."""

import asyncio

import pytest

from opwire.client import backends
from opwire.client.backends import SpecCache
from opwire.errors import CallError
from opwire.model.operation import OperationSpec


class Peer:
    """A backend with operations that counts its requests."""

    def __init__(self, *names: str) -> None:
        self.specs = [OperationSpec(namespace="a", name=name) for name in names]
        self.questions = 0

    async def ask(self) -> list[OperationSpec]:
        self.questions += 1
        await asyncio.sleep(0)
        return self.specs


async def test_concurrent_lookups_send_one_request() -> None:
    peer = Peer("b", "c")
    cache = SpecCache(peer.ask)
    assert await asyncio.gather(*(cache.find("a.b") for _ in range(10))) == [peer.specs[0]] * 10
    assert await cache.find("a.c") is peer.specs[1]
    assert peer.questions == 1


async def test_what_is_not_there_is_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer()
    cache = SpecCache(peer.ask)
    assert await cache.find("a.b") is None
    assert await cache.find("a.b") is None
    assert peer.questions == 1
    monkeypatch.setattr(backends, "STALE", -1)
    peer.specs = Peer("b").specs
    assert await cache.find("a.b") is peer.specs[0]
    assert peer.questions == 2


async def test_a_question_that_fails_is_asked_again() -> None:
    async def ask() -> list[OperationSpec]:
        raise CallError("UNAVAILABLE")

    cache = SpecCache(ask)
    for _ in range(2):
        with pytest.raises(CallError):
            await cache.find("a.b")
