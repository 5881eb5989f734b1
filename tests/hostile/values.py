"""Values that no handler should return and no caller send."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opwire import local_envelope
from tests.hostile.limits import Case, given, result, run

MEGABYTE = 2**20
DEEP = 100_000
RECURSIVE = {"type": "array", "items": {"$ref": "#"}}
STRINGS = {"type": "array", "items": {"type": "string"}}
OBJECTS = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}}}


@dataclass
class Node:
    next: Any = None
    names: list[str] = field(default_factory=list[str])


def nested_list(depth: int = DEEP) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def nested_dict(depth: int = DEEP) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def nested_nodes(depth: int = DEEP) -> Node:
    value = Node()
    for _ in range(depth):
        value = Node(value)
    return value


def cyclic_list() -> Any:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def cyclic_node() -> Node:
    value = Node()
    value.next = [value]
    return value


def doubled(levels: int = 60) -> Any:
    """A small graph that is 2**60 values if it is unfolded."""
    value: Any = [1]
    for _ in range(levels):
        value = [value, value]
    return value


def depth_of(value: Any) -> int:
    depth = 0
    while value:
        value = value[0] if isinstance(value, list) else value["a"]
        depth += 1
    return depth


def lookalike(data: Any) -> Any:
    return {"data": data, "meta": {"source": "local", "operationId": "a.b", "timestamp": 1}}


def open_file() -> Any:
    return open(__file__, encoding="utf-8")  # noqa: PTH123


async def in_every_mode(value: Any, show: Callable[[Any], Any], schema: Any) -> Any:
    return [await result(value, show, output_schema=schema, normalize=mode) for mode in ("fit", "cast", "check", "off")]


async def fifty_megabytes() -> Any:
    text = "x" * (50 * MEGABYTE)
    many = [{"a": number} for number in range(300_000)]
    return [
        await result(text, len, output_schema={"type": "string", "maxLength": 3}),
        await given({"text": text}, input_schema={"properties": {"text": {"type": "integer"}}}),
        await result(many, len, output_schema=OBJECTS),
        await given(many, input_schema={"type": "array", "maxItems": 3}),
    ]


CASES: dict[str, Case] = {
    "result open file": lambda: result(open_file()),
    "result generator": lambda: result(number for number in range(3)),
    "result cyclic list": lambda: result(cyclic_list(), output_schema=RECURSIVE),
    "result cyclic dataclass": lambda: result(cyclic_node()),
    "result nan": lambda: result([float("nan")], repr, output_schema={"items": {"type": "number"}}),
    "result 10 MB text": lambda: result("x" * (10 * MEGABYTE), len, output_schema={"type": "string"}),
    "result 10 MB wrong text": lambda: result({"t": "x" * (10 * MEGABYTE)}, len, output_schema=STRINGS),
    "result deep list": lambda: in_every_mode(nested_list(), depth_of, RECURSIVE),
    "result deep object": lambda: in_every_mode(nested_dict(), depth_of, {"type": "array"}),
    "result deep dataclass": lambda: result(nested_nodes()),
    "result deep envelope": lambda: result(local_envelope(nested_list(), "a.b"), depth_of, output_schema=RECURSIVE),
    "result deep lookalike": lambda: result(lookalike(nested_list()), depth_of, output_schema=RECURSIVE),
    "result doubled": lambda: in_every_mode(doubled(), len, RECURSIVE),
    "result 100,000 problems": lambda: result([1] * 100_000, len, output_schema=STRINGS),
    "input open file": lambda: given(open_file()),
    "input cyclic": lambda: given({"a": cyclic_list()}, input_schema=RECURSIVE),
    "input deep": lambda: given(nested_list(), input_schema=RECURSIVE),
    "input deep unknown": lambda: given(nested_dict()),
    "input deep dataclass": lambda: given(nested_nodes()),
    "input doubled": lambda: given(doubled(), input_schema=RECURSIVE),
    "input nan": lambda: given(float("nan"), input_schema={"type": "integer"}),
    "input 10 MB key": lambda: given({"k" * (10 * MEGABYTE): 1}, input_schema={"additionalProperties": False}),
    "input 100,000 problems": lambda: given([1] * 100_000, input_schema=STRINGS),
    "fifty megabytes": fifty_megabytes,
}


if __name__ == "__main__":
    run(CASES)
