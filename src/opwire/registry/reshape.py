"""How a view changes the input and the results of an operation."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast, get_args
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct, UnsetType, defstruct
from msgspec.structs import asdict, replace

from opwire.errors import CallError, ErrorCode, RegistrationError, UsageError, check_counts, check_list
from opwire.model.completion import CompletionRequest
from opwire.model.context import Context
from opwire.model.envelope import LocalResponseMeta, MCPResponseMeta, ResponseEnvelope, ResponseMeta, local_envelope
from opwire.model.operation import OperationSpec, input_error
from opwire.names import similar_names, suggestion
from opwire.schema import UNKNOWN, Problem, Schema
from opwire.schema.dialect import escaped
from opwire.typed.plain import as_dict, to_plain

Arguments = Callable[[Any, Context], Any]
"""Takes the input of a call and its context; returns the arguments of the handler."""

_MAX_STORED_RESULTS = 200
_MAX_STORED_CHARACTERS = 16 * 1024 * 1024
_MAX_PAGE_CHARACTERS = 100_000
_DOCUMENT_KEYWORDS = ("$defs", "definitions", "components", "$schema", "$id", "$anchor")

MORE = "results.more"
"""The operation of a view that returns the rest of a shortened result."""


class Reshape(Struct, frozen=True, kw_only=True):
    """Changes of an operation in a view. Parameters are the properties of its input.

    Reshape(rename={"lines": "items"}, fix={"currency": "EUR"}, from_context={"tenant": "identity.id"}, keep=["total"])

    Parameters in `hide`, `fix` and `from_context` cannot be passed by callers. `from_context` values are
    "identity.id", "identity.scopes", "metadata.NAME", or functions of the context. `narrow` adds JSON Schema keywords
    to parameters. `keep` are the fields of a result ("total", "user.name"), also of each item of a list. A result with
    more than `max_chars` characters of JSON is shortened; the operation `results.more` of the view returns the rest.
    """

    title: str | None = None
    description: str | None = None
    rename: Mapping[str, str] = {}
    hide: Sequence[str] = ()
    fix: Mapping[str, Any] = {}
    from_context: Mapping[str, str | Callable[[Context], Any]] = {}
    narrow: Mapping[str, Mapping[str, Any]] = {}
    keep: Sequence[str] = ()
    max_chars: int | None = None

    def __post_init__(self) -> None:
        check_list("names", hide=self.hide, keep=self.keep)
        check_counts(max_chars=self.max_chars)
        for path in self.from_context.values():
            context_value(path)

    def over(self, other: "Reshape") -> "Reshape":
        """Return both changes as one; those of this one override."""
        merged: dict[str, Any] = {}
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            merged[name] = {**theirs, **mine} if isinstance(mine, Mapping) else mine or theirs
        return Reshape(**merged)

    @property
    def parameters(self) -> frozenset[str]:
        """The parameters that are named."""
        return frozenset([*self.rename, *self.narrow]) | self.unavailable

    @property
    def unavailable(self) -> frozenset[str]:
        """The parameters that callers cannot pass."""
        return frozenset([*self.hide, *self.fix, *self.from_context])


class Reshaping:
    """The changes of one operation's input and results."""

    def __init__(self, spec: OperationSpec, new_id: str, changes: Reshape, store: "ResultStore") -> None:
        self._id = new_id
        self._source = spec
        self._changes = changes
        self._store = store
        self._fixed = {name: to_plain(value) for name, value in changes.fix.items()}
        self._computed = [(name, context_value(path)) for name, path in changes.from_context.items()]
        self._old_names = {new: old for old, new in changes.rename.items()}
        self._blocked = changes.unavailable | (changes.rename.keys() - self._old_names.keys())
        self._narrowed = {
            changes.rename.get(name, name): Schema(dict(keywords)) for name, keywords in changes.narrow.items()
        }
        self._fields: dict[str, Any] = {}
        for path in changes.keep:
            node = self._fields
            for name in path.split("."):
                node = node.setdefault(name, {})
        self._project = _projection(self._fields)
        self.narrows = bool(changes.narrow)
        self.keeps_results = not changes.keep and changes.max_chars is None
        self._keeps_input = not changes.parameters
        self.is_trivial = self.keeps_results and self._keeps_input
        self.input_schema, self.output_schema = spec.input_schema, spec.output_schema
        if changes.parameters:
            self._check(spec)
            self.input_schema = self._input_schema()
        if changes.max_chars is not None:
            self.output_schema = UNKNOWN
        elif changes.keep:

            def projected() -> dict[str, Any]:
                source_schema = spec.output_schema.lowered_object
                definitions = {key: source_schema[key] for key in _DOCUMENT_KEYWORDS if key in source_schema}
                return definitions | _projected_schema(source_schema, self._fields)

            self.output_schema = Schema.deferred(projected)

    def _check(self, spec: OperationSpec) -> None:
        schema = spec.input_schema.lowered_object
        properties = schema.get("properties")
        parameters = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
        for name in sorted(self._changes.parameters - parameters.keys()):
            raise RegistrationError(f"it has no parameter {name!r}{suggestion(similar_names(name, parameters))}")
        required = set(schema.get("required", ())).intersection(self._changes.hide) - self._fixed.keys()
        if missing := sorted(required - self._changes.from_context.keys()):
            raise RegistrationError(f"the hidden parameter {missing[0]!r} is required: give it a value with fix")
        definitions = {key: schema[key] for key in _DOCUMENT_KEYWORDS if key in schema}
        for name, value in self._fixed.items():
            fixed_schema = Schema({**definitions, "properties": {name: parameters[name]}})
            for path, message in fixed_schema.problems({name: value}):
                raise RegistrationError(f"the value of fix is invalid: {path}: {message}")
        duplicate_names = (parameters.keys() - self._changes.rename.keys()) & self._old_names.keys()
        if duplicate_names or len(self._old_names) < len(self._changes.rename):
            raise RegistrationError(f"rename gives two parameters one name: {', '.join(sorted(duplicate_names))}")

    def _input_schema(self) -> Schema:
        schema = self._source.input_schema.lowered_object
        rename, hidden = self._changes.rename, self._changes.unavailable
        properties: dict[str, Any] = {}
        for name, parameter_schema in cast("dict[str, Any]", schema["properties"]).items():
            if name not in hidden:
                properties[rename.get(name, name)] = _narrowed(parameter_schema, self._changes.narrow.get(name))
        required = [rename.get(name, name) for name in schema.get("required", ()) if name not in hidden]
        return Schema({**schema, "properties": properties, "required": required})

    def inward(self, input: Any, context: Context) -> Any:
        """Return the input of the source's operation.

        Raises:
            CallError: VALIDATION_ERROR; UNAUTHENTICATED, if the context has no identity to take a value from.
        """
        if self._keeps_input:
            return input
        if not isinstance(input, dict):
            raise input_error(self._id, [Problem("", 'the value is not of type "object"')])
        arguments = cast("dict[str, Any]", input)
        if not self._blocked.isdisjoint(arguments):
            names = ", ".join(sorted(self._blocked.intersection(arguments)))
            raise input_error(self._id, [Problem("", f"unknown properties: {names}")])
        for name, schema in self._narrowed.items():
            if name in arguments and not schema.is_valid(arguments[name]):
                problems = schema.problems(arguments[name])
                raise input_error(self._id, [Problem(f"/{escaped(name)}{path}", message) for path, message in problems])
        if names := self._old_names:
            arguments = {names.get(name, name): value for name, value in arguments.items()}
        merged = arguments | self._fixed
        for name, compute in self._computed:
            merged[name] = compute(context)
        return merged

    def compile(self, flat: type[Struct], otherwise: Arguments) -> Arguments:
        """Return `inward` for valid flat input, together with its validation, which makes it as fast as the source.

        `flat` is the type that msgspec converts valid input of the source's operation to. Other input is passed to
        `otherwise`, which returns the arguments or raises the errors.
        """
        source_fields = {field.name: field for field in msgspec.structs.fields(flat)}
        types = {name: frozenset(get_args(field.type) or [field.type]) for name, field in source_fields.items()}
        computed = [(name, compute, types[name] - {UnsetType}) for name, compute in self._computed]
        narrowed = [(name, schema.compile().checker()) for name, schema in self._narrowed.items()]
        view_fields = [field for field in source_fields.values() if field.name not in self._changes.unavailable]
        fields: list[Any] = [
            (field.name, field.type, *([] if field.required else [field.default])) for field in view_fields
        ]
        rename = {
            field.name: self._changes.rename[field.name] for field in view_fields if field.name in self._changes.rename
        }
        copies = not (narrowed or rename) and len(computed) <= 1  # the input, which is faster than to build a dict
        if not copies:
            fields += [(name, UnsetType, value) for name, value in self._fixed.items()]  # for these no input is valid
        input_type = defstruct("Flat", fields, kw_only=True, forbid_unknown_fields=True, rename=rename)
        if copies:
            return _copying(input_type, self._fixed, computed, otherwise)
        if any(field.default is UNSET for field in view_fields):  # the fields would have values that are no arguments
            return otherwise
        return _mapping(input_type, narrowed, computed, otherwise)

    def reraise(self, error: CallError) -> NoReturn:
        """Raise an error of the source's operation in the terms of the view."""
        source_problems: list[dict[str, str]] | None = as_dict(error.details).get("problems")
        is_same = self._keeps_input and self._id == self._source.id
        if is_same or error.code is not ErrorCode.VALIDATION_ERROR or source_problems is None:
            raise error
        problems: list[Problem] = []
        for problem in source_problems:
            slash, _, pointer = problem["path"].partition("/")
            name, inner_slash, inner_pointer = pointer.partition("/")
            path = problem["path"]
            if pointer:
                path = f"{slash}/{self._changes.rename.get(name, name)}{inner_slash}{inner_pointer}"
            problems.append(Problem(path, problem["message"]))
        raise input_error(self._id, problems) from error

    def outward(self, envelope: ResponseEnvelope[Any], context: Context) -> ResponseEnvelope[Any]:
        """Return the envelope of the view's operation."""
        meta: ResponseMeta = envelope.meta
        if isinstance(meta, LocalResponseMeta) and self._id != self._source.id:
            meta = LocalResponseMeta(self._id, meta.timestamp, meta.encoding, meta.cursor)
        if self.keeps_results:
            return envelope if meta is envelope.meta else ResponseEnvelope(envelope.data, meta)
        data: Any = envelope.data
        if isinstance(meta, MCPResponseMeta):  # its content has everything once more
            if meta.is_error:
                return envelope
            meta = local_envelope(None, self._id).meta
        if self._fields:
            data = self._project(data)
        if self._changes.max_chars is not None:
            data = self._store.shortened(data, self._changes.max_chars, context)
        return ResponseEnvelope(data, meta)

    def asked(self, request: CompletionRequest) -> CompletionRequest:
        """Return a completion under the names of the source; parameters that callers cannot pass have none."""
        names = {new: self._old_names.get(new, new) for new in (request.argument, *request.arguments)}
        arguments = {names[new]: value for new, value in request.arguments.items() if new not in self._blocked}
        argument = "" if request.argument in self._blocked else names[request.argument]
        return replace(request, argument=argument, arguments=arguments)


_Computed = list[tuple[str, Callable[[Context], Any], frozenset[type]]]  # names, functions and types of their values


def _copying(input_type: type[Struct], fixed: dict[str, Any], computed: _Computed, otherwise: Arguments) -> Arguments:
    """Return a copy of the input with fixed values, and one value from the context at most."""
    convert = msgspec.convert

    def with_fixed(input: Any, context: Context) -> Any:
        try:
            convert(input, input_type)
            return input | fixed
        except (TypeError, ValueError):
            return otherwise(input, context)

    def with_value(input: Any, context: Context) -> Any:
        try:
            convert(input, input_type)
            arguments = input | fixed
        except (TypeError, ValueError):
            return otherwise(input, context)
        arguments[name] = computed_value = compute(context)
        return arguments if type(computed_value) in allowed_types else otherwise(input, context)

    if not computed:
        return with_fixed
    name, compute, allowed_types = computed[0]
    return with_value


def _mapping(
    input_type: type[Struct],
    narrowed: list[tuple[str, Callable[[Any], bool]]],
    computed: _Computed,
    otherwise: Arguments,
) -> Arguments:
    """Return the fields of the input under the names of the source."""
    convert = msgspec.convert

    def renamed(input: Any, context: Context) -> Any:
        try:
            return asdict(convert(input, input_type))
        except (TypeError, ValueError):
            return otherwise(input, context)

    def with_values(input: Any, context: Context) -> Any:
        try:
            arguments = asdict(convert(input, input_type))
            for name, accepts in narrowed:
                if name in input and not accepts(input[name]):
                    return otherwise(input, context)
        except (TypeError, ValueError):  # invalid, or too complex
            return otherwise(input, context)
        for name, compute, allowed_types in computed:
            arguments[name] = computed_value = compute(context)
            if type(computed_value) not in allowed_types:
                return otherwise(input, context)
        return arguments

    return with_values if narrowed or computed else renamed


def context_value(path: str | Callable[[Context], Any]) -> Callable[[Context], Any]:
    """Return a function that takes a value from the context of a call.

    Raises:
        UsageError: the path is unknown.
    """
    if callable(path):
        return path
    part, _, name = path.partition(".")
    if part == "identity" and name in ("id", "scopes"):

        def of_identity(context: Context) -> Any:
            if context.identity is None:
                raise CallError(ErrorCode.UNAUTHENTICATED, "the operation requires an authenticated caller")
            return context.identity.id if name == "id" else [*context.identity.scopes]

        return of_identity
    if part == "metadata" and name:

        def of_metadata(context: Context) -> Any:
            if name not in context.metadata:
                raise CallError(ErrorCode.VALIDATION_ERROR, f"the context of the call has no metadata {name!r}")
            return context.metadata[name]

        return of_metadata
    raise UsageError(f'from_context: {path!r} is unknown: write "identity.id", "identity.scopes" or "metadata.NAME"')


class ResultStore:
    """Results that were shortened, to fetch the rest of; the oldest are dropped."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, tuple[str | None, str]] = OrderedDict()
        self._size = 0

    def shortened(self, data: Any, max_chars: int, context: Context) -> Any:
        """Return the data, or its beginning if it has more than `most` characters of JSON."""
        encoded = data if isinstance(data, str) else msgspec.json.encode(data)
        if len(encoded) <= max_chars:  # a text has at most as many characters as bytes
            return data
        text = encoded if isinstance(encoded, str) else encoded.decode()
        if len(text) <= max_chars:
            return data
        key = uuid4().hex
        self._texts[key] = (context.identity and context.identity.id, text)
        self._size += len(text)
        while len(self._texts) > _MAX_STORED_RESULTS or (self._size > _MAX_STORED_CHARACTERS and len(self._texts) > 1):
            self._size -= len(self._texts.popitem(last=False)[1][1])
        return _page(text, key, 0, max_chars)

    def more(self, result: str, context: Context, start: int = 0, length: int = 10_000) -> dict[str, Any]:
        """Return the next characters of a shortened result: pass what it has in `next`."""
        owner, text = self._texts.get(result, (None, None))
        if text is None or owner != (context.identity and context.identity.id):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{MORE}: unknown or expired result: repeat the original call")
        return _page(text, result, max(start, 0), min(max(length, 1), _MAX_PAGE_CHARACTERS))


def _page(text: str, key: str, start: int, length: int) -> dict[str, Any]:
    end = start + length
    page: dict[str, Any] = {"text": text[start:end], "characters": len(text)}
    if end < len(text):
        hint = f"{MORE} (the tool results_more) returns the rest: pass it `next`"
        page["shortened"] = f"{end:,} of {len(text):,} characters; {hint}"
        page["next"] = {"result": key, "start": end}
    return page


def _projection(fields: dict[str, Any]) -> Callable[[Any], Any]:
    """Return the function that keeps these fields of an object, or of each object of a list."""
    parts = [(name, _projection(inner) if inner else None) for name, inner in fields.items()]

    def project(data: Any) -> Any:
        if isinstance(data, dict):
            members = cast("dict[str, Any]", data)
            projected: dict[str, Any] = {}
            for name, inner in parts:
                if name in members:
                    projected[name] = members[name] if inner is None else inner(members[name])
            return projected
        return [project(item) for item in cast("list[Any]", data)] if isinstance(data, list) else data

    return project


def _projected_schema(schema: Any, fields: dict[str, Any]) -> Any:
    """Return the schema of projected data; parts that are references or combinations become unknown."""
    if not fields:
        return schema
    if not isinstance(schema, dict):
        return {}
    source_schema = cast("dict[str, Any]", schema)
    if isinstance(source_schema.get("items"), dict):
        return {"type": "array", "items": _projected_schema(source_schema["items"], fields)}
    properties = source_schema.get("properties")
    if source_schema.get("type") != "object" or not isinstance(properties, dict):
        return {}
    property_schemas = cast("dict[str, Any]", properties)
    return {
        "type": "object",
        "properties": {
            name: _projected_schema(property_schemas[name], inner)
            for name, inner in fields.items()
            if name in property_schemas
        },
        "required": [name for name in source_schema.get("required", ()) if name in fields],
    }


def _narrowed(schema: Any, keywords: Mapping[str, Any] | None) -> Any:
    if keywords is None:
        return schema
    if isinstance(schema, dict) and "$ref" not in schema:
        return {**cast("dict[str, Any]", schema), **keywords}
    return {"allOf": [cast("Any", schema), dict(keywords)]}
