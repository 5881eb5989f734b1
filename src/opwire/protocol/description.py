"""Descriptions of servers and their operations, as they are encoded for discovery."""

from functools import partial
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

from msgspec import UNSET, Struct, UnsetType, field, json
from msgspec.structs import replace

from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.model.access import AccessControl
from opwire.model.operation import NormalizeMode, OperationSpec, OperationType, split_id
from opwire.observe.monitor import Statistics
from opwire.protocol.events import CallAborted, CallAnswer, CallCredit, CallRequested
from opwire.protocol.transport import Address
from opwire.schema import Schema
from opwire.schema.dialect import dialect_of
from opwire.typed import convert


class ServerInfo(Struct, rename="camel", kw_only=True):
    """A server. `id` changes with every start, `started` is in epoch milliseconds. A peer may omit all but `id`."""

    id: str
    name: str = ""
    version: str = ""
    started: int = 0
    status: Literal["serving", "draining"] = "serving"
    in_flight: int = 0
    """Calls in flight."""


class OperationInfo(Struct, rename="camel", kw_only=True):
    """An operation of a server. The schema `true` means unknown. A peer may omit everything but `id` and `type`."""

    id: str
    type: OperationType
    title: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    version: str = ""
    input_schema: dict[str, Any] | bool = True
    output_schema: dict[str, Any] | bool = True
    access: AccessControl | None = None
    resumable: bool | UnsetType = UNSET  # true, or omitted
    statistics: Statistics = field(default_factory=Statistics)

    @classmethod
    def of(cls, spec: OperationSpec, statistics: Statistics) -> "OperationInfo":
        """Return the description of an operation."""
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
            resumable=spec.resumable or UNSET,
            statistics=statistics,
        )

    @classmethod
    def read(cls, data: Any) -> "OperationInfo":
        """Parse the description of a peer. Null counts as absent, and the type may be in upper case.

        Raises:
            CallError: VALIDATION_ERROR.
        """
        if isinstance(data, dict):
            data = {name: value for name, value in cast("dict[str, Any]", data).items() if value is not None}
            if isinstance(data.get("type"), str):  # the seeds write QUERY
                data["type"] = data["type"].lower()
        try:
            return convert(data, cls)
        except ConversionError as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"invalid description of an operation: {error}") from error

    def plain(self) -> dict[str, Any]:
        """Return the description as JSON data. Its schemas are not copied, which would take most of the time."""
        small = json.decode(json.encode(replace(self, input_schema=True, output_schema=True)))
        return {**small, "inputSchema": self.input_schema, "outputSchema": self.output_schema}

    def fingerprint(self) -> "Fingerprint":
        """Return a digest by which two descriptions can be compared; statistics are ignored."""
        encoded = json.encode(replace(self, statistics=Statistics()))
        return Fingerprint(sha256(encoded).hexdigest(), len(encoded))

    def spec(self, normalize: NormalizeMode | None = None, *, compact: bool = False) -> OperationSpec:
        """Return the spec of the operation, for a local registry.

        `compact` keeps schemas encoded and decodes them lazily: an eighth of the memory, and nothing for the garbage
        collector to traverse, which takes half of the time when thousands of operations are loaded.

        Raises:
            RegistrationError, SchemaError: the description is invalid.
        """
        namespace, name = split_id(self.id)
        schema = _lazy_schema if compact else Schema
        return OperationSpec(
            namespace=namespace,
            name=name,
            type=self.type,
            title=self.title,
            description=self.description,
            tags=self.tags,
            version=self.version,
            input_schema=schema(self.input_schema),
            output_schema=schema(self.output_schema),
            access=self.access,
            resumable=self.resumable is True,
            normalize=normalize,
        )


def _lazy_schema(json_schema: dict[str, Any] | bool) -> Schema:
    schema = Schema.deferred(partial(json.decode, json.encode(json_schema)))
    schema.dialect = dialect_of(json_schema)
    return schema


class Fingerprint(NamedTuple):
    """The digest of a description, and its encoded size in bytes."""

    digest: str
    size: int


class Unchanged(Struct):
    """An item of `opwire.operations` that lists the operations that the caller has cached."""

    unchanged: list[str]


class Description(Struct, frozen=True):
    """A server with all its operations, regardless of access control."""

    server: ServerInfo
    operations: list[OperationInfo]


@runtime_checkable
class Describing(Protocol):
    """A receiver that can describe its server, for transports with discovery tools of their own."""

    def describe(self) -> Description | None:
        """Return the description, or None if nothing is served."""
        ...


class RequestHandler(Protocol):
    """Handles the requests that arrive at a `PendingRequestMap`; implemented by `CallHandler`."""

    def requested(self, event: CallRequested, caller: Address) -> None: ...
    def granted(self, event: CallCredit, caller: Address) -> None: ...
    def answered(self, event: CallAnswer, caller: Address) -> None: ...
    def aborted(self, event: CallAborted, caller: Address) -> None: ...
    def describe(self) -> Description | None: ...
