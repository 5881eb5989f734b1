"""Worker processes: they start, they are killed and frozen, and they never outlive the tests."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.leaks import Leaks
from tests.servers.processes import ROOT, Worker, wait_until_gone

WORKER = ("tests.servers.worker", "memory", "")


async def test_a_worker_is_ready_when_the_block_begins_and_gone_when_it_ends() -> None:
    async with Leaks():
        async with Worker(*WORKER) as worker:
            assert worker.lines == ["ready"]
        wait_until_gone(worker.pid)


async def test_a_killed_worker_is_not_a_failure_of_the_block() -> None:
    async with Leaks(), Worker(*WORKER) as worker:
        worker.kill()
        with pytest.raises(AssertionError, match="the process ended without 'more'"):
            await worker.until("more")


async def test_a_frozen_worker_stands_still_until_it_is_thawed() -> None:
    async with Leaks(), Worker(*WORKER) as worker:
        status = Path(f"/proc/{worker.pid}/stat")
        worker.freeze()
        assert ") T " in status.read_text()
        worker.thaw()
        assert ") T " not in status.read_text()
        worker.freeze()  # the end of the block stops it nevertheless


async def test_a_worker_that_cannot_start_shows_what_it_printed() -> None:
    async with Leaks():
        with pytest.raises(AssertionError, match="there is no transport 'pigeon'"):
            async with Worker("tests.servers.worker", "pigeon", ""):
                pass


async def test_a_worker_that_ends_badly_fails_the_block() -> None:
    async with Leaks():
        with pytest.raises(AssertionError, match="the process ended with -6"):
            async with Worker(*WORKER) as worker:
                worker.send_signal(signal.SIGABRT)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_worker_dies_with_the_process_that_started_it() -> None:
    script = (
        "import asyncio\nfrom tests.servers.processes import Worker\n"
        "async def main():\n"
        f"    async with Worker(*{WORKER}) as worker:\n"
        "        worker.freeze(); print(worker.pid, flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    wait_until_gone(pid)
