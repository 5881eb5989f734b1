"""A short soak over each engine: `make soak` is the long one."""

from pathlib import Path

import pytest

from tests.properties import is_thorough
from tests.servers.leaks import Leaks
from tests.soak.run import ENGINES, EngineName, Soak

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engine", ENGINES if is_thorough() else ("nats",))
async def test_a_short_soak_breaks_no_promise(engine: EngineName, tmp_path: Path) -> None:
    """Calls, subscriptions and durable mutations keep their promises while processes, brokers and connections are
    killed at random."""
    async with Leaks():
        # At full rate, a soak takes as much CPU time as there is.
        seconds, rate = (4, None) if is_thorough() else (2, 300)
        report = await Soak(engine, seconds, tmp_path, rate).run()
    assert report.violations == [], str(report)
    assert report.ends["ok"]
    assert report.items
    assert (report.durable > 0) == (report.poison > 0) == (engine in {"redis", "nats"})
    assert report.acts
