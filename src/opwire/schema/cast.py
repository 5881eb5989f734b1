"""`cast`: what TypeBox 0.34's `Value.Cast` makes of a value, from plain JSON Schema."""

from typing import Any, cast

from opwire.errors import CastError, SchemaError
from opwire.schema.cast_check import MISSING
from opwire.schema.cast_kinds import Kind, Run
from opwire.schema.cast_lower import Lowering
from opwire.schema.effort import Effort
from opwire.schema.refs import JSONSchema


class Caster:
    """Casts values to one schema the way TypeBox 0.34's `Value.Cast` does.

    Caster({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}).cast({"n": "1", "x": 2})
    # {'n': 0}
    """

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._kind: Kind | None = None

    def cast(self, value: Any) -> Any:
        """The value itself where it passes the check, else one that shares with it what could be kept.

        Raises:
            CastError: where TypeBox throws too, or the schema or the value is nested too deeply.
        """
        run = Run(Effort(value).left)
        try:
            if self._kind is None:
                self._kind = Lowering(self._root).kind(self._root)
            result = self._kind.cast(value, run)
            return _without_missing(result) if run.absent else result
        except SchemaError as error:
            raise CastError(str(error)) from None
        except RecursionError:
            raise CastError("the value or its schema is nested too deeply") from None


def _without_missing(value: Any) -> Any:
    """The result as JSON has it: `undefined` is no key in an object and null in an array."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        kept = {key: _without_missing(item) for key, item in fields.items() if item is not MISSING}
        changed = len(kept) < len(fields) or any(kept[key] is not fields[key] for key in kept)
        return kept if changed else fields
    if isinstance(value, list):
        items = cast("list[Any]", value)
        cleaned = [_without_missing(item) for item in items]
        return cleaned if any(a is not b for a, b in zip(cleaned, items, strict=True)) else items
    return None if value is MISSING else value
