"""Addresses of MCP servers, from code or an `mcpServers` file. No I/O except reading that file."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from ssl import SSLContext
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from opwire.errors import UsageError, check_choice, check_instance, check_known
from opwire.model.operation import is_own
from opwire.names import UniqueNames, counted
from opwire.registry.source import ENV_PLACEHOLDER
from opwire.runtime.text import get_logger

logger = get_logger("opwire.mcp.client")

HTTPKind = Literal["http", "sse"]

_MAX_NAMESPACE_LENGTH = 100  # every id starts with it
_KINDS: dict[str, HTTPKind | Literal["stdio"]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_INHERITED = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
    *("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE"),  # on Windows
    *("SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE"),
    # Without these, a server behind a company's proxy reaches nothing.
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
)


class StdioServer(Struct, frozen=True):
    """A program that speaks MCP on its standard input and output.

        StdioServer("uvx", ("mcp-server-git", "--repository", "."))

    It gets `env` and the few harmless variables that every program needs (PATH, HOME, …, those of proxies and TLS
    certificates), not the whole environment, which may contain secrets: `withheld` lists the others. It has
    `stop_timeout` seconds to exit after its input is closed, and as long again after SIGTERM.
    """

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    cwd: str | None = None
    stop_timeout: float = 2.0

    @property
    def name(self) -> str:
        """The name in messages: the program without its arguments, which may contain secrets."""
        return Path(self.command).name

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the process."""
        values = ((name, os.environ.get(name)) for name in _INHERITED)
        # A value that starts with "()" is a function that an old bash exported.
        inherited = {name: value for name, value in values if value is not None and not value.startswith("()")}
        return inherited | (self.env or {})

    @property
    def withheld(self) -> tuple[str, ...]:
        """The names of this process' environment variables that the server does not get."""
        return tuple(sorted(os.environ.keys() - self.environment.keys()))

    def __repr__(self) -> str:
        return f"StdioServer({self.command!r}, {counted(len(self.args), 'argument')}, env: {sorted(self.env or ())})"


class HTTPServerOptions(TypedDict, total=False):
    """How requests to an MCP server are sent; those of `from_openapi` with the same names mean the same."""

    connect_timeout: float | None  # seconds; 30 by default
    read_timeout: float | None  # seconds that a server may be silent before it has responded; 300 by default
    proxy: str | None  # "http://user:password@proxy.example:8080"
    trust_env: bool  # use the proxies of the environment, HTTP_PROXY and the like; by default True
    ssl: SSLContext | bool  # False skips certificate checks
    ca_file: str | None  # PEM: the authorities to trust, instead of the system's
    client_certificate: str | None  # PEM, for mutual TLS
    client_key: str | None  # PEM, if it is not in the file of the certificate
    client_key_password: str | None


DEFAULT_OPTIONS: HTTPServerOptions = {
    "connect_timeout": 30.0,
    "read_timeout": 300.0,  # a tool may take long before it responds
    "proxy": None,
    "trust_env": True,
}


class HTTPServer(Struct, frozen=True):
    """An MCP server behind a URL; `kind` is "sse" for the HTTP+SSE transport of 2024, which is rare now.

        HTTPServer("https://tools.example/mcp", {"Authorization": f"Bearer {token}"}, options={"ca_file": "our.pem"})

    Headers are sent to this origin only: redirects to another origin are not followed.

    Raises:
        UsageError: the URL is invalid, or an option is unknown.
    """

    url: str
    headers: dict[str, str] = {}
    kind: HTTPKind = "http"
    options: HTTPServerOptions = {}

    def __post_init__(self) -> None:
        check_known(self.options, HTTPServerOptions.__annotations__, "HTTPServer")
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:  # the URL is not repeated: it may contain a password
            raise UsageError("url is not a usable URL; write http://host[:port]/path, or https://…")
        check_choice(HTTPKind, kind=self.kind)

    @property
    def name(self) -> str:
        """The name in messages: the URL without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __repr__(self) -> str:
        return f"HTTPServer({self.name!r}, kind={self.kind!r}, headers: {sorted(self.headers)})"


MCPServer = StdioServer | HTTPServer


class _ServerEntry(Struct):
    """An entry of an `mcpServers` file. Numbers are common in `env`: {"PORT": 8080}. Unknown keys are ignored."""

    command: str = ""
    args: list[str | int | float] = []
    env: dict[str, str | int | float] | None = None
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str | int | float] | None = None
    type: str | None = None
    transport: str | None = None

    @property
    def kind(self) -> HTTPKind | Literal["stdio"]:
        type_name = self.transport if self.type is None else self.type
        if type_name is not None:
            if type_name not in _KINDS:
                raise UsageError(f"unknown type {type_name[:50]!r}; use one of {', '.join(_KINDS)}")
            return _KINDS[type_name]
        if self.command:
            return "stdio"
        if self.url:
            # Without a type, only the path tells the old transport from the new one: by convention it ends in /sse.
            return "sse" if re.search(r"/sse/?(\?|$)", self.url) else "http"
        raise UsageError("needs a command (a program to start) or a url")


def read_servers(source: Path | str | Mapping[str, Any]) -> dict[str, MCPServer]:
    """Return the enabled servers of an `mcpServers` file, by name.

    `source` is the path of a JSON file, or its content: `{"mcpServers": {...}}`, or `{"servers": {...}}` as VS Code
    writes it. In a file, `${NAME}` and `${NAME:-default}` are replaced from the environment. Content is taken as it is:
    it may come from a user, who must not read the variables of this process.

    Raises:
        UsageError: the file is unreadable or invalid; the message names the key.
    """
    is_file = not isinstance(source, Mapping)
    if isinstance(source, Mapping):
        content = source
    else:
        check_instance(StdioServer | HTTPServer | Mapping | Path | str, server=source)
        path = Path(source)
        try:
            content = msgspec.json.decode(path.expanduser().read_bytes(), type=dict[str, Any])
        except OSError as error:
            command, *args = str(source).split() or [""]
            hint = f"; to start a program, write {msgspec.json.encode({'command': command, 'args': args}).decode()}"
            raise UsageError(f"{path}: cannot be read: {error.strerror}{hint if args else ''}") from error
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: not a JSON object: {error}") from error
    key = next((key for key in ("mcpServers", "servers") if key in content), None)
    if key is None:
        raise UsageError("the key mcpServers is missing; the file is an object with that key")
    try:
        entries = msgspec.convert(content[key], dict[str, dict[str, Any]])
    except msgspec.ValidationError as error:
        raise UsageError(f"{key}: {error}; it maps the names of servers to objects") from error
    enabled = {name: entry for name, entry in entries.items() if entry.get("disabled") is not True}
    return {name: read_server(entry, at=f"{key}.{name}", is_file=is_file) for name, entry in enabled.items()}


def read_server(entry: Mapping[str, Any] | str, *, at: str = "server", is_file: bool = False) -> MCPServer:
    """Return the server of a URL, or of one entry of an `mcpServers` file. Keys of other programs are ignored.

    `is_file` says that the entry is from a file that the operator wrote: its placeholders are replaced from the
    environment.

    Raises:
        UsageError: the entry is invalid; the message names the key, under `at`.
    """
    try:
        server_entry = msgspec.convert({"url": entry} if isinstance(entry, str) else entry, _ServerEntry)
        expand = _from_environment if is_file else _unchanged
        command, url = expand(server_entry.command, "command"), expand(server_entry.url, "url")
        if not (command if server_entry.kind == "stdio" else url):
            raise UsageError(f"{'command' if server_entry.kind == 'stdio' else 'url'} is missing")
        if server_entry.cwd == "":
            raise UsageError("cwd is empty")
        if server_entry.kind != "stdio":
            headers = {name: expand(value, f"headers.{name}") for name, value in (server_entry.headers or {}).items()}
            return HTTPServer(url, headers, server_entry.kind)
        return StdioServer(
            command=command,
            args=tuple(expand(arg, f"args[{index}]") for index, arg in enumerate(server_entry.args)),
            env={name: expand(value, f"env.{name}") for name, value in (server_entry.env or {}).items()} or None,
            cwd=None if server_entry.cwd is None else expand(server_entry.cwd, "cwd"),
        )
    except (UsageError, msgspec.ValidationError) as error:
        raise UsageError(f"{at}: {error}") from error


def _unchanged(value: str | float, key: str) -> str:
    return str(value)


def _from_environment(value: str | float, key: str) -> str:
    def replacement(placeholder: re.Match[str]) -> str:
        name, default = placeholder[1], placeholder[2]
        if name not in os.environ and default is None:
            raise UsageError(f"{key}: the environment variable {name} is not set")
        return os.environ.get(name, default)

    return ENV_PLACEHOLDER.sub(replacement, str(value))


def usable_namespace(name: str) -> str:
    """Return the name, cut, with underscores for dots and control characters, which a namespace cannot contain.

    It is `mcp` for a server without a name, or with that of opwire itself: its namespace is reserved.
    """
    short_name = name.strip()[:_MAX_NAMESPACE_LENGTH]
    usable = "".join(char if char.isprintable() and char != "." else "_" for char in short_name)
    return "mcp" if not usable or is_own(f"{usable}.") else usable


def usable_namespaces(names: Iterable[str]) -> dict[str, str]:
    """Return a unique namespace for each name: "a.b" and "a_b" become "a_b_2" and "a_b"."""
    names = list(names)
    unchanged = {name for name in names if usable_namespace(name) == name}
    unique = UniqueNames(unchanged)
    return {name: name if name in unchanged else unique.take(usable_namespace(name)) for name in names}
