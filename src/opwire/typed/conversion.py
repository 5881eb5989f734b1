"""Plain data to values of a type, checked."""

from collections.abc import Callable, Hashable
from typing import Any, cast

import msgspec

from opwire.errors import ConversionError
from opwire.typed.hints import ordered_key
from opwire.typed.nodes import Leaf, Misfit, Node, reachable
from opwire.typed.walk import walk

_MOST_PREPARED = 1_000  # a program has fewer types than that, unless it makes them as it goes
_PREPARED: dict[Hashable, Callable[[Any], Any]] = {}


def convert(data: Any, hint: Any) -> Any:
    """Plain JSON data as a value of this type, checked: `convert({"x": 1}, Point)`.

    Raises:
        ConversionError: it does not fit; the message has the path and the reason, not the data.
        HintError: the hint is not a type that data can be converted to.
    """
    return converter(hint)(data)


def converter(hint: Any) -> Callable[[Any], Any]:
    """`convert` prepared for a hint; for equal hints the same."""
    try:
        key = ordered_key(hint)
    except TypeError:
        return _prepare(hint)
    prepared = _PREPARED.get(key)
    if prepared is None:
        prepared = _prepare(hint)
        if len(_PREPARED) >= _MOST_PREPARED:
            _PREPARED.clear()
        _PREPARED[key] = prepared
    return prepared


def identity_kinds(hint: Any) -> frozenset[type] | None:
    """The Python types whose values, valid against the schema of the hint, need no conversion; None if all do.

    `int | None` gives int and NoneType: 5 and None stay what they are, while 5.0 would become 5.
    """
    return walk(hint).identity or None


def _prepare(hint: Any) -> Callable[[Any], Any]:
    root = walk(hint)
    _accelerate(root)
    run = root.run

    def converted(data: Any) -> Any:
        try:
            return run(data)
        except Misfit as misfit:
            raise ConversionError(f"{misfit.path}: {misfit.reason}") from misfit.__cause__
        except RecursionError:
            raise ConversionError("$: the value is nested too deeply") from None

    return converted


def _accelerate(root: Node) -> None:
    """Let msgspec stand in for the largest subtrees that it handles as we do; what is inside them stays as it is."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Leaf):
            continue
        seen.add(id(node))
        fast = _by_msgspec(node) if all(each.native for each in reachable(node, native=True)) else None
        if fast is None:
            stack.extend(node.parts())
        else:
            node.run = fast


def _by_msgspec(node: Node) -> Callable[[Any], Any] | None:
    # msgspec parses most hints again on each call, but those of a Struct's fields once: so the hint is put in one.
    box = msgspec.defstruct("Box", [("value", node.hint)], array_like=True)
    try:
        msgspec.json.Decoder(box)
    except Exception:  # whatever it cannot read, be it a local name or a kind of type, is ours to convert
        return None
    read, slow = cast("Any", msgspec.convert), node.convert

    def run(value: Any) -> Any:
        try:
            return read((value,), box).value
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError):
            return slow(value)

    return run
