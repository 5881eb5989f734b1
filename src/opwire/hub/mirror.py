"""What others serve, shown in a registry of ours: with their schemas, and handlers that pass calls on.

So that remote operations are listed, described, checked and served outward like local ones.
"""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from msgspec import Struct, field

from opwire.call import Address, OperationInfo, PendingRequestMap
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Handler, OperationSpec, OperationType, split_id
from opwire.registry import OperationRegistry
from opwire.schema import Schema


class _Shown(Struct):
    info: OperationInfo
    peers: dict[Address, None] = field(default_factory=dict[Address, None])


class Mirror:
    """Operations of peers in a registry. An operation is shown as long as one of them serves it."""

    def __init__(self, registry: OperationRegistry, calls: PendingRequestMap) -> None:
        self._registry = registry
        self._calls = calls
        self._shown: dict[str, _Shown] = {}

    def __contains__(self, operation_id: str) -> bool:
        """Whether an operation is served by others, and only shown here."""
        return operation_id in self._shown

    def show(self, peer: Address, operations: Iterable[OperationInfo]) -> None:
        """A peer serves these operations, too: all of them are shown, or none.

        Raises:
            CallError: VALIDATION_ERROR, if one is served here with other schemas, or is an operation of this registry.
        """
        operations = list(operations)
        for info in operations:
            self._check(info)
        for info in operations:
            shown = self._shown.get(info.id)
            if shown is None:
                shown = self._shown[info.id] = _Shown(info)
                self._registry.register(_spec(info), self._handler(info))
            shown.peers[peer] = None

    def hide(self, peer: Address, operation_ids: Iterable[str] | None = None) -> None:
        """A peer serves these operations no longer, or (None) none at all."""
        for operation_id in list(self._shown if operation_ids is None else operation_ids):
            shown = self._shown.get(operation_id)
            if shown is not None and shown.peers.pop(peer, self) is None and not shown.peers:
                del self._shown[operation_id]
                self._registry.unregister(operation_id)

    def _check(self, info: OperationInfo) -> None:
        shown = self._shown.get(info.id)
        if shown is None:
            if self._registry.get_spec(info.id) is not None:
                raise _disagreement(f"{info.id} is an operation of the hub itself: serve it under another name")
            return
        for what in ("type", "input_schema", "output_schema"):
            if getattr(shown.info, what) != getattr(info, what):
                others = f"{info.id} is served by others with another {what.replace('_', ' ')}"
                raise _disagreement(f"{others}: serve the same version, or another name")

    def _handler(self, info: OperationInfo) -> Handler:
        calls, operation_id = self._calls, info.id

        async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
            return await calls.call(operation_id, input, context.child())

        async def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
            async for item in calls.subscribe(operation_id, input, context.child()):
                yield item

        return stream if info.type is OperationType.SUBSCRIPTION else call


def _spec(info: OperationInfo) -> OperationSpec:
    """What the registry shows. Its results were normalised where they were made."""
    namespace, name = split_id(info.id)
    return OperationSpec(
        namespace=namespace,
        name=name,
        type=info.type,
        title=info.title,
        description=info.description,
        tags=info.tags,
        version=info.version,
        input_schema=Schema(info.input_schema),
        output_schema=Schema(info.output_schema),
        access=info.access,
        normalize="off",
    )


def _disagreement(message: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, message)
