"""`from_openapi`: an HTTP API as a source of operations, and the loader of its document.

The document is loaded from memory, a file or the network. It may refer to others only where that is safe: files below
its folder, and addresses below its own. `allow_external_refs` permits more. A document that is not loaded is not an
error: operations that need it are skipped with the reason.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

from aiohttp import hdrs
from msgspec.structs import replace

from opwire.auth.oauth.store import TokenStore
from opwire.auth.oauth.tokens import json_fetcher
from opwire.errors import (
    CallError,
    ErrorCode,
    SchemaError,
    UsageError,
    check_choice,
    check_instance,
    check_known,
    check_list,
    check_not_below_zero,
)
from opwire.http.client import REDIRECTS, ClientKeywords, ClientOptions, HTTPClient, HTTPRequest, redirected
from opwire.model.login import LoginOptions
from opwire.model.operation import NormalizeMode, Operation, OperationType
from opwire.names import UniqueNames, counted
from opwire.openapi.client.call import HTTPOperation
from opwire.openapi.client.document import (
    DocumentSet,
    Located,
    SourceDocument,
    as_text,
    as_texts,
    join_uri,
    json_of,
    read_text,
    references_in,
    version_of,
)
from opwire.openapi.client.endpoints import OPERATION_USES, contents, preferred, webhook_items
from opwire.openapi.client.operations import LazyOperation, ReadOptions, namespace_of, printable_name, read_operations
from opwire.openapi.client.plan import SecurityRequirement, media_type
from opwire.openapi.client.schemas import SchemaRewriter
from opwire.openapi.client.security import APICredentials, GivenCredentials
from opwire.registry.source import AdapterSource, Report
from opwire.schema import UNKNOWN, Schema
from opwire.typed.plain import collection_paused

if TYPE_CHECKING:
    from opwire.openapi.webhooks import DeclaredWebhook, WebhookReceiver

DocumentLike = Mapping[str, Any] | str | bytes | Path
"""A document: a mapping, text, a path, or a URL."""

MAX_DOCUMENTS = 1_000
"""Documents at URLs, and files outside the document's folder, that one document may refer to by default."""

MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""The size of a document and everything that it refers to by default. Large ones have thousands of small files."""

_ACCEPT = "application/json, application/yaml, text/yaml, */*;q=0.8"
_CHECKED = ("#/components/", "#/definitions/", "#/parameters/", "#/paths/", "#/responses/")


class DocumentLoader:
    """Loads one document and the documents it refers to."""

    def __init__(
        self,
        document: DocumentLike,
        report: Report,
        allow: bool | Collection[str],
        client: HTTPClient,
        *,
        max_documents: int = MAX_DOCUMENTS,
        max_bytes: int = MAX_DOCUMENT_BYTES,
    ) -> None:
        self._given = document
        self._report = report
        self._allow = allow
        self._client = client
        self._folder: Path | None = None  # files below it may be read
        self._base = ""  # URLs below it may be fetched
        self._queue: deque[str] = deque()
        self._max_documents = max_documents
        self._max_bytes = self._bytes_left = max_bytes
        self._others = 0  # documents that are not files below the folder

    @property
    def is_remote(self) -> bool:
        """Whether the document is a URL, which is fetched with `await`."""
        return isinstance(self._given, str) and self._given.lstrip()[:8].lower().startswith(("http://", "https://"))

    def load(self) -> DocumentSet:
        """Load the document without the network.

        Raises:
            UsageError: the document is a URL, or not a document at all.
            CallError: VALIDATION_ERROR, it cannot be read or parsed.
        """
        if self.is_remote:
            raise UsageError("a document at a URL is loaded by `async with from_openapi(…)` or `await from_openapi(…)`")
        documents = self._open()
        while (address := self._next(documents)) is not None:
            if _is_web(address):
                documents.missing[address] = f"{_shown(address)}, which is loaded only by `async with from_openapi(…)`"
            else:
                self._load_file(documents, address)
        return documents

    async def load_with_network(self) -> DocumentSet:
        """Load the document. Reading and parsing run in a thread: a large one takes a while.

        Raises:
            UsageError, CallError: as `load`; EXECUTION_ERROR, TIMEOUT, UNAVAILABLE and others if it cannot be fetched.
        """
        if self.is_remote:
            url = str(self._given).strip()
            address, data = await self._fetch(url, is_main=True)
            documents = await asyncio.to_thread(self._parse, data, _shown(url), address)
        else:
            documents = await asyncio.to_thread(self._open)
        while (address := await asyncio.to_thread(self._next, documents)) is not None:
            if not _is_web(address):
                await asyncio.to_thread(self._load_file, documents, address)
                continue
            try:
                final, data = await self._fetch(address, is_main=False)
                await asyncio.to_thread(self._add, documents, address, data, final)
            except CallError as error:
                documents.missing[address] = f"{_shown(address)}: {error.message}"
        return documents

    # --- the document itself ----------------------------------------------------------------------------------------

    def _open(self) -> DocumentSet:
        document = self._given
        match document:
            case Mapping():
                return self._parse(json_of(document), "the document", "")
            case bytes():
                return self._parse(document, "the document", "")
            case str() if "\n" in document or document.lstrip()[:1] == "{":
                return self._parse(document, "the document", "")
            case str() | Path():
                is_url = str(document).startswith("file:") and _is_url(str(document))
                path = _path(str(document)) if is_url else Path(document)
                data = self._read_file(path, str(path))
                self._folder = path.resolve().parent
                return self._parse(data, path.name, path.resolve().as_uri())
            case _:
                raise UsageError(f"a document is a mapping, a path, a URL, or text, not {type(document).__name__}")

    def _parse(self, text: bytes | str, name: str, uri: str) -> DocumentSet:
        self._check_size(len(text), name)
        self._bytes_left -= len(text)
        with collection_paused():
            root = read_text(text, name, self._report)
            documents = DocumentSet(root, uri, version_of(root, name, self._report))
            documents.count_size(len(text))
            self._base = urljoin(uri, ".") if _is_web(uri) else ""
            references = references_in(text, root)
            self._enqueue(references, documents.main)
            # Warn of broken references now: they are found again when they are used, which may be never.
            for ref in sorted(references):
                if ref.startswith(_CHECKED):
                    try:
                        documents.resolve(ref, documents.main)
                    except SchemaError as error:
                        self._report.warn(str(error))
            return documents

    # --- referenced documents ---------------------------------------------------------------------------------------

    def _enqueue(self, references: set[str], document: SourceDocument) -> None:
        external = sorted({ref.partition("#")[0] for ref in references} - {""})
        # An invalid URL is reported where it is used.
        self._queue += [address for reference in external if _is_url(address := join_uri(document.uri, reference))]

    def _next(self, documents: DocumentSet) -> str | None:
        """Return the next address that is needed and allowed."""
        while self._queue:
            address = self._queue.popleft()
            if address in documents.missing or documents.is_known(address):
                continue
            denial = self._denial(address)
            if denial is None and not self._is_own_file(address):
                self._others += 1
                if self._others > self._max_documents:
                    denial = f"{_shown(address)}, which exceeds `max_documents` ({self._max_documents:,})"
            if denial is None:
                return address
            documents.missing[address] = denial
        return None

    def _denial(self, address: str) -> str | None:
        """Return why an address may not be loaded, or None."""
        shown_address = _shown(address)
        if _is_web(address):
            allowed = self._allow is True or self._is_below(address)
            if not allowed and not isinstance(self._allow, bool):
                parts = urlsplit(address)
                allowed = parts.hostname in self._allow or parts.netloc in self._allow
            return None if allowed else f"{shown_address}, which `allow_external_refs` does not allow"
        if not address.startswith("file:"):
            return f"{shown_address}, but this document has no folder to look it up"
        allowed = self._allow is True or self._is_own_file(address)
        return None if allowed else f"{shown_address}, which is not below the document's folder"

    def _is_own_file(self, address: str) -> bool:
        is_file = self._folder is not None and address.startswith("file:")
        return is_file and _path(address).resolve().is_relative_to(cast("Path", self._folder))

    def _is_below(self, url: str) -> bool:
        # Servers resolve dots even when they are encoded, also behind an encoded slash or backslash.
        return bool(self._base) and url.startswith(self._base) and ".." not in unquote(url)

    def _load_file(self, documents: DocumentSet, address: str) -> None:
        try:
            self._add(documents, address, self._read_file(_path(address), _shown(address)))
        except CallError as error:
            documents.missing[address] = f"{_shown(address)}: {error.message}"

    def _read_file(self, path: Path, shown_path: str) -> bytes:
        try:
            if path.exists() and not path.is_file():  # reading a pipe or a device could block forever
                raise CallError(ErrorCode.VALIDATION_ERROR, f"{shown_path} is not a file")
            self._check_size(path.stat().st_size, shown_path)
            return path.read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{shown_path} cannot be read: {reason}") from error

    def _check_size(self, size: int, shown_address: str) -> None:
        if size > self._bytes_left:
            limit = f"{self._max_bytes:,} bytes; the option `max_document_bytes` sets the limit"
            message = f"{shown_address} and the documents before it have more than {limit}"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)

    def _add(self, documents: DocumentSet, address: str, data: bytes, final: str = "") -> None:
        self._check_size(len(data), _shown(address))
        self._bytes_left -= len(data)
        root = read_text(data, _shown(address), self._report)
        documents.count_size(len(data))
        document = SourceDocument(root, final or address)
        documents.loaded[address] = documents.loaded[document.uri] = document
        self._enqueue(references_in(data, root), document)

    async def _fetch(self, url: str, *, is_main: bool) -> tuple[str, bytes]:
        """Return the final URL of a document after redirects, and its content.

        The configured headers are sent for the document itself and for URLs below it, and not beyond that origin. The
        redirects of other documents have to be allowed as well, so the client does not follow them itself.
        """
        options = self._client.options
        redirects_left = options.max_redirects if options.follow_redirects else 0
        request_headers = dict(options.headers) if is_main or self._is_below(url) else {}
        headers = [("Accept", _ACCEPT), *request_headers.items()]
        request = HTTPRequest(
            method="GET", url=url, headers=headers, secret_headers=frozenset(name.lower() for name in request_headers)
        )
        try:
            async with asyncio.timeout(options.timeout):
                while True:
                    response = await self._client.open(request, bare=True)
                    location = response.headers.get(hdrs.LOCATION)
                    if response.status not in REDIRECTS or location is None or not redirects_left:
                        break
                    response.close()
                    redirects_left -= 1
                    request = redirected(request, response.status, location)
                    if not is_main and (denial := self._denial(request.url)):
                        raise CallError(ErrorCode.EXECUTION_ERROR, f"it redirects to {denial}")
                if not 200 <= response.status < 300:
                    response.close()
                    message = f"{_shown(url)} returned HTTP {response.status} instead of a document"
                    raise CallError(ErrorCode.EXECUTION_ERROR, message)
                return _without_user(str(response.url)), await self._client.read(response)
        except TimeoutError:
            raise CallError(ErrorCode.TIMEOUT, f"{_shown(url)} did not respond within {options.timeout:g} s") from None


def _is_web(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def _is_url(text: str) -> bool:
    try:
        urlsplit(text)
    except ValueError:
        return False
    return True


def _path(address: str) -> Path:
    return Path(url2pathname(urlsplit(address).path))


def _without_user(address: str) -> str:
    """Return a URL without user and fragment: URLs that are resolved against it must not inherit them."""
    parts = urlsplit(urldefrag(address).url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _shown(address: str) -> str:
    """Return a URL for messages, without user and query; the name of a file."""
    return _path(address).name if address.startswith("file:") else _without_user(address).partition("?")[0]


class OpenAPIOptions(ClientKeywords, total=False):
    """Further options of `from_openapi`: those of `ClientOptions`, limits, and webhooks."""

    max_documents: int
    """How many other documents to load, not counting files below the document's folder; 1,000 by default."""

    max_document_bytes: int
    """How large the document and all that it refers to may be together; 256 MiB by default."""

    retries: int
    """How often a call is repeated if it is idempotent (GET, PUT, DELETE, …, or a mutation whose document declares an
    `Idempotency-Key`), and the connection failed or the API returned 429, 502, 503 or 504. A `Retry-After` is obeyed
    within the deadline. 0 by default: a `Client` repeats queries itself."""

    token_store: TokenStore
    """Where logins are stored; by default in the user's keyring, or in files."""

    webhooks: "WebhookReceiver | None"
    """Receives the webhooks and callbacks of the document, which become subscriptions: `namespace.webhooks` for all of
    them, `namespace.webhooks.NAME` for each. `serve_http` takes it as well."""


def from_openapi(
    document: DocumentLike,
    *,
    namespace: str | None = None,
    base_url: str | None = None,
    server_variables: Mapping[str, str] | None = None,
    credentials: GivenCredentials | None = None,
    allow_external_refs: bool | Collection[str] = False,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    normalize: NormalizeMode | None = None,
    strip: bool = False,
    unchecked_input: bool = False,
    strict_input: bool = False,
    reconnect: bool = False,
    trust_annotations: bool = False,
    **settings: Unpack[OpenAPIOptions],
) -> "OpenAPISource":
    """Return the operations of an HTTP API with an OpenAPI document: Swagger 2.0, or OpenAPI 3.0 to 3.2.

        api = from_openapi("petstore.yaml", credentials={"api_key": os.environ["KEY"]})
        registry.register_all(api)

        async with from_openapi("https://api.example/openapi.json", namespace="api") as api:
            registry.follow(api)

    A mapping, text or file is loaded lazily, when the operations are first iterated. A URL is loaded by `async with`,
    which also closes the connections at the end, or by `await`. An invalid option raises UsageError.

    Args:
        document: a mapping, a path, a URL, or JSON or YAML text.
        namespace: of the operations; by default from the title: `github` for "GitHub v3 REST API".
        base_url: overrides the server of the document.
        server_variables: values for the variables of the server's URL.
        credentials: by the names of the document's security schemes, or a callback; see `APICredentials`.
        allow_external_refs: whether the document may refer to others anywhere, or the hosts where it may. By default
            it may refer to files below its folder, or to URLs below its own.
        include, exclude: patterns (`*` and `?`) of operations, by operationId, tag, path or "GET /path".
        normalize: what to do with responses that do not match their schema; the registry's mode by default.
        strip: whether to remove unknown properties from responses. Documents lag behind their APIs.
        unchecked_input: whether an operation may be called although its input schema cannot be compiled.
        strict_input: whether to check `format` in inputs, and `oneOf` as more than `anyOf`. Documents often err there.
        reconnect: whether to resume a lost event stream, for an API that continues after `Last-Event-ID`.
        trust_annotations: whether to trust ids and types in `x-opwire`, which may declare a DELETE as a query.
        settings: how to load it and send requests, see `OpenAPIOptions`: timeout, max_response, headers, proxy, ssl, …
    """
    check_list("patterns", include=include, exclude=exclude)
    options = ReadOptions(
        namespace=namespace,
        base_url=base_url,
        server_variables=server_variables or {},
        include=tuple(include),
        exclude=tuple(exclude),
        normalize=normalize,
        strip=strip,
        trust_annotations=trust_annotations,
        unchecked_input=unchecked_input,
        strict_input=strict_input,
    )
    return OpenAPISource(document, options, settings, credentials, allow_external_refs, reconnect=reconnect)


class OpenAPISource(AdapterSource):
    """The operations of an HTTP API; returned by `from_openapi`. `report` lists what of the document was skipped."""

    def __init__(
        self,
        document: DocumentLike,
        options: ReadOptions,
        settings: OpenAPIOptions,
        credentials: GivenCredentials | None,
        allow_external_refs: bool | Collection[str],
        *,
        reconnect: bool,
    ) -> None:
        super().__init__()
        check_known(settings, OpenAPIOptions.__annotations__, "from_openapi")
        check_instance(Mapping | str | bytes | Path, document=document)
        check_choice(NormalizeMode, normalize=options.normalize)
        max_documents = settings.pop("max_documents", MAX_DOCUMENTS)
        max_bytes = settings.pop("max_document_bytes", MAX_DOCUMENT_BYTES)
        store = settings.pop("token_store", None)
        self._retries = settings.pop("retries", 0)
        check_not_below_zero(retries=self._retries)
        self.webhooks = settings.pop("webhooks", None)
        client = self._client = HTTPClient(ClientOptions(**cast("ClientKeywords", settings)))
        self._loader = DocumentLoader(
            document, self.report, allow_external_refs, client, max_documents=max_documents, max_bytes=max_bytes
        )
        self._options = options
        self._credentials = APICredentials(credentials, json_fetcher(client), store)
        self._reconnect = reconnect
        self._lazy: list[LazyOperation] = []
        self._operations: tuple[Operation, ...] | None = None

    def __iter__(self) -> Iterator[Operation]:
        """Iterate over the operations.

        Raises:
            UsageError: the document has to be loaded with `await`.
            CallError: VALIDATION_ERROR, the document is invalid.
        """
        if self._operations is None:
            self._operations = self._read(self._loader.load())
        return iter(self._operations)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        state = "not loaded" if self._operations is None else counted(len(self._operations), "operation")
        return f"<OpenAPISource: {state}>"

    async def close(self) -> None:
        """Close the connections, and end the subscriptions to webhooks. Calls fail from now on."""
        if self.webhooks is not None:
            self.webhooks.close()
        await self._credentials.close()
        await self._client.close()

    async def open(self) -> Self:
        """Load the document; idempotent."""
        if self._operations is None:
            self._operations = await asyncio.to_thread(self._read, await self._loader.load_with_network())
        return self

    def _read(self, documents: DocumentSet) -> tuple[Operation, ...]:
        with collection_paused():
            self._lazy = read_operations(documents, self.report, self._options)
            operations: list[Operation] = []
            for lazy in self._lazy:
                http = HTTPOperation(
                    lambda lazy=lazy: lazy.plan,
                    self._client,
                    self._credentials,
                    reconnect=self._reconnect,
                    retries=self._retries,
                )
                spec, handler = lazy.spec, http.call
                if spec.type is OperationType.SUBSCRIPTION:
                    spec, handler = replace(spec, resumable=True) if self._reconnect else spec, http.subscribe
                operations.append(Operation(spec, handler, prepare=http.prepare, preview=http.preview))
            if (receiver := self.webhooks) is not None:
                options, namespace = self._options, namespace_of(documents, self._options)
                declared = read_webhooks(documents, self.report)
                operation_ids = {operation.spec.id for operation in operations}
                for operation in receiver.operations(
                    namespace, declared, normalize=options.normalize, strip=options.strip
                ):
                    if operation.spec.id in operation_ids:
                        self.report.warn(f"{operation.spec.name} is skipped: an operation has this name")
                    else:
                        operations.append(operation)
            return tuple(operations)

    async def sign_in(self, options: LoginOptions) -> tuple[str, ...]:
        """Sign in with each OAuth client of the credentials that has `login`."""
        done = [
            requirement.scheme.name
            for operation, requirement in await self._schemes()
            if await self._credentials.login(operation.plan, requirement, options)
        ]
        if not done:
            raise UsageError("credentials has no OAuth client with `login` for a security scheme of this API")
        return tuple(done)

    async def logout(self) -> tuple[str, ...]:
        """Delete the stored logins for this API, and revoke them; return the names of their schemes."""
        schemes = [(operation.plan, requirement.scheme.name) for operation, requirement in await self._schemes()]
        return tuple([name for plan, name in schemes if await self._credentials.logout(plan, name)])

    async def _schemes(self) -> list[tuple[LazyOperation, SecurityRequirement]]:
        """Return each security scheme with an operation that uses it, and the scopes that all operations need."""
        await self.open()
        schemes: dict[str, tuple[LazyOperation, SecurityRequirement]] = {}
        for operation in self._lazy:
            for requirement in (requirement for alternative in operation.security for requirement in alternative):
                first_operation, earlier_requirement = schemes.get(requirement.scheme.name, (operation, requirement))
                scopes = tuple(dict.fromkeys([*earlier_requirement.scopes, *requirement.scopes]))
                schemes[requirement.scheme.name] = first_operation, SecurityRequirement(requirement.scheme, scopes)
        return list(schemes.values())


def read_webhooks(documents: DocumentSet, report: Report) -> "list[DeclaredWebhook]":
    """Return the webhooks of a document that are POST requests with JSON, each with its own name."""
    from opwire.openapi.webhooks import DeclaredWebhook  # only who has a receiver needs that module

    schemas = SchemaRewriter(documents, report)
    names = UniqueNames()
    webhooks: list[DeclaredWebhook] = []
    try:
        for name, webhook in webhook_items(documents):
            where = f"the webhook {name!r:.100}"
            try:
                item = documents.follow_object(*webhook, where)
                operation = documents.follow_object(item.value.get("post"), item.document, f"{where}, `post`")
                body = documents.follow(operation.value.get("requestBody"), operation.document)
                schema = _schema(body, documents, schemas, where)
            except SchemaError as error:
                report.warn(f"{where} is skipped: {error}")
                continue
            fields = operation.value
            documents.use(OPERATION_USES, fields, body.value)
            webhooks.append(
                DeclaredWebhook(
                    name=names.take(printable_name(name) or "webhook"),
                    schema=schema,
                    title=as_text(fields.get("summary")).strip(),
                    description=as_text(fields.get("description")).strip(),
                    aliases=tuple(filter(None, [as_text(fields.get("operationId"))])),
                    tags=tuple(as_texts(fields.get("tags"))),
                )
            )
    except SchemaError as error:
        report.warn(f"webhooks after the first {len(webhooks):,} are skipped: {error}")
    return webhooks


def _schema(body: Located, documents: DocumentSet, schemas: SchemaRewriter, where: str) -> Schema:
    """Return the schema of the body, as the API sends it.

    Raises:
        SchemaError: it is not JSON, or a reference has no target.
    """
    if body.value is None:
        return UNKNOWN
    if not isinstance(body.value, dict):
        raise SchemaError("`requestBody` is not an object")
    content = preferred(contents(body, documents))
    if content is None:
        return UNKNOWN
    if not media_type(content.content_type).is_json:
        raise SchemaError(f"its body is {content.content_type:.100}, not JSON")
    fields, home = content.fields
    if "schema" not in fields:
        return UNKNOWN

    return Schema.deferred(
        lambda: schemas.complete(schemas.read(fields["schema"], home, "output", where), "output"), checks_formats=False
    )
