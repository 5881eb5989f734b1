"""Shared fixtures."""

import ast
import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.properties import CI_EXAMPLES
from tests.servers.fixtures import brokers_run_here, nats_server, own_nats, own_redis, redis_server  # noqa: F401

if sys.platform == "win32":  # these need signals, pseudo-terminals, resource limits or a broker
    collect_ignore = [
        *("chaos", "durable", "hub", "servers", "soak", "testing", "test_hostile.py", "test_layout.py"),
        *("transports/faults", "transports/nats", "transports/redis", "cli", "adapters/mcp/test_process.py"),
    ]

SHARED = Path(__file__).parent.parent.parent / "shared"

# `.ci/coverage` selects `dev` for all Pythons but one: a second one needs no second thorough search.
_every_machine = settings(
    deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", _every_machine, max_examples=CI_EXAMPLES)
settings.register_profile("dev", _every_machine, max_examples=CI_EXAMPLES // 8)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_finish() -> None:
    """Hide what is collected from the garbage collector: of a million objects, a collection takes 0.8 s of CPU time."""
    gc.collect()
    gc.freeze()


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
