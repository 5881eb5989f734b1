"""What an operation is: its specification, who may call it, and what a handler is given.

Who may call what. Asked by the call handler and by every surface that faces outward, never by `execute`.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal, Protocol, TypedDict, TypeGuard
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from opwire.errors import CallError, ErrorCode, RegistrationError
from opwire.schema import UNKNOWN, Schema

NormalizeMode = Literal["fit", "cast", "check", "off"]
"""What is done to a result that does not match its schema; see the `pipeline` module."""

NORMALIZE_MODES: tuple[NormalizeMode, ...] = ("fit", "cast", "check", "off")

# W3C's Trace Context: an id of zeros is none, and a version after 00 may say more at its end. The patterns compile when
# there is a first trace: that takes longer than many a module to import.
_SPAN = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = rf"00{_SPAN}|(?!00|ff)[0-9a-f]{{2}}{_SPAN}(?:-[!-~]{{0,200}})?"
_TRACESTATE = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]"  # one of its members
_MAX_TRACESTATE = 512


class OperationType(StrEnum):
    """Reads, writes, or streams."""

    QUERY = "query"
    MUTATION = "mutation"
    SUBSCRIPTION = "subscription"


class ResourceRule(Struct, frozen=True):
    """The caller must hold `action` on resources of this type."""

    type: str
    action: str


class AccessControl(Struct, frozen=True, kw_only=True):
    """Who may call an operation over a network: every rule given must hold. `public` needs no identity at all."""

    required_scopes: tuple[str, ...] = ()
    required_scopes_any: tuple[str, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    public: bool = False


class Identity(Struct, frozen=True, kw_only=True):
    """Who calls. The scope "*" holds every scope; `resources` maps a resource type to the actions held on it."""

    id: str
    scopes: tuple[str, ...] = ()
    resources: dict[str, tuple[str, ...]] = {}


LOCAL_IDENTITY = Identity(id="local", scopes=("*",))
"""The program that runs this process, calling its own operations: trusted with everything."""


class OperationSpec(Struct, frozen=True, kw_only=True):
    """What is known of an operation without its handler.

    OperationSpec(namespace="math", name="add", input_schema={...}, output_schema={"type": "integer"})

    Schemas are given as dicts, which are compiled at once, or as `Schema`, which compile when first used.
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
    normalize: NormalizeMode | None = None  # None: what the registry says
    strip: bool | None = None  # None: what the registry says
    timeout: float | None = None  # seconds for a call
    idle_timeout: float | None = None  # seconds between two items of a subscription
    unchecked_input: bool = False  # whether it may be called although its input schema cannot be compiled
    examples: tuple[Any, ...] = ()
    id: str = ""  # always namespace.name; kept, because it is asked for on every call

    def __post_init__(self) -> None:
        _check_names(self.namespace, self.name)
        force_setattr(self, "id", f"{self.namespace}.{self.name}")
        if self.type not in tuple(OperationType):
            raise RegistrationError(f"{self.id}: type is one of {', '.join(OperationType)}, not {self.type!r}")
        force_setattr(self, "type", OperationType(self.type))
        force_setattr(self, "tags", tuple(self.tags))
        force_setattr(self, "examples", tuple(self.examples))
        for field in ("input_schema", "output_schema"):
            given = getattr(self, field)
            if not isinstance(given, Schema):
                force_setattr(self, field, Schema(given).compile())
        if self.normalize is not None and self.normalize not in NORMALIZE_MODES:
            raise RegistrationError(f"{self.id}: normalize is one of {', '.join(NORMALIZE_MODES)}")
        for field in ("timeout", "idle_timeout"):
            seconds = getattr(self, field)
            if seconds is not None and not seconds > 0:
                raise RegistrationError(f"{self.id}: {field} is a number of seconds above zero, not {seconds!r}")


def _check_names(namespace: str, name: str) -> None:
    if not namespace or "." in namespace or not namespace.isprintable():
        raise RegistrationError(f"a namespace is printable, not empty, and has no dot: {namespace!r} is not usable")
    if not name or not name.isprintable():
        raise RegistrationError(f"a name is printable and not empty: {name!r} is not usable")


def split_id(operation_id: str) -> tuple[str, str]:
    """Namespace and name: an id is split at its first dot, so a name may hold dots and a namespace may not.

    Raises:
        RegistrationError: there is no dot.
    """
    namespace, dot, name = operation_id.partition(".")
    if not dot:
        raise RegistrationError(f"an operation's id is namespace.name: {operation_id!r} has no dot")
    return namespace, name


class Progress(Struct, frozen=True):
    """How far a call has come. `total` is None where it is not known."""

    progress: float
    total: float | None = None
    message: str | None = None


class Inbound(Struct, frozen=True):
    """The request from outside that a call is part of: its id, and the connection that delivered it.

    `connection` is the `PendingRequestMap` that received it; None for other surfaces (HTTP, MCP, a journal).
    """

    request_id: str
    connection: object = None


class Context(Struct, frozen=True, kw_only=True):
    """What a handler may know of the call that it serves. A parameter annotated `Context` receives it.

    `deadline` is a monotonic time (`time.monotonic()`), or None. `env` calls other operations on behalf of this
    call: they carry on its identity, deadline and metadata, and know its request id as their parent. `metadata` stays
    in this process, except for the `traceparent` and `tracestate` of a distributed trace, which go along everywhere.

        @registry.query("shop.total")
        async def total(cart: str, context: Context) -> float:
            items = await context.env.carts.items(cart=cart)

    A context that is passed to a remote call (`Spoke.call`, `Client.call`) makes it a child of this call, with the
    identity of this call's caller. A connection that cannot carry that identity refuses; `detached()` calls with the
    identity of this process instead.
    """

    request_id: str | None = None
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: float | None = None
    metadata: Mapping[str, Any] = {}
    on_progress: Callable[[Progress], object] | None = None  # who wants to know how far this call has come
    watched: bool = False  # whoever made this context enforces its deadline
    bind_env: Callable[["Context"], Any] | None = None
    inbound: Inbound | None = None  # set by the surface that accepted the request

    @property
    def env(self) -> Any:
        """The other operations, by namespace and name: `context.env.math.add(a=1, b=2)`."""
        if self.bind_env is None:
            raise RuntimeError("this context does not belong to a running call; build_env(registry) gives an env")
        return self.bind_env(self)

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, or None."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def child(self) -> "Context":
        """The context of a call made on behalf of this one. How far that one has come is not said of this one."""
        parent = self.request_id
        return replace(self, request_id=uuid4().hex, parent_request_id=parent, watched=False, on_progress=None)

    def detached(self) -> "Context":
        """Return a context for calls that this process makes with its own identity, within the same deadline and trace.

        await spoke.call("audit.write", entry, context=context.detached())
        """
        return Context(deadline=self.deadline, metadata=dict(trace_of(self.metadata)))

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the call has come, to whoever wants to know."""
        if self.on_progress is not None:
            self.on_progress(Progress(progress, total, message))

    def within(self, seconds: float | None) -> "Context":
        """This context with a deadline at most so many seconds away. Deadlines only ever shrink."""
        if seconds is None:
            return self
        deadline = time.monotonic() + seconds
        if self.deadline is not None and self.deadline <= deadline:
            return self
        return replace(self, deadline=deadline, watched=False)


class Trace(TypedDict, total=False):
    """Where a call belongs in a distributed trace, in the words of W3C's Trace Context."""

    traceparent: str
    tracestate: str


def trace_of(carrier: Mapping[str, Any]) -> Trace:
    """The trace that `Context.metadata`, headers or the like carry; empty if there is none that can be read.

    It goes along with every call that is made on behalf of another, over every transport.
    """
    parent, state = carrier.get("traceparent"), carrier.get("tracestate")
    if not isinstance(parent, str) or not re.fullmatch(_TRACEPARENT, parent):
        return {}
    return {"traceparent": parent, "tracestate": state} if _is_tracestate(state) else {"traceparent": parent}


def _is_tracestate(state: Any) -> TypeGuard[str]:
    if not isinstance(state, str) or not state or len(state) > _MAX_TRACESTATE:
        return False
    return all(re.fullmatch(_TRACESTATE, member) for each in state.split(",") if (member := each.strip(" \t")))


Handler = Callable[[Any, Context], Any]
"""The one narrow shape: takes the input and the context, returns a value or an envelope, or is a generator of them."""


Interceptor = Callable[[OperationSpec, Handler], Handler]
"""Wraps a handler: given an operation and what calls it, returns what is called instead.

The handler that it is given returns an awaitable envelope, or, for a subscription, an async iterator of envelopes.
"""


class ShapedResult(Struct, frozen=True):
    """A result that has a schema of its own: that of the status with which an HTTP API answered, for example.

    `is_plain`: the value is an envelope whose data was just read from JSON, and is not deep. Nobody looks again.
    """

    value: Any
    schema: Schema
    is_plain: bool = False


class Operation(Struct, frozen=True):
    """A specification and its handler, if it has one: what adapters make and `register_all` takes.

    `prepare` turns objects that a caller in this process may give, an open file for example, into plain input. It is
    asked only for input that is not plain already, so nothing that came over a wire reaches it.
    """

    spec: OperationSpec
    handler: Handler | None = None
    inline: bool = False
    prepare: Callable[[Any], Any] | None = None


class SourceChange(Struct, frozen=True):
    """What became of a source's operations: `put` are new or changed, `gone` are ids."""

    put: tuple[Operation, ...] = ()
    gone: tuple[str, ...] = ()


class Source(Protocol):
    """Where operations come from, and may change: an MCP server, an HTTP API. `registry.follow` keeps up with it."""

    def __iter__(self) -> Iterator[Operation]:
        """The operations as they are now."""
        ...

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Be told of every change; the function that is returned ends it."""
        ...


EVERYTHING = "*"

_NO_RULES = AccessControl()


def check_access(spec: OperationSpec, identity: Identity | None) -> None:
    """Let the call pass, or raise.

    An operation without access rules needs an identity, but no particular one.

    Raises:
        CallError: UNAUTHENTICATED without an identity, ACCESS_DENIED with one that does not hold what is needed.
    """
    rules = spec.access or _NO_RULES
    if rules.public:
        return
    if identity is None:
        raise CallError(ErrorCode.UNAUTHENTICATED, f"{spec.id} needs an authenticated caller")
    if rules is _NO_RULES:
        return
    missing = [scope for scope in rules.required_scopes if not _holds(identity, scope)]
    if missing:
        raise _denied(spec, f"missing scope {', '.join(missing)}")
    any_of = rules.required_scopes_any
    if any_of and not any(_holds(identity, scope) for scope in any_of):
        raise _denied(spec, f"one of these scopes is needed: {', '.join(any_of)}")
    for rule in rules.resources:
        if not _may(identity, rule.type, rule.action):
            raise _denied(spec, f"{rule.action!r} on {rule.type!r} is needed")


def may_access(spec: OperationSpec, identity: Identity | None) -> bool:
    """`check_access` as a question, for listings."""
    try:
        check_access(spec, identity)
    except CallError:
        return False
    return True


def _holds(identity: Identity, scope: str) -> bool:
    return scope in identity.scopes or EVERYTHING in identity.scopes


def _may(identity: Identity, type: str, action: str) -> bool:
    held = (*identity.resources.get(type, ()), *identity.resources.get(EVERYTHING, ()))
    return EVERYTHING in identity.scopes or action in held or EVERYTHING in held


def _denied(spec: OperationSpec, reason: str) -> CallError:
    return CallError(ErrorCode.ACCESS_DENIED, f"{spec.id}: {reason}")
