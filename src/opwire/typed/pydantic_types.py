"""Types that belong to pydantic: it makes their schemas and reads them itself.

pydantic is imported here only, and only for a type that is pydantic's already.
"""

import json
from functools import partial
from typing import Annotated, Any, cast, get_origin

from opwire.typed.fields import NOTHING, Field, Plan, plain_default, refusal
from opwire.typed.nodes import ALL_KINDS, DURATION_PATTERN, NUMERIC, TIME_PATTERN, Constant, Misfit, Node, Refs, Schema

_KINDS = {kind: frozenset({kind}) for kind in ALL_KINDS} | {"integer": NUMERIC, "number": NUMERIC}
_PATTERNS = {"time": TIME_PATTERN, "duration": DURATION_PATTERN}


def is_pydantic(hint: Any) -> bool:
    """Whether pydantic has prepared this class, or the class tells pydantic how to treat it."""
    cls = get_origin(hint) or hint
    return isinstance(cls, type) and (
        hasattr(cls, "__pydantic_core_schema__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def model_plan(cls: Any) -> Plan:
    """A model with parts that pydantic cannot describe, such as Structs: they are converted here, the rest there."""
    fields: list[Field] = []
    for key, info in cls.model_fields.items():
        name = info.validation_alias if isinstance(info.validation_alias, str) else key
        hint = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        default = NOTHING if info.is_required() or info.default_factory else info.default
        plain = plain_default(default, info.default_factory or NOTHING)
        fields.append(Field(name, name, hint, info.is_required(), plain))
    closed = cls.model_config.get("extra") == "forbid"
    return Plan(fields, partial(_validated, cls), native=False, closed=closed)


def _validated(cls: Any, **values: Any) -> Any:
    return cls.model_validate(values)


class Pydantic(Node):
    """A pydantic model, dataclass or custom type. Read strictly, as JSON: "5" is no integer, a date is text."""

    def __init__(self, hint: Any, name: str, where: str) -> None:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

        self.hint, self.name = hint, name
        self.owner = (get_origin(hint) or hint) if is_pydantic(hint) else None
        try:
            self._adapter: Any = TypeAdapter(hint)
            self._document = _document(self._adapter)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            reason = str(error).partition("\n")[0]
            raise refusal(where, f"pydantic cannot describe {name}: {reason}", "use types that it can") from None
        self._top = self._document.get("$defs", {}).get(_last(self._document.get("$ref", "")), self._document)
        self.kinds = _KINDS.get(self._top.get("type", ""), ALL_KINDS)

    def constants(self) -> dict[str, Constant]:
        found = {name: _options(each) for name, each in self._top.get("properties", {}).items()}
        required = self._top.get("required", ())
        return {name: Constant(values, name in required) for name, values in found.items() if values}

    def schema(self, refs: Refs) -> Schema:
        """A document with `$defs` of its own."""
        return dict(self._document)

    def convert(self, value: Any) -> Any:
        if self.owner is not None and isinstance(value, self.owner):
            return value
        try:
            return self._read(value)
        except Misfit:
            whole = _whole_numbers(value)
            if whole is value:
                raise
            return self._read(whole)

    def _read(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            misfit = Misfit(first["msg"])
            misfit.steps = list(reversed(first["loc"]))
            raise misfit from None
        except TypeError:
            raise Misfit("is not plain JSON data") from None

    def known(self, value: dict[str, Any]) -> int:
        return len(value.keys() & self._top.get("properties", {}).keys())


def _last(ref: str) -> str:
    return ref.rpartition("/")[2]


def _options(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _document(adapter: Any) -> Schema:
    """The schema of what is read, with the computed properties that are written besides."""
    document = adapter.json_schema(mode="validation")
    written = adapter.json_schema(mode="serialization")
    _add_computed(document, written)
    for name, each in document.get("$defs", {}).items():
        _add_computed(each, written.get("$defs", {}).get(name, {}))
    return cast("Schema", _formats_replaced(document))


def _add_computed(read: Schema, written: Schema) -> None:
    for name, each in written.get("properties", {}).items():
        if each.get("readOnly") and "properties" in read:
            read["properties"].setdefault(name, each)


def _formats_replaced(schema: Any) -> Any:
    """The formats "time" and "duration" as patterns: see `opwire.typed.nodes`."""
    if isinstance(schema, list):
        return [_formats_replaced(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = {key: _formats_replaced(each) for key, each in cast("Schema", schema).items()}
    if found.get("type") == "string" and found.get("format") in _PATTERNS:
        found["pattern"] = _PATTERNS[found.pop("format")]
    return found


def _whole_numbers(value: Any) -> Any:
    """A copy with 5 for 5.0, which pydantic does not read as an integer; the same object where there is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        items = cast("Schema", value)
        changed = {key: _whole_numbers(each) for key, each in items.items()}
        return changed if any(changed[key] is not items[key] for key in items) else items
    if isinstance(value, list):
        before = cast("list[Any]", value)
        after = [_whole_numbers(each) for each in before]
        return after if any(one is not other for one, other in zip(before, after, strict=True)) else before
    return value
