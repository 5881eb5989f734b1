"""Annotations that name what only a type checker sees. Only Python 3.14 can import this module (PEP 649)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from opwire import OperationRegistry

if TYPE_CHECKING:
    from collections import Counter as Unseen  # noqa: TC004

    from opwire import Context  # noqa: TC004


def register(registry: OperationRegistry) -> None:
    """Register a function with annotations that name an enclosing class and the unseen `Context`."""

    @dataclass
    class Node:
        value: int
        next: Node | None = None  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    @registry.query("lazy.depth")
    def depth(node: Node, context: Context | None = None) -> dict[str, int | str | None]:
        request_id = context.request_id if context else None
        return {"depth": 1 + (node.next is not None), "last": (node.next or node).value, "request": request_id}


def unseen_parameter(values: list[Unseen]) -> int:
    return len(values)


@dataclass
class UnseenField:
    values: Unseen


class UnseenKey(TypedDict):
    values: list[Unseen]
