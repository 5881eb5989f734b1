"""Types that belong to pydantic: it builds their schemas and decodes them itself.

pydantic is imported here only, and only for a type that is pydantic's already.
"""

from typing import Annotated, Any, cast, get_origin

from opwire.typed.fields import NOTHING, ClassSpec, FieldSpec, hint_error, plain_default
from opwire.typed.nodes import (
    ALL_KINDS,
    DURATION_PATTERN,
    NUMERIC,
    TIME_PATTERN,
    Constant,
    Misfit,
    Node,
    Refs,
    SchemaDict,
)

_KINDS_BY_TYPE = {kind: frozenset({kind}) for kind in ALL_KINDS} | {"integer": NUMERIC, "number": NUMERIC}
_PATTERNS_BY_FORMAT = {"time": TIME_PATTERN, "duration": DURATION_PATTERN}


def is_pydantic(hint: Any) -> bool:
    """Return whether pydantic has prepared this class, or the class has pydantic's hooks."""
    cls = get_origin(hint) or hint
    return isinstance(cls, type) and (
        hasattr(cls, "__pydantic_core_schema__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def model_spec(cls: Any) -> ClassSpec:
    """Return the spec of a model with parts that pydantic cannot describe; these (Structs, say) are converted here."""
    fields: list[FieldSpec] = []
    for key, info in cls.model_fields.items():
        name = info.validation_alias if isinstance(info.validation_alias, str) else key
        hint = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        default = NOTHING if info.is_required() or info.default_factory else info.default
        plain = plain_default(default, info.default_factory or NOTHING)
        fields.append(FieldSpec(name, name, hint, info.is_required(), plain))
    closed = cls.model_config.get("extra") == "forbid"

    def build(**values: Any) -> Any:
        return cls.model_validate(values)

    return ClassSpec(fields, build, native=False, closed=closed)


class PydanticNode(Node):
    """A pydantic model, dataclass or custom type. Decoded strictly, as JSON: "5" is not an integer, a date is text."""

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
            raise hint_error(where, f"pydantic cannot describe {name}: {reason}", "use types that it can") from None
        target = self._document.get("$ref", "").rpartition("/")[2]
        self._top = self._document.get("$defs", {}).get(target, self._document)
        self.kinds = _KINDS_BY_TYPE.get(self._top.get("type", ""), ALL_KINDS)

    def constants(self) -> dict[str, Constant]:
        required = self._top.get("required", ())
        constants: dict[str, Constant] = {}
        for name, schema in self._top.get("properties", {}).items():
            if values := [schema["const"]] if "const" in schema else list(schema.get("enum", ())):
                constants[name] = Constant(values, name in required)
        return constants

    def schema(self, refs: Refs) -> SchemaDict:
        """Return a document with `$defs` of its own."""
        return dict(self._document)

    def convert(self, value: Any) -> Any:
        if self.owner is not None and isinstance(value, self.owner):
            return value
        try:
            return self._decode(value)
        except Misfit:
            whole_numbers = _whole_numbers(value)
            if whole_numbers is value:
                raise
            return self._decode(whole_numbers)

    def _decode(self, value: Any) -> Any:
        import json  # pydantic has imported it: 3 ms of `import opwire` otherwise

        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            first_error = error.errors(include_url=False, include_context=False, include_input=False)[0]
            misfit = Misfit(first_error["msg"])
            misfit.steps = list(reversed(first_error["loc"]))
            raise misfit from None
        except TypeError:
            raise Misfit("is not plain JSON data") from None

    def known(self, value: dict[str, Any]) -> int:
        return len(value.keys() & self._top.get("properties", {}).keys())


def _document(adapter: Any) -> SchemaDict:
    """Return the schema of the input, with the computed properties of the output."""
    document = adapter.json_schema(mode="validation")
    output = adapter.json_schema(mode="serialization")
    outputs = output.get("$defs", {})
    pairs = [
        (document, output),
        *((definition, outputs.get(name, {})) for name, definition in document.get("$defs", {}).items()),
    ]
    for schema, computed in pairs:
        for name, definition in computed.get("properties", {}).items():
            if definition.get("readOnly") and "properties" in schema:
                schema["properties"].setdefault(name, definition)
    return cast("SchemaDict", _with_patterns(document))


def _with_patterns(schema: Any) -> Any:
    """Return a copy with the formats "time" and "duration" replaced by patterns: see `opwire.typed.nodes`."""
    if isinstance(schema, list):
        return [_with_patterns(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    copied = {key: _with_patterns(part) for key, part in cast("SchemaDict", schema).items()}
    if copied.get("type") == "string" and copied.get("format") in _PATTERNS_BY_FORMAT:
        copied["pattern"] = _PATTERNS_BY_FORMAT[copied.pop("format")]
    return copied


def _whole_numbers(value: Any) -> Any:
    """Return a copy with 5 for 5.0, which pydantic rejects as an integer; the same object if nothing changes."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        items = cast("SchemaDict", value)
        changed = {key: _whole_numbers(item) for key, item in items.items()}
        return changed if any(changed[key] is not items[key] for key in items) else items
    if isinstance(value, list):
        values = cast("list[Any]", value)
        converted = [_whole_numbers(item) for item in values]
        return converted if any(old is not new for old, new in zip(values, converted, strict=True)) else values
    return value
