"""`opwire hub`."""

import signal
from pathlib import Path

import pytest

from opwire.cli.commands.serve import chosen_hub
from opwire.cli.program import run
from opwire.config import Config
from opwire.config.settings import EnvText, HubSettings
from tests.cli.process import SHOP, OnTerminal, Running, opwire

TOKEN = "a-long-random-secret"


def test_a_spoke_serves_over_a_hub_and_a_third_process_calls_and_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hub, a spoke and a caller are three commands that find each other."""
    with Running("hub", "ws://127.0.0.1:0", OPWIRE_TOKEN=TOKEN) as hub:
        url = hub.says(r"hub at (ws://[^;]+)")
        for command in (("ls", "--url", url), ("spoke", url, *SHOP)):
            refused = opwire(*command, OPWIRE_TOKEN="")
            assert refused.returncode == 5
            assert refused.stderr.endswith(
                "a token is needed; set OPWIRE_TOKEN to the token of the server: `opwire serve` "
                "and `opwire hub` print theirs\n"
            )
        with Running("spoke", url, *SHOP, OPWIRE_TOKEN=TOKEN) as spoke:
            spoke.says("serving 8 operations")
            assert "math.add\tquery" in opwire("ls", "--url", url, OPWIRE_TOKEN=TOKEN).stdout
            called = opwire("call", "--url", url, "math.add", "a=1", "b=2", OPWIRE_TOKEN=TOKEN)
            assert (called.returncode, called.stdout) == (0, "3\n"), called.stderr
            watched = opwire("watch", "--url", url, "clock.ticks", "count=2", "--json", OPWIRE_TOKEN=TOKEN)
            assert watched.stdout == '{"tick":0}\n{"tick":1}\n'
            with OnTerminal("call", "--url", url, "shop.slow", columns=80, OPWIRE_TOKEN=TOKEN) as terminal:
                terminal.expect("shop.slow: 1 of 2 halfway")
                assert terminal.end()[0] == 0
            assert opwire("ls", "--url", url, OPWIRE_TOKEN="no" * 10).returncode == 5
            monkeypatch.setenv("OPWIRE_TOKEN", TOKEN)
            assert run(["doctor", "--url", url]) == 0
            config = tmp_path / "opwire.toml"
            config.write_text(f'[spoke]\nurl = ["{url}"]\ntoken = "${{OPWIRE_TOKEN}}"\n')
            assert run(["doctor", "-c", str(config)]) == 0
            assert "✓ spoke: connected\n" in capsys.readouterr().out
            assert spoke.stop() == 0
        assert hub.stop(signal.SIGINT) == 0


def test_options_go_before_the_configuration() -> None:
    config = Config(hub=HubSettings(url=EnvText("ws://a:1"), name="mine"))
    hub = chosen_hub(config, "ws://b:2", is_open=True).hub
    assert hub is not None
    assert (hub.url.template, hub.name, hub.anonymous) == ("ws://b:2", "mine", "anonymous")
    assert chosen_hub(config, None, is_open=False).hub == config.hub
    assert chosen_hub(Config(), None, is_open=False).hub == HubSettings()
