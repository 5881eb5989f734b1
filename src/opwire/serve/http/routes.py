"""An operation seen from its path: by which methods it is called, and how a request becomes its input."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from msgspec import UNSET

from opwire.errors import CallError, ErrorCode
from opwire.operation import OperationSpec, OperationType
from opwire.serve.door import Receive
from opwire.serve.http.document import takes_get
from opwire.serve.http.flat import Parameter, parameter_of, parameters_of, read_query, typed
from opwire.serve.http.request import Request

READS = frozenset({"GET", "HEAD"})


class Route(NamedTuple):
    """What is known of an operation's path."""

    spec: OperationSpec
    methods: tuple[str, ...]
    parameters: Mapping[str, Parameter] | None  # of a query string, where it can be called by one
    resume: Parameter | None  # the id of the last event, where the operation takes it

    @classmethod
    def of(cls, spec: OperationSpec) -> "Route":
        """The route of an operation."""
        parameters = parameters_of(spec.input_schema) if takes_get(spec) else None
        reads = () if parameters is None else ("GET",) if spec.type is OperationType.SUBSCRIPTION else ("GET", "HEAD")
        return cls(spec, (*reads, "POST"), parameters, parameter_of(spec.input_schema, "last_event_id"))

    async def input(self, request: Request, receive: Receive) -> Any:
        """The input that a request gives.

        Raises:
            Refusal, CallError: it cannot be read.
        """
        if self.parameters is not None and request.method in READS:
            return read_query(self.parameters, request.query)
        body = await request.json(receive)
        takes_object = self._takes_object()
        if body is None and takes_object:  # None stands for no arguments, which `null` is not
            raise self._wrong('the value is not of type "object"')
        if body is UNSET and not takes_object and not self.spec.input_schema.is_unknown:
            raise self._wrong("there is no body")  # the document says that it is required, also where it may be null
        return None if body is UNSET else body

    def resumed(self, input: Any, last_event_id: str | None) -> Any:
        """The input of a subscription that goes on behind an event, unless the input itself says behind which."""
        if self.resume is None or last_event_id is None or not (input is None or isinstance(input, dict)):
            return input
        given = cast("dict[str, Any]", input or {})
        return {"last_event_id": typed(last_event_id, self.resume.kinds), **given}

    def _takes_object(self) -> bool:
        json = self.spec.input_schema.json
        return isinstance(json, dict) and json.get("type") == "object"

    def _wrong(self, message: str) -> CallError:
        details = {"problems": [{"path": "", "message": message}]}
        return CallError(ErrorCode.VALIDATION_ERROR, f"{self.spec.id}: the input: {message}", details)
