"""The server behind the proxy, on the SDK: `python -m tests.proxy.behind` prints its port.

It has one of everything, at `/stateless/mcp` in the era of 2026-07-28 and at `/handshake/mcp` in the one before.
"""

import asyncio
import socket
import sys
import warnings
from contextlib import AsyncExitStack
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

STATELESS, HANDSHAKE = "2026-07-28", "2025-11-25"
DOCUMENT = "page://one"
ODD_CODE = -32077
ICON = {"src": "https://icons.example/one.png", "mimeType": "image/png", "sizes": ["48x48"]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SAMPLED: dict[str, Any] = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 5}

_NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
_SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: dict[str, dict[str, Any]] = {
    "add": {
        "title": "Add numbers",
        "description": "Add two numbers.",
        "inputSchema": _NUMBERS,
        "outputSchema": _SUM,
        "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        "icons": [ICON],
        "_meta": {"test.example/group": "sums"},
    },
    **{name: {"inputSchema": _NOTHING} for name in ("blocks", "count", "wait", "cancelled", "log", "echo_meta")},
    **{name: {"inputSchema": _NOTHING} for name in ("ask", "sample", "roots", "interview", "fail", "refuse", "touch")},
    **{f"grow_{kind}": {"inputSchema": _NOTHING} for kind in ("tools", "prompts", "resources")},
}
CONTENT: list[dict[str, Any]] = [
    {"type": "text", "text": "one", "annotations": {"audience": ["user"], "priority": 0.5}},
    {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
    {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": DOCUMENT, "mimeType": "text/plain", "text": "a page"}},
    {"type": "resource_link", "uri": DOCUMENT, "name": "one", "mimeType": "text/plain"},
]
RESOURCE: dict[str, Any] = {
    "uri": DOCUMENT,
    "name": "one",
    "title": "Page one",
    "description": "The first page.",
    "mimeType": "text/plain",
    "annotations": {"audience": ["assistant"], "priority": 1.0},
    "icons": [ICON],
    "_meta": {"test.example/shelf": 3},
}
TEMPLATE: dict[str, Any] = {
    "uriTemplate": "page://{number}",
    "name": "page",
    "title": "Any page",
    "description": "A page by its number.",
    "mimeType": "text/plain",
}
PROMPT: dict[str, Any] = {
    "name": "review",
    "title": "Review",
    "description": "Ask for a review.",
    "arguments": [{"name": "title", "description": "of the book", "required": True}, {"name": "mood"}],
    "icons": [ICON],
    "_meta": {"test.example/kind": "review"},
}

Handled = ServerRequestContext[Any]


class Behind:
    """One server in one era; both share nothing."""

    def __init__(self, era: str) -> None:
        self._is_stateless = era == STATELESS
        self._bus = InMemorySubscriptionBus()
        self._stopped = 0  # calls of wait
        self._grown = {"tools": 0, "prompts": 0, "resources": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # logging is deprecated, and part of the table
            self.server = self._server()
        if not self._is_stateless:
            self.server.middleware.append(refuse_discovery)

    def _server(self) -> Server[Any]:
        listen = ListenHandler(self._bus) if self._is_stateless else None
        return Server(
            "behind",
            version="7",
            title="The server behind",
            instructions="Call add.",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.subscribe,
            on_unsubscribe_resource=self.subscribe,
            on_subscriptions_listen=listen,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_completion=self.complete,
            on_set_logging_level=self.subscribe,
        )

    def _with_grown(self, kind: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*entries, *({**entries[0], "name": f"new_{n}"} for n in range(self._grown[kind]))]

    async def list_tools(self, _: Handled, params: Any) -> t.ListToolsResult:
        tools = self._with_grown("tools", [{"name": name, **tool} for name, tool in TOOLS.items()])
        return t.ListToolsResult.model_validate({"tools": tools})

    async def list_resources(self, _: Handled, params: Any) -> t.ListResourcesResult:
        entries = self._with_grown("resources", [RESOURCE])
        for n, entry in enumerate(entries[1:]):
            entry["uri"] = f"page://new{n}"
        return t.ListResourcesResult.model_validate({"resources": entries})

    async def list_templates(self, _: Handled, params: Any) -> t.ListResourceTemplatesResult:
        return t.ListResourceTemplatesResult.model_validate({"resourceTemplates": [TEMPLATE]})

    async def list_prompts(self, _: Handled, params: Any) -> t.ListPromptsResult:
        return t.ListPromptsResult.model_validate({"prompts": self._with_grown("prompts", [PROMPT])})

    async def read_resource(self, _: Handled, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        if not params.uri.startswith("page://"):
            raise MCPError(-32602 if self._is_stateless else -32002, "Resource not found", {"uri": params.uri})
        page = {"uri": params.uri, "mimeType": "text/plain", "text": f"the text of {params.uri}"}
        picture = {"uri": f"{params.uri}/picture", "mimeType": "image/png", "blob": "iVBORw0KGgo="}
        return t.ReadResourceResult.model_validate({"contents": [page, picture]})

    async def subscribe(self, ctx: Handled, params: Any) -> t.EmptyResult:
        return t.EmptyResult()

    async def get_prompt(self, _: Handled, params: t.GetPromptRequestParams) -> t.GetPromptResult:
        given = params.arguments or {}
        if "title" not in given:
            raise MCPError(t.INVALID_PARAMS, "title is missing")
        text = {"type": "text", "text": f"Review {given['title']}, {given.get('mood', 'kindly')}."}
        page = {"type": "resource", "resource": {"uri": DOCUMENT, "text": "a page"}}
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": page}]
        return t.GetPromptResult.model_validate({"description": "A review", "messages": messages})

    async def complete(self, _: Handled, params: t.CompleteRequestParams) -> t.CompleteResult:
        values = [f"{params.ref.type} {params.argument.name} {params.argument.value}{end}" for end in "xy"]
        return t.CompleteResult.model_validate({"completion": {"values": values, "total": 7, "hasMore": True}})

    async def call_tool(
        self, ctx: Handled, params: t.CallToolRequestParams
    ) -> t.CallToolResult | t.InputRequiredResult:
        kind = params.name.removeprefix("grow_")
        if kind in self._grown:
            return await self._grow(ctx, kind)
        if params.name in ("ask", "sample", "roots", "interview"):
            return await self._question(ctx, params)
        tool = getattr(self, f"_{params.name}", None)
        return result(new=params.name) if tool is None else await tool(ctx, params.arguments or {})

    async def _add(self, ctx: Handled, given: dict[str, Any]) -> t.CallToolResult:
        return result(sum=given["a"] + given["b"])

    async def _blocks(self, ctx: Handled, given: Any) -> t.CallToolResult:
        return t.CallToolResult.model_validate({"content": CONTENT, "_meta": {"test.example/took": 3}})

    async def _count(self, ctx: Handled, given: Any) -> t.CallToolResult:
        for step in (1, 2, 3):
            await ctx.session.report_progress(step, 3, f"step {step}")
        return result(count=3)

    async def _wait(self, ctx: Handled, given: Any) -> t.CallToolResult:
        await ctx.session.report_progress(1, None, "begun")
        try:
            await anyio.sleep_forever()
        finally:
            self._stopped += 1
        return result()

    async def _cancelled(self, ctx: Handled, given: Any) -> t.CallToolResult:
        return result(count=self._stopped)

    async def _log(self, ctx: Handled, given: Any) -> t.CallToolResult:
        message = t.LoggingMessageNotificationParams(level="warning", logger="engine", data={"heat": 90})
        await ctx.session.send_notification(t.LoggingMessageNotification(params=message), ctx.request_id)
        return result(logged=True)

    async def _echo_meta(self, ctx: Handled, given: Any) -> t.CallToolResult:
        return result(**{key: value for key, value in (ctx.meta or {}).items() if key.startswith("test.")})

    async def _fail(self, ctx: Handled, given: Any) -> t.CallToolResult:
        content = [{"type": "text", "text": "the tool failed"}]
        return t.CallToolResult.model_validate({"content": content, "isError": True})

    async def _refuse(self, ctx: Handled, given: Any) -> t.CallToolResult:
        raise MCPError(ODD_CODE, "not on Sundays", {"day": "Sunday"})

    async def _touch(self, ctx: Handled, given: Any) -> t.CallToolResult:
        await self._bus.publish(ResourceUpdated(uri=DOCUMENT))
        await self._notify(ctx, "resource_updated", DOCUMENT)
        return result(touched=True)

    async def _grow(self, ctx: Handled, kind: str) -> t.CallToolResult:
        self._grown[kind] += 1
        events = {"tools": ToolsListChanged, "prompts": PromptsListChanged, "resources": ResourcesListChanged}
        await self._bus.publish(events[kind]())
        await self._notify(ctx, f"{kind.removesuffix('s')}_list_changed")
        return result(new=self._grown[kind])

    async def _notify(self, ctx: Handled, what: str, *given: str) -> None:
        if not self._is_stateless:
            await getattr(ctx.session, f"send_{what}")(*given)

    async def _question(
        self, ctx: Handled, params: t.CallToolRequestParams
    ) -> t.CallToolResult | t.InputRequiredResult:
        """In the middle of the call, or as its result, which is repeated with the answers."""
        form = {"method": "elicitation/create", "params": {"message": "Who are you?", "requestedSchema": NAME}}
        questions: dict[str, dict[str, Any]] = {
            "ask": form,
            "sample": {"method": "sampling/createMessage", "params": SAMPLED},
            "roots": {"method": "roots/list"},
        }
        asked = questions if params.name == "interview" else {params.name: questions[params.name]}
        if self._is_stateless:
            if params.input_responses is None:
                return t.InputRequiredResult.model_validate({"inputRequests": asked, "requestState": "a state ✓"})
            if params.request_state != "a state ✓":
                raise MCPError(t.INVALID_PARAMS, "the state is another one")
            answers: dict[str, Any] = dict(params.input_responses)
        else:
            answers = {}
            for key, question in asked.items():
                match key:
                    case "ask":
                        answers[key] = await ctx.session.elicit_form("Who are you?", NAME, ctx.request_id)
                    case "sample":
                        request = t.CreateMessageRequest.model_validate(question)
                        answers[key] = await ctx.session.send_request(request, t.CreateMessageResult)
                    case _:
                        answers[key] = await ctx.session.send_request(t.ListRootsRequest(), t.ListRootsResult)
        return result(**{key: each.model_dump(mode="json", by_alias=True) for key, each in answers.items()})


def result(**structured: Any) -> t.CallToolResult:
    return t.CallToolResult.model_validate({"content": [], "structuredContent": structured})


async def refuse_discovery(ctx: Handled, call_next: Any) -> Any:
    if ctx.method == "server/discover":
        raise MCPError(t.METHOD_NOT_FOUND, "Method not found")
    return await call_next(ctx)


async def main() -> None:
    apps = {
        "stateless": Behind(STATELESS).server.streamable_http_app(),
        "handshake": Behind(HANDSHAKE).server.streamable_http_app(),
    }

    async def route(scope: Any, receive: Any, send: Any) -> None:
        _, era, path = scope["path"].split("/", 2)
        await apps[era]({**scope, "path": f"/{path}", "raw_path": f"/{path}".encode()}, receive, send)

    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(route, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    async with AsyncExitStack() as stack:
        for app in apps.values():
            await stack.enter_async_context(app.router.lifespan_context(app))
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        await running.serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(main())
