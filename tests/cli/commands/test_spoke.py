"""`opwire spoke`; over a hub, see the tests of `opwire hub`."""

import click
import pytest

from opwire.cli.commands.serve import chosen_spoke
from opwire.cli.program import run
from opwire.config import Config
from opwire.config.settings import EnvText, SpokeSettings
from tests.cli.process import SHOP, Running, opwire
from tests.requirements import requirement
from tests.servers.brokers import RedisServer


@requirement("cli.spoke")
def test_over_a_broker_everybody_may_call_what_is_opened(redis_server: RedisServer) -> None:
    with Running("spoke", redis_server.url, *SHOP, "--open") as spoke:
        spoke.says("serving 8 operations")
        called = opwire("call", "--url", redis_server.url, "math.add", "a=1", "b=2")
        assert (called.returncode, called.stdout) == (0, "3\n"), called.stderr
        assert spoke.stop() == 0


def test_the_token_comes_from_the_environment_and_only_for_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_TOKEN", "a-long-random-secret")
    for url, has_token in (("ws://a:1", True), ("redis://a:1", False)):
        spoke = chosen_spoke(Config(), url, is_open=False).spoke
        assert spoke is not None
        assert (spoke.token is not None) is has_token
    mine = Config(spoke=SpokeSettings(url=EnvText("ws://a:1"), name="mine"))
    assert chosen_spoke(mine, None, is_open=False) == mine
    moved = chosen_spoke(mine, "ws://b:2", is_open=False).spoke
    assert moved is not None
    assert (moved.url, moved.name) == (EnvText("ws://b:2"), "mine")
    with pytest.raises(click.UsageError, match="missing URL"):
        chosen_spoke(Config(), None, is_open=False)


def test_a_hub_that_is_not_there_is_an_error_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spoke", "ws://127.0.0.1:1", *SHOP]) == 6
    assert "UNAVAILABLE" in capsys.readouterr().err
