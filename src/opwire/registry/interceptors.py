"""Interceptors around the calls of a registry, a surface or a client."""

import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from opwire.errors import CallError, ErrorCode, RegistrationError
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import Handler, Interceptor, OperationSpec, OperationType, split_id
from opwire.registry.invoke import FAILURES, fail
from opwire.registry.pipeline import ResultPipeline
from opwire.registry.streams import close_stream


class Interceptors:
    """The interceptors of a registry, a surface or a client; the first one installed is the outermost."""

    def __init__(self) -> None:
        self.installed: list[Interceptor] = []
        self._calls: dict[str, tuple[OperationSpec, InterceptedCall]] = {}

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor, inside those already installed; the returned function removes it."""
        self.installed.append(interceptor)
        self._calls.clear()

        def remove() -> None:
            if interceptor in self.installed:
                self.installed.remove(interceptor)
                self._calls.clear()

        return remove

    def cached(self, spec: OperationSpec, handler: Handler) -> "InterceptedCall":
        """Return the intercepted call of a spec, built once: an interceptor may keep state per operation."""
        cached_call = self._calls.get(spec.id)
        if cached_call is None or cached_call[0] is not spec:
            cached_call = self._calls[spec.id] = (spec, InterceptedCall(spec, handler, self.installed))
        return cached_call[1]

    def remote(self, operation_id: str, type: OperationType, handler: Handler) -> "InterceptedCall":
        """Wrap every interceptor around one call of an operation at a peer.

        Raises:
            CallError: OPERATION_NOT_FOUND, if the id is invalid.
        """
        return InterceptedCall(remote_spec(operation_id, type), handler, self.installed)

    def around(self, spec: OperationSpec, handler: Handler) -> "InterceptedCall | None":
        """Wrap every interceptor around an operation's handler; return None without interceptors."""
        return InterceptedCall(spec, handler, self.installed) if self.installed else None


def remote_spec(operation_id: str, type: OperationType) -> OperationSpec:
    """Return the spec of an operation at a peer, for interceptors: its id and type.

    Raises:
        CallError: OPERATION_NOT_FOUND, if the id is invalid.
    """
    try:
        namespace, name = split_id(operation_id)
        return OperationSpec(namespace=namespace, name=name, type=type)
    except RegistrationError as error:
        raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"Operation not found: {operation_id[:200]}") from error


class InterceptedCall:
    """One operation with interceptors around it."""

    def __init__(self, spec: OperationSpec, handler: Handler, interceptors: list[Interceptor]) -> None:
        self._operation_id = spec.id
        self._pipeline = ResultPipeline(spec, normalize="off", strip=False)  # for results that are not envelopes yet
        for interceptor in reversed(interceptors):
            handler = interceptor(spec, handler)
        self._handler = handler

    async def execute(self, input: Any, context: Context) -> ResponseEnvelope[Any]:
        """Call a query or mutation.

        Raises:
            CallError: the call failed, or an interceptor rejected it.
        """
        try:
            result = self._handler(input, context)
            return self._envelope(await result if inspect.isawaitable(result) else result)
        except FAILURES as error:
            fail(error, self._operation_id)

    async def subscribe(self, input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Return the envelopes of a subscription, one per item.

        Raises:
            CallError: the call failed, or an interceptor rejected it.
        """
        items: Any = None
        try:
            items = self._handler(input, context)
            if inspect.isawaitable(items):
                items = await items
            async for item in items:
                yield self._envelope(item)
        except FAILURES as error:
            fail(error, self._operation_id)
        finally:
            await close_stream(items, self._operation_id)

    def _envelope(self, result: Any) -> ResponseEnvelope[Any]:
        is_envelope = type(result) is ResponseEnvelope
        return cast("ResponseEnvelope[Any]", result) if is_envelope else self._pipeline.envelope(result)
