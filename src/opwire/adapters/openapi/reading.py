"""From a document to operations: what each is called, what kind it is, and its plan when it is first needed.

The address of an API: what the document says, its variables filled, read against the document's own address.

What an operation asks of credentials: the document's security schemes and requirements as `Need`s.

Names of operations, readable and stable: they depend on what an operation is, not on where it stands.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from opwire.adapters.openapi.document import Documents, joined, mapping, sequence, text, texts
from opwire.adapters.openapi.endpoints import VARIABLE, Endpoint, endpoints, summary_of
from opwire.adapters.openapi.inputs import InputReader, Inputs, OutputReader, Outputs, offers
from opwire.adapters.openapi.plan import Need, Plan, Scheme
from opwire.adapters.openapi.schemas import Schemas
from opwire.adapters.report import Report
from opwire.errors import RegistrationError, SchemaError
from opwire.names import UniqueNames
from opwire.operation import NormalizeMode, OperationSpec, OperationType, split_id
from opwire.origin import ORIGIN_EXTENSION, Origin, read_origin
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import escaped

_MAX_ADDRESS = 8 * 1024  # characters, with its variables filled
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def server_of(endpoint: Endpoint, documents: Documents, variables: Mapping[str, str], report: Report) -> str:
    """The address that the paths of an operation are below; relative where nothing says more."""
    root = documents.main.root
    if documents.version == "2.0":
        return _from_swagger(endpoint, root, documents.main.uri)
    for owner in (endpoint.operation.value, endpoint.item.value, root):
        for server in sequence(owner.get("servers")):
            fields = mapping(server)
            if isinstance(fields.get("url"), str):
                return _absolute(_filled(fields, variables, report), documents.main.uri)
    return _absolute("/", documents.main.uri)


def _filled(server: dict[str, Any], given: Mapping[str, str], report: Report) -> str:
    """The address with its variables; one that has no value at all stays, and the first call says so."""
    declared = mapping(server.get("variables"))
    left = _MAX_ADDRESS

    @cache
    def value_of(name: str) -> str:
        variable = mapping(declared.get(name))
        choices = texts(variable.get("enum"))
        if name in given:
            if choices and str(given[name]) not in choices:
                report.warn(f"the server variable {name!r} is one of {', '.join(choices[:10])}, not {given[name]!r}")
            return str(given[name])
        default = variable.get("default")
        if isinstance(default, str | int | float):
            return text(default)
        return choices[0] if choices else f"{{{name}}}"

    def value(found: re.Match[str]) -> str:
        nonlocal left
        left -= len(value_of(found[1]))
        return value_of(found[1]) if left >= 0 else ""

    address = VARIABLE.sub(value, server["url"].strip())
    if left < 0 or len(address) > _MAX_ADDRESS:
        report.warn(f"the server's address has more than {_MAX_ADDRESS:,} characters: it is not used")
        return "/"
    return address


def _absolute(address: str, base: str) -> str:
    if _ABSOLUTE.match(address) or not base.startswith(("http://", "https://")):
        return address
    return joined(base, address or "/")


def _from_swagger(endpoint: Endpoint, root: dict[str, Any], base: str) -> str:
    home = urlsplit(base) if base.startswith(("http://", "https://")) else None
    host = text(root.get("host")).strip() or (home.netloc if home else "")
    path = "/" + text(root.get("basePath")).strip().strip("/")
    if not host:
        return path
    schemes = texts(endpoint.operation.value.get("schemes")) or texts(root.get("schemes"))
    usual = [each for each in ("https", "http") if each in schemes]
    scheme = usual[0] if usual else home.scheme if home else "https"
    return f"{scheme}://{host}{path}"


def needs_of(endpoint: Endpoint, documents: Documents, report: Report) -> tuple[tuple[Need, ...], ...]:
    """The alternatives of which one has to be met; the operation's own, else those of the whole document."""
    given = endpoint.operation.value.get("security", documents.main.root.get("security"))
    return tuple(
        tuple(
            Need(_scheme(name, documents, report), tuple(texts(scopes)))
            for name, scopes in mapping(alternative).items()
        )
        for alternative in sequence(given)
    )


def _scheme(name: str, documents: Documents, report: Report) -> Scheme:
    place = "securityDefinitions" if documents.version == "2.0" else "components/securitySchemes"
    try:
        found = documents.follow({"$ref": f"#/{place}/{escaped(name)}"}, documents.main)
        if fields := mapping(found.value):
            return _read(name, fields)
    except SchemaError:
        pass
    report.warn(f"the security scheme {name!r} is not declared")
    return Scheme(name=name, kind="other", said="not declared")


def _read(name: str, fields: dict[str, Any]) -> Scheme:
    kind, http = text(fields.get("type")), text(fields.get("scheme")).lower()
    match kind, fields.get("in"), http:
        case "apiKey", "header" | "query" | "cookie" as location, _:
            return Scheme(name=name, kind="apiKey", location=location, parameter=text(fields.get("name")))
        case "basic", _, _:  # as Swagger 2.0 says it
            return Scheme(name=name, kind="basic")
        case "http", _, "basic" | "bearer":
            return Scheme(name=name, kind="basic" if http == "basic" else "bearer")
        case "oauth2", _, _:
            return Scheme(name=name, kind="oauth2", token_url=_token_url(fields))
        case "openIdConnect", _, _:
            return Scheme(name=name, kind="openIdConnect")
        case _:
            return Scheme(name=name, kind="other", said=f"{kind} {http}".strip() or "of no type")


def _token_url(fields: dict[str, Any]) -> str:
    """As the document writes it: a relative one belongs to where requests go, which the user may have fixed."""
    flow = mapping(mapping(fields.get("flows")).get("clientCredentials"))
    return text(flow.get("tokenUrl")) or (text(fields.get("tokenUrl")) if fields.get("flow") == "application" else "")


_OTHER = re.compile(r"[^0-9A-Za-z]+")
_MAX_NAME = 200
_STREAM = "_stream"


def namespace_from(title: object) -> str:
    """A namespace from the title of an API: "Swagger Petstore - OpenAPI 3.0" is `swagger_petstore_openapi_3_0`."""
    words = _OTHER.sub("_", str(title)).strip("_").lower() if isinstance(title, str) else ""
    return words[:_MAX_NAME] or "api"


def name_from_path(method: str, path: str) -> str:
    """The name of an operation that has none: `get_pets_petId` for GET /pets/{petId}."""
    words = _OTHER.sub("_", path).strip("_")
    return f"{method.lower()}_{words}"[:_MAX_NAME] if words else method.lower()


def usable_name(operation_id: str) -> str:
    """The operation's own id, without what no name may hold; "" where nothing is left."""
    name = operation_id.strip()[:_MAX_NAME]
    return name if name.isprintable() else "".join(each if each.isprintable() else "_" for each in name)


class Wish(NamedTuple):
    """The name that an operation would like to have. One that the document gives goes before one that opwire made."""

    method: str
    path: str
    name: str
    is_given: bool


def distinct(wishes: Iterable[Wish]) -> dict[tuple[str, str], str]:
    """Names by method and path, no two alike.

    Of those that wish for the same name the one with the smallest path and method gets it. The others get theirs with
    method and path behind it, so that the order of the document does not matter.
    """
    names: dict[tuple[str, str], str] = {}
    first: set[str] = set()
    refused: list[Wish] = []
    for wish in sorted(wishes, key=lambda each: (not each.is_given, each.path, each.method)):
        if wish.name in first:
            refused.append(wish)
        else:
            first.add(wish.name)
            names[wish.method, wish.path] = wish.name
    free = UniqueNames(first, longest=_MAX_NAME)
    for method, path, name, is_given in refused:
        longer = f"{name}_{name_from_path(method, path)}" if is_given else name
        names[method, path] = free.take(longer)
    return names


def stream_name(name: str) -> str:
    """Return the name of the streaming form of an operation."""
    return name[: _MAX_NAME - len(_STREAM)] + _STREAM


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
