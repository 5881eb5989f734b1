"""The rules of a view: which operations it has, under which names, and how their inputs and results are reshaped.

`OperationRegistry.view` applies them. Patterns and names refer to the operations of the viewed registry. A rule that
cannot be applied leaves its operation out: a parameter that should be hidden must not become visible by a typo.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from fnmatch import translate
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypedDict, cast
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.annotations import Completion, CompletionRequest
from opwire.envelope import LocalResponseMeta, MCPResponseMeta, ResponseEnvelope, ResponseMeta, local_envelope
from opwire.errors import CallError, ErrorCode, RegistrationError, SchemaError, UsageError, check_counts
from opwire.operation import (
    AccessControl,
    Change,
    Context,
    Identity,
    NormalizeMode,
    Operation,
    OperationSpec,
    OperationType,
    PreparedRequest,
    SourceChange,
    may_access,
    split_id,
)
from opwire.schema import UNKNOWN, Problem, Schema
from opwire.typed.plain import as_dict, to_plain

if TYPE_CHECKING:
    from opwire.registry import OperationRegistry

logger = logging.getLogger("opwire.view")

Pattern = str | Callable[[OperationSpec], bool]
"""An id or tag with `*` and `?`, a namespace, `type:query`, `tag:NAME`, `scope:NAME`, or a predicate."""

_MAX_STORED = 200  # shortened results that can be fetched
_MAX_STORED_CHARACTERS = 16 * 1024 * 1024
_MAX_PAGE = 100_000  # characters of a page of one
_DEFINITIONS = ("$defs", "definitions", "components", "$schema", "$id", "$anchor")

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
        for option in ("hide", "keep"):
            if isinstance(getattr(self, option), str):
                raise UsageError(f"{option} is a list of names: write [{getattr(self, option)!r}]")
        if self.max_chars is not None:
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


class ViewOptions(TypedDict, total=False):
    """The options of `OperationRegistry.view`.

    `include` selects operations, all by default, and `exclude` removes some of these. `rename` maps an id to another
    ("shop.order": "store.buy"), ids by a pattern ("shop.*": "store.*"), or a namespace ("shop": "store"). `reshape`
    maps ids or patterns to changes; later ones override earlier ones. With `identity`, the view has only the operations
    which that identity may call, and calls without a context are its own. `scopes` are required of callers, in addition
    to those of each operation.
    """

    include: Iterable[Pattern]
    exclude: Iterable[Pattern]
    rename: Mapping[str, str]
    reshape: Mapping[str, Reshape]
    identity: Identity | None
    scopes: Iterable[str]


class _Matcher:
    """A pattern, and whether it has matched an operation."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.matched = False
        self._test = pattern if callable(pattern) else _test_of(pattern)

    def matches(self, spec: OperationSpec) -> bool:
        found = bool(self._test(spec))
        self.matched = self.matched or found
        return found


def _test_of(pattern: str) -> Callable[[OperationSpec], bool]:
    kind, colon, name = pattern.partition(":")
    match kind if colon else "":
        case "type":
            return lambda spec: spec.type == name
        case "tag":
            return lambda spec: name in spec.tags
        case "scope":
            return lambda spec: spec.access is not None and name in spec.access.required_scopes
        case _:
            test = re.compile(translate(pattern)).match
            return lambda spec: test(spec.id) is not None or spec.namespace == pattern or any(map(test, spec.tags))


class Selection:
    """Select operations by patterns: all that match `include`, or all if it is empty, without those of `exclude`.

    Raises:
        UsageError: `include` or `exclude` is a string.
    """

    def __init__(self, include: Iterable[Pattern] = (), exclude: Iterable[Pattern] = ()) -> None:
        for option, patterns in (("include", include), ("exclude", exclude)):
            if isinstance(patterns, str):  # each character would be a pattern
                raise UsageError(f"{option} is a list of patterns: write [{patterns!r}]")
        self.include, self.exclude = [_Matcher(each) for each in include], [_Matcher(each) for each in exclude]

    def selects(self, spec: OperationSpec) -> bool:
        """Return whether an operation is selected."""
        included = [each.matches(spec) for each in self.include]  # all of them, to find those that match nothing
        excluded = [each.matches(spec) for each in self.exclude]
        return (not included or any(included)) and not any(excluded)


class Derived(NamedTuple):
    """An operation of a view: its spec there, and the changes of its input and results."""

    spec: OperationSpec
    reshaping: "Reshaping"


class ViewRules:
    """The options of a view, checked and compiled."""

    def __init__(self, options: ViewOptions) -> None:
        if unknown := options.keys() - ViewOptions.__annotations__.keys():  # a typo in `exclude` would show too much
            raise TypeError(f"view() got an unexpected keyword argument {min(unknown)!r}")
        self.identity = options.get("identity")
        self._scopes = tuple(options.get("scopes", ()))
        self._selection = Selection(options.get("include", ()), options.get("exclude", ()))
        self._renames = [(_Matcher(key), key, to) for key, to in options.get("rename", {}).items()]
        for _, key, to in self._renames:
            if key.count("*") != to.count("*") or key.count("*") > 1 or not all(to.split(".", 1)):
                raise UsageError(
                    f'rename: {key!r} to {to!r}: write "id": "id", "namespace": "namespace" or "a.*": "b.*"'
                )
        self._reshapes = [(_Matcher(key), key, each) for key, each in options.get("reshape", {}).items()]
        self.shortens = any(each.max_chars is not None for _, _, each in self._reshapes)
        self.store = ResultStore()
        self._left_out: dict[str, str] = {}

    def derive(self, operation_id: str, spec: OperationSpec | None) -> Derived | None:
        """Return an operation as the view has it, or None if it does not have it; `spec` is None if it is gone."""
        self._left_out.pop(operation_id, None)
        if spec is None or not self._selection.selects(spec):
            return None
        if self.identity is not None and not may_access(spec, self.identity):
            return None
        try:
            return self._derived(spec)
        except (RegistrationError, SchemaError) as error:
            self.leave_out(operation_id, str(error))
            return None

    def leave_out(self, operation_id: str, reason: str) -> None:
        """Report an operation that the view cannot have."""
        self._left_out[operation_id] = f"{operation_id} is left out: {reason}"
        logger.warning("%s", self._left_out[operation_id])

    def _derived(self, spec: OperationSpec) -> Derived:
        changes = Reshape()
        for matcher, _, each in self._reshapes:
            if matcher.matches(spec):
                changes = each.over(changes)
        namespace, name = split_id(self._new_id(spec))
        reshaping = Reshaping(spec, f"{namespace}.{name}", changes, self.store)
        return Derived(
            replace(
                spec,
                namespace=namespace,
                name=name,
                title=spec.title if changes.title is None else changes.title,
                description=spec.description if changes.description is None else changes.description,
                access=self._access(spec.access),
                input_schema=reshaping.input_schema,
                output_schema=reshaping.output_schema,
                normalize=spec.normalize if reshaping.is_trivial else "off",
                examples=() if changes.parameters else spec.examples,
            ),
            reshaping,
        )

    def share_results(self, source: "ViewRules | None") -> None:
        """Use the shortened results of the view that is viewed."""
        if source is not None:
            self.store, self.shortens = source.store, self.shortens or source.shortens

    def context(self, default: Context) -> Context:
        """Return the context of calls without one."""
        return default if self.identity is None else replace(default, identity=self.identity)

    def problems(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return what was left out, and the patterns that have matched nothing so far; `ids` are suggested."""
        return (*self._left_out.values(), *self._unmatched(ids))

    def _unmatched(self, ids: Iterable[str]) -> list[str]:
        known = [*dict.fromkeys(name for id in ids for name in (id, id.partition(".")[0]))][:_MAX_SUGGESTED]
        groups = (
            ("include", [(each, each.pattern) for each in self._selection.include]),
            ("exclude", [(each, each.pattern) for each in self._selection.exclude]),
            ("rename", [(matcher, key) for matcher, key, _ in self._renames]),
            ("reshape", [(matcher, key) for matcher, key, _ in self._reshapes]),
        )
        found: list[str] = []
        for option, patterns in groups:
            for matcher, pattern in patterns:
                if not matcher.matched and isinstance(pattern, str):
                    found.append(f"{option}: {pattern!r} matches nothing{_suggestion(pattern, known)}")
        return found

    def log_unmatched(self, ids: Iterable[str]) -> None:
        """Log a warning for each pattern that has matched nothing so far."""
        for problem in self._unmatched(ids):
            logger.warning("%s", problem)

    def _new_id(self, spec: OperationSpec) -> str:
        for matcher, key, to in self._renames:
            if not matcher.matches(spec):
                continue
            if "*" in key:
                before, _, after = key.partition("*")
                return to.replace("*", spec.id[len(before) : len(spec.id) - len(after)])
            if key == spec.id:
                return to if "." in to else f"{spec.namespace}.{to}"
            if key == spec.namespace:
                return f"{to}.{spec.name}"
        return spec.id

    def _access(self, access: AccessControl | None) -> AccessControl | None:
        if not self._scopes:
            return access
        rules = access or AccessControl()
        return replace(rules, required_scopes=(*rules.required_scopes, *self._scopes), public=False)


_MAX_SUGGESTED = 5_000


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
        self._narrowed = {changes.rename.get(name, name): Schema(dict(each)) for name, each in changes.narrow.items()}
        self._fields = _tree(changes.keep)
        self._keeps_results = not changes.keep and changes.max_chars is None
        self._keeps_input = not changes.parameters
        self.is_trivial = self._keeps_results and self._keeps_input
        if changes.parameters:
            self._check(spec)
        self.input_schema = self._input_schema() if changes.parameters else spec.input_schema
        self.output_schema = spec.output_schema
        if changes.max_chars is not None:
            self.output_schema = UNKNOWN
        elif changes.keep:
            self.output_schema = Schema.deferred(lambda: _projected_root(_lowered(spec.output_schema), self._fields))

    def _check(self, spec: OperationSpec) -> None:
        schema = _lowered(spec.input_schema)
        properties = schema.get("properties")
        known = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
        for name in sorted(self._changes.parameters - known.keys()):
            raise RegistrationError(f"it has no parameter {name!r}{_suggestion(name, known)}")
        required = set(schema.get("required", ())).intersection(self._changes.hide) - self._fixed.keys()
        if missing := sorted(required - self._changes.from_context.keys()):
            raise RegistrationError(f"the hidden parameter {missing[0]!r} is required: give it a value with fix")
        definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
        for name, value in self._fixed.items():
            for path, message in Schema({**definitions, "properties": {name: known[name]}}).problems({name: value}):
                raise RegistrationError(f"the value of fix is invalid: {path}: {message}")
        taken = (known.keys() - self._changes.rename.keys()) & self._old_names.keys()
        if taken or len(self._old_names) < len(self._changes.rename):
            raise RegistrationError(f"rename gives two parameters one name: {', '.join(sorted(taken))}")

    def _input_schema(self) -> Schema:
        schema = _lowered(self._source.input_schema)
        rename, hidden = self._changes.rename, self._changes.unavailable
        properties: dict[str, Any] = {}
        for name, each in cast("dict[str, Any]", schema["properties"]).items():
            if name not in hidden:
                properties[rename.get(name, name)] = _narrowed(each, self._changes.narrow.get(name))
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
            raise self._invalid([Problem("", 'the value is not of type "object"')])
        given = cast("dict[str, Any]", input)
        if not self._blocked.isdisjoint(given):
            names = ", ".join(sorted(self._blocked.intersection(given)))
            raise self._invalid([Problem("", f"unknown properties: {names}")])
        for name, schema in self._narrowed.items():
            if name in given and (problems := schema.problems(given[name])):
                raise self._invalid([Problem(f"/{_escaped(name)}{path}", message) for path, message in problems])
        if self._old_names:
            given = {self._old_names.get(name, name): value for name, value in given.items()}
        merged = {**given, **self._fixed} if self._fixed else given
        if self._computed:
            merged = {**merged, **{name: value(context) for name, value in self._computed}}
        return merged

    def reraise(self, error: CallError) -> NoReturn:
        """Raise an error of the source's operation in the terms of the view."""
        given: list[dict[str, str]] | None = as_dict(error.details).get("problems")
        is_same = self._keeps_input and self._id == self._source.id
        if is_same or error.code is not ErrorCode.VALIDATION_ERROR or given is None:
            raise error
        raise self._invalid([Problem(self._path(each["path"]), each["message"]) for each in given]) from error

    def _path(self, path: str) -> str:
        slash, _, rest = path.partition("/")
        name, more, inner = rest.partition("/")
        return f"{slash}/{self._changes.rename.get(name, name)}{more}{inner}" if rest else path

    def _invalid(self, problems: list[Problem]) -> CallError:
        shown = "; ".join(f"{path or 'the input'}: {message}" for path, message in problems[:3])
        return CallError(
            ErrorCode.VALIDATION_ERROR, f"{self._id}: {shown}", {"problems": [each._asdict() for each in problems]}
        )

    def outward(self, envelope: ResponseEnvelope[Any], context: Context) -> ResponseEnvelope[Any]:
        """Return the envelope of the view's operation."""
        meta: ResponseMeta = envelope.meta
        if isinstance(meta, LocalResponseMeta) and self._id != self._source.id:
            meta = LocalResponseMeta(self._id, meta.timestamp, meta.encoding)
        if self._keeps_results:
            return envelope if meta is envelope.meta else ResponseEnvelope(envelope.data, meta)
        data: Any = envelope.data
        if isinstance(meta, MCPResponseMeta):  # its content has everything once more
            if meta.is_error:
                return envelope
            meta = local_envelope(None, self._id).meta
        if self._fields:
            data = _projected(data, self._fields)
        if self._changes.max_chars is not None:
            data = self._store.shortened(data, self._changes.max_chars, context)
        return ResponseEnvelope(data, meta)

    def asked(self, request: CompletionRequest) -> CompletionRequest:
        """Return a completion under the names of the source; parameters that callers cannot pass have none."""
        names = {new: self._old_names.get(new, new) for new in (request.argument, *request.arguments)}
        known = {names[new]: value for new, value in request.arguments.items() if new not in self._blocked}
        argument = "" if request.argument in self._blocked else names[request.argument]
        return replace(request, argument=argument, arguments=known)


def operation_through(
    registry: "OperationRegistry", spec: OperationSpec, outer: OperationSpec, reshaping: "Reshaping | None" = None
) -> Operation:
    """Return an operation that calls another one of a registry, with its interceptors; `outer` is its spec."""
    if registry.get_handler(spec.id) is None:
        return Operation(outer)
    changes = reshaping or Reshaping(spec, outer.id, Reshape(), ResultStore())

    async def execute(input: Any, context: Context) -> ResponseEnvelope[Any]:
        given = changes.inward(input, context)
        try:
            envelope = await registry.execute(spec.id, given, context)
        except CallError as error:
            changes.reraise(error)
        return changes.outward(envelope, context)

    async def subscribe(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        given = changes.inward(input, context)
        try:
            async with aclosing(registry.subscribe(spec.id, given, context)) as envelopes:
                async for envelope in envelopes:
                    yield changes.outward(envelope, context)
        except CallError as error:
            changes.reraise(error)

    def preview(input: Any, context: Context, reveal: bool) -> Awaitable[PreparedRequest]:
        return registry.preview(spec.id, changes.inward(input, context), context, reveal=reveal)

    def complete(request: CompletionRequest, context: Context) -> Awaitable[Completion]:
        return registry.complete(spec.id, changes.asked(request), context)

    handler = subscribe if spec.type is OperationType.SUBSCRIPTION else execute
    return Operation(outer, handler, preview=preview, complete=complete)


class RegistryOperations:
    """The operations of a registry as a source, for another registry to follow.

    Results are normalized by their own registry; `normalize` and `strip` are applied in addition.
    """

    def __init__(
        self, registry: "OperationRegistry", *, normalize: NormalizeMode = "off", strip: bool | None = None
    ) -> None:
        self._registry = registry
        self._normalize: NormalizeMode = normalize
        self._strip = strip

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations."""
        return map(self._operation, self._registry.list())

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Call the listener after every change; the returned function removes it."""

        def forward(change: Change) -> None:
            gone = change.kind == "removed"
            listener(
                SourceChange(gone=(change.spec.id,)) if gone else SourceChange(put=(self._operation(change.spec),))
            )

        return self._registry.on_change(forward)

    def _operation(self, spec: OperationSpec) -> Operation:
        outer = replace(spec, normalize=self._normalize, strip=self._strip)
        return operation_through(self._registry, spec, outer)


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

    def shortened(self, data: Any, most: int, context: Context) -> Any:
        """Return the data, or its beginning if it has more than `most` characters of JSON."""
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        if len(text) <= most:
            return data
        key = uuid4().hex
        self._texts[key] = (context.identity and context.identity.id, text)
        self._size += len(text)
        while len(self._texts) > _MAX_STORED or (self._size > _MAX_STORED_CHARACTERS and len(self._texts) > 1):
            self._size -= len(self._texts.popitem(last=False)[1][1])
        return _page(text, key, 0, most)

    def more(self, result: str, context: Context, start: int = 0, length: int = 10_000) -> dict[str, Any]:
        """Return the next characters of a shortened result: pass what it has in `next`."""
        owner, text = self._texts.get(result, (None, None))
        if text is None or owner != (context.identity and context.identity.id):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{MORE}: unknown or expired result: repeat the original call")
        return _page(text, result, max(start, 0), min(max(length, 1), _MAX_PAGE))


def _page(text: str, key: str, start: int, length: int) -> dict[str, Any]:
    end = start + length
    page: dict[str, Any] = {"text": text[start:end], "characters": len(text)}
    if end < len(text):
        page["shortened"] = f"{end:,} of {len(text):,} characters; call {MORE} for the rest"
        page["next"] = {"result": key, "start": end}
    return page


def _tree(paths: Iterable[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for name in path.split("."):
            node = node.setdefault(name, {})
    return tree


def _projected(data: Any, fields: dict[str, Any]) -> Any:
    if not fields:
        return data
    if isinstance(data, list):
        return [_projected(item, fields) for item in cast("list[Any]", data)]
    if isinstance(data, dict):
        given = cast("dict[str, Any]", data)
        return {name: _projected(given[name], inner) for name, inner in fields.items() if name in given}
    return data


def _projected_root(schema: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    projected = _projected_schema(schema, fields)
    return {**{key: schema[key] for key in _DEFINITIONS if key in schema}, **projected}


def _projected_schema(schema: Any, fields: dict[str, Any]) -> Any:
    """Return the schema of projected data; parts that are references or combinations become unknown."""
    if not fields:
        return schema
    if not isinstance(schema, dict):
        return {}
    given = cast("dict[str, Any]", schema)
    if isinstance(given.get("items"), dict):
        return {"type": "array", "items": _projected_schema(given["items"], fields)}
    properties = given.get("properties")
    if given.get("type") != "object" or not isinstance(properties, dict):
        return {}
    known = cast("dict[str, Any]", properties)
    return {
        "type": "object",
        "properties": {name: _projected_schema(known[name], inner) for name, inner in fields.items() if name in known},
        "required": [name for name in given.get("required", ()) if name in fields],
    }


def _narrowed(schema: Any, keywords: Mapping[str, Any] | None) -> Any:
    if keywords is None:
        return schema
    if isinstance(schema, dict) and "$ref" not in schema:
        return {**cast("dict[str, Any]", schema), **keywords}
    return {"allOf": [cast("Any", schema), dict(keywords)]}


def _lowered(schema: Schema) -> dict[str, Any]:
    try:
        lowered = schema.lowered
    except SchemaError:
        return {}
    return lowered if isinstance(lowered, dict) else {}


def _suggestion(given: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # takes 3 ms to import

    close = get_close_matches(given[:100], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
