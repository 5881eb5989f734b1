"""The routes of the console for operations, for the session of a person, and for the system behind the operations."""

import asyncio
import gzip
import logging
from hashlib import sha256
from secrets import token_hex
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from opwire.dispatch import Dispatcher
from opwire.errors import CallError, ErrorCode
from opwire.monitor import OBSERVE, CallMonitor
from opwire.operation import Identity, holds
from opwire.search_mode import token_cost
from opwire.serve.console.calls import Text
from opwire.serve.console.session import ACT_AS, LIFETIME, SessionStore, set_cookie
from opwire.serve.console.system import (
    ConsoleSystem,
    KnownServers,
    SourceCatalog,
    decide_task,
    shown_journal,
    shown_timings,
)
from opwire.serve.console.tape import APPROVE, VALUES
from opwire.serve.console.web import Streams, read_body, require, send_json, send_nothing
from opwire.serve.guard import Header, Receive, Send
from opwire.serve.http.request import Request
from opwire.snippets import curl_snippet, mcp_snippet, python_snippet
from opwire.tools import ToolNames

logger = logging.getLogger("opwire.serve.console")

JOURNAL = "opwire:journal"
"""The scope that submits buried tasks again, and discards them."""

_MAX_FOUND = 200  # operations of one search
_MAX_QUERY = 400  # characters of one search
_MAX_SNIPPET = 100_000  # bytes of a request for snippets: 0.8 MB of `{}` took 0.6 s
_CACHED = 8  # lists of operations, by identity


class Login(Struct, frozen=True):
    """The body of a login: a token, or the code of a link."""

    token: Annotated[str, Meta(max_length=16 * 1024)] | None = None
    link: Annotated[str, Meta(max_length=200)] | None = None


class ApprovalDecision(Struct, frozen=True):
    """The body of a decision about a call that waits for approval."""

    approve: bool
    reason: Text = ""


class TaskDecision(Struct, frozen=True):
    """The body of a decision about a buried task."""

    action: Literal["retry", "discard"]


class SnippetBody(Struct, frozen=True, rename="camel"):
    """The body of a request for snippets."""

    operation_id: Text
    input: Any = None


class OperationRoutes:
    """Lists, describes and finds operations. `remote` is the address of the server, if that is another one."""

    def __init__(self, dispatcher: Dispatcher, sources: SourceCatalog | None, remote: str | None) -> None:
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._sources = sources
        self._remote = remote
        self._start = token_hex(4)  # revisions of two runs differ
        self._listed: dict[bytes, tuple[bytes, bytes]] = {}  # plain and compressed, by ETag
        self._names: tuple[int, ToolNames] = (-1, ToolNames())  # with the changes of the registry that they are for

    @property
    def revision(self) -> str:
        """The version of the list of operations."""
        return f"{self._start}.{self._registry.changes}"

    async def list(self, request: Request, receive: Receive, send: Send) -> None:
        """Send the operations that the caller may see; the list has an ETag."""
        identity = request.identity
        key = f"{self.revision} {identity!r}".encode("utf-8", "replace")
        etag = b'"%s"' % sha256(key).hexdigest()[:32].encode()
        body = self._listed.get(etag)
        if body is None:
            listed = [
                {
                    "id": spec.id,
                    "type": spec.type.value,
                    "title": spec.title,
                    "summary": spec.description.strip().partition("\n")[0][:200],
                    "tags": spec.tags,
                    "source": self._source(spec.id),
                    "readOnly": spec.annotations.read_only,
                    "destructive": spec.annotations.destructive,
                }
                for spec in self._dispatcher.visible(identity)
            ]
            plain = msgspec.json.encode({"revision": self.revision, "operations": listed})
            body = self._listed[etag] = plain, await asyncio.to_thread(gzip.compress, plain, 4)
            if len(self._listed) > _CACHED:
                del self._listed[next(iter(self._listed))]
        await send_json(send, request, *body, etag=etag)

    def _source(self, operation_id: str) -> str | None:
        return None if self._sources is None else self._sources.source_of(operation_id)

    async def describe(self, request: Request, receive: Receive, send: Send) -> None:
        """Send everything about one operation."""
        spec = self._dispatcher.find(request.path.removeprefix("/api/operations/"), request.identity)
        access = spec.access
        found = {
            "id": spec.id,
            "type": spec.type.value,
            "title": spec.title,
            "description": spec.description,
            "version": spec.version,
            "tags": spec.tags,
            "source": self._source(spec.id),
            "role": spec.role,
            "uri": spec.uri,
            "annotations": spec.annotations.to_mcp(),
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
        await send_json(send, request, found)

    async def search(self, request: Request, receive: Receive, send: Send) -> None:
        """Send the ids of the operations that match a query, best first."""
        query = dict(parse_qsl(request.query.decode("latin-1")[: 8 * _MAX_QUERY]))
        limit = query.get("limit", "50")
        count = min(int(limit), _MAX_FOUND) if limit.isascii() and limit.isdigit() and len(limit) < 10 else 50
        identity = request.identity
        found = self._registry.search(
            query.get("q", "")[:_MAX_QUERY],
            limit=max(count, 1),
            visible=lambda spec: self._dispatcher.is_visible(spec, identity),
        )
        await send_json(send, request, {"ids": [spec.id for spec in found]})

    async def show_snippets(self, request: Request, receive: Receive, send: Send) -> None:
        """Send code that calls an operation with an input."""
        if len(request.body) > _MAX_SNIPPET:
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"snippets show inputs of at most {_MAX_SNIPPET:,} bytes")
        body = await read_body(request, receive, SnippetBody)
        spec = self._dispatcher.find(body.operation_id, request.identity)
        url = self._remote
        if url is None and request.api_root is not None:
            host = request.headers.get(b"host", b"").decode("latin-1")
            url = f"{'https' if request.is_secure else 'http'}://{host}{request.api_root}"
        changes, names = self._names
        if changes != self._registry.changes:
            names = ToolNames()
            names.add(each.id for each in self._dispatcher.served())
            self._names = self._registry.changes, names
        is_http, has_token = ((url or "").startswith(schemes) for schemes in (("http",), ("http", "ws")))
        found = {
            "curl": curl_snippet(spec, body.input, url) if url and is_http else None,
            "python": python_snippet(spec, body.input, url) if url and has_token else None,  # a broker needs more
            "mcp": mcp_snippet(spec, body.input, names[spec.id]) if spec.role == "tool" else None,
        }
        await send_json(send, request, found)


class SessionRoutes:
    """Signs a person in and out. `is_here`: false at a remote server, which sends no values."""

    def __init__(self, sessions: SessionStore, streams: Streams, title: str, version: str, *, is_here: bool) -> None:
        self._sessions = sessions
        self._streams = streams
        self._title = title
        self._version = version
        self._is_here = is_here  # another server sends no values, and knows its token only

    async def show(self, request: Request, receive: Receive, send: Send) -> None:
        """Send the identity of the session, and what it may do."""
        is_lost = self._sessions.has_ended(request.headers)
        cookies = [self._cookie(request, "", 0)] if is_lost else []  # from now on it shows what is public
        await self._send(send, request, request.identity, request.expires, *cookies)

    async def log_in(self, request: Request, receive: Receive, send: Send) -> None:
        """Open a session with a token, or with the code of a link."""
        body = await read_body(request, receive, Login)
        if (body.token is None) == (body.link is None):
            raise CallError(ErrorCode.VALIDATION_ERROR, "the body has a token or a link")
        secret, session = await self._sessions.open(token=body.token, link=body.link)
        self._streams.log_out(request)  # of the session before it
        cookie = self._cookie(request, secret, round(LIFETIME))
        await self._send(send, request, session.grant.identity, session.expires, cookie)

    async def log_out(self, request: Request, receive: Receive, send: Send) -> None:
        """End the session and its streams."""
        self._streams.log_out(request)
        await send_nothing(send, request, self._cookie(request, "", 0))

    def _cookie(self, request: Request, secret: str, seconds: int) -> Header:
        path = request.root_path or "/"
        value = set_cookie(request.headers, secret, path=path, seconds=seconds, secure=request.is_secure)
        return b"set-cookie", value

    async def _send(
        self, send: Send, request: Request, identity: Identity | None, expires: float | None, *headers: Header
    ) -> None:
        found = {
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
        await send_json(send, request, found, headers=headers)


class SystemRoutes:
    """Shows the system, and decides about calls that wait for approval and about buried tasks."""

    def __init__(self, monitor: CallMonitor, system: ConsoleSystem) -> None:
        self._monitor = monitor
        self._system = system
        self._servers = KnownServers(monitor, system.servers)

    async def show(self, request: Request, receive: Receive, send: Send) -> None:
        """Send the servers, sources, timings and the journal."""
        require(request, OBSERVE)
        system = self._system
        shows_messages = holds(request.identity, VALUES)
        found = {
            "servers": await self._servers.shown(),
            "sources": () if system.sources is None else tuple(system.sources.statuses()),
            "operations": shown_timings(self._monitor.timings or {}),
            "journal": None if system.journal is None else await shown_journal(system.journal, messages=shows_messages),
        }
        await send_json(send, request, found)

    async def approve(self, request: Request, receive: Receive, send: Send) -> None:
        """Approve or deny a call that waits."""
        identity = require(request, APPROVE)
        body = await read_body(request, receive, ApprovalDecision)
        id, queue = request.path.removeprefix("/api/approvals/"), self._system.approvals
        if queue is None or not (
            queue.approve(id, by=identity.id) if body.approve else queue.deny(id, body.reason, by=identity.id)
        ):
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "the call does not wait for approval any more")
        await send_nothing(send, request)

    async def decide_task(self, request: Request, receive: Receive, send: Send) -> None:
        """Submit a buried task again, or discard it."""
        identity = require(request, JOURNAL)
        body = await read_body(request, receive, TaskDecision)
        key = request.path.removeprefix("/api/journal/")
        if self._system.journal is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, "this server has no journal")
        await decide_task(self._system.journal, key, body.action)
        logger.info("%s: %s of the buried task %r", identity.id, body.action, key[:200])
        await send_nothing(send, request)
