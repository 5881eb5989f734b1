"""A console behind a real server, and a browser's worth of client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry
from opwire.auth import Grant, StaticTokens
from opwire.console import ConsoleApp, serve_console
from opwire.http.sse import SSEParser
from opwire.openapi.server import serve_http
from tests.openapi.server.served import Client, Reply

OWNER, CLERK, OTHER = "owner-token-0123456789", "clerk-token-0123456789", "other-token-0123456789"
IDENTITIES = {
    OWNER: Identity(id="owner", scopes=("*",)),
    CLERK: Identity(id="clerk", scopes=("shop:write", "opwire:act-as")),
    OTHER: Identity(id="other", scopes=("shop:write",)),
}
TOKENS = StaticTokens({token: Grant(identity) for token, identity in IDENTITIES.items()})
PAGE = {"x-opwire-console": "1"}


def make_registry() -> OperationRegistry:
    """Operations of every kind."""
    registry = OperationRegistry()
    registry.query("math.add", access=AccessControl(public=True), tags=["numbers"])(add)
    registry.query("shop.me")(me)
    registry.mutation("shop.order", access=AccessControl(required_scopes=("shop:write",)))(order)
    registry.mutation("shop.close", access=AccessControl(required_scopes=("shop:admin",)))(close)
    registry.query("shop.large")(large)
    registry.query("shop.slow")(slow)
    registry.subscription("shop.ticks")(ticks)
    return registry


async def add(a: int, b: int = 2) -> int:
    """Add two integers."""
    return a + b


async def me(context: Context) -> dict[str, Any]:
    return {"id": context.identity and context.identity.id, "scopes": context.identity and context.identity.scopes}


async def order(lines: list[str], password: str = "") -> list[str]:
    return lines


async def close() -> None: ...


async def large(size: int) -> str:
    return "x" * size


async def slow(context: Context) -> str:
    context.report(1, 2, "halfway")
    ENDED.clear()
    STARTED.set()
    try:
        await asyncio.Event().wait()
    finally:
        ENDED.set()
    return ""


async def ticks(count: int = 3) -> AsyncIterator[int]:
    for number in range(count):
        yield number


class Revocable:
    """An authenticator with a token that can be revoked."""

    valid = True

    async def authenticate(self, token: str | None) -> Grant:
        if token is None or not self.valid:
            raise CallError("UNAUTHENTICATED", "no")
        return Grant(Identity(id="me"))


STARTED, ENDED = asyncio.Event(), asyncio.Event()


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    data: Any


class Page(Client):
    """The page of one browser: it keeps cookies, and sends the header of the page."""

    console: ConsoleApp

    async def api(self, method: str, path: str, json: Any = None, **headers: str) -> Reply:
        """Send a request as the page does."""
        body = {} if json is None else {"json": json}
        given = {**PAGE, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return await self(method, f"/console/api/{path}", headers=given, **body)

    async def log_in(self, token: str = OWNER) -> Reply:
        """Sign in by a token."""
        reply = await self.api("POST", "session", {"token": token})
        assert reply.status == 200, reply.body
        return reply

    async def call(self, operation_id: str, input: Any = None, **more: Any) -> list[Event]:
        """Return the events of a call."""
        async with self.stream("POST", "call", {"operationId": operation_id, "input": input, **more}) as events:
            return [event async for event in events]

    async def result(self, operation_id: str, input: Any = None, **more: Any) -> Any:
        """Return the data of a call."""
        events = {event.name: event.data for event in await self.call(operation_id, input, **more)}
        assert "result" in events, events
        return events["result"]["envelope"]["data"]

    @asynccontextmanager
    async def stream(self, method: str, path: str, json: Any = None) -> AsyncGenerator[AsyncIterator[Event]]:
        """Open a stream of events; the end of the block disconnects."""
        url = f"{self.address}/console/api/{path}"
        async with self.session.request(method, url, json=json, headers=PAGE) as reply:
            assert reply.status == 200, await reply.read()
            assert reply.headers["content-type"].startswith("text/event-stream")
            yield _events(reply)


async def _events(reply: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    parser = SSEParser(max_event=100_000_000)
    async for chunk in reply.content.iter_any():
        for event in parser.feed(chunk):
            yield Event(event.event, msgspec.json.decode(event.data))


@asynccontextmanager
async def page_of(registry: OperationRegistry | None = None, **options: Any) -> AsyncGenerator[Page]:
    """A page of a console beside an HTTP API; callers without a login are anonymous."""
    given: dict[str, Any] = {"authenticate": TOKENS, **options}
    shared = {name: given[name] for name in ("authenticate", "anonymous", "hosts", "origins") if name in given}
    registry = registry or make_registry()
    console = serve_console(registry, **given)
    app = serve_http(registry, mounts={"/console": console}, **shared)
    jar = aiohttp.CookieJar(unsafe=True)  # keeps the cookies of an IP address, as browsers do
    async with app.listening(drain_timeout=1) as address, aiohttp.ClientSession(cookie_jar=jar) as session:
        page = Page(session, address)
        page.console = console
        yield page
