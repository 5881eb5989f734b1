"""Operations as callables, by namespace and name: what a handler calls other operations with."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from msgspec.structs import replace

from opwire.access import check_access
from opwire.envelope import ResponseEnvelope
from opwire.operation import Context, OperationSpec, OperationType

Call = Callable[[str, Any], Any]
"""Takes an operation's id and input; gives an awaitable envelope, or the envelopes of a subscription."""


class Caller(Protocol):
    """The part of a registry that an env needs."""

    def get_spec(self, operation_id: str) -> OperationSpec | None: ...
    def execute(
        self, operation_id: str, input: Any = None, context: Context | None = None
    ) -> Awaitable[ResponseEnvelope[Any]]: ...
    def subscribe(
        self, operation_id: str, input: Any = None, context: Context | None = None
    ) -> AsyncGenerator[ResponseEnvelope[Any]]: ...


class Env:
    """Namespaces: `env.math`, `env["math"]`."""

    def __init__(self, caller: Caller, context: Context | None, *, checked: bool = False) -> None:
        self._caller = caller
        self._context = context
        self._checked = checked

    def __getattr__(self, namespace: str) -> "Namespace":
        if namespace.startswith("__"):
            raise AttributeError(namespace)
        found = self.__dict__[namespace] = self[namespace]  # the next look-up is a plain attribute
        return found

    def __getitem__(self, namespace: str) -> "Namespace":
        return Namespace(self._call, namespace)

    def __repr__(self) -> str:
        return f"<Env of {self._caller!r}>"

    def _call(self, operation_id: str, input: Any) -> Any:
        """Call an operation: an awaitable envelope, or the envelopes of a subscription.

        Raises:
            CallError: when access is checked and denied.
        """
        context = None if self._context is None else self._context.child()
        spec = self._caller.get_spec(operation_id)
        if self._checked and spec is not None:
            context = replace(context or Context(), bind_env=self._checked_too)
            check_access(spec, context.identity)
        if spec is not None and spec.type is OperationType.SUBSCRIPTION:
            return self._caller.subscribe(operation_id, input, context)
        return self._caller.execute(operation_id, input, context)

    def _checked_too(self, context: Context) -> "Env":
        """The env of a handler that was called through a checked one."""
        return Env(self._caller, context, checked=True)


class Namespace:
    """The operations of one namespace: `env.math.add`, `env["github"]["repos/get"]`."""

    def __init__(self, call: Call, namespace: str) -> None:
        self._call = call
        self._namespace = namespace

    def __getattr__(self, name: str) -> "EnvCall":
        if name.startswith("__"):
            raise AttributeError(name)
        found = self.__dict__[name] = self[name]
        return found

    def __getitem__(self, name: str) -> "EnvCall":
        return EnvCall(self._call, f"{self._namespace}.{name}")

    def __repr__(self) -> str:
        return f"<Namespace {self._namespace}>"


class EnvCall:
    """One operation: `await env.math.add(a=1, b=2)` or `await env.math.add({"a": 1, "b": 2})` gives its envelope."""

    def __init__(self, call: Call, operation_id: str) -> None:
        self._call = call
        self._operation_id = operation_id

    def __call__(self, input: Any = None, /, **arguments: Any) -> Any:
        if arguments:
            input = {**input, **arguments} if input is not None else arguments
        return self._call(self._operation_id, input)

    def __repr__(self) -> str:
        return f"<EnvCall {self._operation_id}>"
