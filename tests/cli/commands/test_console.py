"""`opwire console`."""

import urllib.error
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest

from opwire.cli.commands.serve import ServeOptions, chosen_surfaces
from opwire.config import Config
from opwire.config.settings import HTTPSurfaceSettings, MCPSurfaceSettings, ServeSettings
from tests.cli.process import SHOP, Running, opwire

HEADERS = {"content-type": "application/json", "x-opwire-console": "1"}


def log_in(link: str) -> dict[str, object]:
    page, _, code = link.partition("#link=")
    body = msgspec.json.encode({"link": code})
    with urlopen(Request(f"{page}api/session", body, HEADERS), timeout=10) as reply:
        return msgspec.json.decode(reply.read())


def test_the_printed_link_signs_in_once_on_this_machine() -> None:
    with Running("console", *SHOP, "--no-open") as server:
        link = server.says(r"(http://127\.0\.0\.1:\d+/console/#link=\S+)")
        assert log_in(link)["identity"] == {"id": "local", "scopes": ["*"]}
        with pytest.raises(urllib.error.HTTPError) as replayed:
            log_in(link)
        replayed.value.close()
        assert replayed.value.code == 401


def test_the_console_of_a_hub_elsewhere_shows_and_calls_its_operations() -> None:
    token = "0123456789abcdef"
    with Running("hub", "ws://127.0.0.1:0", *SHOP, OPWIRE_TOKEN=token) as hub:
        url = hub.says(r"hub at (ws://127\.0\.0\.1:\d+)")
        with Running("console", "--url", url, "--no-open", OPWIRE_TOKEN=token) as server:
            assert log_in(server.says(r"(http://127\.0\.0\.1:\d+/#link=\S+)"))["title"] == url.removeprefix("ws://")
            assert server.says(r"showing (\d+) operations") != "0"


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--python", "shop.py"], "cannot be combined"),
        (["--log-format", "json"], "only the link signs in"),
        ([], "cannot be reached"),
    ],
)
def test_the_console_of_an_unusable_hub_says_what_is_wrong(options: list[str], wrong: str) -> None:
    found = opwire("console", "--url", "ws://127.0.0.1:1", *options)
    assert found.returncode != 0
    assert wrong in found.stderr


def test_a_json_log_has_no_link() -> None:
    with Running("console", *SHOP, "--no-open", "--log-format", "json", OPWIRE_TOKEN="0123456789abcdef") as server:
        assert "link" not in server.says(r"console at .*")
        server.says(r"serving \d+ operations")  # the next line


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (Config(), ServeOptions(http=True), (8080, False)),
        (Config(), ServeOptions(console=True), (8080, True)),
        (Config(), ServeOptions(mcp="stdio", console=True), (8080, True)),
        (
            Config(serve=ServeSettings(http=HTTPSurfaceSettings(port=9))),
            ServeOptions(mcp="http", console=True),
            (9, True),
        ),
        (Config(serve=ServeSettings(mcp=MCPSurfaceSettings())), ServeOptions(console=True), (8080, True)),
        (Config(serve=ServeSettings(http=HTTPSurfaceSettings(console=True))), ServeOptions(http=True), (8080, True)),
    ],
)
def test_the_console_is_beside_the_http_api(config: Config, options: ServeOptions, expected: object) -> None:
    """The console is off by default."""
    http = chosen_surfaces(config, options).serve.http
    assert http is not None
    assert (http.port, http.console) == expected


def test_a_hub_with_a_console_shows_its_spokes(tmp_path: Path) -> None:
    config = tmp_path / "opwire.toml"
    config.write_text("[serve.http]\nport = 0\n")
    token = "a-long-random-secret"
    with Running("hub", "ws://127.0.0.1:0", "--console", "-c", str(config), OPWIRE_TOKEN=token) as hub:
        page = hub.says(r"(http://\S+/console/)#link=")
        url = hub.says(r"hub at (ws://[^;]+)")
        with Running("spoke", url, *SHOP, "--name", "shop1", OPWIRE_TOKEN=token) as spoke:
            spoke.says("serving")
            request = Request(f"{page}api/system", headers={"authorization": f"Bearer {token}"})
            with urlopen(request, timeout=10) as reply:
                servers = msgspec.json.decode(reply.read())["servers"]
            assert [(each["kind"], each["name"]) for each in servers] == [("hub", "hub"), ("spoke", "shop1")]
