"""Brokers that a configuration secures: signatures, prefixes, announced operations and journals."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.auth import Authority, Grant, SigningKey
from opwire.config import durable_of, hub_of, mcp_surface, spoke_of
from opwire.config.reading import parse_config
from opwire.durable import DurableCalls
from opwire.errors import ConfigError
from opwire.hub import Spoke
from opwire.model.access import AccessControl
from tests.config.projects import project
from tests.servers.brokers import RedisServer

PATIENCE = 20.0


@pytest.fixture(params=["redis", "nats"])
def broker(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_server").url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the keys of "ada", and the public key of the authority that certifies them."""
    authority, key = Authority.generate(), SigningKey.generate()
    (tmp_path / "authority.pem").write_text(authority.public_pem)
    (tmp_path / "ada.key").write_text(key.to_pem())
    certificate = authority.issue(Grant(Identity(id="ada")), key.public_pem, lifetime=600)
    (tmp_path / "ada.certificate").write_text(f"{certificate}\n")
    return tmp_path


def registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("who.am_i")
    async def am_i(context: Context) -> str | None:
        return context.identity and context.identity.id

    @registry.mutation("shop.order")
    async def order(article: str) -> str:
        return f"ordered {article}"

    return registry


async def code_of(work: Awaitable[Any]) -> str:
    with pytest.raises(CallError) as failed:
        async with asyncio.timeout(PATIENCE):
            await work
    return failed.value.code


async def test_signed_requests_are_configured_by_files(broker: str, folder: Path) -> None:
    connection = f'[spoke]\nurl = "{broker}"\nprefix = "signed"\n'
    signing = '[spoke.signed]\nkey_file = "ada.key"\ncertificate_file = "ada.certificate"\n'
    serving = project(folder, f'{connection}[spoke.signed]\nauthorities = ["authority.pem"]')
    async with spoke_of(serving, registry()):
        async with spoke_of(project(folder, connection + signing), None) as ada:
            assert await ada.call("who.am_i", timeout=PATIENCE) == "ada"
        async with spoke_of(project(folder, connection), None) as mallory:
            assert await code_of(mallory.call("who.am_i")) == "UNAUTHENTICATED"


async def test_a_key_may_come_from_the_environment_and_a_node_on_a_broker_verifies_too(
    folder: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADA_KEY", (folder / "ada.key").read_text())
    monkeypatch.setenv("ADA_CERTIFICATE", (folder / "ada.certificate").read_text().strip())
    node = f'[hub]\nurl = "{redis_server.url}"\nprefix = "node"\n[hub.signed]\nauthorities = ["authority.pem"]\n'
    signing = '[spoke.signed]\nkey = "${ADA_KEY}"\ncertificate = "${ADA_CERTIFICATE}"\n'
    async with hub_of(project(folder, node), registry()):
        calling = project(folder, f'[spoke]\nurl = "{redis_server.url}"\nprefix = "node"\n{signing}')
        async with spoke_of(calling, None) as ada:
            assert await ada.call("who.am_i", timeout=PATIENCE) == "ada"


async def test_announces_selects_what_others_see(broker: str, tmp_path: Path) -> None:
    """A spoke shows others only the namespaces and patterns that its file announces."""
    connection = f'[identities.guest]\n[spoke]\nurl = "{broker}"\nanonymous = "guest"\nprefix = "announced"\n'
    for announces, expected in (('["shop"]', ["shop.order"]), ('["who.*"]', ["who.am_i"])):
        config = project(tmp_path, f"{connection}announces = {announces}")
        async with spoke_of(config, registry()) as spoke:
            [found] = await spoke.discover()
            assert [each.id for each in found.operations] == expected


async def test_durable_mutations_are_run_from_the_journal_of_the_file(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    toml = f'[identities.guest]\n[durable]\nurl = "{redis_server.url}"\nprefix = "of_a_file"\nanonymous = "guest"\n'
    pair = durable_of(project(tmp_path, f'{toml}operations = ["shop.order"]'), registry())
    assert pair is not None
    journal, worker = pair
    async with asyncio.timeout(PATIENCE), journal, worker:
        envelope = await DurableCalls(journal).call("shop.order", {"article": "tea"}, key="order-1")
        assert envelope.data == "ordered tea"
    assert durable_of(project(tmp_path, ""), registry()) is None


def test_durable_tasks_need_a_trusted_journal_a_key_and_no_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a key of all servers")

    def surface(toml: str, durable: str = 'url = "redis://h"\ntrusted = true') -> object:
        if "durable_tasks" not in toml:
            toml += '\ndurable_tasks = ["shop.order"]'
        toml = f"[durable]\n{durable}\n[views.all]\n[serve.mcp]\n{toml}"
        config = project(tmp_path, toml.removeprefix("[durable]\n\n"))
        pair = durable_of(config, registry())
        return mcp_surface(config, registry(), journal=None if pair is None else pair[0])

    key = 'state_key = "${KEY}"'
    assert surface(key)
    for toml, durable, message in (
        (key, "", "serve.mcp: durable_tasks need a journal"),
        (key, 'url = "redis://h"', "serve.mcp: .*does not vouch for the identities .*trusted=True"),
        (f'{key}\nview = "all"', None, "serve.mcp: durable_tasks and view exclude each other"),
        ("", None, "serve.mcp: durable_tasks need a state_key"),
        (f'{key}\ndurable_tasks = ["who.am_i"]', None, "only mutations"),
    ):
        with pytest.raises(ConfigError, match=message):
            surface(toml, *(() if durable is None else (durable,)))


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('key_file = "a"', "spoke.signed: missing key `certificate_file`"),
        ('certificate_file = "a"', "spoke.signed: missing key `key_file`"),
        ("", "spoke.signed: empty table"),
        ('key_file = "a"\nkey = "${A}"\ncertificate_file = "b"', "the keys key and key_file exclude each other"),
        ('key = "-----BEGIN"\ncertificate_file = "b"', "secrets do not belong in a file"),
        ('authorities = ["a"]\n[durable]\nurl = "redis://u:secret@h"', "contains a password"),
        ('authorities = ["a"]\n[durable]\nurl = "redis://h"\nanonymous = "x"', "unknown identity 'x'"),
    ],
)
def test_what_cannot_be_meant_is_reported(toml: str, message: str) -> None:
    config, problems = parse_config(f'[spoke]\nurl = "redis://h"\n[spoke.signed]\n{toml}')
    assert config is None
    assert any(message in f"{each.key}: {each.message}" for each in problems), problems


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            '[spoke]\nurl = "redis://h"\n[spoke.signed]\nauthorities = ["none"]',
            "spoke.signed.authorities: cannot be read",
        ),
        (
            '[spoke]\nurl = "redis://h"\n[spoke.signed]\nauthorities = ["ada.key"]',
            "spoke.signed: not an Ed25519 public key",
        ),
        (
            '[spoke]\nurl = "redis://h"\n[spoke.signed]\nkey_file = "ada.key"\ncertificate_file = "ada.key"',
            "spoke.signed: this is not a key certificate",
        ),
        ('[spoke]\nurl = "redis://h"\nca_file = "none"', "spoke.ca_file cannot be used"),
        ('[spoke]\nurl = "ws://h"\nprefix = "x"', "spoke: ws:// has no option 'prefix'; "),
        ('[hub]\ncluster = "ws://h"', "hub: the hubs of a cluster meet on a broker"),
        ('[hub]\nurl = "redis://h"\ncluster = "redis://h"', "hub.cluster is for hubs"),
        ('[hub]\nprefix = "x"', "hub: prefix, credentials_file, ca_file and signed are for the URL of a broker"),
        ('[durable]\nurl = "ftp://h"', "durable: "),
        ('[durable]\nurl = "redis://h"\noperations = ["who.am_i"]', "durable: only mutations of the registry"),
    ],
)
def test_what_cannot_be_used_names_its_table(folder: Path, toml: str, message: str) -> None:
    config = project(folder, toml)
    build: Any = hub_of if config.hub is not None else spoke_of if config.spoke is not None else durable_of
    with pytest.raises(ConfigError) as failed:
        build(config, registry())
    assert str(failed.value).startswith(message)
    assert "PRIVATE" not in str(failed.value)


async def test_a_spoke_with_operations_that_cannot_be_called_reports_it_at_its_start(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with Spoke(registry(), redis_server.url, prefix="closed"):
        assert "no caller has access to the operations that are served here (2)" in caplog.text
    caplog.clear()
    public = registry()
    public.query("who.cares", access=AccessControl(public=True))(lambda: None)
    guest = Identity(id="guest")
    async with (
        Spoke(public, redis_server.url, prefix="closed"),
        Spoke(registry(), redis_server.url, prefix="closed", anonymous=guest),
        Spoke(None, redis_server.url, prefix="closed"),
    ):
        assert caplog.text == ""
