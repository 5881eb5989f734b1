"""What a serving end says about itself: plain data, as it travels."""

from functools import partial
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct, json
from msgspec.structs import replace

from opwire.operation import AccessControl, NormalizeMode, OperationSpec, OperationType, split_id
from opwire.schema import Schema
from opwire.schema.dialect import dialect_of


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

    def plain(self) -> dict[str, Any]:
        """Return the description as JSON data. Its schemas are not copied: most of the time would go there."""
        small = json.decode(json.encode(replace(self, input_schema=True, output_schema=True)))
        return {**small, "inputSchema": self.input_schema, "outputSchema": self.output_schema}

    def fingerprint(self) -> "Fingerprint":
        """Return what tells whether two descriptions are the same; statistics do not count."""
        encoded = json.encode(replace(self, statistics=Statistics()))
        return Fingerprint(sha256(encoded).hexdigest(), len(encoded))

    def spec(self, normalize: NormalizeMode | None = None, *, compact: bool = False) -> OperationSpec:
        """Return the operation as a registry here can show it.

        `compact` keeps its schemas as bytes until they are first used: an eighth of the memory, and nothing for the
        garbage collector to visit, which takes half of the time when thousands of operations are read.

        Raises:
            RegistrationError, SchemaError: the peer shows what is none.
        """
        namespace, name = split_id(self.id)
        made = _compact if compact else Schema
        return OperationSpec(
            namespace=namespace,
            name=name,
            type=self.type,
            title=self.title,
            description=self.description,
            tags=self.tags,
            version=self.version,
            input_schema=made(self.input_schema),
            output_schema=made(self.output_schema),
            access=self.access,
            normalize=normalize,
        )


def _compact(json_schema: dict[str, Any] | bool) -> Schema:
    encoded = json.encode(json_schema)
    schema = Schema.deferred(partial(json.decode, encoded))
    schema.dialect = dialect_of(json_schema)
    return schema


class Fingerprint(NamedTuple):
    """The digest of a description, and its size in bytes."""

    digest: str
    size: int


class Unchanged(Struct):
    """Operations whose descriptions the asker has already: an item of `opwire.operations` in their place."""

    unchanged: list[str]


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
