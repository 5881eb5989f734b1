"""The endpoints of the console's API about operations, the session and the system."""

import asyncio
import gzip
from secrets import token_hex
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from opwire.agents.search_mode import token_cost
from opwire.agents.snippets import curl_snippet, mcp_snippet, python_snippet
from opwire.agents.tools import ToolNames
from opwire.console.call_log import APPROVE, VALUES
from opwire.console.calls import Text
from opwire.console.session import ACT_AS, LIFETIME, SessionStore, cookie_name
from opwire.console.system import (
    ConsoleSystem,
    KnownServers,
    SourceCatalog,
    decide_task,
    shown_journal,
    shown_timings,
)
from opwire.console.web import (
    StaticFile,
    Streams,
    cached_reply,
    empty_reply,
    etag_of,
    json_reply,
    read_body,
    require,
)
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity, holds
from opwire.observe.monitor import OBSERVE, CallMonitor
from opwire.openapi.server.request import Request
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.bounded import BoundedDict
from opwire.runtime.text import get_logger

logger = get_logger("opwire.console")

JOURNAL = "opwire:journal"
"""The scope that submits dead letters again, and discards them."""

_MAX_RESULTS = 200
_MAX_QUERY_LENGTH = 400
_MAX_SNIPPET_BYTES = 100_000  # 0.8 MB of `{}` took 0.6 s
_MAX_CACHED_LISTS = 8


class Login(Struct, frozen=True):
    """The body of a login: a token, or the code of a link."""

    token: Annotated[str, Meta(max_length=16 * 1024)] | None = None
    link: Annotated[str, Meta(max_length=200)] | None = None


class ApprovalDecision(Struct, frozen=True):
    """The body of a decision about a call that waits for approval."""

    approve: bool
    reason: Text = ""


class TaskDecision(Struct, frozen=True):
    """The body of a decision about a dead letter."""

    action: Literal["retry", "discard"]


class SnippetBody(Struct, frozen=True, rename="camel"):
    """The body of a request for snippets."""

    operation_id: Text
    input: Any = None


class OperationEndpoints:
    """Lists, describes and finds operations. `remote` is the address of the server, if that is another one."""

    def __init__(self, dispatcher: Dispatcher, sources: SourceCatalog | None, remote: str | None) -> None:
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._sources = sources
        self._remote = remote
        self._start = token_hex(4)  # revisions of two runs differ
        self._listed: BoundedDict[str, StaticFile] = BoundedDict(_MAX_CACHED_LISTS)  # by ETag
        self._names: tuple[int, ToolNames] = (-1, ToolNames())  # with the changes of the registry that they are for

    @property
    def revision(self) -> str:
        """The version of the list of operations."""
        return f"{self._start}.{self._registry.changes}"

    async def list(self, request: Request) -> Response:
        """Return the operations that the caller may see; the list has an ETag."""
        identity = request.identity
        etag = etag_of(f"{self.revision} {identity!r}".encode("utf-8", "replace"))
        file = self._listed.get(etag)
        if file is None:
            listed = [
                {
                    "id": spec.id,
                    "type": spec.type.value,
                    "title": spec.title,
                    "summary": spec.description.strip().partition("\n")[0][:200],
                    "tags": spec.tags,
                    "source": self._source(spec.id),
                    "readOnly": spec.mcp.annotations.read_only,
                    "destructive": spec.mcp.annotations.destructive,
                }
                for spec in self._dispatcher.visible(identity)
            ]
            plain = msgspec.json.encode({"revision": self.revision, "operations": listed})
            packed = await asyncio.to_thread(gzip.compress, plain, 4)
            file = self._listed[etag] = StaticFile("application/json", plain, packed, etag)
        return cached_reply(request, file, cache_control="private, no-cache", vary="accept-encoding, cookie")

    def _source(self, operation_id: str) -> str | None:
        return None if self._sources is None else self._sources.source_of(operation_id)

    async def describe(self, request: Request) -> Response:
        """Return everything about one operation."""
        spec = self._dispatcher.find(request.path.removeprefix("/api/operations/"), request.identity)
        access = spec.access
        description = {
            "id": spec.id,
            "type": spec.type.value,
            "title": spec.title,
            "description": spec.description,
            "version": spec.version,
            "tags": spec.tags,
            "source": self._source(spec.id),
            "role": spec.mcp.role,
            "uri": spec.mcp.uri,
            "annotations": spec.mcp.annotations.to_mcp(),
            "access": None
            if access is None
            else {
                "public": access.public,
                "requiredScopes": access.required_scopes,
                "requiredScopesAny": access.required_scopes_any,
                "resources": access.resources,
            },
            "timeout": spec.timeout,
            "examples": spec.examples,
            "inputSchema": spec.input_schema.json,
            "outputSchema": None if spec.output_schema.is_unknown else spec.output_schema.json,
            "tokens": token_cost(spec),
        }
        return json_reply(request, description)

    async def search(self, request: Request) -> Response:
        """Return the ids of the operations that match a query, best first."""
        query = dict(parse_qsl(request.query.decode("latin-1")[: 8 * _MAX_QUERY_LENGTH]))
        limit = query.get("limit", "50")
        count = min(int(limit), _MAX_RESULTS) if limit.isascii() and limit.isdigit() and len(limit) < 10 else 50
        identity = request.identity
        matching_specs = self._registry.search(
            query.get("q", "")[:_MAX_QUERY_LENGTH],
            limit=max(count, 1),
            visible=lambda spec: self._dispatcher.is_visible(spec, identity),
        )
        return json_reply(request, {"ids": [spec.id for spec in matching_specs]})

    async def show_snippets(self, request: Request) -> Response:
        """Return code that calls an operation with an input."""
        if len(request.admitted.body) > _MAX_SNIPPET_BYTES:
            raise CallError(
                ErrorCode.PAYLOAD_TOO_LARGE, f"snippets show inputs of at most {_MAX_SNIPPET_BYTES:,} bytes"
            )
        body = read_body(request, SnippetBody)
        spec = self._dispatcher.find(body.operation_id, request.identity)
        url = self._remote
        if url is None and request.api_root is not None:
            host = request.headers.get(b"host", b"").decode("latin-1")
            url = f"{'https' if request.is_secure else 'http'}://{host}{request.api_root}"
        changes, names = self._names
        if changes != self._registry.changes:
            names = ToolNames()
            names.add(served_spec.id for served_spec in self._dispatcher.served())
            self._names = self._registry.changes, names
        is_http, has_token = ((url or "").startswith(schemes) for schemes in (("http",), ("http", "ws")))
        snippets = {
            "curl": curl_snippet(spec, body.input, url) if url and is_http else None,
            "python": python_snippet(spec, body.input, url) if url and has_token else None,  # a broker needs more
            "mcp": mcp_snippet(spec, body.input, names[spec.id]) if spec.mcp.role == "tool" else None,
        }
        return json_reply(request, snippets)


class SessionEndpoints:
    """Signs a person in and out. `is_here`: false at a remote server, which sends no values."""

    def __init__(self, sessions: SessionStore, streams: Streams, title: str, version: str, *, is_here: bool) -> None:
        self._sessions = sessions
        self._streams = streams
        self._title = title
        self._version = version
        self._is_here = is_here  # another server sends no values, and knows its token only

    async def show(self, request: Request) -> Response:
        """Return the identity of the session, and what it may do."""
        response = self._shown(request, request.identity, request.admitted.expires)
        if self._sessions.has_ended(request.headers):  # from now on it shows what is public
            self._set_cookie(request, response, "", 0)
        return response

    async def log_in(self, request: Request) -> Response:
        """Open a session with a token, or with the code of a link."""
        body = read_body(request, Login)
        if (body.token is None) == (body.link is None):
            raise CallError(ErrorCode.VALIDATION_ERROR, "the body has a token or a link")
        secret, session = await self._sessions.open(token=body.token, link=body.link)
        self._streams.log_out(request)  # of the session before it
        response = self._shown(request, session.grant.identity, session.expires)
        self._set_cookie(request, response, secret, round(LIFETIME))
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session and its streams."""
        self._streams.log_out(request)
        response = empty_reply(request)
        self._set_cookie(request, response, "", 0)
        return response

    def _set_cookie(self, request: Request, response: Response, secret: str, seconds: int) -> None:
        """Set the cookie of the session; delete it with 0 seconds."""
        path = request.root_path or "/"
        name, secure = cookie_name(request.headers), request.is_secure
        response.set_cookie(name, secret, seconds, path=path, secure=secure, httponly=True, samesite="strict")

    def _shown(self, request: Request, identity: Identity | None, expires: float | None) -> Response:
        session = {
            "identity": None if identity is None else {"id": identity.id, "scopes": identity.scopes},
            "login": identity is None,
            "mayObserve": holds(identity, OBSERVE),
            "mayShowValues": self._is_here and holds(identity, VALUES),
            "mayActAs": self._is_here and holds(identity, ACT_AS),
            "mayApprove": holds(identity, APPROVE),
            "mayRunJournal": holds(identity, JOURNAL),
            "title": self._title,
            "version": self._version,
            "expires": None if expires is None else round(expires * 1000),
        }
        return json_reply(request, session)


class SystemEndpoints:
    """Shows the system, and decides about calls that wait for approval and about dead letters."""

    def __init__(self, monitor: CallMonitor, system: ConsoleSystem) -> None:
        self._monitor = monitor
        self._system = system
        self._servers = KnownServers(monitor, system.servers)

    async def show(self, request: Request) -> Response:
        """Return the servers, sources, timings and the journal."""
        require(request, OBSERVE)
        system = self._system
        shows_messages = holds(request.identity, VALUES)
        overview = {
            "servers": await self._servers.shown(),
            "sources": () if system.sources is None else tuple(system.sources.statuses()),
            "operations": shown_timings(self._monitor.timings or {}),
            "journal": None if system.journal is None else await shown_journal(system.journal, messages=shows_messages),
        }
        return json_reply(request, overview)

    async def approve(self, request: Request) -> Response:
        """Approve or deny a call that waits."""
        identity = require(request, APPROVE)
        body = read_body(request, ApprovalDecision)
        id, queue = request.path.removeprefix("/api/approvals/"), self._system.approvals
        if queue is None or not (
            queue.approve(id, by=identity.id) if body.approve else queue.deny(id, body.reason, by=identity.id)
        ):
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "the call does not wait for approval any more")
        return empty_reply(request)

    async def decide_task(self, request: Request) -> Response:
        """Submit a dead letter again, or discard it."""
        identity = require(request, JOURNAL)
        body = read_body(request, TaskDecision)
        key = request.path.removeprefix("/api/journal/")
        if self._system.journal is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "this server has no journal")
        await decide_task(self._system.journal, key, body.action)
        logger.info("%s: %s of the dead letter %r", identity.id, body.action, key[:200])
        return empty_reply(request)
