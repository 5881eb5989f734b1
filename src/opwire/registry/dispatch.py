"""The checked way into a registry, for every surface that accepts calls from outside.

    dispatcher = Dispatcher(registry)
    spec = dispatcher.find("math.add", identity)
    envelope = await dispatcher.execute(spec, {"a": 1, "b": 2}, context)

`OperationRegistry.execute` is the trusted way: it checks no access. A surface looks an operation up for its caller
here, and calls it here, so that lookup, access control and the interceptors of the surface exist once.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, cast

from opwire.errors import CallError, ErrorCode, UsageError, check_instance
from opwire.model.access import check_access, may_access
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import OWN, Handler, Interceptor, OperationSpec, is_own
from opwire.registry.interceptors import Interceptors
from opwire.registry.registry import OperationRegistry
from opwire.registry.view import Selection


class Dispatcher:
    """Finds and calls operations on behalf of callers from outside.

    `serves` selects the operations that exist for this surface; by default all of them. `own` returns
    operations of the server itself, such as its figures: callable and not listed. The registry may override them.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        *,
        serves: Callable[[OperationSpec], bool] | None = None,
        own: Callable[[], OperationRegistry] | None = None,
    ) -> None:
        argument = cast("object", registry)
        if argument is None:  # a function that should return it does not
            raise UsageError("registry must be an instance of OperationRegistry, not None")
        check_instance(OperationRegistry, registry=registry)
        self.registry = registry
        self._serves = serves
        self._own = own
        self._interceptors = Interceptors()
        self._rerouted: dict[str, Handler] | None = None

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call of this surface; the returned function removes it."""
        return self._interceptors.use(interceptor)

    def reroute(self, operation_id: str, handler: Handler) -> None:
        """Call a handler in place of the registry, within the interceptors of this surface; it validates the input."""
        self._rerouted = {**(self._rerouted or {}), operation_id: handler}

    def get_spec(self, operation_id: str) -> OperationSpec | None:
        """Return the spec of an operation of the registry, or else of the server itself, or None."""
        spec = self.registry.get_spec(operation_id)
        if spec is not None or self._own is None or not is_own(operation_id):
            return spec
        return self._own().get_spec(operation_id)

    def is_served(self, spec: OperationSpec) -> bool:
        """Return whether an operation exists for this surface: it has a handler, and `serves` selects it."""
        if self._is_own(spec):
            return True
        return self.registry.get_handler(spec.id) is not None and (self._serves is None or self._serves(spec))

    def served(self) -> list[OperationSpec]:
        """Return the operations that exist for this surface, in the order of registration."""
        return [spec for spec in self.registry.list() if self.is_served(spec)]

    def _is_own(self, spec: OperationSpec) -> bool:
        return self._own is not None and is_own(spec.id) and self._own().get_spec(spec.id) is spec

    def is_visible(self, spec: OperationSpec, identity: Identity | None) -> bool:
        """Return whether a caller may know of an operation."""
        return self.is_served(spec) and may_access(spec, identity)

    def visible(self, identity: Identity | None) -> list[OperationSpec]:
        """Return the operations that a caller may call, in the order of registration."""
        return [spec for spec in self.registry.list() if self.is_visible(spec, identity)]

    def find(self, operation_id: str, identity: Identity | None) -> OperationSpec:
        """Return the operation that a caller wants to call.

        Raises:
            CallError: OPERATION_NOT_FOUND, which suggests only what the caller may see; UNAUTHENTICATED; ACCESS_DENIED.
        """
        bound = self.registry.get_bound(operation_id)  # which overrides an operation of the server itself
        spec = self.get_spec(operation_id) if bound is None else bound.spec
        if spec is None or (self._serves is not None and bound is not None and not self._serves(spec)):
            raise self.registry.not_found(operation_id, visible=partial(self.is_visible, identity=identity))
        if bound is not None and bound.handler is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"No handler registered for operation: {operation_id}")
        if spec.access is not None or identity is None:  # otherwise there is nothing to check
            check_access(spec, identity)
        return spec

    def execute(self, spec: OperationSpec, input: Any, context: Context) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call a query or mutation that `find` returned.

        Raises:
            CallError: the call failed.
        """
        own_operations = self._own if spec.id.startswith(OWN) else None
        if own_operations is not None and self.registry.get_spec(spec.id) is not spec and self._is_own(spec):
            return own_operations().execute(spec.id, input, context)
        if self._rerouted is not None and (handler := self._rerouted.get(spec.id)) is not None:
            return self._interceptors.cached(spec, handler).execute(input, context)
        if self._interceptors.installed:
            return self._interceptors.cached(spec, partial(self.registry.execute, spec.id)).execute(input, context)
        return self.registry.execute(spec.id, input, context)

    def subscribe(self, spec: OperationSpec, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Return the envelopes of a subscription that `find` returned, one per item.

        Raises:
            CallError: the call failed.
        """
        if self._own is not None and self._is_own(spec):
            return self._own().subscribe(spec.id, input, context)
        if self._interceptors.installed:
            return self._interceptors.cached(spec, partial(self.registry.subscribe, spec.id)).subscribe(input, context)
        return self.registry.subscribe(spec.id, input, context)


def operation_filter(include: Iterable[str], exclude: Iterable[str]) -> Callable[[OperationSpec], bool] | None:
    """Return a predicate that matches patterns, as those of a view, with an operation; None: no filter.

    `include` selects operations, all by default; `exclude` removes some of these.

    Raises:
        UsageError: `include` or `exclude` is a string.
    """
    selection = Selection(include, exclude)
    return selection.selects if selection.include or selection.exclude else None
