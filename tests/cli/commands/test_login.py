"""`opwire login` and `opwire logout`, against a real authorization server in a thread of its own."""

import asyncio
import json
import stat
import sys
import threading
import webbrowser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest

from opwire.cli.program import run
from tests.auth.oauth.authorization_server import AuthorizationServer, get, redirect_of
from tests.cli.process import OnTerminal
from tests.openapi.client.documents import document


@pytest.fixture
def identity() -> Iterator[AuthorizationServer]:
    server, started, done = AuthorizationServer(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            started.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    yield server
    done.set()
    thread.join(10)


@pytest.fixture
def project(identity: AuthorizationServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    flow = {"authorizationUrl": f"{identity.url}/authorize", "tokenUrl": f"{identity.url}/token", "scopes": {}}
    device = {"deviceAuthorizationUrl": f"{identity.url}/device", "tokenUrl": f"{identity.url}/token", "scopes": {}}
    scheme = {"type": "oauth2", "flows": {"authorizationCode": flow, "deviceAuthorization": device}}
    get_me = {"operationId": "me", "security": [{"oauth": ["read"]}], "responses": {"200": {"description": ""}}}
    root = document(
        {"/me": {"get": get_me}}, servers=[{"url": identity.url}], components={"securitySchemes": {"oauth": scheme}}
    )
    (tmp_path / "api.json").write_text(json.dumps(root))
    (tmp_path / "opwire.toml").write_text(
        """
        [sources.api]
        openapi = "api.json"
        credentials.oauth = { client_id = "cli", login = true }
        [sources.time]
        command = "true"
        """
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "data"))
    for name in ("SSH_CONNECTION", "WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Browser(threading.Thread):
    """Opens an address as a browser does, beside the program."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def run(self) -> None:
        async def sign_in() -> None:
            assert await get(await redirect_of(self.url)) == 200

        asyncio.run(sign_in())


def with_browser(monkeypatch: pytest.MonkeyPatch) -> list[Browser]:
    browsers: list[Browser] = []

    def open_browser(url: str) -> bool:
        browsers.append(Browser(url))
        browsers[-1].start()
        return True

    monkeypatch.setattr(webbrowser, "open", open_browser)
    monkeypatch.setenv("DISPLAY", ":0")
    return browsers


def test_a_person_signs_in_with_a_browser_calls_and_signs_out(
    project: Path, identity: AuthorizationServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["call", "api.me"]) == 7
    said = capsys.readouterr().err
    assert "opwire login" in said
    browsers = with_browser(monkeypatch)
    assert run(["login", "api"]) == 0
    said = capsys.readouterr().out
    assert f"{identity.url}/authorize?" in said
    assert said.endswith("Signed in to api.\n")
    (browser,) = browsers
    browser.join(10)
    assert run(["call", "api.me", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"login": 1}
    files = list((project / "data" / "opwire" / "logins").iterdir())
    assert files
    if sys.platform != "win32":
        assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert run(["logout", "api"]) == 0
    assert run(["logout", "api"]) == 0
    assert capsys.readouterr().out == "Signed out of api.\nNot signed in to api.\n"
    assert run(["call", "api.me"]) == 7


def test_without_a_display_no_browser_is_opened_and_the_address_is_pasted(
    project: Path, identity: AuthorizationServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_browser(url: str) -> bool:
        raise AssertionError("a text browser would take over the terminal")

    monkeypatch.setattr(webbrowser, "open", no_browser)

    def prompt(text: str, **options: Any) -> str:
        assert options["hide_input"]  # the code is not in the scrollback
        url = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("http"))
        with ThreadPoolExecutor(1) as beside:  # the prompt blocks the event loop
            return beside.submit(lambda: asyncio.run(redirect_of(url))).result(10)

    monkeypatch.setattr(click, "prompt", prompt)
    assert run(["login", "api", "--no-browser"]) == 0
    assert capsys.readouterr().out == "Signed in to api.\n"
    assert run(["login", "api", "--timeout", "1"]) == 6
    said = capsys.readouterr()
    assert "Open in a browser:" in said.out
    assert "not completed within 1 s" in said.err


def test_a_device_shows_a_code(
    project: Path, identity: AuthorizationServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["login", "api", "--device"]) == 0  # the first poll is after 2 s
    said = capsys.readouterr().out
    assert said == f"Open {identity.url}/enter and enter the code WDJB-MJHT\nSigned in to api.\n"


def test_an_mcp_server_needs_no_configuration(
    project: Path, identity: AuthorizationServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_browser(monkeypatch)
    address = f"{identity.url}/mcp"
    assert run(["login", "--mcp", f"tools={address}"]) == 0
    assert capsys.readouterr().out.endswith("Signed in to tools.\n")
    identity.mcp_server = f"{identity.url}/nothing"  # a token is sent from now on, by every command
    assert run(["ls", "--mcp", address]) == 6
    assert identity.api_headers[-1]["Authorization"].removeprefix("Bearer ") in identity.tokens
    asked = len(identity.api_headers)
    (project / "opwire.toml").write_text(
        f'[sources.tools]\nurl = "{address}"\nheaders = {{ Authorization = "Bearer ${{OWN}}" }}\n'
    )
    monkeypatch.setenv("OWN", "own")
    assert run(["ls"]) == 0
    assert {each["Authorization"] for each in identity.api_headers[asked:]} == {"Bearer own"}
    assert urlsplit(address).port


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["login", "nothing"], "unknown source 'nothing'"),
        (["login", "time"], "unknown source 'time'"),
        (["logout", "nothing"], "unknown source 'nothing'"),
        (["login", "--python", "x.py"], "name the source"),
        (["login", "api", "--device", "--no-browser"], "exclude each other"),
    ],
)
def test_a_source_that_cannot_be_signed_in_to_is_a_usage_error(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_source_without_a_client_says_what_to_add(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "opwire.toml").write_text('[sources.api]\nopenapi = "api.json"\n')
    assert run(["login"]) == 2
    assert "`login`" in capsys.readouterr().err
    (project / "opwire.toml").write_text(
        '[sources.api]\nopenapi = "api.json"\ncredentials.oauth = { client_id = "cli" }\n'
    )
    assert run(["login"]) == 2
    assert "missing key `client_secret`; or write login = true" in capsys.readouterr().err


def test_the_prompt_for_an_address_is_left_with_one_interrupt(project: Path, identity: AuthorizationServer) -> None:
    with OnTerminal("login", "api", "--no-browser", "-c", str(project / "opwire.toml")) as terminal:
        terminal.expect("(hidden)")
        assert terminal.interrupt()[0] == 130
    assert not identity.tokens
