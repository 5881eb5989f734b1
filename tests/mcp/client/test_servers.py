"""What an `mcpServers` file says."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import UsageError
from opwire.mcp.client.servers import HTTPServer, StdioServer, read_server, read_servers


@pytest.mark.parametrize(
    ("entry", "server"),
    [
        ({"command": "uvx", "args": ["mcp-server-git"]}, StdioServer("uvx", ("mcp-server-git",))),
        (
            {"command": "x", "type": "stdio", "env": {"PORT": 80}, "cwd": "/y"},
            StdioServer("x", (), {"PORT": "80"}, "/y"),
        ),
        ({"command": "x", "alwaysAllow": ["a"], "timeout": 60}, StdioServer("x")),
        ({"url": "https://a.example/mcp"}, HTTPServer("https://a.example/mcp")),
        ({"url": "http://a/b", "headers": {"X-Key": "k"}}, HTTPServer("http://a/b", {"X-Key": "k"})),
        ({"url": "http://a/b", "type": "http"}, HTTPServer("http://a/b")),
        ({"url": "http://a/b", "type": "streamable-http"}, HTTPServer("http://a/b")),
        ({"url": "http://a/b", "transport": "streamableHttp"}, HTTPServer("http://a/b")),
        ({"url": "http://a/b", "type": "sse"}, HTTPServer("http://a/b", kind="sse")),
        ({"url": "http://a/sse"}, HTTPServer("http://a/sse", kind="sse")),
        ({"url": "http://a/sse", "type": "http"}, HTTPServer("http://a/sse")),
        ("https://a.example:8443/mcp?x=1", HTTPServer("https://a.example:8443/mcp?x=1")),
    ],
)
def test_an_entry_says_what_to_start_or_where_to_go(entry: Any, server: object) -> None:
    assert read_server(entry) == server


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (5, "server: Expected `object`, got `int`"),
        ({}, "server: needs a command"),
        ({"command": ""}, "server: needs a command"),
        ({"command": "", "type": "stdio"}, "server: command is missing"),
        ({"command": "${EMPTY_COMMAND:-}"}, "server: command is missing"),
        ({"command": "x", "cwd": ""}, "server: cwd is empty"),
        ({"command": "5", "type": "http"}, "server: url is missing"),
        ({"command": ["x"]}, r"server: Expected `str`, got `array` - at `\$\.command`"),
        ({"command": "x", "args": "-v"}, r"server: Expected `array`, got `str` - at `\$\.args`"),
        ({"command": "x", "args": [None]}, r"got `null` - at `\$\.args\[0\]`"),
        ({"command": "x", "env": ["A=1"]}, r"server: Expected `object \| null`, got `array` - at `\$\.env`"),
        ({"command": "x", "env": {"A": True}}, r"got `bool` - at `\$\.env\[\.\.\.\]`"),
        ({"command": "x", "type": "pipe"}, "server: unknown type 'pipe'; use one of stdio, http, "),
        ({"url": "ftp://ann:s3cret@a/b"}, "server: url is not a usable URL"),
        ({"url": "http://"}, "server: url is not a usable URL"),
        ({"url": "http://a:s3cret/"}, "server: url is not a usable URL"),
        (
            {"url": "http://a/b", "headers": {"X": "${NOT_SET_ANYWHERE}"}},
            r"server: headers\.X: the environment variable NOT_SET_ANYWHERE is not set",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_key_and_without_secrets(entry: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as failure:
        read_server(entry, is_file=True)
    assert "s3cret" not in str(failure.value)


def test_placeholders_of_files_are_filled_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t0ken")
    monkeypatch.setenv("EMPTY", "")
    entry = {"command": "${HOME_BIN:-/usr/bin}/x", "args": ["$TOKEN", "${env:TOKEN}", "a${EMPTY}b", "${NONE:-}"]}
    assert read_server(entry, is_file=True) == StdioServer("/usr/bin/x", ("$TOKEN", "t0ken", "ab", ""))
    file = tmp_path / "mcp.json"
    headers = {"Authorization": "Bearer ${TOKEN}"}
    file.write_text(json.dumps({"mcpServers": {"a": {"url": "http://a/${TOKEN}", "headers": headers}}}))
    assert read_servers(file) == {"a": HTTPServer("http://a/t0ken", {"Authorization": "Bearer t0ken"})}


def test_placeholders_outside_of_files_do_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL or an entry may come from a user of a gateway, who must not learn the gateway's secrets."""
    monkeypatch.setenv("TOKEN", "t0ken")
    url = "http://a/b?x=${TOKEN}"
    entry = {"url": url, "headers": {"X": "${TOKEN}"}}
    assert read_server(url) == HTTPServer(url)
    assert read_server(entry) == HTTPServer(url, {"X": "${TOKEN}"})
    assert read_servers({"mcpServers": {"a": entry}}) == {"a": HTTPServer(url, {"X": "${TOKEN}"})}
    assert read_server({"command": "x", "args": ["${TOKEN}"]}) == StdioServer("x", ("${TOKEN}",))


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_a_file_gives_its_servers_by_name_without_those_that_are_disabled(key: str, tmp_path: Path) -> None:
    """An `mcpServers` file is read unchanged; errors name their key."""
    content = {key: {"a.b": {"command": "x"}, "c": {"url": "http://c/d"}, "off": {"disabled": True}}, "inputs": []}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(content))
    servers = {"a.b": StdioServer("x"), "c": HTTPServer("http://c/d")}
    assert read_servers(content) == read_servers(file) == read_servers(str(file)) == servers


def test_what_is_wrong_in_a_file_is_said_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    for content, message in (
        ("{", r"mcp\.json: not a JSON object"),
        ("[]", r"mcp\.json: not a JSON object"),
        ("{}", "the key mcpServers is missing"),
        ('{"mcpServers": []}', "mcpServers: Expected `object`, got `array`; it maps the names of servers to objects"),
        ('{"mcpServers": {"git": {}}}', r"mcpServers\.git: needs a command"),
        ('{"servers": {"git": "uvx"}}', "servers: Expected `object`, got `str`"),
    ):
        file.write_text(content)
        with pytest.raises(UsageError, match=message):
            read_servers(file)
    with pytest.raises(UsageError, match=r"missing\.json: cannot be read: No such file"):
        read_servers(tmp_path / "missing.json")


def test_a_url_is_checked_wherever_it_is_given() -> None:
    with pytest.raises(UsageError, match="url is not a usable URL"):
        HTTPServer("http://[::1/mcp")


def test_servers_are_shown_without_their_secrets() -> None:
    """Servers are shown without arguments, header values, environment, user info and query."""
    program = StdioServer("/opt/bin/tool", ("--token", "s3cret"), {"KEY": "s3cret"})
    place = HTTPServer("https://ann:s3cret@a.example:1/b?key=s3cret", {"Authorization": "s3cret"})
    assert repr(program) == "StdioServer('/opt/bin/tool', 2 arguments, env: ['KEY'])"
    assert repr(place) == "HTTPServer('https://a.example:1/b', kind='http', headers: ['Authorization'])"
    assert (program.name, place.name) == ("tool", "https://a.example:1/b")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from("command args env cwd url headers type".split()), inner)
        ),
        max_leaves=8,
    )
)
def test_any_entry_is_read_or_rejected(entry: Any) -> None:
    try:
        server = read_server(entry)
    except UsageError:
        return
    assert isinstance(server, (StdioServer, HTTPServer))
