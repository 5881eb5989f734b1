"""`opwire spoke`; over a hub, see the tests of `opwire hub`."""

import asyncio
import json
from pathlib import Path

import click
import pytest
from msgspec.structs import replace

from opwire import Identity
from opwire.auth import Authority, Grant, SigningKey
from opwire.cli.commands.serve import BrokerOptions, chosen_durable, chosen_hub, chosen_spoke
from opwire.cli.program import run
from opwire.config import Config
from opwire.config.settings import EnvText, Secret, SignedSettings, SpokeSettings
from opwire.durable import DurableCalls
from opwire.durable.redis import RedisJournal
from tests.cli.process import SHOP, Running, opwire
from tests.servers.brokers import RedisServer


def test_over_a_broker_anonymous_callers_may_call_what_is_opened(redis_server: RedisServer) -> None:
    """Operations are served over a broker by one command."""
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


def test_a_spoke_without_callers_says_what_to_do(redis_server: RedisServer) -> None:
    with Running("spoke", redis_server.url, *SHOP, "--prefix", "closed") as spoke:
        spoke.says("warning: no caller has access to the operations that are served here .8.: .*--open.*--authority")
        for command, code in (("ls", 0), ("ps", 5)):
            ended = opwire(command, "--url", redis_server.url, "--prefix", "closed")
            assert ended.returncode == code
            assert (
                "callers over a broker are anonymous: use --signing-key, or start the server with --open"
                in ended.stderr
            )
            assert "OPWIRE_TOKEN" not in ended.stderr


def test_options_secure_a_broker(redis_server: RedisServer, tmp_path: Path) -> None:
    """Options of `hub` and `spoke` secure a broker: prefix, keys, authorities, announcements, a journal."""
    authority, key = Authority.generate(), SigningKey.generate()
    files = {"authority": authority.public_pem, "key": key.to_pem()}
    files["certificate"] = authority.issue(Grant(Identity(id="ada", scopes=("*",))), key.public_pem, lifetime=600)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "opwire.toml").write_text(
        f'[spoke]\nurl = "{redis_server.url}"\nprefix = "mine"\n'
        '[spoke.signed]\nkey_file = "key"\ncertificate_file = "certificate"\n'
    )
    options = (
        "--prefix",
        "mine",
        "--name",
        "maths",
        "--announce",
        "math.*",
        "--authority",
        str(tmp_path / "authority"),
    )
    with Running("spoke", redis_server.url, *SHOP, *options) as spoke:
        spoke.says("serving 8 operations")
        listed = opwire("ps", "--interval", "0.1", "--json", "-c", str(tmp_path / "opwire.toml"))
        found = [json.loads(line) for line in listed.stdout.splitlines()]
        assert [(each["name"], each["operations"]) for each in found] == [("maths", 1)], listed.stderr
        assert opwire("ps", "--url", redis_server.url).stdout == ""
        assert spoke.stop() == 0


def test_a_call_over_a_broker_is_signed_with_keys_of_the_command_line(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("authority", "ada"):
        assert run(["keys", "new", name]) == 0
    assert (tmp_path / "ada.key").stat().st_mode & 0o777 == 0o600
    assert run(["keys", "certify", "ada.pem", "--authority", "authority.key", "--scope", "*", "--days", "0.5"]) == 0
    secret = (tmp_path / "ada.key").read_text().splitlines()[1]
    mine = ("--url", redis_server.url, "--prefix", "signed")
    with Running("spoke", redis_server.url, *SHOP, *mine[2:], "--authority", str(tmp_path / "authority.pem")) as spoke:
        spoke.says("serving 8 operations")
        capsys.readouterr()
        key = ("--signing-key", "ada.key", "--certificate", "ada.certificate")
        assert run(["call", *mine, *key, "math.add", "a=1", "b=2"]) == 0
        assert capsys.readouterr().out == "3\n"
        assert run(["call", *mine, "math.add", "a=1", "b=2"]) == 3  # anonymous callers do not see it
        assert "use --signing-key" in capsys.readouterr().err
        assert run(["call", *mine[:2], *key, "math.add", "a=1", "b=2"]) == 3  # at another prefix
        printed = "".join(capsys.readouterr())
        assert "check --prefix, the scopes" in printed
        assert "use --signing-key" not in printed
        assert secret not in printed
        assert spoke.stop() == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["keys", "new", "ada"], "ada.pem already exists, and is not overwritten"),
        (["keys", "new", "nowhere/ada"], "nowhere/ada.pem: cannot write the file: No such file or directory"),
        (["keys", "certify", "ada.pem", "--authority", "ada.pem"], "ada.pem: not an Ed25519 key in PEM"),
        (["keys", "certify", "ada.key", "--authority", "ada.key"], "ada.key: not an Ed25519 public key in PEM"),
        (["keys", "certify", "ada.pem", "--authority", "ada.key", "--days", "0"], "--days"),
        (["ls", "--url", "redis://127.0.0.1:1", "--signing-key", "ada.key"], "--certificate belong together"),
        (["ls", "--url", "ws://127.0.0.1:1", "--prefix", "x"], "are for brokers: redis:// and nats://"),
        (["ls", "--python", "shop", "--prefix", "x"], "redis:// and nats://; add --url"),
        (["ps", "--signing-key", "ada.key"], "redis:// and nats://; add --url"),
        (
            ["ls", "--url", "redis://127.0.0.1:1", "--signing-key", "ada.pem", "--certificate", "ada.pem"],
            "--signing-key: not an Ed25519 key in PEM",
        ),
    ],
)
def test_keys_that_cannot_be_used_are_named(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["keys", "new", "ada"]) == 0
    assert run(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_spoke_also_runs_durable_mutations(redis_server: RedisServer) -> None:
    async def order() -> str:
        async with asyncio.timeout(30), RedisJournal(redis_server.url, prefix="orders") as journal:
            input = {"customer": "ada", "lines": []}
            return (await DurableCalls(journal).call("shop.order", input, key="order-1")).data["customer"]

    journal = ("--prefix", "orders", "--durable", redis_server.url)
    with Running("spoke", redis_server.url, *SHOP, "--open", *journal) as spoke:
        spoke.says("durable mutations from Redis at ")
        spoke.says("serving 8 operations")
        assert asyncio.run(order()) == "ada"
        assert spoke.stop() == 0


def test_options_of_a_broker_go_before_the_configuration() -> None:
    mine = SpokeSettings(url=EnvText("redis://a"), signed=SignedSettings(key=Secret("${KEY}"), authorities=("old",)))
    options = BrokerOptions(signing_key="k", authority=("a", "b"))
    spoke = chosen_spoke(Config(spoke=mine), None, is_open=False, broker=options, announce=("shop",)).spoke
    assert spoke is not None
    assert spoke.signed is not None
    assert (spoke.signed.key, spoke.signed.key_file) == (None, str(Path("k").absolute()))
    assert spoke.signed.authorities == tuple(str(Path(name).absolute()) for name in ("a", "b"))
    assert spoke.announces == ("shop",)
    assert chosen_spoke(Config(spoke=mine), None, is_open=False, broker=BrokerOptions()).spoke == mine
    hub = chosen_hub(Config(), None, is_open=False, broker=BrokerOptions(name="n", prefix="p")).hub
    assert hub is not None
    assert (hub.name, hub.prefix, hub.signed) == ("n", "p", None)


def test_a_journal_by_option_has_the_callers_and_the_prefix_of_the_spoke() -> None:
    opened = chosen_spoke(Config(), "redis://a", is_open=True, broker=BrokerOptions(prefix="p"))
    durable = chosen_durable(opened, "redis://b").durable
    assert durable is not None
    assert (durable.url, durable.prefix, durable.anonymous) == (EnvText("redis://b"), "p", "anonymous")
    kept = replace(opened, durable=replace(durable, lease=5.0))
    moved = chosen_durable(kept, "redis://c").durable
    assert moved is not None
    assert (moved.url, moved.lease) == (EnvText("redis://c"), 5.0)
