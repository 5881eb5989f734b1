"""The story that `opwire demo` tells: everything in it runs, nothing leaves this machine.

How the story is printed: paragraphs, and texts beside each other where the page is wide enough.

The first source: Python functions. One of them is made of operations of all three.
"""

import secrets
import shutil
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

import click
import msgspec
from msgspec import Meta

from opwire import CallError, Context, Identity, OperationRegistry, ResponseEnvelope, encode_envelope
from opwire.adapters.mcp import HTTPServer, StdioServer, from_mcp
from opwire.adapters.openapi import from_openapi
from opwire.auth import StaticTokens
from opwire.cli.demo.rates import rates
from opwire.client import Client
from opwire.serve.http import serve_http
from opwire.serve.listener import listening
from opwire.serve.mcp import serve_mcp

_GAP = "  "
_NARROWEST = 30  # a column of less is not read with pleasure


class Pages:
    """Prints the story, numbering its chapters."""

    def __init__(self, width: int | None = None) -> None:
        self._width = width or min(shutil.get_terminal_size((110, 24)).columns, 140)
        self._chapter = 0

    def chapter(self, title: str) -> None:
        """Begin something new."""
        self._chapter += 1
        click.secho(f"\n{self._chapter}. {title}", bold=True)

    def say(self, text: str) -> None:
        """A paragraph."""
        click.echo(textwrap.fill(" ".join(text.split()), min(self._width, 100)))

    def show(self, text: str) -> None:
        """Something as it is, set in."""
        click.echo(textwrap.indent(text, "    "))

    def beside(self, *texts: str) -> None:
        """Texts beside each other, or one below the other on a narrow page."""
        width = (self._width - 4) // len(texts) - len(_GAP)
        if width < _NARROWEST:
            for text in texts:
                self.show(text)
            return
        columns = [[part for line in text.splitlines() for part in _wrapped(line, width)] for text in texts]
        for row in zip_longest(*columns, fillvalue=""):
            self.show(_GAP.join(part.ljust(width) for part in row).rstrip())


def _wrapped(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


_PRICES = {"tea": 4.5, "cup": 11.0, "pot": 39.0}


@dataclass
class Price:
    """What a number of pieces costs, in euros."""

    article: str
    pieces: int
    total: float


@dataclass
class Offer:
    """A price in the customer's currency, and from which shelf it comes."""

    article: str
    pieces: int
    total: float
    currency: str
    shelf: str


Pieces = Annotated[int, Meta(ge=1)]


def shop() -> OperationRegistry:
    """A registry with the operations of the shop."""
    registry = OperationRegistry(namespace="shop")
    registry.query("shop.price", examples=[{"article": "tea", "pieces": 2}])(price)
    registry.query("shop.offer", examples=[{"article": "tea", "pieces": 2, "currency": "JPY"}])(offer)
    return registry


def price(article: str, pieces: Pieces = 1) -> Price:
    """The price of some pieces of an article. A plain `def` runs on a worker thread."""
    return Price(article, pieces, _PRICES[article] * pieces)


async def offer(article: str, pieces: Pieces, currency: str, context: Context) -> Offer:
    """An offer: the price (a function), the stock (an MCP tool) and the rate (an HTTP API), put together."""
    env: Any = context.env  # calls made through it carry identity and deadline on
    price = await env.shop.price(article=article, pieces=pieces)
    stock = await env.warehouse.stock(article=article)
    rate = await env.rates.get(currency=currency)
    return Offer(
        article=article,
        pieces=min(pieces, stock.data["pieces"]),
        total=round(price.data["total"] * rate.data["rate"], 2),
        currency=currency,
        shelf=stock.data["shelf"],
    )


_OFFER = {"article": "tea", "pieces": 2, "currency": "JPY"}


async def tell(pages: Pages) -> None:
    """Tell it all."""
    async with three_sources() as registry:
        list_operations(registry, pages)
        await call_each(registry, pages)
        await compose(registry, pages)
        await stream(registry, pages)
        await fail(registry, pages)
        await serve(registry, pages)
    pages.chapter("That was it")
    pages.say("Next: `opwire init` writes a commented opwire.toml for sources of your own, `opwire ls` lists them.")


@asynccontextmanager
async def three_sources() -> AsyncGenerator[OperationRegistry]:
    """Functions, an MCP server and an HTTP API in one registry, for as long as the block lasts."""
    registry = shop()
    program = StdioServer(sys.executable, ("-m", "opwire.cli.demo.warehouse"))
    async with (
        listening(rates()) as address,
        from_openapi(f"{address}/openapi.json", namespace="rates") as api,
        from_mcp(program, namespace="warehouse", trust_annotations=True, resources=False, prompts=False) as tools,
    ):
        registry.follow(api)
        registry.follow(tools)
        yield registry


def list_operations(registry: OperationRegistry, pages: Pages) -> None:
    """What there is."""
    pages.chapter("Three sources, one registry")
    pages.say("""Python functions (shop), the tools of an MCP server that was just started as a program (warehouse), and
        an HTTP API on a free port of this machine, read from its OpenAPI document (rates):""")
    for spec in registry.list():
        pages.show(f"{spec.id:<18}{spec.type.value:<14}{spec.description.splitlines()[0] if spec.description else ''}")


async def call_each(registry: OperationRegistry, pages: Pages) -> None:
    """The same call three times."""
    pages.chapter("Call each of them: one envelope")
    pages.say("`data` is plain JSON data, checked against its schema. `meta` says where it came from.")
    answers = {
        "shop.price": {"article": "tea", "pieces": 2},
        "warehouse.stock": {"article": "tea"},
        "rates.get": {"currency": "JPY"},
    }
    for id, input in answers.items():
        pages.show(f"await registry.execute({id!r}, {input!r})")
    envelopes = [await registry.execute(id, input) for id, input in answers.items()]
    pages.beside(*(f"{id}\n{pretty(envelope)}" for id, envelope in zip(answers, envelopes, strict=True)))


async def compose(registry: OperationRegistry, pages: Pages) -> None:
    """An operation made of others."""
    pages.chapter("An operation that is made of all three")
    pages.say("shop.offer is a Python function that calls the other two. With output_type its data is a Python object:")
    pages.show(f'await registry.execute("shop.offer", {_OFFER!r}, output_type=Offer)')
    envelope = await registry.execute("shop.offer", _OFFER, output_type=Offer)
    pages.show(repr(envelope.data))


async def stream(registry: OperationRegistry, pages: Pages) -> None:
    """A subscription."""
    pages.chapter("A subscription")
    pages.say("rates.follow answers with server-sent events. Each is an envelope, as it arrives:")
    async for envelope in registry.subscribe("rates.follow", {"currency": "USD", "count": 3}):
        pages.show(encode_envelope(envelope).decode())


async def fail(registry: OperationRegistry, pages: Pages) -> None:
    """Answers that are errors, and calls that fail."""
    pages.chapter("When something goes wrong")
    pages.say("A tool that answers with an error has answered: its envelope says isError.")
    envelope = await registry.execute("warehouse.reserve", {"article": "pot", "pieces": 100})
    pages.show(encode_envelope(envelope).decode())
    pages.say("Whatever else goes wrong, wherever, is a CallError with one of twelve codes:")
    for id, input in (
        ("shop.price", {"article": "tea", "pieces": "two"}),
        ("rates.get", {"currency": "XXX"}),
        ("shop.prise", {}),
    ):
        try:
            await registry.execute(id, input)
        except CallError as error:
            pages.show(str(error))


async def serve(registry: OperationRegistry, pages: Pages) -> None:
    """The registry from outside."""
    pages.chapter("The same registry, served")
    pages.say("""As an MCP server and as an HTTP API, each behind a token, and called back through both. The composed
        operation answers the same everywhere:""")
    token = secrets.token_urlsafe()
    tokens = StaticTokens({token: Identity(id="visitor", scopes=("*",))})
    mcp, http = serve_mcp(registry, name="shop").asgi(authenticate=tokens), serve_http(registry, authenticate=tokens)
    async with listening(mcp, on_drain=mcp.drain) as mcp_address, http.listening() as http_address:
        at = HTTPServer(f"{mcp_address}/mcp", {"Authorization": f"Bearer {token}"})
        async with (
            from_mcp(at, namespace="served", resources=False) as tools,
            Client(http_address, token=token) as client,
        ):
            outside = OperationRegistry()
            outside.follow(tools)
            id = next(spec.id for spec in outside.list() if "offer" in spec.name)
            over_mcp = await outside.execute(id, _OFFER)
            over_http = await client.call_envelope("shop.offer", _OFFER)
    here = await registry.execute("shop.offer", _OFFER)
    named = {"in this process": here, "over MCP": over_mcp, "over HTTP": over_http}
    pages.beside(*(f"{name}\n{_pretty(envelope.data)}" for name, envelope in named.items()))


def pretty(envelope: ResponseEnvelope[Any]) -> str:
    """An envelope as it travels, over several lines."""
    return _pretty(msgspec.Raw(encode_envelope(envelope)))


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
