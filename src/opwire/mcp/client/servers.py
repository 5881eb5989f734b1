"""Addresses of MCP servers, from code or an `mcpServers` file; their options; and the answers to their questions.

No I/O except reading that file. Up to revision 2025-11-25 a server sends requests of its own; from 2026-07-28 on it
returns input requests as the result of a call, which is repeated with the responses. `Callbacks` answers both.
`ServerQuestions` knows which caller a question or log message belongs to.
"""

import asyncio
import inspect
import logging
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from opwire.auth.oauth.store import TokenStore
from opwire.errors import CallError, ErrorCode, UsageError, check_choice, check_instance, check_known, needs_extra
from opwire.mcp.messages import RequestId, RPCCode, RPCError, RPCFailure, RPCMessage, RPCRequest, RPCResponse
from opwire.mcp.protocol import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from opwire.model.context import Context
from opwire.model.log_message import LOG_LEVELS, LogMessage
from opwire.model.operation import NormalizeMode, is_own
from opwire.model.questions import KINDS, QUESTION_TIMEOUT, Question, QuestionCallback, ask
from opwire.names import UniqueNames, counted
from opwire.registry.source import ENV_PLACEHOLDER
from opwire.runtime.limits import LimitedLog
from opwire.runtime.tasks import reject
from opwire.runtime.text import get_logger, harmless
from opwire.typed.plain import as_dict

if TYPE_CHECKING:
    from opwire.auth.oauth.tokens import OAuthClient
    from opwire.mcp.client.auth import MCPAuth

logger = get_logger("opwire.mcp.client")

HTTPKind = Literal["http", "sse"]

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message from a server."""

MAX_SHOWN = 2000
"""Characters of one server line that the log shows."""

MAX_LINES = 100
"""Lines of one server that the log shows per second."""

MAX_LOGS = 100
"""Log messages that a coroutine callback has not finished handling; those above are dropped."""

MAX_QUESTIONS = 100
"""Input requests in one result."""

ProgressCallback = Callable[[dict[str, Any]], object]

_LEVELS = {"debug": logging.DEBUG, "warning": logging.WARNING} | dict.fromkeys(
    ("error", "critical", "alert", "emergency"), logging.ERROR
)

_MAX_NAMESPACE = 100  # characters: every id starts with it
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
        kept = {name: value for name, value in values if value is not None and not value.startswith("()")}
        return kept | (self.env or {})

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
        given = self.transport if self.type is None else self.type
        if given is not None:
            if given not in _KINDS:
                raise UsageError(f"unknown type {given[:50]!r}; use one of {', '.join(_KINDS)}")
            return _KINDS[given]
        if self.command:
            return "stdio"
        if self.url:
            # Without a type, only the path tells the old transport from the new one: by convention it ends in /sse.
            return "sse" if re.search(r"/sse/?(\?|$)", self.url) else "http"
        raise UsageError("needs a command (a program to start) or a url")


def read_servers(source: Path | str | Mapping[str, Any]) -> dict[str, MCPServer]:
    """Return the enabled servers of an `mcpServers` file, by name.

    `source` is the path of a JSON file, or its content: `{"mcpServers": {...}}`, or `{"servers": {...}}` as VS Code
    writes it. `${NAME}` and `${NAME:-default}` are replaced from the environment.

    Raises:
        UsageError: the file is unreadable or invalid; the message names the key.
    """
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
    return {name: read_server(entry, at=f"{key}.{name}") for name, entry in enabled.items()}


def read_server(entry: Mapping[str, Any] | str, *, at: str = "server") -> MCPServer:
    """Return the server of a URL, or of one entry of an `mcpServers` file. Keys of other programs are ignored.

    Raises:
        UsageError: the entry is invalid; the message names the key, under `at`.
    """
    try:
        given = msgspec.convert({"url": entry} if isinstance(entry, str) else entry, _ServerEntry)
        command, url = _expand(given.command, "command"), _expand(given.url, "url")
        if not (command if given.kind == "stdio" else url):
            raise UsageError(f"{'command' if given.kind == 'stdio' else 'url'} is missing")
        if given.cwd == "":
            raise UsageError("cwd is empty")
        if given.kind != "stdio":
            headers = {name: _expand(value, f"headers.{name}") for name, value in (given.headers or {}).items()}
            return HTTPServer(url, headers, given.kind)
        return StdioServer(
            command=command,
            args=tuple(_expand(arg, f"args[{n}]") for n, arg in enumerate(given.args)),
            env={name: _expand(value, f"env.{name}") for name, value in (given.env or {}).items()} or None,
            cwd=None if given.cwd is None else _expand(given.cwd, "cwd"),
        )
    except (UsageError, msgspec.ValidationError) as error:
        raise UsageError(f"{at}: {error}") from error


def _expand(value: str | float, key: str) -> str:
    def replacement(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name not in os.environ and default is None:
            raise UsageError(f"{key}: the environment variable {name} is not set")
        return os.environ.get(name, default)

    return ENV_PLACEHOLDER.sub(replacement, str(value))


def usable_namespace(name: str) -> str:
    """Return the name, cut, with underscores for dots and control characters, which a namespace cannot contain.

    It is `mcp` for a server without a name, or with that of opwire itself: its namespace is reserved.
    """
    given = name.strip()[:_MAX_NAMESPACE]
    usable = "".join(char if char.isprintable() and char != "." else "_" for char in given)
    return "mcp" if not usable or is_own(f"{usable}.") else usable


def usable_namespaces(names: Iterable[str]) -> dict[str, str]:
    """Return a unique namespace for each name: "a.b" and "a_b" become "a_b_2" and "a_b"."""
    names = list(names)
    unchanged = {name for name in names if usable_namespace(name) == name}
    unique = UniqueNames(unchanged)
    return {name: name if name in unchanged else unique.take(usable_namespace(name)) for name in names}


# --- options ----------------------------------------------------------------------------------------------------------


class _Question(Struct):
    method: str
    params: dict[str, Any] | None = None


class _ElicitResult(Struct):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class _SampleResult(Struct):
    role: Literal["user", "assistant"]
    content: dict[str, Any] | list[dict[str, Any]]
    model: str


class _ClientRoot(Struct):
    uri: str
    name: str | None = None


class _RootsResult(Struct):
    roots: list[_ClientRoot]


_RESULTS: dict[str, type[Struct]] = {
    "elicitation/create": _ElicitResult,
    "sampling/createMessage": _SampleResult,
    "roots/list": _RootsResult,
}


class Callbacks(Struct, frozen=True, kw_only=True):
    """The answers to requests of servers. Each may be a coroutine function; missing ones are not announced.

    They take and return what the protocol defines: `elicit` takes the params of `elicitation/create` and returns
    `{"action": "accept", "content": {...}}` (or "decline", "cancel"); `sample` takes those of
    `sampling/createMessage` and returns `{"role": "assistant", "content": {...}, "model": "..."}`; `roots` returns a
    list of URIs or of `{"uri": ..., "name": ...}`; `log` takes the params of `notifications/message`.

    A caller that can be asked (`Context.on_question`) is asked first; these answer what it cannot, and what belongs to
    no call.
    """

    elicit: Callable[[dict[str, Any]], Any] | None = None
    sample: Callable[[dict[str, Any]], Any] | None = None
    roots: Callable[[], Any] | None = None
    log: Callable[[dict[str, Any]], Any] | None = None

    @property
    def capabilities(self) -> dict[str, Any]:
        """The client capabilities without a caller that can be asked: one for each callback."""
        announced: dict[str, tuple[Any, dict[str, Any]]] = {
            "elicitation": (self.elicit, {"form": {}, "url": {}}),
            "sampling": (self.sample, {}),
            "roots": (self.roots, {}),
        }
        return {name: settings for name, (callback, settings) in announced.items() if callback is not None}

    async def answer(
        self, method: str, params: Mapping[str, Any] | None, on_question: QuestionCallback | None = None, key: str = ""
    ) -> dict[str, Any]:
        """Return the result of a request of the server. `on_question` is that of the call it belongs to.

        Raises:
            RPCError: the callback is missing, or failed. The server gets this error.
        """
        if method == "ping":
            return {}
        callbacks = {"elicitation/create": self.elicit, "sampling/createMessage": self.sample, "roots/list": self.roots}
        callback: Callable[..., Any] | None = callbacks.get(method)
        if on_question is not None and method in KINDS:
            try:
                return await ask(Question(KINDS[method], dict(params or {}), key), on_question, QUESTION_TIMEOUT)
            except CallError as error:
                if callback is None:
                    code = as_dict(as_dict(error.details).get("error")).get("code")  # of the client in front
                    raise RPCError(code if isinstance(code, int) else RPCCode.INTERNAL_ERROR, error.message) from error
        if callback is None:
            raise RPCError(RPCCode.METHOD_NOT_FOUND, f"this client does not answer {method}")
        try:
            answer: Any = callback() if method == "roots/list" else callback(dict(params or {}))
            if inspect.isawaitable(answer):
                answer = await answer
            if method == "roots/list":
                answer = {"roots": [{"uri": root} if isinstance(root, str) else root for root in answer]}
            msgspec.convert(answer, _RESULTS[method])  # only checked: unknown fields are sent as well
        except CallError as error:
            raise RPCError(RPCCode.INTERNAL_ERROR, error.message) from error
        except Exception as error:
            logger.exception("the callback for %s raised, or returned an invalid result", method)
            raise RPCError(RPCCode.INTERNAL_ERROR, f"the callback for {method} failed") from error
        return answer

    async def answer_all(
        self, questions: Any, prefix: str, on_question: QuestionCallback | None = None
    ) -> dict[str, Any]:
        """Return the responses to the input requests of a result, by key; `prefix` starts the message of an error.

        Raises:
            CallError: PROTOCOL_ERROR if they are invalid, EXECUTION_ERROR if one of them is rejected.
        """
        try:
            asked = msgspec.convert(questions, dict[str, _Question])
        except msgspec.ValidationError as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{prefix} that are invalid: {error}") from error
        if len(asked) > MAX_QUESTIONS:
            message = f"{prefix}: {len(asked):,} at once, and at most {MAX_QUESTIONS} are answered"
            raise CallError(ErrorCode.PROTOCOL_ERROR, message)
        try:
            async with asyncio.TaskGroup() as group:
                answers = {
                    key: group.create_task(self.answer(one.method, one.params, on_question, key))
                    for key, one in asked.items()
                }
        except ExceptionGroup as rejected:
            reason = cast("RPCError", rejected.exceptions[0]).message  # `answer` raises nothing else
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{prefix}, and {reason}") from rejected
        return {key: answer.result() for key, answer in answers.items()}


class MCPOptions(Callbacks, frozen=True, kw_only=True):
    """The options of `from_mcp`, which documents them."""

    namespace: str | None = None
    trust_annotations: bool = False
    resources: bool = True
    prompts: bool = True
    strict_input: bool = False
    revision: str | None = None
    tool_timeout: float | None = None
    normalize: NormalizeMode | None = None
    strip: bool | None = None
    connect_timeout: float = 30.0
    max_message: int = MAX_MESSAGE
    auth: Any = None
    token_store: TokenStore | None = None

    def __post_init__(self) -> None:
        known = (*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS)
        if self.revision is not None and self.revision not in known:
            raise UsageError(f"unknown revision {self.revision!r:.50}; known are {', '.join(known)}")


class MCPKeywords(TypedDict, total=False):
    """`MCPOptions` as keyword arguments."""

    elicit: Callable[[dict[str, Any]], Any] | None
    sample: Callable[[dict[str, Any]], Any] | None
    roots: Callable[[], Any] | None
    log: Callable[[dict[str, Any]], Any] | None
    namespace: str | None
    trust_annotations: bool
    resources: bool
    prompts: bool
    strict_input: bool
    revision: str | None
    tool_timeout: float | None
    normalize: NormalizeMode | None
    strip: bool | None
    connect_timeout: float
    max_message: int
    auth: "OAuthClient | Mapping[str, Any] | Callable[[Context], Any] | None"
    token_store: TokenStore | None


def server_auth(server: MCPServer, options: MCPOptions) -> "MCPAuth | None":
    """Return the OAuth client of the options for a server.

    Raises:
        UsageError: a program has callers with credentials of their own.
    """
    is_program = isinstance(server, StdioServer)
    if callable(options.auth) or options.auth is None or is_program:
        if callable(options.auth) and is_program:
            raise UsageError(f"auth: {server.name} is a program, which all callers share; it needs a server with a URL")
        return None
    with needs_extra("mcp"):
        from opwire.mcp.client.auth import MCPAuth
    return MCPAuth(server.url, options.auth, options.token_store)


# --- questions and log lines ------------------------------------------------------------------------------------------


class EscapedLine:
    """A line of a server for the log. It is escaped when it is formatted: 2,000 control characters take 8 ms."""

    def __init__(self, text: str) -> None:
        self._text = text[:MAX_SHOWN]

    def __str__(self) -> str:
        return harmless(self._text).replace("\n", "\\n")


class ServerLog:
    """Write the lines of one server to the log: shortened, escaped, and rate-limited."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines = LimitedLog(logger, per_second=MAX_LINES)

    def write(self, level: int, text: str) -> None:
        """Log a line, unless there are too many in this second."""
        self._lines.write(level, "%s: %s", self._name, EscapedLine(text))


class RequestCaller(Struct, frozen=True):
    """How the caller of a request is asked and gets log messages, and the id of its identity."""

    on_question: QuestionCallback | None
    on_log: Callable[[LogMessage], object] | None = None
    owner: str | None = None


class SentRequest(Struct, eq=False):
    """A request in flight: the future of its result, and the callback for its progress."""

    method: str
    response: asyncio.Future[RPCResponse]
    on_progress: ProgressCallback
    caller: RequestCaller | None = None
    answers: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])  # to questions that belong to it

    def fail(self, error: Exception) -> None:
        """Raise an error in the caller, unless it has an outcome or has left."""
        reject(self.response, error)


class ServerQuestions:
    """The questions and log messages of one server, and the requests in flight with callers that get them."""

    def __init__(
        self, callbacks: Callbacks, server: str, spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
    ) -> None:
        self._callbacks = callbacks
        self._spawn = spawn
        self._log = ServerLog(server)
        self._logs: set[asyncio.Task[Any]] = set()  # of `log` callbacks
        self._answering: dict[RequestId, asyncio.Task[Any]] = {}
        self._asking: dict[RequestId, SentRequest] = {}

    def add(self, id: RequestId, sent: SentRequest) -> None:
        """Register a request: its caller answers questions, or gets log messages."""
        self._asking[id] = sent

    def discard(self, id: RequestId, sent: SentRequest) -> None:
        """Forget a request that has ended, and cancel the questions that belong to it."""
        self._asking.pop(id, None)
        for answer in sent.answers:
            answer.cancel()

    def of(self, request: RequestId | None, *, logs: bool = False) -> SentRequest | None:
        """Return the request that a question or log message belongs to; `request` is the one of its stream.

        Over stdio, and outside of its stream, a server does not say. Then it is the latest one, if all requests in
        flight are of the same identity: a question must not reach another caller.
        """
        if request is not None and request in self._asking:
            return self._asking[request]
        asking = ((each, each.caller) for each in self._asking.values() if each.caller is not None)
        found = [(each, by.owner) for each, by in asking if (by.on_log if logs else by.on_question) is not None]
        return found[-1][0] if len({owner for _, owner in found}) == 1 else None

    def log(self, params: dict[str, Any], request: RequestId | None) -> None:
        """Pass a log message to the caller that it belongs to, or to the callback, or write it to the log."""
        sent, level, data = self.of(request, logs=True), params.get("level"), params.get("data")
        if sent is not None and sent.caller is not None and sent.caller.on_log is not None and level in LOG_LEVELS:
            name = params.get("logger")
            guarded(sent.caller.on_log, LogMessage(level, data, name if isinstance(name, str) else None))
        elif self._callbacks.log is None:
            text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
            self._log.write(_LEVELS.get(str(level), logging.INFO), text)
        elif len(self._logs) >= MAX_LOGS:
            self._log.write(logging.WARNING, "a log message is dropped: the log callback does not keep up")
        else:
            written = guarded(self._callbacks.log, params)
            if inspect.iscoroutine(written):
                task = self._spawn(written)
                self._logs.add(task)
                task.add_done_callback(self._logs.discard)

    def started(self, id: RequestId, sent: SentRequest | None, task: asyncio.Task[Any]) -> None:
        """Register the task that answers a question; it ends with the request that the question belongs to."""
        self._answering[id] = task
        task.add_done_callback(lambda _: self._answering.pop(id, None))
        if sent is not None:
            sent.answers.add(task)
            task.add_done_callback(sent.answers.discard)

    def cancel(self, id: RequestId) -> None:
        """Stop answering: the server does not wait any more."""
        self._answering[id].cancel()

    async def answer(
        self, request: RPCRequest, sent: SentRequest | None, send: Callable[[RPCMessage], Awaitable[None]]
    ) -> None:
        """Answer a request of the server; it counts as open until the server has read the response."""
        on_question = None if sent is None or sent.caller is None else sent.caller.on_question
        try:
            answer = await self._callbacks.answer(request.method, request.params, on_question)
            reply: RPCMessage = RPCResponse(request.id, answer)
        except RPCError as error:
            reply = RPCFailure.of(request.id, error)
        try:
            await send(reply)
        except (TypeError, ValueError, RecursionError):
            logger.exception("the callback for %s returned what has no JSON form", request.method)
            failed = RPCError(RPCCode.INTERNAL_ERROR, f"the callback for {request.method} failed")
            await send(RPCFailure.of(request.id, failed))


def guarded(callback: Callable[..., object], *arguments: Any) -> object:
    """Call a user's callback; log what it raises, which must not end the connection."""
    try:
        return callback(*arguments)
    except Exception:
        logger.exception("a callback failed")
        return None
