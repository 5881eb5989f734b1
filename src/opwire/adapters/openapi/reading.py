"""From a document to operations: what each is called, what kind it is, and its plan when it is first needed."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct

from opwire.adapters.openapi.endpoints import Endpoint, endpoints, summary_of
from opwire.adapters.openapi.inputs import InputReader, Inputs
from opwire.adapters.openapi.names import Wish, distinct, name_from_path, namespace_from, stream_name, usable_name
from opwire.adapters.openapi.needs import needs_of
from opwire.adapters.openapi.outputs import OutputReader, Outputs, offers
from opwire.adapters.openapi.plan import Plan
from opwire.adapters.openapi.refs import Documents
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.schemas import Schemas
from opwire.adapters.openapi.servers import server_of
from opwire.adapters.openapi.shapes import mapping, text, texts
from opwire.errors import RegistrationError
from opwire.names import UniqueNames
from opwire.operation import NormalizeMode, OperationSpec, OperationType, split_id
from opwire.origin import ORIGIN_EXTENSION, Origin, read_origin
from opwire.schema import JSONSchema, Schema

_READS = frozenset({"GET", "HEAD", "QUERY"})


class ReadOptions(Struct, frozen=True, kw_only=True):
    """What the user wants of a document; see `from_openapi`."""

    namespace: str | None = None
    base_url: str | None = None
    server_variables: Mapping[str, str] = {}
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    normalize: NormalizeMode | None = None
    strip: bool = False
    trust_annotations: bool = False
    unchecked_input: bool = False


class API(NamedTuple):
    """A loaded document with what is shared by all its operations."""

    documents: Documents
    schemas: Schemas
    report: Report
    options: ReadOptions


class ReadOperation:
    """One operation. Its plan and schemas are read when they are first asked for.

    `streams` is as `InputReader` has it; None also for an operation that does nothing else than stream.
    """

    def __init__(
        self, api: API, endpoint: Endpoint, namespace: str, name: str, *, kind: OperationType, streams: bool | None
    ) -> None:
        self._api = api
        self._endpoint = endpoint
        self._streams = streams
        self._origin = origin_of(endpoint, api.options)
        self.input_schema = Schema.deferred(self._input_schema)
        self.output_schema = Schema.deferred(self._output_schema)
        self.spec = self._spec(namespace, name, kind)

    def _spec(self, namespace: str, name: str, kind: OperationType) -> OperationSpec:
        title, description = summary_of(self._endpoint)
        options, origin = self._api.options, self._origin
        return OperationSpec(
            namespace=namespace,
            name=name,
            type=kind,
            title=title,
            description=description,
            tags=origin.tags if origin else tuple(texts(self._endpoint.operation.value.get("tags"))),
            version=origin.version if origin else "",
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            normalize=options.normalize,
            strip=options.strip,
            unchecked_input=options.unchecked_input,
            timeout=origin.timeout if origin else None,
            idle_timeout=origin.idle_timeout if origin else None,
            examples=origin.examples if origin else (),
        )

    @cached_property
    def plan(self) -> Plan:
        """What has to be known to call it."""
        api, endpoint = self._api, self._endpoint
        server = server_of(endpoint, api.documents, api.options.server_variables, api.report)
        return Plan(
            operation_id=self.spec.id,
            method=endpoint.method,
            path=endpoint.path,
            server=server,
            base_url=api.options.base_url,
            parameters=self._inputs.parameters,
            body=self._inputs.body,
            responses=self._outputs.responses,
            security=needs_of(endpoint, api.documents, api.report),
            accept=self._outputs.accept,
            stream=self._outputs.stream,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            files=self._inputs.files,
        )

    @cached_property
    def _inputs(self) -> Inputs:
        api = self._api
        reader = InputReader(self._endpoint, api.documents, api.schemas, api.report, streams=self._streams)
        return (reader.whole() if self._origin else None) or reader.read()

    @cached_property
    def _outputs(self) -> Outputs:
        streams = self.spec.type is OperationType.SUBSCRIPTION
        return OutputReader(self._endpoint, self._api.documents, self._api.schemas, streams=streams).read(
            self.output_schema
        )

    def _input_schema(self) -> JSONSchema:
        return self._inputs.schema

    def _output_schema(self) -> JSONSchema:
        return self._outputs.schema()


def origin_of(endpoint: Endpoint, options: ReadOptions) -> Origin | None:
    """Return what another opwire says of its operation; None unless the document is trusted to say it.

    Everything in it gives authority or replaces what the document says in HTTP's own terms: a type that makes a DELETE
    a query, which is then served as GET and shown as read-only; the namespace and name of another source's operation;
    timeouts. So an untrusted document is read as if the extension were not there.
    """
    own = endpoint.operation.value
    return read_origin(own, ORIGIN_EXTENSION) if options.trust_annotations and ORIGIN_EXTENSION in own else None


def read_operations(documents: Documents, report: Report, options: ReadOptions) -> list[ReadOperation]:
    """Every operation of a document that is wanted, in its order."""
    api = API(documents, Schemas(documents, report), report, options)
    found = _without_copies(endpoints(documents, report), report, options)
    wanted = [each for each in found if _is_wanted(each, options)]
    names = distinct(_wish(each, options) for each in wanted)
    taken = UniqueNames(names.values())
    title = mapping(documents.main.root.get("info")).get("title")
    namespace = options.namespace or namespace_from(title)
    operations: list[ReadOperation] = []
    for endpoint in wanted:
        name = names[endpoint.method, endpoint.path]
        try:
            operations += _operations(api, endpoint, _home(endpoint, options, namespace), name, taken)
        except RegistrationError as error:
            report.skip(endpoint.method, endpoint.path, str(error))
    return operations


def _operations(api: API, endpoint: Endpoint, namespace: str, name: str, taken: UniqueNames) -> Iterator[ReadOperation]:
    """One operation, or two where it offers both plain answers and streams."""
    reads = OperationType.QUERY if endpoint.method in _READS else OperationType.MUTATION
    plain, streams = offers(endpoint, api.documents)
    origin = origin_of(endpoint, api.options)
    if origin is not None:
        yield ReadOperation(api, endpoint, namespace, name, kind=origin.type, streams=None)
    elif not streams:
        yield ReadOperation(api, endpoint, namespace, name, kind=reads, streams=None)
    elif not plain:
        yield ReadOperation(api, endpoint, namespace, name, kind=OperationType.SUBSCRIPTION, streams=True)
    else:
        yield ReadOperation(api, endpoint, namespace, name, kind=reads, streams=False)
        twin = taken.take(stream_name(name))
        yield ReadOperation(api, endpoint, namespace, twin, kind=OperationType.SUBSCRIPTION, streams=True)


def _without_copies(found: Iterable[Endpoint], report: Report, options: ReadOptions) -> list[Endpoint]:
    """Each method and path once; the path `a` is that of `/a`, and the method `GET` that of `get`.

    Another opwire serves some of its operations by GET too: the one that takes any input stays.
    """
    kept: dict[Any, Endpoint] = {}
    for endpoint in found:
        origin = origin_of(endpoint, options)
        key = (endpoint.method, endpoint.path) if origin is None else origin.id
        if origin is None and key in kept:
            report.skip(endpoint.method, endpoint.path, "the document has this method of this path twice")
        elif key not in kept or "requestBody" in endpoint.operation.value:
            kept[key] = endpoint
    return list(kept.values())


def _wish(endpoint: Endpoint, options: ReadOptions) -> Wish:
    origin = origin_of(endpoint, options)
    given = origin.id.partition(".")[2] if origin else usable_name(text(endpoint.operation.value.get("operationId")))
    name = given or name_from_path(endpoint.method, endpoint.path)
    return Wish(endpoint.method, endpoint.path, name, is_given=bool(given))


def _home(endpoint: Endpoint, options: ReadOptions, namespace: str) -> str:
    """The namespace of an operation: another opwire's own stays, unless the user gives one."""
    origin = origin_of(endpoint, options)
    return namespace if origin is None or options.namespace else split_id(origin.id)[0]


def _is_wanted(endpoint: Endpoint, options: ReadOptions) -> bool:
    if not options.include and not options.exclude:
        return True
    own = endpoint.operation.value
    known = [
        endpoint.path,
        f"{endpoint.method} {endpoint.path}",
        text(own.get("operationId")),
        *texts(own.get("tags")),
    ]
    return (not options.include or _matches(known, options.include)) and not _matches(known, options.exclude)


def _matches(known: list[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(each, pattern) for pattern in patterns for each in known)
