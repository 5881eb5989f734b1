"""Operations: specs, handlers, and what a handler may return."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from opwire.errors import (
    CallError,
    ErrorCode,
    RegistrationError,
    UsageError,
    check_above_zero,
    check_choice,
    check_instance,
    check_list,
)
from opwire.model.access import AccessControl
from opwire.model.completion import Completion, CompletionRequest
from opwire.model.context import Context
from opwire.model.mcp_presentation import MCPPresentation
from opwire.schema import UNKNOWN, Problem, Schema
from opwire.typed.plain import html_table, indented_json

NormalizeMode = Literal["fit", "cast", "check", "off"]
"""How a result that does not match its schema is repaired; see the `pipeline` module."""


NORMALIZE_MODES: tuple[NormalizeMode, ...] = ("fit", "cast", "check", "off")


class OperationType(StrEnum):
    """A query reads, a mutation writes, a subscription streams. Parses upper case too."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"

    @classmethod
    def _missing_(cls, value: object) -> "OperationType":
        for operation_type in cls:
            if isinstance(value, str) and operation_type.value == value.lower():
                return operation_type
        raise UsageError(f"type must be one of {', '.join(cls)}, not {value!r:.50}")


class OperationSpec(Struct, frozen=True, kw_only=True):
    """The description of an operation, without its handler.

    OperationSpec(namespace="math", name="add", input_schema={...}, output_schema={"type": "integer"})

    Schemas are dicts, which are compiled at once, or `Schema` objects, which are compiled lazily.
    """

    namespace: str
    name: str
    type: OperationType = OperationType.QUERY
    title: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    version: str = ""
    input_schema: Schema = UNKNOWN
    output_schema: Schema = UNKNOWN
    access: AccessControl | None = None
    normalize: NormalizeMode | None = None  # None: the registry's default
    strip: bool | None = None  # None: the registry's default
    timeout: float | None = None  # seconds for a call
    idle_timeout: float | None = None  # seconds between two items of a subscription
    resumable: bool = False  # a subscription that takes `Context.resume_from`
    unchecked_input: bool = False  # allow calls although the input schema is invalid
    lenient_input: bool = False  # input that does not match its schema is logged, and passed on
    examples: tuple[Any, ...] = ()
    mcp: MCPPresentation = MCPPresentation()  # a query is marked as read-only, unless its annotations say otherwise
    id: str = ""  # always namespace.name; stored because every call needs it

    if TYPE_CHECKING:  # a schema may be given as a dict, although the attribute is always a `Schema`

        def __init__(
            self,
            *,
            namespace: str,
            name: str,
            type: OperationType | str = OperationType.QUERY,
            title: str = "",
            description: str = "",
            tags: Iterable[str] = (),
            version: str = "",
            input_schema: Schema | Mapping[str, Any] | bool = UNKNOWN,
            output_schema: Schema | Mapping[str, Any] | bool = UNKNOWN,
            access: AccessControl | None = None,
            normalize: NormalizeMode | None = None,
            strip: bool | None = None,
            timeout: float | None = None,
            idle_timeout: float | None = None,
            resumable: bool = False,
            unchecked_input: bool = False,
            lenient_input: bool = False,
            examples: Iterable[Any] = (),
            mcp: MCPPresentation = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_names(self.namespace, self.name)
        force_setattr(self, "id", f"{self.namespace}.{self.name}")
        try:
            force_setattr(self, "type", OperationType(self.type))
            check_choice(NormalizeMode, normalize=self.normalize)
            check_above_zero(timeout=self.timeout, idle_timeout=self.idle_timeout)
            check_list("texts", tags=self.tags)
            check_instance(AccessControl, access=self.access)
        except UsageError as error:
            raise RegistrationError(f"{self.id}: {error}") from None
        force_setattr(self, "tags", tuple(self.tags))
        force_setattr(self, "examples", tuple(self.examples))
        annotations = self.mcp.annotations
        if annotations.read_only is None and self.type is OperationType.QUERY:
            force_setattr(self, "mcp", replace(self.mcp, annotations=replace(annotations, read_only=True)))
        for field in ("input_schema", "output_schema"):
            schema = getattr(self, field)
            if not isinstance(schema, Schema):
                force_setattr(self, field, Schema(schema).compile())

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        texts = (("type", str(self.type)), ("title", self.title), ("description", self.description))
        schemas = (("input", self.input_schema), ("output", self.output_schema))
        rows = [*texts, *((name, "" if schema.is_unknown else indented_json(schema.json)) for name, schema in schemas)]
        return html_table(self.id, [(name, text) for name, text in (*rows, ("tags", ", ".join(self.tags))) if text])


def _check_names(namespace: str, name: str) -> None:
    if not namespace or "." in namespace or not namespace.isprintable():
        raise RegistrationError(f"a namespace is printable, not empty, and has no dot: {namespace!r} is not usable")
    if not name or not name.isprintable():
        raise RegistrationError(f"a name is printable and not empty: {name!r} is not usable")


def split_id(operation_id: str) -> tuple[str, str]:
    """Split an id at its first dot into namespace and name; a name may contain dots.

    Raises:
        RegistrationError: the dot is missing.
    """
    namespace, dot, name = operation_id.partition(".")
    if not dot:
        raise RegistrationError(f"an operation's id is namespace.name: {operation_id!r} has no dot")
    return namespace, name


OWN = "opwire."
"""The prefix of the operations that opwire itself adds to every server."""


def is_own(operation_id: str) -> bool:
    """Return whether this is one of the operations that opwire itself adds to every server (`opwire.*`)."""
    return operation_id.startswith(OWN)


Handler = Callable[[Any, Context], Any]
"""Takes the input and the context; returns a value or an envelope, or yields them."""


Interceptor = Callable[[OperationSpec, Handler], Handler]
"""Takes an operation and its handler; returns the handler to call instead.

The wrapped handler returns an awaitable envelope or, for a subscription, an async iterator of envelopes.
"""


class ShapedResult(Struct, frozen=True):
    """A result with its own schema, such as that of an HTTP status.

    `is_plain`: the value is an envelope, its data was just decoded from JSON and is not deep; it is not surveyed.
    `size` is that of the JSON in bytes, or more, if it is known.
    """

    value: Any
    schema: Schema
    is_plain: bool = False
    size: int | None = None


class PreparedRequest(Struct, frozen=True, kw_only=True):
    """What a call would send: an HTTP request, or a JSON-RPC request to an MCP server, which `url` names.

    For a local function nothing is sent, and `body` is the validated input. Its repr omits headers and body.
    """

    protocol: Literal["http", "mcp", "local"]
    method: str = ""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None

    def __repr__(self) -> str:
        return f"<PreparedRequest {self.method} {self.url.partition('?')[0]}>"


class Operation(Struct, frozen=True):
    """A spec and its optional handler: created by adapters, registered by `register_all`.

    `prepare` converts objects of a local caller, such as an open file, to plain input. It is called only for input
    that is not plain, so it never receives data from a peer. `preview` takes valid input, the context and whether to
    reveal credentials, and returns what the handler would send. `complete` completes arguments.
    """

    spec: OperationSpec
    handler: Handler | None = None
    inline: bool = False
    prepare: Callable[[Any], Any] | None = None
    preview: Callable[[Any, Context, bool], Awaitable[PreparedRequest]] | None = None
    complete: "Completer | None" = None


Completer = Callable[[CompletionRequest, Context], Awaitable[Completion]]
"""Completes an argument of an operation."""


class Change(NamedTuple):
    """An operation was added, replaced or removed."""

    kind: Literal["added", "replaced", "removed"]
    spec: OperationSpec


_MAX_SHOWN_PROBLEMS = 3  # in the message; all of them are in the details


def input_error(operation_id: str, problems: Sequence[Problem]) -> CallError:
    """Return the VALIDATION_ERROR of an input with these problems."""
    problem_texts = "; ".join(f"{path or 'the input'}: {message}" for path, message in problems[:_MAX_SHOWN_PROBLEMS])
    more = f"; and {len(problems) - _MAX_SHOWN_PROBLEMS} more" if len(problems) > _MAX_SHOWN_PROBLEMS else ""
    details = {"problems": [problem._asdict() for problem in problems]}
    return CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id}: {problem_texts}{more}", details)
