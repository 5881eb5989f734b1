"""Where MCP servers are, as code or an `mcpServers` file says it. No I/O except reading that file.

What an MCP server may ask of whoever uses it, and how it is answered or refused.

Until 2025-11-25 a server asks by requests of its own; from 2026-07-28 on it answers a call with questions, and the call
is made again with the answers. The questions are the same.
"""

import asyncio
import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND
from mcp_types.methods import validate_client_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from msgspec import Struct

from opwire.errors import CallError, ErrorCode

HTTPKind = Literal["http", "sse"]

_KINDS: dict[str, HTTPKind | Literal["stdio"]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_PLACEHOLDER = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class StdioServer(Struct, frozen=True):
    """A program that speaks MCP on its standard input and output.

        StdioServer("uvx", ("mcp-server-git", "--repository", "."))

    It gets `env` and the few harmless variables that every program needs (PATH, HOME, …), not our whole environment:
    there are secrets in it. After its input has been closed, and again after it was asked to end, it has
    `stop_timeout` seconds to do so.
    """

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    cwd: str | None = None
    stop_timeout: float = 2.0

    @property
    def name(self) -> str:
        """What messages to people call it: the program, not its arguments, which may hold secrets."""
        return Path(self.command).name

    def __repr__(self) -> str:
        return f"StdioServer({self.command!r}, {len(self.args)} arguments, env: {sorted(self.env or ())})"


class HTTPServer(Struct, frozen=True):
    """An MCP server behind a URL; `kind` is "sse" for the transport of 2024, which few still speak.

    `options` are those of `httpx2.AsyncClient`: `verify` (an `ssl.SSLContext`), `proxy`, `auth`, `timeout`, … Headers
    go to this origin alone: a redirect to another one is not followed.

    Raises:
        CallError: VALIDATION_ERROR, the URL cannot be used.
    """

    url: str
    headers: dict[str, str] = {}
    kind: HTTPKind = "http"
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_url(self.url, "url")

    @property
    def name(self) -> str:
        """What messages to people call it: the URL without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __repr__(self) -> str:
        return f"HTTPServer({self.name!r}, kind={self.kind!r}, headers: {sorted(self.headers)})"


MCPServer = StdioServer | HTTPServer


def read_servers(source: Path | str | Mapping[str, Any]) -> dict[str, MCPServer]:
    """The servers of an `mcpServers` file, by name; those that it calls disabled are left out.

    `source` is the path of a JSON file, or what stands in one: `{"mcpServers": {...}}`, or `{"servers": {...}}` as VS
    Code has it. `${NAME}` and `${NAME:-default}` are replaced from the environment.

    Raises:
        CallError: VALIDATION_ERROR that names the key at fault.
    """
    given = source if isinstance(source, Mapping) else _read_json(Path(source))
    key = next((key for key in ("mcpServers", "servers") if key in given), None)
    if key is None:
        raise _wrong("mcpServers", "is missing; the file is an object with that key")
    entries: Mapping[str, Any] = _typed(given[key], Mapping, key, "an object of servers by name")
    servers: dict[str, MCPServer] = {}
    for name, entry in entries.items():
        at = f"{key}.{name}"
        if _typed(entry, Mapping, at, "an object").get("disabled") is not True:
            servers[name] = read_server(entry, at=at)
    return servers


def read_server(entry: Mapping[str, Any] | str, *, at: str = "server") -> MCPServer:
    """One entry of an `mcpServers` file, or a URL. Keys that only other programs understand are ignored.

    Raises:
        CallError: VALIDATION_ERROR that names the key at fault, under `at`.
    """
    if isinstance(entry, str):
        entry = {"url": entry}
    _typed(entry, Mapping, at, "an object, or a URL")
    kind = _kind(entry, at)
    if kind == "stdio":
        args = _typed(entry.get("args", ()), (list, tuple), f"{at}.args")
        return StdioServer(
            command=_text(entry, "command", at),
            args=tuple(_expand(item, f"{at}.args") for item in args),
            env=_texts(entry, "env", at) or None,
            cwd=_text(entry, "cwd", at) if entry.get("cwd") is not None else None,
        )
    url = _text(entry, "url", at)
    _check_url(url, f"{at}.url")
    return HTTPServer(url, _texts(entry, "headers", at), kind)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(path.expanduser().read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{path}: not a JSON object: {error}") from error


def _kind(entry: Mapping[str, Any], at: str) -> HTTPKind | Literal["stdio"]:
    for key in ("type", "transport"):
        if entry.get(key) is not None:
            kind = _KINDS.get(str(entry[key]))
            if kind is None:
                raise _wrong(f"{at}.{key}", f"is one of {', '.join(_KINDS)}, not {str(entry[key])[:50]!r}")
            return kind
    if "command" in entry:
        return "stdio"
    if "url" in entry:
        # Without a type, the path is what tells the old transport from the new one: everybody ends it so.
        return "sse" if re.search(r"/sse/?(\?|$)", str(entry["url"])) else "http"
    raise _wrong(at, "needs a command (a program to start) or a url")


def _check_url(url: str, at: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:  # not repeated: there may be a password inside
        raise _wrong(at, "is not a usable URL, which is http://host[:port]/path, or https://…")


def _text(entry: Mapping[str, Any], key: str, at: str) -> str:
    text = _expand(entry.get(key), f"{at}.{key}")
    if not text:
        raise _wrong(f"{at}.{key}", "is empty")
    return text


def _texts(entry: Mapping[str, Any], key: str, at: str) -> dict[str, str]:
    found = _typed(entry.get(key) or {}, Mapping, f"{at}.{key}", "an object")
    return {str(name): _expand(value, f"{at}.{key}.{name}") for name, value in found.items()}


def _expand(value: Any, at: str) -> str:
    def replacement(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name not in os.environ and default is None:
            raise _wrong(at, f"asks for the environment variable {name}, which is not set")
        return os.environ.get(name, default)

    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)  # {"env": {"PORT": 8080}} is common
    return _PLACEHOLDER.sub(replacement, _typed(value, str, at, "a text"))


def _typed(value: Any, kind: Any, at: str, what: str = "a list of texts") -> Any:
    if not isinstance(value, kind):
        raise _wrong(at, f"is {what}, not {'missing' if value is None else type(value).__name__}")
    return value


def _wrong(at: str, problem: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{at} {problem}", [{"path": at, "message": problem}])


logger = logging.getLogger("opwire.mcp")


MAX_QUESTIONS = 100
"""Questions that stand in one result."""


class Callbacks(Struct, frozen=True, kw_only=True):
    """What the user answers. Each may be a coroutine function; one that is None is refused, and not announced.

    They take and give what the protocol says: `elicit` the params of `elicitation/create`, and returns
    `{"action": "accept", "content": {...}}` (or "decline", "cancel"); `sample` those of `sampling/createMessage`, and
    returns `{"role": "assistant", "content": {...}, "model": "..."}`. `roots` takes nothing, and returns a list of
    URIs or of `{"uri": ..., "name": ...}`. `log` takes the params of `notifications/message`.
    """

    elicit: Callable[[dict[str, Any]], Any] | None = None
    sample: Callable[[dict[str, Any]], Any] | None = None
    roots: Callable[[], Any] | None = None
    log: Callable[[dict[str, Any]], Any] | None = None

    @property
    def capabilities(self) -> dict[str, Any]:
        """What is announced to servers: what there is a callback for."""
        announced: dict[str, tuple[Any, dict[str, Any]]] = {
            "elicitation": (self.elicit, {"form": {}, "url": {}}),
            "sampling": (self.sample, {}),
            "roots": (self.roots, {}),
        }
        return {name: settings for name, (callback, settings) in announced.items() if callback is not None}

    async def answer(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer to what a server asks.

        Raises:
            MCPError: refused, or the callback failed. It is what the server is told.
        """
        given = dict(params or {})
        match method:
            case "ping":
                return {}
            case "elicitation/create" if self.elicit is not None:
                return await _asked(method, self.elicit, given)
            case "sampling/createMessage" if self.sample is not None:
                return await _asked(method, self.sample, given)
            case "roots/list" if self.roots is not None:
                return await _asked(method, self._list_roots)
            case _:
                raise MCPError(METHOD_NOT_FOUND, f"this client does not answer {method}")

    async def answer_all(self, questions: Any, said: str) -> dict[str, Any]:
        """The answers to questions that stand in a result, each under its key; `said` begins the message of an error.

        Raises:
            CallError: PROTOCOL_ERROR if they cannot be read, EXECUTION_ERROR if one of them is refused.
        """
        try:
            asked = msgspec.convert(questions, dict[str, _Question])
        except msgspec.ValidationError as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{said} that cannot be read: {error}") from error
        if len(asked) > MAX_QUESTIONS:
            raise CallError(
                ErrorCode.PROTOCOL_ERROR, f"{said}: {len(asked):,} at once, and at most {MAX_QUESTIONS} are answered"
            )
        try:
            async with asyncio.TaskGroup() as group:
                answers = {key: group.create_task(self.answer(one.method, one.params)) for key, one in asked.items()}
        except ExceptionGroup as refused:
            reason = cast("MCPError", refused.exceptions[0]).message  # `answer` raises nothing else
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{said}, and {reason}") from refused
        return {key: answer.result() for key, answer in answers.items()}

    async def _list_roots(self) -> dict[str, Any]:
        roots: Any = self.roots() if self.roots is not None else ()
        if inspect.isawaitable(roots):
            roots = await roots
        return {"roots": [{"uri": root} if isinstance(root, str) else root for root in roots]}


class _Question(Struct):
    method: str
    params: dict[str, Any] | None = None


async def _asked(method: str, callback: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    try:
        answer: Any = callback(*arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        validate_client_result(method, LATEST_HANDSHAKE_VERSION, answer)  # the shapes have not changed since
    except CallError as error:
        raise MCPError(INTERNAL_ERROR, error.message) from error
    except Exception as error:
        logger.exception("the callback for %s failed, or gave what the protocol does not allow", method)
        raise MCPError(INTERNAL_ERROR, f"the callback for {method} failed") from error
    return answer
