"""A console with operations of every kind: those that a page has to draw, and those that try to take it over."""

import asyncio
import base64
import sys
import time
import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from opwire import (
    AccessControl,
    Annotations,
    CallError,
    Context,
    Identity,
    OperationRegistry,
    OperationSpec,
    OperationType,
)
from opwire.auth import Grant, StaticTokens
from opwire.console import ConsoleSystem, serve_console
from opwire.console.system import SourceStatus
from opwire.durable import MemoryJournal
from opwire.durable.journal import Outcome, Task
from opwire.model.envelope import ResponseEnvelope, http_envelope, mcp_envelope
from opwire.observe.monitor import CallMonitor
from opwire.openapi.server import serve_http
from opwire.policies import Approval, ApprovalQueue
from opwire.protocol.events import CallFailed, encode_event
from opwire.registry.source import Skipped

OWNER, CLERK = "owner-token-0123456789", "clerk-token-0123456789"
MANY = 10_000
"""Operations of the namespace `catalogue`."""

SCRIPT = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
HOSTILE_DESCRIPTION = f"""{SCRIPT}

[run me](javascript:window.pwned=3) ![pixel](https://tracker.invalid/pixel.png) <https://example.com/docs>

# **Heading** with `code` {SCRIPT}

| a | b |
|---|---|
| {SCRIPT} | [x](data:text/html,<script>window.pwned=4</script>) |

- item\u202egnp.exe\u0007
"""
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="240" height="120" onload="parent.pwned=5"><script>parent.pwned=6;'
    'fetch("/console/api/session",{method:"DELETE"})</script><rect width="240" height="120" rx="12" fill="#3d52d5"/>'
    '<circle cx="70" cy="60" r="34" fill="#93a4ff"/><rect x="120" y="36" width="90" height="48" fill="#fff"/></svg>'
)

registry = OperationRegistry()
public = AccessControl(public=True)


class Card(Struct, tag_field="kind", tag="card"):
    """A card, of which only the token is known here."""

    token: Annotated[str, Meta(min_length=4)]


class Invoice(Struct, tag_field="kind", tag="invoice"):
    """An invoice to an address."""

    email: str
    days: Annotated[int, Meta(ge=1, le=90)] = 30


class Line(Struct):
    article: Annotated[str, Meta(description="The number of the article, such as `TEA-1`.")]
    amount: Annotated[int, Meta(ge=1, le=1000)] = 1
    gift: bool = False


class Delivery(Struct):
    day: int | str = 1


class Article(Struct):
    article: str
    name: str
    price: float
    stock: int
    tags: list[str]


ARTICLES = [
    Article(f"TEA-{number}", name, round(3.2 + number * 1.35, 2), 7 * number % 61, tags)
    for number, (name, tags) in enumerate(
        [
            ("Assam, second flush", ["black", "india"]),
            ("Darjeeling, first flush", ["black", "india"]),
            ("Sencha", ["green", "japan"]),
            ("Gyokuro", ["green", "japan", "shaded"]),
            ("Da Hong Pao", ["oolong", "china"]),
            ("Silver Needle", ["white", "china"]),
            ("Rooibos", ["herbal", "south africa"]),
        ],
        1,
    )
]


@registry.query("shop.search", title="Search the shop", tags=["articles"], access=public, examples=[{"words": "tea"}])
async def search(
    words: Annotated[str, Meta(description="Words of the name, or a tag")] = "",
    limit: Annotated[int, Meta(ge=1, le=100)] = 20,
    order: Literal["price", "name", "stock"] = "price",
) -> list[Article]:
    """Find articles by their names and tags.

    Returns at most `limit` articles, **cheapest first** unless another order is asked for. Words match
    the beginning of any word of the name:

    - `words` may be empty: then everything is found
    - the order is one of `price`, `name` and `stock`
    """
    found = [each for each in ARTICLES if words.lower() in f"{each.name} {each.tags}".lower() or words in ("", "tea")]
    return sorted(found, key=lambda each: getattr(each, order))[:limit]


@registry.mutation(
    "shop.order",
    title="Place an order",
    tags=["orders"],
    access=AccessControl(required_scopes=("shop:write",)),
    examples=[
        {"lines": [{"article": "TEA-3", "amount": 2}], "payment": {"kind": "invoice", "email": "ann@example.com"}},
    ],
)
async def order(
    lines: Annotated[list[Line], Meta(min_length=1)],
    payment: Card | Invoice,
    priority: Literal["normal", "express"] = "normal",
    note: Annotated[str, Meta(max_length=200, description="Printed on the *packing slip*")] | None = None,
    attachment: bytes | None = None,
    delivery: Delivery | None = None,
) -> dict[str, Any]:
    """Order articles, paid by card or by invoice."""
    kind = "card" if isinstance(payment, Card) else "invoice"
    size = len(attachment or b"")
    return {"order": 4711, "lines": len(lines), "paid": kind, "priority": priority, "note": note, "attachment": size}


@registry.query("shop.total", tags=["orders"])
async def total(context: Context, lines: list[Line] | None = None) -> dict[str, Any]:
    """Add up an order. Calls `shop.price` for each line."""
    wanted = lines or [Line("TEA-1"), Line("TEA-3")]
    prices = [(await context.env.shop.price(article=each.article)).data for each in wanted]
    return {"total": sum(prices), "prices": prices}


@registry.query("shop.price", tags=["articles"])
async def price(article: str) -> float:
    """Return the price of an article."""
    await asyncio.sleep(0.02)
    found = next((each.price for each in ARTICLES if each.article == article), None)
    if found is None:
        raise CallError("EXECUTION_ERROR", f"There is no article {article!r}.", {"article": article})
    return found


@registry.mutation("shop.restock", tags=["orders"])
async def restock(context: Context, steps: int = 20, pause: float = 0.05) -> str:
    """Fill the shelves, one after another, and say how far it is."""
    for step in range(steps):
        context.report(step, steps, f"shelf {step + 1} of {steps}")
        await asyncio.sleep(pause)
    return "done"


@registry.mutation("shop.refund", tags=["orders"])
async def refund(context: Context, order: int = 4711) -> dict[str, Any]:
    """Pay back an order. Asks how."""

    class Way(Struct):
        way: Literal["account", "voucher"]
        amount: Annotated[float, Meta(gt=0)]

    answer = await context.elicit(Way, f"How is order {order} paid back?")
    return {"order": order, "answer": answer}


@registry.mutation(
    "shop.close",
    tags=["orders"],
    access=AccessControl(required_scopes=("shop:admin",)),
    annotations=Annotations(destructive=True, idempotent=True),
)
async def close(day: str = "today") -> str:
    """Close the books of a day. Needs the approval of a person."""
    return f"closed {day}"


@registry.subscription("shop.ticks", tags=["live"])
async def ticks(every: float = 0.2, count: int = 1_000_000) -> AsyncIterator[dict[str, Any]]:
    """Yield a price again and again."""
    for number in range(count):
        each = ARTICLES[number % len(ARTICLES)]
        yield {"number": number, "article": each.article, "price": each.price}
        await asyncio.sleep(every)


@registry.subscription("shop.firehose", tags=["live"])
async def firehose() -> AsyncIterator[dict[str, Any]]:
    """Yield as fast as the reader reads, for ever."""
    number = 0
    while True:
        yield {"number": number, "padding": "x" * 100}
        number += 1
        await asyncio.sleep(0)


@registry.query("shop.export", tags=["live"])
async def export(megabytes: int = 50) -> list[str]:
    """Return a large result."""
    return ["x" * 1_000_000] * megabytes


@registry.query("shop.clock", tags=["live"])
async def clock(context: Context) -> dict[str, Any]:
    """Return a number that grows with every call, and an integer that no float holds."""
    global _counter  # noqa: PLW0603
    _counter += 1
    return {
        "calls": _counter,
        "same": "value",
        "exact": 9_007_199_254_740_993,
        "who": context.identity and context.identity.id,
    }


_counter = 0


@registry.query("exact.numbers", examples=[{"number": 2**53 + 1, "others": [2**64 - 1]}])
async def exact(number: int = 2**60 + 1, others: list[int] = [], weight: float = 1.5) -> dict[str, Any]:  # noqa: B006
    """Return integers that a JavaScript number cannot hold."""
    return {"number": number, "others": others, "text": str(number), "word": "null", "weight": weight}


async def echo(input: Any, context: Context) -> Any:
    return input


for name, schema in (
    ("exact.reserved", {"type": "object", "properties": {"constructor": {"type": "string"}, "a": {"type": "string"}}}),
    ("exact.open", {"type": "object"}),
):
    namespace, _, short = name.partition(".")
    spec = OperationSpec(
        namespace=namespace,
        name=short,
        type=OperationType.QUERY,
        description="<p>Takes <b>anything</b>, see <a href='https://example.com/x'>the page</a> for &lt;owner&gt;.</p>",
        input_schema=schema,
    )
    registry.register(spec, echo)


@registry.query("shop.anything")
async def anything(value: Any = None) -> Any:
    """Return what was given: a value without a type."""
    return value


def _png() -> bytes:
    rows = b"".join(
        b"\0" + bytes((x * 2, y * 4, 200)[i] & 255 for x in range(120) for i in range(3)) for y in range(60)
    )
    chunks = ((b"IHDR", b"\0\0\0x\0\0\0<\x08\x02\0\0\0"), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = (
        len(body).to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big") for name, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


WAV = b"RIFF\x44\x03\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0@\x1f\0\0@\x1f\0\0\x01\0\x08\0data \x03\0\0" + bytes(
    128 + (index % 40) for index in range(800)
)
PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 100]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"
)


@registry.query("media.gallery", title="Content of several kinds")
async def gallery() -> ResponseEnvelope[Any]:
    """Return an image, a drawing, a sound, a document and a text."""

    def encode(data: bytes) -> str:
        return base64.b64encode(data).decode()

    blocks = [
        {"type": "text", "text": f"Some **Markdown**, and no HTML: {SCRIPT}"},
        {"type": "image", "data": encode(_png()), "mimeType": "image/png"},
        {"type": "image", "data": encode(SVG.encode()), "mimeType": "image/svg+xml"},
        {"type": "audio", "data": encode(WAV), "mimeType": "audio/wav"},
        {
            "type": "resource",
            "resource": {"uri": f"file:///../{SCRIPT}.pdf", "mimeType": "application/pdf", "blob": encode(PDF)},
        },
        {
            "type": "resource",
            "resource": {"uri": "file:///a.html", "mimeType": "text/html", "blob": encode(SCRIPT.encode())},
        },
        {"type": "resource_link", "uri": "javascript:window.pwned=7", "name": "run\u202eme"},
    ]
    return mcp_envelope(blocks, is_error=False, content=blocks)


@registry.query("media.photo")
async def photo() -> ResponseEnvelope[Any]:
    """Return bytes, as an HTTP API does."""
    headers = {
        "content-type": "image/png",
        "content-disposition": 'attachment; filename="../../<b>.png"',
        "x-a": SCRIPT,
    }
    return http_envelope(_png(), status_code=200, headers=headers, content_type="image/png")


@registry.query("hostile.result")
async def hostile_result() -> Any:
    """Return text that would run if it were HTML."""
    return [
        {"name": SCRIPT, SCRIPT: "key", "__proto__": {"polluted": True}, "bidi": "\u202etxt.exe", "nul": "\0\x1b[31m"}
    ]


@registry.query("hostile.failure")
async def hostile_failure() -> None:
    """Fail with text that would run if it were HTML."""
    raise CallError("EXECUTION_ERROR", SCRIPT, {"script": SCRIPT})


def add_hostile_names() -> None:
    """Register operations with hostile names and descriptions."""
    for number, name in enumerate((SCRIPT, "ab", "__proto__", "constructor", "x/../../y?z#q", "%2e%2e%2f")):

        async def handler() -> str:
            return "reached"

        handler.__doc__ = HOSTILE_DESCRIPTION
        registry.query(f"hostile.{name}", title=f"{SCRIPT}\u202e", tags=[SCRIPT] if number == 0 else [])(handler)


def add_many(amount: int) -> None:
    """Register a catalogue."""

    async def handler(input: Any, context: Context) -> Any:
        return input

    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    for number in range(amount):
        spec = OperationSpec(
            namespace="catalogue",
            name=f"item{number:05}",
            type=OperationType.QUERY,
            title=f"Item {number}",
            description=f"Return item {number}.",
            tags=(f"group {number % 40:02}",),
            input_schema=schema,
        )
        registry.register(spec, handler)


class Sources:
    """The sources of a configuration, as the page sees them."""

    def source_of(self, operation_id: str) -> str | None:
        return operation_id.partition(".")[0]

    def statuses(self) -> list[SourceStatus]:
        skipped = (Skipped("POST", "/orders/{id}/weird", "the body has no content type"),)
        return [
            SourceStatus(name="shop", kind="python", state="loaded", operations=14),
            SourceStatus(name="catalogue", kind="openapi", state="loaded", operations=MANY, skipped=skipped),
            SourceStatus(name="crm", kind="mcp", state="failed", error="Connection refused: http://127.0.0.1:9/mcp"),
        ]


async def add_dead_letter(journal: MemoryJournal) -> None:
    """Put a task into the journal that has failed for good."""
    await journal.submit(Task(key="order-4711", operation_id="shop.order", request=b"{}", fingerprint="f", submitted=0))
    (claim,) = await journal.claim(["shop.order"], lease=10, wait=1)
    event = encode_event(CallFailed.of("r", CallError("TIMEOUT", "no answer in 30 s")))
    recorded = round(time.time() * 1000) - 60_000
    outcome = Outcome(
        key="order-4711", operation_id="shop.order", event=event, attempts=5, recorded=recorded, dead_letter=True
    )
    await journal.record(claim, outcome)


def add_load(monitor: CallMonitor) -> None:
    """Register an operation that fills the call log."""

    @registry.query("load.run")
    async def run(rate: int = 1000, seconds: float = 4.0) -> int:
        """Show calls to watchers, a hundred at a time."""
        batches = round(rate * seconds / 100)
        for batch in range(batches):
            for number in range(100):
                parent = {} if number % 4 == 0 else {"parent_request_id": f"load-{batch}-{number - number % 4}"}
                outcome = "TIMEOUT" if number == 7 else "OK"
                monitor.record(f"load-{batch}-{number}", "shop.price", outcome, 0.001, "call", caller="load", **parent)
            await asyncio.sleep(100 / rate)
        return batches * 100


async def serve(port: int, amount: int) -> None:
    """Listen until the process ends."""
    monitor = CallMonitor(registry, name="tea shop", version="2.4.0")
    add_hostile_names()
    add_many(amount)
    add_load(monitor)
    queue = ApprovalQueue()
    registry.use(Approval(queue, include=["shop.close"]))
    journal = MemoryJournal()
    await journal.start()
    await add_dead_letter(journal)
    grants = {OWNER: Identity(id="owner", scopes=("*",)), CLERK: Identity(id="clerk", scopes=("shop:write",))}
    tokens = StaticTokens({token: Grant(identity) for token, identity in grants.items()})
    system = ConsoleSystem(sources=Sources(), journal=journal, approvals=queue)
    console = serve_console(
        registry, title="Tea shop", version="2.4.0", authenticate=tokens, monitor=monitor, system=system
    )
    app = serve_http(registry, mounts={"/console": console}, authenticate=tokens, monitor=monitor)
    print(f"http://127.0.0.1:{port}/console/#link={console.create_link()}", flush=True)  # noqa: T201
    async with app.listening(port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
