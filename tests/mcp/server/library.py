"""A registry with resources, prompts and completions."""

from typing import Any, Literal

from opwire import AccessControl, Annotations, CallError, Context, OperationRegistry

BOOKS = {"dune": "Sand.", "emma": "Manners."}
ICON = {"src": "https://books.example/icon.png", "mimeType": "image/png"}
PNG = b"\x89PNG\r\n\x1a\n"


def titles(value: str) -> list[str]:
    """Titles that begin like this."""
    return [title for title in BOOKS if title.startswith(value)]


def chapters(value: str, arguments: dict[str, str], context: Context) -> list[str]:
    """Chapters of the book that was chosen."""
    assert context.identity is not None
    return [f"{arguments.get('title', '?')}-{n}" for n in range(150)]


def library() -> OperationRegistry:
    """Books as resources, a prompt, and tools that change them."""
    registry = OperationRegistry(namespace="books")
    _add_resources(registry)

    @registry.prompt("books.review", title="Review", icons=[ICON], completes={"title": titles, "chapter": chapters})
    def review(title: str, tone: Literal["kind", "harsh"] = "kind", stars: int = 5, chapter: str = "") -> str:
        """Ask for a review.

        Args:
            title: of a book
        """
        return f"Write a {tone} review of {title} with {stars + 0} stars."

    @registry.prompt
    async def dialogue(context: Context) -> list[Any]:
        context.log("info", "asked")
        image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
        return ["Hello", {"role": "assistant", "content": ["Hi", image]}]

    @registry.prompt("books.nobody", access=AccessControl(required_scopes=("admin",)))
    def nobody() -> str:
        return "secret"

    @registry.mutation(
        "books.rewrite", annotations=Annotations(destructive=True, idempotent=True), icons=[ICON], meta={"acme/x": 1}
    )
    async def rewrite(title: str, text: str) -> int:
        BOOKS[title] = text
        registry.resource_updated(f"book://{title}")
        return len(text)

    return registry


def _add_resources(registry: OperationRegistry) -> None:
    @registry.resource("book://{title}", mime_type="text/markdown", title="A book", completes={"title": titles})
    def book(title: str) -> str:
        """The text of a book."""
        if title not in BOOKS:
            raise CallError("EXECUTION_ERROR", "it is lent out", {"until": "Monday"})
        return BOOKS[title]

    @registry.resource(
        "shelf://all", icons=[ICON], annotations=Annotations(extra={"audience": ["user"], "priority": 0.5})
    )
    async def shelf() -> dict[str, int]:
        return {"books": 2}

    @registry.resource("cover://{title}/{number}{?width}", id="books.covers")
    async def cover(title: str, number: int, width: int | None = None) -> bytes:
        return PNG + bytes([number, width or 0])

    @registry.resource("vault://gold", access=AccessControl(required_scopes=("admin",)))
    async def gold() -> str:
        return "gold"
