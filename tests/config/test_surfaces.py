"""What a configuration serves: called back through the real thing."""

import asyncio
import ssl
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from opwire import CallError, OperationRegistry
from opwire.asgi.listener import listening
from opwire.config.surfaces import http_surface, hub_of, mcp_http_options, mcp_surface, spoke_of
from opwire.errors import ConfigError, MissingExtraError
from opwire.hub import Spoke
from opwire.mcp.client import HTTPServer, from_mcp
from tests.config.projects import project
from tests.servers.certificates import self_signed

SECRET = "a-token-of-many-letters"
ALICE = '[identities.alice]\ntoken = "${OPWIRE_ALICE}"\nannounces = ["a"]\n'
GUEST = "[identities.guest]\n"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWIRE_ALICE", SECRET)


@pytest.fixture
def registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("a.one")
    async def one() -> int:
        return 1

    return registry


async def fetch(url: str, *headers: str) -> str:
    """The first line of the answer."""
    parts = url.removeprefix("http://").split("/", 1)
    host, port = parts[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"GET /{parts[1]} HTTP/1.1", f"host: {parts[0]}", "connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    status = await reader.readline()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    return status.decode().strip()


async def test_the_http_surface_knows_the_identities_of_the_file(tmp_path: Path, registry: OperationRegistry) -> None:
    config = project(tmp_path, f'{ALICE}[serve.http]\ntitle = "Shop"')
    async with http_surface(config, registry).listening() as address:
        assert await fetch(f"{address}/a/one") == "HTTP/1.1 401 Unauthorized"
        assert await fetch(f"{address}/a/one", f"authorization: Bearer {SECRET}") == "HTTP/1.1 200 OK"
    config = project(tmp_path, f'{GUEST}[serve.http]\nanonymous = "guest"\nhosts = ["shop.example"]')
    async with http_surface(config, registry).listening() as address:
        assert await fetch(f"{address}/a/one") == "HTTP/1.1 421 Misdirected Request"
    config = project(tmp_path, f'{GUEST}[serve.http]\nanonymous = "guest"')
    async with http_surface(config, registry).listening() as address:
        assert await fetch(f"{address}/a/one") == "HTTP/1.1 200 OK"


async def test_the_mcp_surface_listens_and_admits_as_configured(tmp_path: Path, registry: OperationRegistry) -> None:
    names = 'poll_after = 20\n[serve.mcp.tool_names]\n"a.one" = "first"'
    config = project(tmp_path, f'{ALICE}[serve.mcp]\ntransport = "http"\npath = "/tools"\nname = "shop"\n{names}')
    assert mcp_http_options(config).get("poll_after") == 20
    app = mcp_surface(config, registry).asgi(**mcp_http_options(config))
    async with listening(app, on_drain=app.drain) as address:
        server = HTTPServer(f"{address}/tools", {"Authorization": f"Bearer {SECRET}"})
        async with from_mcp(server, trust_annotations=True) as tools:
            assert [each.spec.id for each in tools] == ["a.one"]
            assert [each.name for each in tools.servers.values()] == ["shop"]
        async with from_mcp(server) as tools:
            assert [each.spec.id for each in tools] == ["shop.first"]


def test_a_tool_name_that_clients_reject_is_a_problem_of_the_file(tmp_path: Path, registry: OperationRegistry) -> None:
    config = project(tmp_path, '[serve.mcp.tool_names]\n"a.one" = "the first"')
    with pytest.raises(ConfigError, match=r"serve\.mcp: the tool name 'the first' of a\.one is invalid"):
        mcp_surface(config, registry)


def test_surfaces_need_no_table_of_their_own(tmp_path: Path, registry: OperationRegistry) -> None:
    config = project(tmp_path, "")
    assert "'opwire'" in repr(mcp_surface(config, registry))
    assert mcp_http_options(config).get("path") == "/mcp"
    http_surface(config, registry)


async def test_a_hub_and_a_spoke_of_two_files_meet(tmp_path: Path, registry: OperationRegistry) -> None:
    for name in ("hub", "spoke"):
        (tmp_path / name).mkdir()
    config = project(tmp_path / "hub", f'{ALICE}{GUEST}[hub]\nurl = "ws://127.0.0.1:0"\nanonymous = "guest"')
    async with hub_of(config, OperationRegistry()) as hub:
        toml = f'[spoke]\nurl = ["{hub.url}"]\n'
        serving = project(tmp_path / "spoke", f'{toml}token = "${{OPWIRE_ALICE}}"')
        async with spoke_of(serving, registry):
            assert (await hub.registry.execute("a.one")).data == 1
            async with spoke_of(project(tmp_path / "spoke", toml), None) as guest:
                assert await guest.call("a.one", timeout=5) == 1
        with pytest.raises(CallError, match="ACCESS_DENIED"):
            async with spoke_of(project(tmp_path / "spoke", toml), registry):
                pytest.fail("a guest may not serve operations")


async def test_the_calls_at_a_spoke_have_the_limit_of_the_file(tmp_path: Path, registry: OperationRegistry) -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    @registry.query("a.slow")
    async def slow() -> int:
        begun.set()
        await released.wait()
        return 2

    config = project(tmp_path, f'{ALICE}[hub]\nurl = "ws://127.0.0.1:0"')
    async with hub_of(config, OperationRegistry()) as hub:
        toml = f'[limits]\nmax_calls = 1\n[spoke]\nurl = "{hub.url}"\ntoken = "${{OPWIRE_ALICE}}"'
        (tmp_path / "spoke").mkdir()
        async with spoke_of(project(tmp_path / "spoke", toml), registry), asyncio.timeout(20):
            pending = asyncio.create_task(hub.registry.execute("a.slow"))
            await begun.wait()
            with pytest.raises(CallError, match="RATE_LIMITED"):
                await hub.registry.execute("a.one")
            released.set()
            assert (await pending).data == 2


async def test_a_hub_with_a_certificate_speaks_tls(tmp_path: Path) -> None:
    pem = self_signed(tmp_path).name
    toml = f'[hub]\nurl = "wss://127.0.0.1:0"\ncertificate = "{pem}"\nprivate_key = "{pem}"'
    async with hub_of(project(tmp_path, toml), OperationRegistry()) as hub:
        trusting = ssl.create_default_context(cafile=str(tmp_path / pem))
        async with Spoke(None, hub.url, ssl=trusting) as spoke:
            assert await spoke.discover(wait=0.01) is not None


def test_a_spoke_needs_its_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing table \[spoke\]: add it, with url"):
        spoke_of(project(tmp_path, ""), None)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('[hub]\nurl = "ftp://x"', "hub: unknown URL scheme 'ftp'"),
        ('[hub]\ncertificate = "a"\nprivate_key = "b"', "hub.certificate and hub.private_key cannot be used"),
        ('[hub]\nurl = "${OPWIRE_NO}"', "hub.url: the environment variable OPWIRE_NO is not set"),
        ('[spoke]\nurl = "ftp://x"', "spoke: unknown URL scheme 'ftp'"),
        (
            '[spoke]\nurl = "redis://x"\ntoken = "${OPWIRE_ALICE}"',
            "spoke: redis:// has no option 'token'; ",
        ),
        (
            '[spoke]\nurl = "ws://x"\ntoken = "${OPWIRE_NO}"',
            "spoke.token: the environment variable OPWIRE_NO",
        ),
    ],
)
def test_what_a_hub_or_spoke_cannot_use_is_a_mistake_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, message: str
) -> None:
    monkeypatch.delenv("OPWIRE_NO", raising=False)
    config = project(tmp_path, toml)
    with pytest.raises(ConfigError) as caught:
        hub_of(config, OperationRegistry()) if config.hub else spoke_of(config, None)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("surface", ["mcp", "http"])
def test_a_package_that_is_not_installed_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: OperationRegistry, surface: str
) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ModuleNotFoundError(name="starlette")

    monkeypatch.setitem(
        sys.modules, "opwire.mcp.server.app" if surface == "mcp" else "opwire.openapi.server.app", Broken("broken")
    )
    build = mcp_surface if surface == "mcp" else http_surface
    with pytest.raises(MissingExtraError, match=rf"starlette is not installed; run: pip install 'opwire\[{surface}\]'"):
        build(project(tmp_path, ""), registry)
