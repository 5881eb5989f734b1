"""Leaks are found, and what ends by itself is not one."""

import asyncio
import socket
import subprocess
import sys

import pytest

from tests.servers import leaks
from tests.servers.leaks import Leaks


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE", 0.05)


async def test_what_ends_within_the_patience_is_not_a_leak() -> None:
    async with Leaks():
        left, right = socket.socketpair()
        task = asyncio.create_task(asyncio.sleep(0.05))
        task.add_done_callback(lambda _: (left.close(), right.close()))


async def test_a_task_that_goes_on_is_a_leak(impatient: None) -> None:
    task = None
    with pytest.raises(AssertionError, match=r"tasks: 2 instead of 1, among them .*sleep"):
        async with Leaks():
            task = asyncio.create_task(asyncio.sleep(60))
    assert task is not None
    task.cancel()


async def test_an_open_socket_is_a_leak(impatient: None) -> None:
    pair = None
    with pytest.raises(AssertionError, match=r"file descriptors: .*'\d+ socket:\[\d+\]'"):
        async with Leaks():
            pair = socket.socketpair()
    assert pair is not None
    for end in pair:
        end.close()


async def test_a_child_process_is_a_leak(impatient: None) -> None:
    child = None
    with pytest.raises(AssertionError, match=r"child processes: \d+ instead of \d+"):
        async with Leaks():
            child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child is not None
    child.communicate()


async def test_the_failure_of_the_test_itself_is_what_is_shown(impatient: None) -> None:
    pair: list[socket.socket] = []

    def leak_and_fail() -> None:
        pair.extend(socket.socketpair())
        raise LookupError

    with pytest.raises(LookupError):
        async with Leaks():
            leak_and_fail()
    for end in pair:
        end.close()
