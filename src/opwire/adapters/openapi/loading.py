"""Loading a document and those that it refers to: from memory, from files, and from the network where that is allowed.

Other documents are read only where it is safe: files below the folder of the document itself, and addresses below its
own. Anything else has to be allowed, by `allow_external_refs`. What is not read is no error: the operations that need
it say why they cannot be used.
"""

import asyncio
import gc
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

from aiohttp import ClientResponse, hdrs

from opwire.adapters.openapi.client import HTTPClient
from opwire.adapters.openapi.document import Document, read_text, references_in, text_of, version_of
from opwire.adapters.openapi.redirects import REDIRECTS, redirected
from opwire.adapters.openapi.refs import Documents, joined
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.request import HTTPRequest
from opwire.errors import CallError, ErrorCode, SchemaError

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
