"""Operations as callables, by namespace and name: the interface through which a handler calls other operations.

`Env` and `Namespace` read like mappings: `list(env)`, `"math" in env`, `len(env.math)`, `dir(env)`. Lookup is lazy, so
creating one is free, and both include operations that are registered later. `get`, `items` and `values` are not
methods, because operations often have these names.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from msgspec.structs import replace

from opwire.model.access import check_access, may_access
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import OperationSpec, OperationType

T = TypeVar("T")

Call = Callable[[str, Any], Any]
"""Takes an operation's id and input; returns an awaitable envelope, or the stream of a subscription."""


class Caller(Protocol):
    """The methods of a registry that an env uses."""

    def get_spec(self, operation_id: str) -> OperationSpec | None: ...
    def list(self, *, namespace: str | None = None) -> Sequence[OperationSpec]: ...
    def execute(
        self, operation_id: str, input: Any = None, context: Context | None = None
    ) -> Awaitable[ResponseEnvelope[Any]]: ...
    def subscribe(
        self, operation_id: str, input: Any = None, context: Context | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]: ...


class _Names(ABC, Generic[T]):
    """Access members as attributes, as items, and as keys."""

    __reversed__ = None  # `reversed` would look up the items 0, 1, 2, … otherwise

    def __getattr__(self, name: str) -> T:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "keys" and name not in self:
            return cast("T", self._keys)  # used by `dict(env)` and `{**env}`
        member = self._member(name)
        setattr(self, name, member)  # the next look-up is a plain attribute
        return member

    def __getitem__(self, name: str) -> T:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a list index, for example
            raise KeyError(name)
        return self._member(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def __bool__(self) -> bool:
        return True  # an env without operations is true, although its length is 0

    def __contains__(self, name: object) -> bool:
        return name in self._keys()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self if name.isidentifier())]

    def _ipython_key_completions_(self) -> Iterable[str]:
        return self._keys()

    @abstractmethod
    def _member(self, name: str) -> T: ...

    @abstractmethod
    def _keys(self) -> dict[str, None]:
        """Return the current names in the order of registration."""


class Env(_Names["Namespace"]):
    """The namespaces of a registry: `env.math`, `env["math"]`."""

    def __init__(self, caller: Caller, context: Context | None, *, checked: bool = False) -> None:
        self._caller = caller
        self._context = context
        self._checked = checked

    def _member(self, name: str) -> "Namespace":
        return Namespace(self._call, self._specs, name)

    def _keys(self) -> dict[str, None]:
        return {spec.namespace: None for spec in self._specs()}

    def _specs(self, namespace: str | None = None) -> list[OperationSpec]:
        """Return the operations; in a checked env, only those that the identity may call."""
        specs = self._caller.list(namespace=namespace)
        identity = self._context and self._context.identity
        return [spec for spec in specs if not self._checked or may_access(spec, identity)]

    def __repr__(self) -> str:
        return f"<Env of {self._caller!r}>"

    def _call(self, operation_id: str, input: Any) -> Any:
        """Return an awaitable envelope, or the stream of a subscription."""
        context = None if self._context is None else self._context.child()
        spec = self._caller.get_spec(operation_id)
        if self._checked and spec is not None:
            # A handler that is called through a checked env gets a checked one as well.
            context = replace(context or Context(), bind_env=partial(Env, self._caller, checked=True))
            check_access(spec, context.identity)
        if spec is not None and spec.type is OperationType.SUBSCRIPTION:
            return self._caller.subscribe(operation_id, input, context)
        return self._caller.execute(operation_id, input, context)


class Namespace(_Names["EnvCall"]):
    """The operations of one namespace: `env.math.add`, `env["github"]["repos/get"]`."""

    def __init__(self, call: Call, specs: Callable[[str], Iterable[OperationSpec]], namespace: str) -> None:
        self._call = call
        self._specs = specs
        self._namespace = namespace

    def _member(self, name: str) -> "EnvCall":
        return EnvCall(self._call, f"{self._namespace}.{name}")

    def _keys(self) -> dict[str, None]:
        return {spec.name: None for spec in self._specs(self._namespace)}

    def __repr__(self) -> str:
        return f"<Namespace {self._namespace}>"


class EnvCall:
    """One operation: `await env.math.add(a=1, b=2)` or `await env.math.add({"a": 1, "b": 2})` returns its envelope."""

    def __init__(self, call: Call, operation_id: str) -> None:
        self._call = call
        self._operation_id = operation_id

    def __call__(self, input: Any = None, /, **arguments: Any) -> Any:
        if arguments:
            input = {**input, **arguments} if input is not None else arguments
        return self._call(self._operation_id, input)

    def __repr__(self) -> str:
        return f"<EnvCall {self._operation_id}>"
