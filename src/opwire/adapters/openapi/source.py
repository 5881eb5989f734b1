"""`from_openapi`: an HTTP API as a source of operations."""

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from opwire.adapters.openapi.calls import handler_of, stream_of, token_fetcher
from opwire.adapters.openapi.client import ClientOptions, HTTPClient
from opwire.adapters.openapi.files import prepare_files
from opwire.adapters.openapi.loading import DocumentLike, Loader, collection_paused
from opwire.adapters.openapi.reading import ReadOperation, ReadOptions, read_operations
from opwire.adapters.openapi.refs import Documents
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.security import Credentials, GivenCredentials
from opwire.operation import NormalizeMode, Operation, OperationType, SourceChange


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


class OpenAPISource:
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
        self.report = Report()
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

    def __await__(self) -> Generator[Any, None, Self]:
        return self._load().__await__()

    async def __aenter__(self) -> Self:
        try:
            return await self._load()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The operations fail from now on."""
        await self._credentials.close()
        await self._client.close()

    def on_change(self, listener: Callable[[SourceChange], None]) -> Callable[[], None]:
        """Nothing is ever told: a document does not change by itself."""
        return lambda: None

    async def _load(self) -> Self:
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
