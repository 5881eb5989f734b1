"""Classes with fields: their values are objects in JSON, or arrays for those that go by position."""

from collections.abc import Callable, Iterable
from typing import Any, get_origin

from opwire.typed.nodes import Constant, Misfit, Node, Refs, Schema, array_items, documentation, object_items
from opwire.typed.plans import NOTHING, Field, Plan


class Object(Node):
    """A class whose values are objects in JSON."""

    fields: list[tuple[Field, Node]]

    def __init__(self, hint: Any, name: str, plan: Plan) -> None:
        self.hint, self.name, self.owner, self.plan = hint, name, get_origin(hint) or hint, plan
        self.kinds = frozenset({"array" if plan.positional else "object"})
        # msgspec takes a tagged Struct without its tag, except inside a union.
        self.native = plan.native and plan.tag is None
        self._passes = not issubclass(self.owner, dict)

    def fill(self, walk: Callable[[Field], Node]) -> None:
        """Walk the hints of the fields; apart from the constructor, since they may refer to this node."""
        self.fields = [(each, walk(each)) for each in self.plan.fields]

    def parts(self) -> Iterable[Node]:
        return [node for _, node in self.fields]

    def constants(self) -> dict[str, Constant]:
        found = {self.plan.tag[0]: Constant([self.plan.tag[1]], required=True)} if self.plan.tag else {}
        for field, node in self.fields:
            if options := node.options():
                found[field.name] = Constant(options, field.required)
        return found

    def schema(self, refs: Refs) -> Schema:
        tag = self.plan.tag
        properties = {tag[0]: {"const": tag[1]}} if tag else {}
        properties |= {field.name: _field_schema(field, refs.of(node)) for field, node in self.fields}
        required = ([tag[0]] if tag else []) + [field.name for field, _ in self.fields if field.required]
        return {
            **documentation(self.owner, self.name),
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            **({"additionalProperties": False} if self.plan.closed else {}),
        }

    def convert(self, value: Any) -> Any:
        if self._passes and isinstance(value, self.owner):
            return value
        given = object_items(value)
        self._check_tag(given)
        arguments: dict[str, Any] = {}
        for field, node in self.fields:
            if field.name in given:
                try:
                    converted = node.run(given[field.name])
                except Misfit as misfit:
                    misfit.under(field.name)
                    raise
                if field.given:
                    arguments[field.key] = converted
            elif field.required:
                raise Misfit(f"the property {field.name!r} is missing")
        if self.plan.closed:
            self._refuse_unknown(given)
        return _build(self, arguments)

    def _check_tag(self, value: dict[str, Any]) -> None:
        if self.plan.tag is None:
            return
        name, wanted = self.plan.tag
        if name not in value:
            raise Misfit(f"the property {name!r} is missing")
        if type(value[name]) is not type(wanted) or value[name] != wanted:
            raise Misfit(f"is not {wanted!r}").under(name)

    def _refuse_unknown(self, value: dict[str, Any]) -> None:
        names = {field.name for field, _ in self.fields}
        if self.plan.tag:
            names.add(self.plan.tag[0])
        for name in value:
            if name not in names:
                raise Misfit("is not a property of this object").under(str(name))

    def known(self, value: dict[str, Any]) -> int:
        return sum(field.name in value for field, _ in self.fields)


class Row(Object):
    """A class whose values are arrays in JSON: NamedTuple, or a Struct with `array_like`."""

    def schema(self, refs: Refs) -> Schema:
        tag = self.plan.tag
        items = ([{"const": tag[1]}] if tag else []) + [
            _field_schema(field, refs.of(node)) for field, node in self.fields
        ]
        return {
            **documentation(self.owner, self.name),
            "type": "array",
            "prefixItems": items,
            "minItems": self._shortest,
            **({"maxItems": len(items)} if self.plan.closed else {}),
        }

    @property
    def _shortest(self) -> int:
        needed = [index for index, (field, _) in enumerate(self.fields, 1) if field.required]
        return (needed[-1] if needed else 0) + (self.plan.tag is not None)

    def convert(self, value: Any) -> Any:
        if isinstance(value, self.owner):
            return value
        given = array_items(value)
        offset = int(self.plan.tag is not None)
        self._check_shape(given, len(self.fields) + offset)
        arguments: dict[str, Any] = {}
        for index, ((field, node), each) in enumerate(zip(self.fields, given[offset:], strict=False), offset):
            try:
                arguments[field.key] = node.run(each)
            except Misfit as misfit:
                misfit.under(index)
                raise
        return _build(self, arguments)

    def _check_shape(self, value: Any, longest: int) -> None:
        if len(value) < self._shortest or (self.plan.closed and len(value) > longest):
            raise Misfit(f"expected {self._shortest} to {longest} items, got {len(value)}")
        if self.plan.tag is not None and value[0] != self.plan.tag[1]:
            raise Misfit(f"is not {self.plan.tag[1]!r}").under(0)


def _field_schema(field: Field, schema: Schema) -> Schema:
    default = {} if field.default is NOTHING else {"default": field.default}
    return {**schema, **default, **({} if field.given else {"readOnly": True})}


def _build(node: Object, arguments: dict[str, Any]) -> Any:
    """The instance; what its constructor or `__post_init__` objects to is a misfit too."""
    try:
        return node.plan.build(**arguments)
    except (TypeError, ValueError) as error:
        raise Misfit(f"is not a {node.name}: {error}") from error
