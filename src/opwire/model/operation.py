"""Operations: specs, access control, and the context that handlers receive.

Access is checked by the dispatcher of every surface, never by `OperationRegistry.execute`.
"""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar, overload
from uuid import uuid4

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
from opwire.model.completion import Completion, CompletionRequest
from opwire.model.log_message import LogLevel, LogMessage, severity
from opwire.model.mcp_presentation import Annotations, Icon, MCPPresentation
from opwire.model.questions import (
    MAX_TOKENS,
    QUESTION_TIMEOUT,
    Elicitation,
    Form,
    Question,
    QuestionCallback,
    Root,
    SampledMessage,
    address_question,
    ask,
    read_action,
    read_roots,
    sampling,
)
from opwire.schema import UNKNOWN, Problem, Schema
from opwire.typed.plain import html_table, indented_json, replace_surrogates

T = TypeVar("T")

NormalizeMode = Literal["fit", "cast", "check", "off"]
"""How a result that does not match its schema is repaired; see the `pipeline` module."""

NORMALIZE_MODES: tuple[NormalizeMode, ...] = ("fit", "cast", "check", "off")

# W3C Trace Context: an id of zeros is invalid, and versions after 00 may append fields. The patterns are compiled
# lazily, with the first trace: that takes longer than importing most modules.
_SPAN = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = rf"00{_SPAN}|(?!00|ff)[0-9a-f]{{2}}{_SPAN}(?:-[!-~]{{0,200}})?"
_TRACESTATE = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]"  # one member
_MAX_TRACESTATE = 512

MAX_PROGRESS_MESSAGE = 2000
"""Characters of the message of a progress report; the rest is cut off."""

_MAX_AMOUNT = 2.0**63  # of progress, and of its total


class OperationType(StrEnum):
    """A query reads, a mutation writes, a subscription streams. Parses upper case too."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"

    @classmethod
    def _missing_(cls, value: object) -> "OperationType":
        for each in cls:
            if isinstance(value, str) and each.value == value.lower():
                return each
        raise UsageError(f"type must be one of {', '.join(cls)}, not {value!r:.50}")


class ResourceRule(Struct, frozen=True):
    """Requires the permission `action` on resources of a type."""

    type: str
    action: str


class AccessControl(Struct, frozen=True, kw_only=True):
    """The permissions required to call an operation: all rules must hold. `public` allows anonymous callers.

    Raises:
        UsageError: scopes are a single string.
    """

    required_scopes: tuple[str, ...] = ()
    required_scopes_any: tuple[str, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    public: bool = False

    def __post_init__(self) -> None:
        _check_scopes("required_scopes", self.required_scopes)
        _check_scopes("required_scopes_any", self.required_scopes_any)


class Identity(Struct, frozen=True, kw_only=True):
    """An authenticated caller. The scope "*" includes every scope; `resources` maps resource types to actions."""

    id: str
    scopes: tuple[str, ...] = ()
    resources: dict[str, tuple[str, ...]] = {}

    def __post_init__(self) -> None:
        if type(self.scopes) is not tuple:  # each request through a hub carries an identity
            _check_scopes("scopes", self.scopes)


def _check_scopes(field: str, scopes: object) -> None:
    if isinstance(scopes, str):  # `("shop:*")` is a string, and "*" would be in it
        raise UsageError(f"{field} is a tuple of scopes: write ({scopes!r},)")


LOCAL_IDENTITY = Identity(id="local", scopes=("*",))
"""The identity of this process, which may call all of its own operations."""


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
            given = getattr(self, field)
            if not isinstance(given, Schema):
                force_setattr(self, field, Schema(given).compile())

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        texts = (("type", str(self.type)), ("title", self.title), ("description", self.description))
        schemas = (("input", self.input_schema), ("output", self.output_schema))
        rows = [*texts, *((name, "" if each.is_unknown else indented_json(each.json)) for name, each in schemas)]
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


class Progress(Struct, frozen=True):
    """The progress of a call. `total` is None if unknown."""

    progress: float
    total: float | None = None
    message: str | None = None

    def bounded(self) -> "Progress | None":
        """Return the part that any peer can parse: finite numbers, a short message. None without a valid `progress`."""
        progress, total = _amount(self.progress), _amount(self.total)
        if progress is None:
            return None
        message = None if self.message is None else replace_surrogates(str(self.message)[:MAX_PROGRESS_MESSAGE])
        return Progress(progress, total, message)


def _amount(value: Any) -> float | None:
    # Not NaN, an infinity, or an integer of 400 digits: callers calculate with it.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= _MAX_AMOUNT else None


REQUEST_STATE = "opwire.request_state"
"""The key of a dict in the metadata of a context, which all calls on behalf of one request share, for policies."""


class Inbound(Struct, frozen=True):
    """The external request that a call belongs to: its id, and the connection that received it.

    `connection` is the `PendingRequestMap` that received it; None for other surfaces (HTTP, MCP, a journal).
    """

    request_id: str
    connection: object = None


class Context(Struct, frozen=True, kw_only=True):
    """The call that a handler serves. A parameter annotated `Context` receives it.

    `deadline` is a monotonic time (`time.monotonic()`), or None. `env` calls other operations on behalf of this call:
    they inherit its identity, deadline and metadata, and have its request id as their parent. `metadata` stays in this
    process, except for the `traceparent` and `tracestate` of a distributed trace, which are propagated everywhere.

        @registry.query("shop.total")
        async def total(cart: str, context: Context) -> float:
            items = await context.env.carts.items(cart=cart)

    A remote call (`Spoke.call`, `Client.call`) with this context is a child of this call, with the identity of its
    caller. A connection that cannot transmit that identity rejects the call; `detached()` returns a context with the
    identity of this process instead.
    """

    request_id: str | None = None
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: float | None = None
    metadata: Mapping[str, Any] = {}
    on_progress: Callable[[Progress], object] | None = None  # callback of `report`
    on_question: QuestionCallback | None = None  # answers `elicit`, `sample` and `roots`; None: it cannot be asked
    on_log: Callable[[LogMessage], object] | None = None  # callback of `log`
    watched: bool = False  # the deadline is enforced by the creator of this context
    bind_env: Callable[["Context"], Any] | None = None
    inbound: Inbound | None = None  # set by the surface that accepted the request
    resume_from: str | None = None  # the cursor of the last item that the caller of a subscription has

    @property
    def env(self) -> Any:
        """Other operations by namespace and name: `context.env.math.add(a=1, b=2)`."""
        if self.bind_env is None:
            raise RuntimeError("this context does not belong to a running call; use build_env(registry)")
        return self.bind_env(self)

    @property
    def is_served(self) -> bool:
        """Whether this is the context of an external request itself, and not of a call that was made for it."""
        return self.inbound is not None and self.inbound.request_id == self.request_id

    @property
    def remaining(self) -> float | None:
        """The seconds until the deadline, or None."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def child(self) -> "Context":
        """Return the context of a call made on behalf of this one. Its progress is not reported; it may ask."""
        own: dict[str, Any] = {"request_id": uuid4().hex, "parent_request_id": self.request_id}
        return replace(self, **own, watched=False, on_progress=None, resume_from=None)

    def detached(self) -> "Context":
        """Return a context with the identity of this process, and the same deadline and trace.

        await spoke.call("audit.write", entry, context=context.detached())
        """
        return Context(deadline=self.deadline, metadata=dict(trace_of(self.metadata)))

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report the progress of the call, if its caller asked for it.

        Over a network, some reports may be left out: a newer one replaces those that could not be sent yet.
        """
        if self.on_progress is not None:
            self.on_progress(Progress(progress, total, message))

    @overload
    async def elicit(
        self, wanted: type[T], message: str, *, key: str = ..., timeout: float = ...
    ) -> Elicitation[T]: ...
    @overload
    async def elicit(self, wanted: Any, message: str, *, key: str = ..., timeout: float = ...) -> Elicitation[Any]: ...
    async def elicit(
        self, wanted: Any, message: str, *, key: str = "", timeout: float = QUESTION_TIMEOUT
    ) -> Elicitation[Any]:
        """Ask the person behind the call, and return the typed outcome.

            if not await context.elicit(bool, f"Delete {count} orders?"):
                return "nothing was deleted"

        `wanted` is a type, or a JSON Schema: a boolean, a number, a text, a choice (`Literal`, an enum), or a class
        with such fields. The outcome is true if the form was accepted, unless with False; `action` tells "decline"
        from "cancel", and `unwrap()` returns the data or ends the call. `key` names the question, for clients that get
        several at once; by default it is made from the question.

        A client without a session (MCP 2026-07-28) calls the operation again with the answer, so that what comes
        before the question is repeated: ask before changing anything.

        Raises:
            CallError: ABORTED, the caller cannot be asked; TIMEOUT, the question was not answered within `timeout`
                seconds, or until the deadline; PROTOCOL_ERROR, the answer is invalid.
            UsageError: the type is not flat.
        """
        form: Form[Any] = Form(wanted)
        question = form.question(message, key)
        return form.read(await self.ask(question, timeout=timeout), question)

    async def elicit_url(
        self, url: str, message: str, *, key: str = "", timeout: float = QUESTION_TIMEOUT
    ) -> Elicitation[None]:
        """Ask the person to open an address, for what must not pass through the client: a sign-in, a payment.

        Accepted means that the person agreed to open it, not that they have finished there.

        Raises:
            CallError: as `elicit`.
        """
        question = address_question(url, message, key)
        return read_action(await self.ask(question, timeout=timeout), question)

    async def sample(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = MAX_TOKENS,
        system_prompt: str | None = None,
        temperature: float | None = None,
        timeout: float = QUESTION_TIMEOUT,
        **options: Any,
    ) -> SampledMessage:
        """Ask the caller's model for a completion: `(await context.sample("Summarise: …")).text`.

        `messages` is a text, or messages of MCP; `options` are further params of `sampling/createMessage`, such as
        `modelPreferences`.

        Raises:
            CallError: as `elicit`.
        """
        given = {"systemPrompt": system_prompt, "temperature": temperature, **options}
        question = sampling(messages, max_tokens, given)
        return SampledMessage.read(await self.ask(question, timeout=timeout), question)

    async def roots(self, *, timeout: float = QUESTION_TIMEOUT) -> list[Root]:
        """Return the directories and files that the caller lets the operation work on.

        Raises:
            CallError: as `elicit`.
        """
        question = Question("roots")
        return read_roots(await self.ask(question, timeout=timeout), question)

    async def ask(self, question: Question, *, timeout: float = QUESTION_TIMEOUT) -> dict[str, Any]:
        """Return the caller's answer to a question, in the shape of MCP.

        Raises:
            CallError: as `elicit`.
        """
        remaining = self.remaining
        return await ask(question, self.on_question, timeout if remaining is None else min(timeout, remaining))

    def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the caller, if it receives them: a client of MCP, at the level that it has set.

            context.log("warning", {"article": "tea", "pieces": 0})

        `data` is any JSON value; it must not contain secrets. Messages for the owner of the server belong into the log
        of the process.

        Raises:
            UsageError: the level is unknown.
        """
        severity(level)
        if self.on_log is not None:
            self.on_log(LogMessage(level, data, logger))

    def within(self, seconds: float | None) -> "Context":
        """Return this context with a deadline at most `seconds` from now. A deadline is never extended."""
        if seconds is None:
            return self
        deadline = time.monotonic() + seconds
        if self.deadline is not None and self.deadline <= deadline:
            return self
        return replace(self, deadline=deadline, watched=False)


class Trace(TypedDict, total=False):
    """The headers of W3C Trace Context."""

    traceparent: str
    tracestate: str


def trace_of(carrier: Mapping[str, Any]) -> Trace:
    """Return the trace in `Context.metadata` or headers; empty if it is missing or invalid.

    It is propagated with every nested call, over every transport.
    """
    parent, state = carrier.get("traceparent"), carrier.get("tracestate")
    if not isinstance(parent, str) or not re.fullmatch(_TRACEPARENT, parent):
        return {}
    if not isinstance(state, str) or not state or len(state) > _MAX_TRACESTATE:
        return {"traceparent": parent}
    members = (each.strip(" \t") for each in state.split(","))
    is_valid = all(re.fullmatch(_TRACESTATE, member) for member in members if member)
    return {"traceparent": parent, "tracestate": state} if is_valid else {"traceparent": parent}


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


class Skipped(Struct, frozen=True):
    """An item of a source without an operation: `Skipped("GET", "/pets", "…")`, `Skipped("tool", "fs.read", "…")`."""

    kind: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"skipped {self.kind} {self.name}: {self.reason}"


class SourceChange(Struct, frozen=True):
    """A change of a source: `put` are new or changed operations, `gone` are ids."""

    put: tuple[Operation, ...] = ()
    gone: tuple[str, ...] = ()


class Source(Protocol):
    """A changing set of operations, such as an MCP server. `registry.follow` subscribes to it."""

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the current operations."""
        ...

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Call the listener on every change; the returned function removes it."""
        ...


class Change(NamedTuple):
    """An operation was added, replaced or removed."""

    kind: Literal["added", "replaced", "removed"]
    spec: OperationSpec


class OperationOptions(TypedDict, total=False):
    """Options of the decorators, beside the operation's id; see `OperationSpec`."""

    title: str
    description: str
    tags: Iterable[str]
    version: str
    input_schema: Schema | Mapping[str, Any]
    output_schema: Schema | Mapping[str, Any]
    access: AccessControl | None
    normalize: NormalizeMode | None
    strip: bool | None
    timeout: float | None
    idle_timeout: float | None
    resumable: bool
    examples: Iterable[Any]
    annotations: Annotations
    icons: Iterable[Icon]
    meta: Mapping[str, Any]
    completes: Mapping[str, Callable[..., Any]]  # by parameter: functions that take the beginning of a value
    inline: bool  # run a sync function on the event loop; only if it never blocks
    replace: bool


_SHOWN = 3  # problems in the message; all of them are in the details


def input_error(operation_id: str, problems: Sequence[Problem]) -> CallError:
    """Return the VALIDATION_ERROR of an input with these problems."""
    shown = "; ".join(f"{path or 'the input'}: {message}" for path, message in problems[:_SHOWN])
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    details = {"problems": [problem._asdict() for problem in problems]}
    return CallError(ErrorCode.VALIDATION_ERROR, f"{operation_id}: {shown}{more}", details)


EVERYTHING = "*"

_NO_RULES = AccessControl()


def check_access(spec: OperationSpec, identity: Identity | None) -> None:
    """Raise unless an identity may call an operation. Without access rules any identity may.

    Raises:
        CallError: UNAUTHENTICATED without an identity, ACCESS_DENIED if it lacks a permission.
    """
    rules = spec.access or _NO_RULES
    if rules.public:
        return
    if identity is None:
        raise CallError(ErrorCode.UNAUTHENTICATED, f"{spec.id} requires an authenticated caller")
    if rules is _NO_RULES:
        return
    missing = [scope for scope in rules.required_scopes if not holds(identity, scope)]
    if missing:
        raise _denied(spec, f"missing scope {', '.join(missing)}", rules.required_scopes)
    any_of = rules.required_scopes_any
    if any_of and not any(holds(identity, scope) for scope in any_of):
        raise _denied(spec, f"one of these scopes is needed: {', '.join(any_of)}", any_of[:1])
    for rule in rules.resources:
        held = (*identity.resources.get(rule.type, ()), *identity.resources.get(EVERYTHING, ()))
        if EVERYTHING not in (*identity.scopes, *held) and rule.action not in held:
            raise _denied(spec, f"{rule.action!r} on {rule.type!r} is needed")


def may_access(spec: OperationSpec, identity: Identity | None) -> bool:
    """Return whether `check_access` allows the call."""
    try:
        check_access(spec, identity)
    except CallError:
        return False
    return True


def holds(identity: Identity | None, scope: str) -> bool:
    """Return whether an identity has a scope."""
    return identity is not None and (scope in identity.scopes or EVERYTHING in identity.scopes)


def _denied(spec: OperationSpec, reason: str, scopes: Sequence[str] = ()) -> CallError:
    details = {"requiredScopes": [*scopes]} if scopes else None
    return CallError(ErrorCode.ACCESS_DENIED, f"{spec.id}: {reason}", details)
