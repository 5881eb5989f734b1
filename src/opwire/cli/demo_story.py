"""The script of `opwire demo`. Every call in it is real, and everything stays on this machine.

The first source is the Python functions here, the second the MCP server in `demo_warehouse`, and the third an HTTP API
with an OpenAPI document and a stream of server-sent events.
"""

import asyncio
import json
import secrets
import shutil
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from opwire import CallError, Context, Identity, OperationRegistry, OperationSpec, ResponseEnvelope, encode_envelope
from opwire.agents.providers import anthropic_tools
from opwire.agents.search_mode import search_mode, token_cost
from opwire.asgi.listener import listening
from opwire.auth.tokens import StaticTokens
from opwire.cli.text import cut
from opwire.client.client import Client
from opwire.mcp.client.servers import HTTPServer, StdioServer
from opwire.mcp.client.source import from_mcp
from opwire.mcp.server.app import serve_mcp
from opwire.openapi.client.source import from_openapi
from opwire.openapi.server.app import serve_http
from opwire.typed.plain import indented_json

_COLUMN_GAP = "  "
_MIN_COLUMN_WIDTH = 30
_RATES = {"EUR": 1.0, "USD": 1.09, "JPY": 163.2}
_EVENT_INTERVAL_SECONDS = 0.05
_PRICES = {"tea": 4.5, "cup": 11.0, "pot": 39.0}
_OFFER = {"article": "tea", "pieces": 2, "currency": "JPY"}
_DEPARTMENTS = ("sales", "travel", "people", "support")
_VERBS = {
    "list": "List the {}s of {}.",
    "get": "Return one {} of {}.",
    "create": "Create a {} for {}.",
    "update": "Change a {} of {}.",
    "delete": "Delete a {} of {}.",
}
_THINGS = (
    "account address agreement alert approval article asset audit badge benefit bonus booking budget campaign "
    "candidate card claim client comment contract course customer deal device document expense flight forecast goal "
    "hotel incident invoice item lead meeting message note offer order payment permit policy project receipt report "
    "role shift task ticket visit"
).split()

Pieces = Annotated[int, Meta(ge=1)]


class DemoPrinter:
    """Prints numbered sections, paragraphs and columns."""

    def __init__(self, width: int | None = None) -> None:
        self.width = width or min(shutil.get_terminal_size((110, 24)).columns, 140)
        self._section = 0

    def section(self, title: str) -> None:
        """Print a numbered heading."""
        self._section += 1
        click.secho(f"\n{self._section}. {title}", bold=True)

    def paragraph(self, text: str) -> None:
        """Print text, wrapped to the page."""
        click.echo(textwrap.fill(" ".join(text.split()), min(self.width, 100)))

    def code(self, text: str) -> None:
        """Print indented lines, wrapped to the page."""
        for line in text.splitlines():
            for part in _wrapped(line, self.width - 4):
                click.echo(f"    {part}")

    def columns(self, *texts: str) -> None:
        """Print texts side by side, or one below the other on a narrow page."""
        width = (self.width - 4) // len(texts) - len(_COLUMN_GAP)
        if width < _MIN_COLUMN_WIDTH:
            for text in texts:
                self.code(text)
            return

        columns = [[part for line in text.splitlines() for part in _wrapped(line, width)] for text in texts]
        for row in zip_longest(*columns, fillvalue=""):
            self.code(_COLUMN_GAP.join(part.ljust(width) for part in row).rstrip())


def _wrapped(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


# --- the first source -------------------------------------------------------------------------------------------------


@dataclass
class Price:
    """The price of some pieces, in euros."""

    article: str
    pieces: int
    total: float


@dataclass
class PriceOffer:
    """A price in the customer's currency, with the shelf that holds the article."""

    article: str
    pieces: int
    total: float
    currency: str
    shelf: str


def shop() -> OperationRegistry:
    """Return a registry with the operations of the shop."""
    registry = OperationRegistry(namespace="shop")
    registry.query("shop.price", examples=[{"article": "tea", "pieces": 2}])(price)
    registry.query("shop.offer", examples=[_OFFER])(offer)
    return registry


def price(article: str, pieces: Pieces = 1) -> Price:
    """Return the price of some pieces of an article. A plain `def` runs on a worker thread."""
    return Price(article, pieces, _PRICES[article] * pieces)


async def offer(article: str, pieces: Pieces, currency: str, context: Context) -> PriceOffer:
    """Combine the price (a function), the stock (an MCP tool) and the rate (an HTTP API) into an offer."""
    env: Any = context.env  # nested calls inherit identity and deadline
    price = await env.shop.price(article=article, pieces=pieces)
    stock = await env.warehouse.stock(article=article)
    rate = await env.rates.get(currency=currency)
    return PriceOffer(
        article=article,
        pieces=min(pieces, stock.data["pieces"]),
        total=round(price.data["total"] * rate.data["rate"], 2),
        currency=currency,
        shelf=stock.data["shelf"],
    )


# --- the third source -------------------------------------------------------------------------------------------------


async def get_rate(request: Request) -> Response:
    """Handle `GET /rates/{currency}`."""
    currency = request.path_params["currency"]
    if currency not in _RATES:
        return JSONResponse({"error": f"unknown currency {currency}"}, status_code=404)
    return JSONResponse({"currency": currency, "rate": _RATES[currency]})


async def follow_rate(request: Request) -> Response:
    """Handle `GET /rates/{currency}/changes`: stream an event for each change of the rate."""
    rate, count = _RATES[request.path_params["currency"]], int(request.query_params["count"])

    async def events() -> AsyncGenerator[str]:
        for number in range(count):
            yield f"id: {number}\ndata: {json.dumps({'rate': round(rate + number / 100, 2)})}\n\n"
            await asyncio.sleep(_EVENT_INTERVAL_SECONDS)

    return StreamingResponse(events(), media_type="text/event-stream")


async def document(_: Request) -> Response:
    """Handle `GET /openapi.json`."""
    return JSONResponse(_DOCUMENT)


def rates() -> Starlette:
    """Return the API as an ASGI application."""
    return Starlette(
        routes=[
            Route("/openapi.json", document),
            Route("/rates/{currency}", get_rate),
            Route("/rates/{currency}/changes", follow_rate),
        ]
    )


def _response(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "Found.", "content": {media_type: {"schema": schema}}}}


_RATE_PROPERTY = {"rate": {"type": "number"}}
_NAMED_RATE = {
    "type": "object",
    "properties": {"currency": {"type": "string"}, **_RATE_PROPERTY},
    "required": ["currency", "rate"],
}
_CURRENCY_PARAMETER = {"name": "currency", "in": "path", "required": True, "schema": {"type": "string"}}
_COUNT_PARAMETER = {"name": "count", "in": "query", "required": True, "schema": {"type": "integer", "minimum": 1}}
_DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "rates", "version": "1.0"},
    "paths": {
        "/rates/{currency}": {
            "get": {
                "operationId": "get",
                "summary": "The exchange rate of the euro",
                "parameters": [_CURRENCY_PARAMETER],
                "responses": _response("application/json", _NAMED_RATE),
            }
        },
        "/rates/{currency}/changes": {
            "get": {
                "operationId": "follow",
                "summary": "The exchange rate of the euro, at each change",
                "parameters": [_CURRENCY_PARAMETER, _COUNT_PARAMETER],
                "responses": _response("text/event-stream", {"type": "object", "properties": _RATE_PROPERTY}),
            }
        },
    },
}


# --- the script -------------------------------------------------------------------------------------------------------


async def run_demo(printer: DemoPrinter) -> None:
    """Run every section."""
    async with three_sources() as registry:
        list_operations(registry, printer)
        await call_each(registry, printer)
        await compose(registry, printer)
        await stream(registry, printer)
        await fail(registry, printer)
        await serve(registry, printer)
    await search(printer)
    printer.section("Next steps")
    printer.paragraph("`opwire init` writes a commented opwire.toml for your own sources; `opwire ls` lists them.")


@asynccontextmanager
async def three_sources() -> AsyncGenerator[OperationRegistry]:
    """Open functions, an MCP server and an HTTP API in one registry."""
    registry = shop()
    program = StdioServer(sys.executable, ("-m", "opwire.cli.demo_warehouse"))
    async with (
        listening(rates()) as address,
        from_openapi(f"{address}/openapi.json", namespace="rates") as api,
        from_mcp(program, namespace="warehouse", trust_annotations=True, resources=False, prompts=False) as tools,
    ):
        registry.follow(api)
        registry.follow(tools)
        yield registry


def list_operations(registry: OperationRegistry, printer: DemoPrinter) -> None:
    """List the operations."""
    printer.section("Three sources, one registry")
    printer.paragraph("""Python functions (shop), the tools of an MCP server that was just started as a subprocess
        (warehouse), and an HTTP API on a free local port, loaded from its OpenAPI document (rates):""")
    for spec in registry.list():
        summary = spec.description.splitlines()[0] if spec.description else ""
        printer.code(cut(f"{spec.id:<18}{spec.type.value:<14}{summary}", printer.width - 4))


async def call_each(registry: OperationRegistry, printer: DemoPrinter) -> None:
    """Call one operation of each source."""
    printer.section("Call each of them: one envelope")
    printer.paragraph("`data` is plain JSON data, validated by its schema. `meta` describes where it came from.")
    inputs = {
        "shop.price": {"article": "tea", "pieces": 2},
        "warehouse.stock": {"article": "tea"},
        "rates.get": {"currency": "JPY"},
    }
    for id, input in inputs.items():
        printer.code(f"await registry.execute({id!r}, {input!r})")
    envelopes = [msgspec.Raw(encode_envelope(await registry.execute(id, input))) for id, input in inputs.items()]
    printer.columns(*(f"{id}\n{indented_json(envelope)}" for id, envelope in zip(inputs, envelopes, strict=True)))


async def compose(registry: OperationRegistry, printer: DemoPrinter) -> None:
    """Call an operation that calls others."""
    printer.section("An operation composed of all three")
    printer.paragraph(
        "shop.offer is a Python function that calls the other two. With output_type, data is a Python object:"
    )
    printer.code(f'await registry.execute("shop.offer", {_OFFER!r}, output_type=PriceOffer)')
    envelope = await registry.execute("shop.offer", _OFFER, output_type=PriceOffer)
    printer.code(repr(envelope.data))


async def stream(registry: OperationRegistry, printer: DemoPrinter) -> None:
    """Consume a subscription."""
    printer.section("A subscription")
    printer.paragraph("rates.follow streams server-sent events. Each one is an envelope:")
    async for envelope in registry.subscribe("rates.follow", {"currency": "USD", "count": 3}):
        printer.code(_one_line(envelope))


async def fail(registry: OperationRegistry, printer: DemoPrinter) -> None:
    """Show error results and failed calls."""
    printer.section("Errors")
    printer.paragraph("A tool that returns an error was called: the envelope of its result has isError.")
    envelope = await registry.execute("warehouse.reserve", {"article": "pot", "pieces": 100})
    printer.code(_one_line(envelope))
    printer.paragraph("Every other failure raises a CallError with one of twelve codes:")
    for id, input in (
        ("shop.price", {"article": "tea", "pieces": "two"}),
        ("rates.get", {"currency": "XXX"}),
        ("shop.prise", {}),
    ):
        try:
            await registry.execute(id, input)
        except CallError as error:
            printer.code(str(error))


async def serve(registry: OperationRegistry, printer: DemoPrinter) -> None:
    """Serve the registry twice and call it back."""
    printer.section("The same registry, served")
    printer.paragraph("""As an MCP server and as an HTTP API, each behind a token. Called back through both, the
        composed operation returns the same data everywhere:""")
    token = secrets.token_urlsafe()
    tokens = StaticTokens({token: Identity(id="visitor", scopes=("*",))})
    mcp, http = serve_mcp(registry, name="shop").asgi(authenticate=tokens), serve_http(registry, authenticate=tokens)
    async with listening(mcp, on_drain=mcp.drain) as mcp_address, http.listening() as http_address:
        server = HTTPServer(f"{mcp_address}/mcp", {"Authorization": f"Bearer {token}"})
        async with (
            from_mcp(server, namespace="served", resources=False) as tools,
            Client(http_address, token=token) as client,
        ):
            remote = OperationRegistry()
            remote.follow(tools)
            id = next(spec.id for spec in remote.list() if "offer" in spec.name)
            over_mcp = await remote.execute(id, _OFFER)
            over_http = await client.call_envelope("shop.offer", _OFFER)
    local = await registry.execute("shop.offer", _OFFER)
    registries = {"in this process": local, "over MCP": over_mcp, "over HTTP": over_http}
    printer.columns(*(f"{name}\n{indented_json(envelope.data)}" for name, envelope in registries.items()))


def thousand_operations() -> OperationRegistry:
    """Return a registry of 1,000 operations: five for each kind of thing in each department."""
    registry = OperationRegistry()

    def run(input: Any, context: Context) -> dict[str, Any]:
        return {"done": True, **input}

    for department, thing, (verb, sentence) in product(_DEPARTMENTS, _THINGS, _VERBS.items()):
        one = {} if verb in ("list", "create") else {"id": {"type": "integer", "description": f"Of the {thing}."}}
        more = {"fields": {"type": "object"}} if verb in ("create", "update") else {}
        spec = OperationSpec(
            namespace=department,
            name=f"{thing}s.{verb}",
            type="query" if verb in ("list", "get") else "mutation",
            description=sentence.format(thing, department),
            input_schema={"type": "object", "properties": {**one, **more}, "required": [*one, *more]},
        )
        registry.register(spec, run, inline=True)
    return registry


async def search(printer: DemoPrinter) -> None:
    """Find one of a thousand operations as a model does."""
    printer.section("A thousand operations for a model")
    registry = thousand_operations()
    tools = anthropic_tools(search_mode(registry))
    all_tokens, few_tokens = (sum(map(token_cost, tools.list())) for tools in (registry, search_mode(registry)))
    printer.paragraph(f"""The definitions of {len(registry):,} operations take {all_tokens:,} tokens of each request to
        a model. In search mode it has three tools, which take {few_tokens:,}, and finds the others:""")
    cancel = {"operation": "travel.bookings.delete", "input": {"id": 7}}
    for name, input in (("tools_search", {"query": "remove a travel booking", "limit": 3}), ("tools_call", cancel)):
        printer.code(f"{name} {json.dumps(input)}")
        message = await tools.handle({"id": "1", "name": name, "input": input})
        for line in message["content"][0]["text"].splitlines():
            printer.code(f"  {line}")


def _one_line(envelope: ResponseEnvelope[Any]) -> str:
    return msgspec.json.format(encode_envelope(envelope), indent=0).decode()
