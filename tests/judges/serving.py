"""Programs in processes of their own: until they end, or for as long as a test needs them."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.servers.processes import PATIENCE, ROOT, mortal

HOST = "127.0.0.1"


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


class Finished(NamedTuple):
    """What a program left behind."""

    code: int | None
    output: str
    complaints: str


async def finished(command: Sequence[str], env: Mapping[str, str] | None = None) -> Finished:
    """Run a program to its end. It is killed if the wait is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Finished(process.returncode, output.decode(), complaints.decode())


@asynccontextmanager
async def listening(
    command: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None
) -> AsyncGenerator[None]:
    """A server that listens on a port of this machine. What it prints is in `log`.

    Raises:
        AssertionError: it ends, or does not listen in time.
    """
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *mortal(command), cwd=ROOT, env={**os.environ, **(env or {})}, stdout=output, stderr=output
        )
    try:
        await _until_it_listens(process, port, log)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _until_it_listens(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            assert process.returncode is None, f"the server has ended: {log.read_text()}"
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            await writer.wait_closed()
            return
