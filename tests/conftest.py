"""Shared fixtures."""

import ast
import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.properties import CI_EXAMPLES
from tests.servers.fixtures import brokers_run_here, nats_server, own_nats, own_redis, redis_server  # noqa: F401

if sys.platform == "win32":  # these need signals, pseudo-terminals, resource limits or a broker
    collect_ignore = [
        *("chaos", "durable", "hub", "servers", "soak", "testing", "test_hostile.py", "test_layout.py"),
        *("transports/faults", "transports/nats", "transports/redis", "cli", "mcp/client/test_process.py"),
    ]

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"

# `.ci/coverage` selects `dev` for all Pythons but one: a second one needs no second thorough search.
_every_machine = settings(
    deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", _every_machine, max_examples=CI_EXAMPLES)
settings.register_profile("dev", _every_machine, max_examples=CI_EXAMPLES // 8)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
if not os.environ.get("CI"):
    # Hypothesis looks for constants in the source of every module, and each process of xdist does: 2.6 s of CPU time in
    # a new clone, 0.5 s later. A dozen examples use hardly any of them.
    providers._get_local_constants = Constants


# Objects that are collected live until the end: looking for garbage among them takes a third of the time.
# With xdist, the controller collects nothing and goes on like this.
gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """Import the tests in another order in each process of xdist.

    In a new clone every module has to be compiled. In the same order, all processes would compile each of them at the
    same time; in different ones, a process reads what another has written.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    ignored = {Path(path).resolve() for path in session.config.getoption("ignore") or ()}
    paths = [session.config.invocation_params.dir / argument.split("::")[0] for argument in session.config.args]
    files = sorted(
        file
        for path in paths
        for file in (path.rglob("test_*.py") if path.is_dir() else [path])
        if ignored.isdisjoint([file, *file.parents])
    )
    first = int(worker["workerid"][2:]) * len(files) // worker["workercount"]
    for file in files[first:] + files[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # pytest imports it again, and reports it
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Hide what is collected from the garbage collector: of a million objects, a collection takes 0.8 s of CPU time."""
    gc.freeze()
    gc.enable()


if sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2):
    _parse = ast.parse

    def _parse_without_gc(*args: Any, **options: Any) -> ast.AST:
        """Parse while no garbage is collected.

        If a finalizer logs a traceback, which parses lines as well, the parser raises "AST constructor recursion depth
        mismatch" (gh-106905). Hypothesis parses the file of every state machine, among the garbage of earlier tests.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            return _parse(*args, **options)
        finally:
            if collects:
                gc.enable()

    ast.parse = _parse_without_gc  # type: ignore[assignment]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases that live beside the project; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the folder `shared` with outside cases is not beside this checkout")
    return SHARED
