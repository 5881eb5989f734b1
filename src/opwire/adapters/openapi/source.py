"""`from_openapi`: an HTTP API as a source of operations.

Loading a document and those that it refers to: from memory, from files, and from the network where that is allowed.

Other documents are read only where it is safe: files below the folder of the document itself, and addresses below its
own. Anything else has to be allowed, by `allow_external_refs`. What is not read is no error: the operations that need
it say why they cannot be used.
"""

import asyncio
import gc
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

from aiohttp import ClientResponse, hdrs

from opwire.adapters.openapi.bodies import prepare_files
from opwire.adapters.openapi.call import handler_of, stream_of, token_fetcher
from opwire.adapters.openapi.document import Document, Documents, joined, read_text, references_in, text_of, version_of
from opwire.adapters.openapi.http_client import REDIRECTS, ClientOptions, HTTPClient, redirected
from opwire.adapters.openapi.reading import ReadOperation, ReadOptions, read_operations
from opwire.adapters.openapi.request import HTTPRequest
from opwire.adapters.openapi.security import Credentials, GivenCredentials
from opwire.adapters.report import Report
from opwire.adapters.source import AdapterSource
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import NormalizeMode, Operation, OperationType

DocumentLike = Mapping[str, Any] | str | bytes | Path
"""A document: as a mapping, as text, as a path, or as an address."""

MAX_DOCUMENTS = 1_000
_MAX_FILE = 256 * 1024 * 1024
_ACCEPT = "application/json, application/yaml, text/yaml, */*;q=0.8"
_CHECKED = ("#/components/", "#/definitions/", "#/parameters/", "#/paths/", "#/responses/")


class Loader:
    """Loads one document, and what it refers to."""

    def __init__(self, given: DocumentLike, report: Report, allow: bool | Collection[str], client: HTTPClient) -> None:
        self._given = given
        self._report = report
        self._allow = allow
        self._client = client
        self._folder: Path | None = None  # files below it may be read
        self._address = ""  # addresses below it may be asked
        self._waiting: list[str] = []

    @property
    def is_remote(self) -> bool:
        """Whether the document is an address, which can only be asked with `await`."""
        return isinstance(self._given, str) and self._given.lstrip()[:8].lower().startswith(("http://", "https://"))

    def load(self) -> Documents:
        """The document, without the network.

        Raises:
            CallError: VALIDATION_ERROR, it cannot be read, or is none that opwire reads.
        """
        if self.is_remote:
            message = "a document at an address is loaded by `async with from_openapi(…)` or `await from_openapi(…)`"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        documents = self._start()
        while (address := self._next(documents)) is not None:
            if _is_web(address):
                documents.missing[address] = f"{_shown(address)}, which is loaded only by `async with from_openapi(…)`"
            else:
                self._load_file(documents, address)
        return documents

    async def load_with_network(self) -> Documents:
        """The document. Reading and parsing run in a thread: a large one takes a while.

        Raises:
            CallError: VALIDATION_ERROR as `load`; EXECUTION_ERROR, TIMEOUT, UNAVAILABLE and others if it is not to
            be had.
        """
        if self.is_remote:
            url = str(self._given).strip()
            address, data = await self._fetch(url, is_main=True)
            documents = await asyncio.to_thread(self._begin, data, _shown(url), address)
        else:
            documents = await asyncio.to_thread(self._start)
        while (address := self._next(documents)) is not None:
            if _is_web(address):
                await self._load_address(documents, address)
            else:
                await asyncio.to_thread(self._load_file, documents, address)
        return documents

    # --- the document itself ----------------------------------------------------------------------------------------

    def _start(self) -> Documents:
        match self._given:
            case Mapping():
                return self._begin(text_of(self._given), "the document", "")
            case bytes():
                return self._begin(self._given, "the document", "")
            case str() if "\n" in self._given or self._given.lstrip()[:1] == "{":
                return self._begin(self._given, "the document", "")
            case str() | Path():
                path = Path(self._given)
                if str(self._given).startswith("file:") and _is_address(str(self._given)):
                    path = _path(str(self._given))
                data = _read_file(path, str(path))
                self._folder = path.resolve().parent
                return self._begin(data, path.name, path.resolve().as_uri())
            case _:
                kind = type(self._given).__name__
                message = f"a document is a mapping, a path, an address, or text, not {kind}"
                raise CallError(ErrorCode.VALIDATION_ERROR, message)

    def _begin(self, given: bytes | str, name: str, uri: str) -> Documents:
        with collection_paused():
            root = read_text(given, name, self._report)
            documents = Documents(root, uri, version_of(root, name))
            self._address = urljoin(uri, ".") if _is_web(uri) else ""
            references = references_in(given, root)
            self._find(references, documents.main)
            self._check(references, documents)
            return documents

    def _check(self, references: set[str], documents: Documents) -> None:
        """Warn of references that point at nothing. They are found again when they are used, which may be never."""
        for ref in sorted(references):
            if ref.startswith(_CHECKED):
                try:
                    documents.resolve(ref, documents.main)
                except SchemaError as error:
                    self._report.warn(str(error))

    # --- those that it refers to ------------------------------------------------------------------------------------

    def _find(self, references: set[str], document: Document) -> None:
        outside = sorted({ref.partition("#")[0] for ref in references} - {""})
        # What is no address at all is said of by whoever refers to it.
        self._waiting += [address for each in outside if _is_address(address := joined(document.uri, each))]

    def _next(self, documents: Documents) -> str | None:
        """The next address that is needed and may be read."""
        while self._waiting:
            address = self._waiting.pop(0)
            if address in documents.missing or documents.knows(address):
                continue
            refusal = self._refusal(address)
            if len(documents.loaded) >= MAX_DOCUMENTS:
                refusal = f"more than {MAX_DOCUMENTS} documents"
            if refusal is None:
                return address
            documents.missing[address] = refusal
        return None

    def _refusal(self, address: str) -> str | None:
        shown = _shown(address)
        if _is_web(address):
            allowed = self._allow is True or self._is_below(address)
            if not allowed and not isinstance(self._allow, bool):
                allowed = _host(address) in self._allow or urlsplit(address).netloc in self._allow
            return None if allowed else f"{shown}, which `allow_external_refs` does not allow"
        if not address.startswith("file:"):
            return f"{shown}, and this document has no folder in which to look for it"
        is_below = self._folder is not None and _path(address).resolve().is_relative_to(self._folder)
        allowed = is_below or self._allow is True
        return None if allowed else f"{shown}, which is not below the document's folder"

    def _load_file(self, documents: Documents, address: str) -> None:
        try:
            self._add(documents, address, _read_file(_path(address), _shown(address)))
        except CallError as error:
            documents.missing[address] = f"{_shown(address)}: {error.message}"

    async def _load_address(self, documents: Documents, address: str) -> None:
        try:
            final, data = await self._fetch(address, is_main=False)
            await asyncio.to_thread(self._add, documents, address, data, final)
        except CallError as error:
            documents.missing[address] = f"{_shown(address)}: {error.message}"

    def _add(self, documents: Documents, address: str, data: bytes, final: str = "") -> None:
        root = read_text(data, _shown(address), self._report)
        document = Document(root, final or address)
        documents.loaded[address] = documents.loaded[document.uri] = document
        self._find(references_in(data, root), document)

    async def _fetch(self, url: str, *, is_main: bool) -> tuple[str, bytes]:
        """What stands at an address, and the address that it has in the end.

        The headers that the user gives go to the document itself and to what is below it, and not beyond that origin.
        Where anything but the document itself redirects to has to be allowed too.
        """
        options = self._client.options
        own = dict(options.headers) if is_main or self._is_below(url) else {}
        headers = [("Accept", _ACCEPT), *own.items()]
        request = HTTPRequest(
            method="GET", url=url, headers=headers, secret_headers=frozenset(name.lower() for name in own)
        )
        try:
            async with asyncio.timeout(options.timeout):
                response = await self._open(request, is_main=is_main)
                if not 200 <= response.status < 300:
                    response.close()
                    message = f"{_shown(url)} answers with HTTP {response.status}: there is no document"
                    raise CallError(ErrorCode.EXECUTION_ERROR, message)
                return _bare(str(response.url)), await self._client.read(response)
        except TimeoutError:
            message = f"{_shown(url)} did not answer within {options.timeout:g} s"
            raise CallError(ErrorCode.TIMEOUT, message) from None

    async def _open(self, request: HTTPRequest, *, is_main: bool) -> ClientResponse:
        """The answer, redirects followed: the client itself would follow them to where they are not allowed."""
        options = self._client.options
        left = options.max_redirects if options.follow_redirects else 0
        while True:
            response = await self._client.open(request, bare=True)
            location = response.headers.get(hdrs.LOCATION)
            if response.status not in REDIRECTS or location is None or not left:
                return response
            response.close()
            left -= 1
            request = redirected(request, response.status, location)
            if not is_main and (refusal := self._refusal(request.url)):
                raise CallError(ErrorCode.EXECUTION_ERROR, f"it redirects to {refusal}")

    def _is_below(self, url: str) -> bool:
        # Servers resolve dots even when they are encoded, also behind an encoded slash or backslash.
        return bool(self._address) and url.startswith(self._address) and ".." not in unquote(url)


@contextmanager
def collection_paused() -> Generator[None]:
    """No garbage collection meanwhile.

    A large document is half a million objects, none of them garbage, and to look through them takes Python longer than
    to parse them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_file(path: Path, shown: str) -> bytes:
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device could take for ever
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{shown} is not a file")
        if path.stat().st_size > _MAX_FILE:
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, f"{shown} is larger than {_MAX_FILE:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{shown} cannot be read: {reason}") from error


def _is_web(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def _is_address(text: str) -> bool:
    try:
        urlsplit(text)
    except ValueError:
        return False
    return True


def _host(address: str) -> str | None:
    return urlsplit(address).hostname


def _path(address: str) -> Path:
    return Path(url2pathname(urlsplit(address).path))


def _bare(address: str) -> str:
    """The address without user and fragment: what is read against it must not inherit them."""
    parts = urlsplit(urldefrag(address).url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _shown(address: str) -> str:
    """The address as it may be told: without user and query; a file by its name."""
    if address.startswith("file:"):
        return _path(address).name
    return _bare(address).partition("?")[0]


class ClientSettings(TypedDict, total=False):
    """How requests are sent; see `ClientOptions`."""

    timeout: float | None
    connect_timeout: float | None
    max_response: int
    max_item: int
    max_connections: int
    max_per_host: int
    headers: Mapping[str, str]
    proxy: str | None
    ssl: SSLContext | bool
    trust_env: bool
    follow_redirects: bool
    max_redirects: int


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
    reconnect: bool = False,
    trust_annotations: bool = False,
    **client: Unpack[ClientSettings],
) -> "OpenAPISource":
    """The operations of an HTTP API that has an OpenAPI document: Swagger 2.0, or OpenAPI 3.0 to 3.2.

        api = from_openapi("petstore.yaml", credentials={"api_key": os.environ["KEY"]})
        registry.register_all(api)

        async with from_openapi("https://api.example/openapi.json", namespace="api") as api:
            registry.follow(api)

    A mapping, a text or a file is loaded when the operations are first asked for. An address is loaded by `async
    with`, which also closes the connections at the end, or by `await`.

    Args:
        document: a mapping, a path, an address, or JSON or YAML text.
        namespace: of the operations; the title of the API unless given.
        base_url: where the API is, instead of what the document says.
        server_variables: values for the variables of the server's address.
        credentials: by the names of the document's security schemes, or a function; see `Credentials`.
        allow_external_refs: whether the document may refer to others anywhere, or the hosts where it may. Without,
            it may refer to files below its folder, or to addresses below its own.
        include: patterns (`*` and `?`) of the operations that are wanted, by operationId, tag, path or "GET /path".
        exclude: patterns of those that are not.
        normalize: what happens to answers that do not match their schema; what the registry says unless given.
        strip: whether properties that the document does not know are removed from answers. Documents lag behind.
        unchecked_input: whether an operation may be called although its input schema cannot be compiled.
        reconnect: whether an event stream that is lost is resumed.
        trust_annotations: whether to believe ids and types in `x-opwire`: it may call a DELETE a query.
        client: how requests are sent, see `ClientOptions`: timeout, max_response, headers, proxy, ssl and others.
    """
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
    )
    http = HTTPClient(ClientOptions(**client))
    return OpenAPISource(
        document, options, http, Credentials(credentials, token_fetcher(http)), allow_external_refs, reconnect=reconnect
    )


class OpenAPISource(AdapterSource):
    """The operations of an HTTP API; made by `from_openapi`. `report` says what of the document could not be used."""

    def __init__(
        self,
        document: DocumentLike,
        options: ReadOptions,
        client: HTTPClient,
        credentials: Credentials,
        allow_external_refs: bool | Collection[str],
        *,
        reconnect: bool,
    ) -> None:
        super().__init__()
        self._loader = Loader(document, self.report, allow_external_refs, client)
        self._options = options
        self._client = client
        self._credentials = credentials
        self._reconnect = reconnect
        self._operations: tuple[Operation, ...] | None = None

    def __iter__(self) -> Iterator[Operation]:
        """The operations.

        Raises:
            CallError: VALIDATION_ERROR, the document cannot be used, or has to be loaded with `await`.
        """
        if self._operations is None:
            self._operations = self._read(self._loader.load())
        return iter(self._operations)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        state = "not loaded" if self._operations is None else f"{len(self._operations)} operations"
        return f"<OpenAPISource: {state}>"

    async def close(self) -> None:
        """Close the connections. The operations fail from now on."""
        await self._credentials.close()
        await self._client.close()

    async def open(self) -> Self:
        """Load the document; idempotent."""
        if self._operations is None:
            documents = await self._loader.load_with_network()
            self._operations = await asyncio.to_thread(self._read, documents)
        return self

    def _read(self, documents: Documents) -> tuple[Operation, ...]:
        with collection_paused():
            return tuple(self._operation(each) for each in read_operations(documents, self.report, self._options))

    def _operation(self, read: ReadOperation) -> Operation:
        if read.spec.type is OperationType.SUBSCRIPTION:
            handler = stream_of(lambda: read.plan, self._client, self._credentials, reconnect=self._reconnect)
        else:
            handler = handler_of(lambda: read.plan, self._client, self._credentials)

        def prepare(input: Any) -> Any:
            return prepare_files(read.plan)(input)

        return Operation(read.spec, handler, prepare=prepare)
