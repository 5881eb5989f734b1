"""Shared fixtures."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.fixtures import nats_server, own_nats, own_redis, redis_server  # noqa: F401

SHARED = Path(__file__).parent.parent.parent / "shared"

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases that live beside the project; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the folder `shared` with outside cases is not beside this checkout")
    return SHARED
