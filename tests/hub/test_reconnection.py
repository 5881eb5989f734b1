"""What a spoke logs when its hub or broker goes and comes back."""

from collections.abc import Callable

import pytest

from tests.cli.process import SHOP, Running
from tests.servers.brokers import Server


@pytest.mark.parametrize("engine", ["own_redis", "own_nats"])
def test_a_spoke_logs_that_its_broker_was_lost_and_that_it_has_reconnected(
    engine: str, request: pytest.FixtureRequest
) -> None:
    start: Callable[[], Server] = request.getfixturevalue(engine)
    broker = start()
    with Running("spoke", broker.url, *SHOP, "--open") as spoke:
        spoke.says("serving 8 operations")
        broker.stop()
        spoke.says("warning: the connection to .* was lost")
        broker.start()
        spoke.says("warning: reconnected to ")


def test_a_spoke_logs_that_its_hub_was_lost_and_that_it_has_reconnected() -> None:
    with Running("hub", "ws://127.0.0.1:0", "--open") as hub:
        url = hub.says(r"hub at (ws://[^;]+)")
        with Running("spoke", url, *SHOP) as spoke:
            spoke.says("serving 8 operations")
            hub.stop()
            spoke.says("warning: the connection to .* was lost")
            with Running("hub", url, "--open"):
                spoke.says(f"warning: reconnected to {url}")
