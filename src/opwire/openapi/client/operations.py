"""Operations of a document: their names, types, servers and security, and the call plan, built lazily.

Names are readable and stable: they depend on the operation, not on its position in the document.

Response schemas of an operation: by status and content type, and one for all.

The schema for all is that of the successful response, in JSON if there is a choice; a union of several that differ. The
result of a call is validated against the schema of its actual status and content type.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from opwire.errors import RegistrationError
from opwire.model.mcp_presentation import Annotations, MCPPresentation
from opwire.model.operation import NormalizeMode, OperationSpec, OperationType, is_own, split_id
from opwire.model.origin import ORIGIN_EXTENSION, Origin, read_origin
from opwire.names import UniqueNames, similar_names, suggestion
from opwire.openapi.client.document import DocumentSet, Located, as_text, as_texts, join_uri
from opwire.openapi.client.endpoints import (
    VARIABLE,
    HTTPEndpoint,
    MediaContent,
    accept_header,
    endpoints,
    is_any,
    is_text,
    preferred,
    success_contents,
)
from opwire.openapi.client.inputs import InputReader, OperationInput
from opwire.openapi.client.plan import CallPlan, ResponseMedia, SecurityRequirement, StreamKind, media_type
from opwire.openapi.client.schemas import RewrittenSchema, SchemaRewriter
from opwire.openapi.client.security import security_requirements
from opwire.registry.source import Report
from opwire.runtime.text import get_logger, harmless
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.typed.plain import as_dict, as_list, json_form, write_json

logger = get_logger("opwire.openapi.client")

# What HTTP says about its methods (RFC 9110, 9.2).
_MCP_PRESENTATIONS = {
    "DELETE": MCPPresentation(annotations=Annotations(destructive=True, idempotent=True)),
    "PUT": MCPPresentation(annotations=Annotations(idempotent=True)),
}

_EVENT_FIELDS = frozenset({"event", "data", "id", "retry"})
_MAX_UNION_DEPTH = 3  # where an event is searched
_MAX_SEARCHED_SCHEMAS = 5_000
_ENCODER = msgspec.json.Encoder(order="deterministic", enc_hook=json_form)
_NULL: JSONSchema = {"type": "null"}


class OperationOutput(NamedTuple):
    """The responses of an operation. `schema` builds the one for all."""

    responses: dict[str, tuple[ResponseMedia, ...]]
    schema: Callable[[], JSONSchema]
    accept: str
    stream: StreamKind | None


def response_kinds(endpoint: HTTPEndpoint, documents: DocumentSet) -> tuple[bool, bool]:
    """Return whether an operation has plain responses, and whether it has streams."""
    contents = success_contents(endpoint, documents).values()
    streams = [media_type(media.content_type).stream is not None for content in contents for media in content]
    return not all(streams), any(streams)


class OutputReader(Struct, eq=False):
    """Reads the responses of one operation: either streams or plain ones."""

    endpoint: HTTPEndpoint
    documents: DocumentSet
    schemas: SchemaRewriter
    streams: bool

    def read(self, output_schema: Schema) -> OperationOutput:
        """Return the responses. `output_schema` is the operation's own, shared with the response that it comes from."""
        if self.endpoint.method == "HEAD":
            return OperationOutput({}, lambda: _NULL, "*/*", None)
        contents = {
            status: [media for media in types if bool(media_type(media.content_type).stream) is self.streams]
            for status, types in success_contents(self.endpoint, self.documents).items()
        }
        preferred_by_status = {status: preferred(types) for status, types in contents.items()}
        only = next(iter(preferred_by_status.values()), None) if len(preferred_by_status) == 1 else None
        responses = {
            status: tuple(self._media(media, output_schema if media is only else None) for media in types)
            for status, types in contents.items()
        }
        first_media = next((media for media in preferred_by_status.values() if media is not None), None)

        def overall() -> JSONSchema:
            usable_media = [media for media in preferred_by_status.values() if media is not None or not self.streams]
            rewritten = [
                RewrittenSchema(_NULL, set()) if media is None else self._schema(media) for media in usable_media
            ]
            if not rewritten or any(schema.schema is True or schema.schema == {} for schema in rewritten):
                return True
            return self.schemas.complete(_union(rewritten), "output")

        return OperationOutput(
            responses=responses,
            schema=overall,
            accept=accept_header(
                [media.content_type for media in preferred_by_status.values() if media is not None],
                [media.content_type for types in contents.values() for media in types],
            ),
            stream=media_type(first_media.content_type).stream if self.streams and first_media is not None else None,
        )

    def _media(self, content: MediaContent, schema: Schema | None) -> ResponseMedia:
        if schema is None:
            is_declared = not {"schema", "itemSchema"}.isdisjoint(content.fields.value)
            schema = UNKNOWN
            if is_declared:
                schema = Schema.deferred(
                    lambda: self.schemas.complete(self._schema(content), "output"), family=self.schemas.outputs
                )
        kind, (fields, home) = media_type(content.content_type), content.fields
        root = self.schemas.xml_root(fields.get("schema"), home) if kind.is_xml else None
        xml = None if root is None else root.node
        return ResponseMedia(content_type=content.content_type, schema=schema, stream=kind.stream, xml=xml)

    def _schema(self, content: MediaContent) -> RewrittenSchema:
        """Return the schema of a response; of a stream, that of one item."""
        fields, home = content.fields
        kind, where = media_type(content.content_type), f"{self.endpoint}, the response"
        if kind.stream:
            item = Located(fields.get("itemSchema", fields.get("schema", {})), home)
            target = self.schemas.resolve(*item)
            if "itemSchema" not in fields and target.value.get("type") == "array":  # of all items
                item = Located(target.value.get("items", {}), target.document)
            data = (self._event_data(item, count()) or []) if kind.stream == "sse" else []
            return _union([self.schemas.read(*located_data, "output", where) for located_data in data or [item]])
        schema = fields.get("schema")
        node = self.schemas.resolve(schema, home).value
        is_string = node.get("type") == "string" and node.get("format") != "binary"
        is_data = kind.is_json or is_any(kind.name) or (is_text(kind.name) and is_string)
        is_data = is_data or (kind.is_xml and self.schemas.xml_root(schema, home) is not None)
        if schema is None or not is_data or node.get("type") == "file":
            return RewrittenSchema(True, set())
        return self.schemas.read(schema, home, "output", where)

    def _event_data(self, schema: Located, seen: "count[int]", depth: int = 0) -> list[Located] | None:
        """Return the schemas of an event's data; None if the schema does not describe whole events.

        `seen` counts schemas: branches that refer to each other multiply at each depth.
        """
        node, home = self.schemas.resolve(*schema)
        branches = [*as_list(node.get("oneOf")), *as_list(node.get("anyOf"))]
        if next(seen) > _MAX_SEARCHED_SCHEMAS:
            return None
        if branches and depth < _MAX_UNION_DEPTH:
            data_schemas: list[Located] = []
            for branch in branches:
                data = self._event_data(Located(branch, home), seen, depth + 1)
                if data is None:
                    break
                data_schemas += data
            else:
                return data_schemas
        properties = as_dict(node.get("properties"))
        if "data" not in properties or not _EVENT_FIELDS.issuperset(properties):
            return None
        data = self.schemas.resolve(properties["data"], home)
        if "contentSchema" in data.value:
            return [Located(data.value["contentSchema"], data.document)]
        return [Located(properties["data"], home)]


def _union(rewritten: list[RewrittenSchema]) -> RewrittenSchema:
    # By their JSON: comparing each one with the others took 0.4 s for 2,000 events.
    distinct_schemas = list({write_json(_ENCODER, schema.schema): schema.schema for schema in rewritten}.values())
    schema = distinct_schemas[0] if len(distinct_schemas) == 1 else {"anyOf": distinct_schemas}
    return RewrittenSchema(schema, {name for schema in rewritten for name in schema.uses})


_READS = frozenset({"GET", "HEAD", "QUERY"})


class ReadOptions(Struct, frozen=True, kw_only=True):
    """Options for reading a document; see `from_openapi`."""

    namespace: str | None = None
    base_url: str | None = None
    server_variables: Mapping[str, str] = {}
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    normalize: NormalizeMode | None = None
    strip: bool = False
    trust_annotations: bool = False
    unchecked_input: bool = False
    strict_input: bool = False

    @property
    def relaxes_inputs(self) -> bool:
        """Whether inputs are relaxed: the document of another opwire, which is trusted, does not contradict itself."""
        return not (self.strict_input or self.trust_annotations)


class APIDescription(NamedTuple):
    """A loaded document, and what all its operations share."""

    documents: DocumentSet
    schemas: SchemaRewriter
    report: Report
    options: ReadOptions

    def origin_of(self, endpoint: HTTPEndpoint) -> Origin | None:
        """Return the `x-opwire` extension of another opwire's operation; None unless the document is trusted.

        The extension grants authority and overrides the document's HTTP terms: a type that makes a DELETE a query,
        which is then served as GET and marked as read-only; namespace and name of another source's operation;
        timeouts. So it is ignored in an untrusted document.
        """
        operation = endpoint.operation.value
        is_trusted = self.options.trust_annotations and ORIGIN_EXTENSION in operation
        return read_origin(operation, ORIGIN_EXTENSION) if is_trusted else None


class LazyOperation:
    """One operation. Its schemas and its call plan are built lazily.

    `streams` is as in `InputReader`; None also for an operation that only streams.
    """

    def __init__(
        self,
        api: APIDescription,
        endpoint: HTTPEndpoint,
        namespace: str,
        name: str,
        *,
        kind: OperationType,
        streams: bool | None,
    ) -> None:
        self._api = api
        self._endpoint = endpoint
        self._streams = streams
        self._origin = origin = api.origin_of(endpoint)
        checks_formats = not api.options.relaxes_inputs and not (origin is not None and origin.loose_formats)
        input_schema = Schema.deferred(lambda: self._input.schema, checks_formats=checks_formats)
        outputs = api.schemas.outputs
        output_schema = Schema.deferred(lambda: self._output.schema(), family=outputs)  # noqa: PLW0108 - lazily
        operation = endpoint.operation.value
        title = "" if origin is not None and origin.untitled else as_text(operation.get("summary")).strip()
        description = as_text(operation.get("description")).strip() or title
        self.spec = OperationSpec(
            namespace=namespace,
            name=name,
            type=kind,
            title=title,
            description=description or as_text(endpoint.item.value.get("description")).strip(),
            tags=origin.tags if origin else tuple(as_texts(operation.get("tags"))),
            version=origin.version if origin else "",
            input_schema=input_schema,
            output_schema=output_schema,
            normalize=api.options.normalize,
            strip=api.options.strip,
            unchecked_input=api.options.unchecked_input,
            timeout=origin.timeout if origin else None,
            idle_timeout=origin.idle_timeout if origin else None,
            resumable=origin is not None and origin.resumable,
            examples=origin.examples if origin else (),
            mcp=_MCP_PRESENTATIONS.get(endpoint.method, MCPPresentation()) if origin is None else origin.mcp,
        )

    @cached_property
    def plan(self) -> CallPlan:
        """The call plan."""
        api, endpoint = self._api, self._endpoint
        return CallPlan(
            operation_id=self.spec.id,
            method=endpoint.method,
            path=endpoint.path,
            server=server_of(endpoint, api.documents, api.options.server_variables, api.report),
            base_url=api.options.base_url,
            parameters=self._input.parameters,
            body=self._input.body,
            responses=self._output.responses,
            security=self.security,
            accept=self._output.accept,
            stream=self._output.stream,
            file_paths=self._input.file_paths,
        )

    @cached_property
    def security(self) -> tuple[tuple[SecurityRequirement, ...], ...]:
        """The alternatives of which one has to be satisfied."""
        return security_requirements(self._endpoint, self._api.documents, self._api.report)

    @cached_property
    def _input(self) -> OperationInput:
        api = self._api
        places = {requirement.scheme.place for alternative in self.security for requirement in alternative}
        reader = InputReader(
            self._endpoint, api.documents, api.schemas, api.report, streams=self._streams, secret_places=places
        )
        return (reader.whole() if self._origin else None) or reader.read()

    @cached_property
    def _output(self) -> OperationOutput:
        api, streams = self._api, self.spec.type is OperationType.SUBSCRIPTION
        return OutputReader(self._endpoint, api.documents, api.schemas, streams=streams).read(self.spec.output_schema)


def read_operations(documents: DocumentSet, report: Report, options: ReadOptions) -> list[LazyOperation]:
    """Return the operations of a document that pass `include` and `exclude`, in its order."""
    api = APIDescription(
        documents, SchemaRewriter(documents, report, relax_inputs=options.relaxes_inputs), report, options
    )
    # Each method and path once; the path `a` equals `/a`, and the method `GET` equals `get`. Another opwire serves some
    # of its operations by GET too: the endpoint that accepts any input wins.
    endpoints_by_key: dict[Any, HTTPEndpoint] = {}
    for endpoint in endpoints(documents, report):
        origin = api.origin_of(endpoint)
        key = (endpoint.method, endpoint.path) if origin is None else origin.id
        if origin is None and key in endpoints_by_key:
            report.skip(endpoint.method, endpoint.path, "the document has this method and path twice")
        elif key not in endpoints_by_key or "requestBody" in endpoint.operation.value:
            endpoints_by_key[key] = endpoint
    selected_endpoints = [
        (endpoint, api.origin_of(endpoint)) for endpoint in _selected(list(endpoints_by_key.values()), options, report)
    ]
    candidates: list[NameCandidate] = []
    for endpoint, origin in selected_endpoints:
        own_id = as_text(endpoint.operation.value.get("operationId"))
        declared_name = origin.id.partition(".")[2] if origin else printable_name(own_id)
        name = declared_name or name_from_path(endpoint.method, endpoint.path)
        candidates.append(NameCandidate(endpoint.method, endpoint.path, name, is_given=bool(declared_name)))
    names = unique_names(candidates)
    operation_names = UniqueNames(names.values())
    default = namespace_of(documents, options)
    operations: list[LazyOperation] = []
    for endpoint, origin in selected_endpoints:
        try:
            namespace = default if origin is None or options.namespace else split_id(origin.id)[0]
            operations += _operations(api, endpoint, namespace, names[endpoint.method, endpoint.path], operation_names)
        except RegistrationError as error:
            report.skip(endpoint.method, endpoint.path, str(error))
    return operations


def _operations(
    api: APIDescription, endpoint: HTTPEndpoint, namespace: str, name: str, unique_names: UniqueNames
) -> Iterator[LazyOperation]:
    """Return one operation, or two for an endpoint with both plain responses and streams."""
    kind = OperationType.QUERY if endpoint.method in _READS else OperationType.MUTATION
    plain, streams = response_kinds(endpoint, api.documents)
    origin = api.origin_of(endpoint)
    if origin is not None or not streams:
        kind = kind if origin is None else origin.type
        yield LazyOperation(api, endpoint, namespace, name, kind=kind, streams=None)
        return
    if plain:
        yield LazyOperation(api, endpoint, namespace, name, kind=kind, streams=False)
        name = unique_names.take(stream_name(name))
    yield LazyOperation(api, endpoint, namespace, name, kind=OperationType.SUBSCRIPTION, streams=True)


def _selected(found_endpoints: list[HTTPEndpoint], options: ReadOptions, report: Report) -> list[HTTPEndpoint]:
    """Return the endpoints that pass `include` and `exclude`; warn of patterns that match nothing."""
    if not options.include and not options.exclude:
        return found_endpoints

    def matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)

    selectable_names, selected = set[str](), list[HTTPEndpoint]()
    for endpoint in found_endpoints:
        operation = endpoint.operation.value
        names = [endpoint.path, str(endpoint), as_text(operation.get("operationId")), *as_texts(operation.get("tags"))]
        selectable_names.update(names)
        if (not options.include or matches(names, options.include)) and not matches(names, options.exclude):
            selected.append(endpoint)
    patterns = [("include", pattern) for pattern in options.include] + [
        ("exclude", pattern) for pattern in options.exclude
    ]
    for option, pattern in dict.fromkeys(patterns):
        if not matches(selectable_names, [pattern]):
            hint = suggestion(similar_names(pattern, sorted(selectable_names)))
            message = f"{option} {pattern!r} matches no operationId, tag, path or 'GET /path'{hint}"
            report.warn(message)
            logger.warning("%s", harmless(message))
    return selected


# --- names ----------------------------------------------------------------------------------------------------------

_OTHER = re.compile(r"[^0-9A-Za-z]+")
_MAX_NAME_LENGTH = 200
_MAX_NAMESPACE_LENGTH = 20
_MARKS = re.compile(r"[\u0300-\u036f]+|['\u2019]s\b")  # accents, and the end of "GitHub's"
_VERSION = re.compile(r"v?[0-9]{1,2}|(?:19|20)[0-9]{2}")
_FILLERS = frozenset(
    "a an and api apis com definition doc docs documentation for http https interface json net of official on "
    "openapi org public reference rest restful service services spec specification swagger the to version web".split()
)
_STREAM = "_stream"


class NameCandidate(NamedTuple):
    """The preferred name of an operation. A name from the document has priority over a generated one."""

    method: str
    path: str
    name: str
    is_given: bool


def unique_names(candidates: Iterable[NameCandidate]) -> dict[tuple[str, str], str]:
    """Return unique names by method and path.

    Among equal names, the operation with the smallest path and method keeps it. The others get method and path
    appended, so that the order of the document does not matter.
    """
    names: dict[tuple[str, str], str] = {}
    first: set[str] = set()
    duplicates: list[NameCandidate] = []
    for candidate in sorted(
        candidates, key=lambda candidate: (not candidate.is_given, candidate.path, candidate.method)
    ):
        if candidate.name in first:
            duplicates.append(candidate)
        else:
            first.add(candidate.name)
            names[candidate.method, candidate.path] = candidate.name
    free = UniqueNames(first, longest=_MAX_NAME_LENGTH)
    for method, path, name, is_given in duplicates:
        longer = f"{name}_{name_from_path(method, path)}" if is_given else name
        names[method, path] = free.take(longer)
    return names


def namespace_of(documents: DocumentSet, options: ReadOptions) -> str:
    """Return the namespace of a document's operations, unless another opwire names its own."""
    return options.namespace or namespace_from(as_dict(documents.main.root.get("info")).get("title"))


def namespace_from(title: object) -> str:
    """Return a short namespace from an API's title: "GitHub v3 REST API" is `github`.

    Versions and words that most titles contain are dropped, unless nothing else is left. The namespace of opwire itself
    is reserved: a title does not lead to it.
    """
    text = unicodedata.normalize("NFKD", title[:_MAX_NAME_LENGTH]) if isinstance(title, str) else ""
    words = _OTHER.sub(" ", _MARKS.sub("", text)).lower().split()
    telling_words = [word for word in words if word not in _FILLERS and not _VERSION.fullmatch(word)] or words
    namespace = "".join(telling_words[:1])[:_MAX_NAMESPACE_LENGTH]
    for word in telling_words[1:]:
        if len(namespace) + 1 + len(word) > _MAX_NAMESPACE_LENGTH:
            break
        namespace += f"_{word}"
    return "api" if not namespace or is_own(f"{namespace}.") else namespace


def name_from_path(method: str, path: str) -> str:
    """Return the name of an operation without an operationId: `get_pets_petId` for GET /pets/{petId}."""
    words = _OTHER.sub("_", path).strip("_")
    return f"{method.lower()}_{words}"[:_MAX_NAME_LENGTH] if words else method.lower()


def printable_name(operation_id: str) -> str:
    """Return an operationId without characters that are invalid in a name; "" if nothing is left."""
    name = operation_id.strip()[:_MAX_NAME_LENGTH]
    return name if name.isprintable() else "".join(character if character.isprintable() else "_" for character in name)


def stream_name(name: str) -> str:
    """Return the name of the streaming form of an operation."""
    return name[: _MAX_NAME_LENGTH - len(_STREAM)] + _STREAM


# --- servers --------------------------------------------------------------------------------------------------------

_MAX_SEARCHED_SERVERS = 100  # the first usable one is taken
_MAX_URL_LENGTH = 8 * 1024
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def server_of(endpoint: HTTPEndpoint, documents: DocumentSet, variables: Mapping[str, str], report: Report) -> str:
    """Return the URL of an operation's server, relative to the document's own address if that is known."""
    root, base = documents.main.root, documents.main.uri
    is_remote = base.startswith(("http://", "https://"))
    if documents.version == "2.0":
        home = urlsplit(base if is_remote else "")
        host = as_text(root.get("host")).strip() or home.netloc
        path = "/" + as_text(root.get("basePath")).strip().strip("/")
        schemes = as_texts(endpoint.operation.value.get("schemes")) or as_texts(root.get("schemes"))
        scheme = next((candidate for candidate in ("https", "http") if candidate in schemes), home.scheme or "https")
        return f"{scheme}://{host}{path}" if host else path
    url = "/"
    for owner in (endpoint.operation.value, endpoint.item.value, root):
        servers = [
            as_dict(declared_server) for declared_server in as_list(owner.get("servers"))[:_MAX_SEARCHED_SERVERS]
        ]
        if server := next((server for server in servers if isinstance(server.get("url"), str)), None):
            url = documents.shared("server", server, partial(_expanded, server, variables, report))
            break
    return url if _ABSOLUTE.match(url) or not is_remote else join_uri(base, url or "/")


def _expanded(server: dict[str, Any], variables: Mapping[str, str], report: Report) -> str:
    """Return the URL with its variables expanded; one without a value stays, and the first call raises."""
    declared = as_dict(server.get("variables"))
    characters_left = _MAX_URL_LENGTH

    @cache
    def value_of(name: str) -> str:
        variable = as_dict(declared.get(name))
        choices = as_texts(variable.get("enum"))
        if name in variables:
            if choices and str(variables[name]) not in choices:
                report.warn(
                    f"the server variable {name!r} is one of {', '.join(choices[:10])}, not {variables[name]!r}"
                )
            return str(variables[name])
        default = variable.get("default")
        if isinstance(default, str | int | float):
            return as_text(default)
        return choices[0] if choices else f"{{{name}}}"

    def value(placeholder: re.Match[str]) -> str:
        nonlocal characters_left
        characters_left -= len(value_of(placeholder[1]))
        return value_of(placeholder[1]) if characters_left >= 0 else ""

    url = VARIABLE.sub(value, server["url"].strip())
    if characters_left < 0 or len(url) > _MAX_URL_LENGTH:
        report.warn(f"the server's URL has more than {_MAX_URL_LENGTH:,} characters: it is ignored")
        return "/"
    return url
