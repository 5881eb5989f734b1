"""What a serving end says about itself: plain data, as it travels."""

from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from opwire.operation import AccessControl, NormalizeMode, OperationSpec, OperationType, split_id
from opwire.schema import Schema


class Statistics(Struct, rename="camel"):
    """How an operation has been doing since its server started. Of errors the latest code is kept, and no text."""

    calls: int = 0
    errors: int = 0
    last_error: str | None = None
    seconds: float = 0.0
    """Time spent in handlers, altogether."""


class ServerInfo(Struct, rename="camel", kw_only=True):
    """A serving end. `id` is made anew at every start, `started` is in epoch milliseconds."""

    id: str
    name: str
    version: str
    started: int
    status: Literal["serving", "draining"]
    in_hand: int
    """Calls that are being answered at the moment."""


class OperationInfo(Struct, rename="camel", kw_only=True):
    """An operation of a serving end. The schema `true` says that nothing is known."""

    id: str
    type: OperationType
    title: str
    description: str
    tags: tuple[str, ...]
    version: str
    input_schema: dict[str, Any] | bool
    output_schema: dict[str, Any] | bool
    access: AccessControl | None
    statistics: Statistics

    @classmethod
    def of(cls, spec: OperationSpec, statistics: Statistics) -> "OperationInfo":
        """What there is to say about an operation."""
        return cls(
            id=spec.id,
            type=spec.type,
            title=spec.title,
            description=spec.description,
            tags=spec.tags,
            version=spec.version,
            input_schema=spec.input_schema.json,
            output_schema=spec.output_schema.json,
            access=spec.access,
            statistics=statistics,
        )

    def spec(self, normalize: NormalizeMode | None = None) -> OperationSpec:
        """The operation as a registry here can show it.

        Raises:
            RegistrationError, SchemaError: the peer shows what is none.
        """
        namespace, name = split_id(self.id)
        return OperationSpec(
            namespace=namespace,
            name=name,
            type=self.type,
            title=self.title,
            description=self.description,
            tags=self.tags,
            version=self.version,
            input_schema=Schema(self.input_schema),
            output_schema=Schema(self.output_schema),
            access=self.access,
            normalize=normalize,
        )


class Description(Struct, frozen=True):
    """A serving end with all its operations, whoever asks."""

    server: ServerInfo
    operations: list[OperationInfo]


@runtime_checkable
class Describing(Protocol):
    """A receiver that can say what is served behind it: for transports whose own tools want to know."""

    def describe(self) -> Description | None:
        """What is served; None if nothing is."""
        ...
