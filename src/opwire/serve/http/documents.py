"""The OpenAPI documents that a surface gives out, each built once."""

import asyncio
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec

from opwire.access import may_access
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity, OperationSpec
from opwire.registry import OperationRegistry
from opwire.serve.http.document import VERSIONS, About, Version, build_document, operation_names

MAX_KEPT = 16
"""Documents that are kept: callers of different rights see different ones."""


class Document(NamedTuple):
    """A document as it is sent. It holds the specifications that it was made of, so that their ids stay theirs."""

    body: bytes
    etag: bytes
    specs: tuple[OperationSpec, ...]


class Documents:
    """Builds the document of what a caller may see, and keeps it until the registry changes."""

    def __init__(self, registry: OperationRegistry, about: About) -> None:
        self._registry = registry
        self._about = about
        self._kept: dict[tuple[object, ...], Document] = {}
        self._building: dict[tuple[object, ...], asyncio.Task[Document]] = {}

    def visible(self, identity: Identity | None) -> tuple[OperationSpec, ...]:
        """The operations that a caller may call, in the order of their ids."""
        return tuple(spec for spec in self._callable() if may_access(spec, identity))

    async def document(self, identity: Identity | None, query: bytes, server: str) -> Document:
        """The document that a caller asks for.

        Raises:
            CallError: PROTOCOL_ERROR, if there is none of that version.
        """
        version = _version(query)
        about = msgspec.structs.replace(self._about, server=server or "/")
        specs = self.visible(identity)
        key = (version, about.server, *map(id, specs))
        if key in self._kept:
            return self._kept[key]
        building = self._building.get(key)
        if building is None:  # one for all who ask: a registry of a thousand operations takes a while
            building = self._building[key] = asyncio.create_task(self._build(key, specs, about, version))
        return await asyncio.shield(building)

    async def _build(
        self, key: tuple[object, ...], specs: tuple[OperationSpec, ...], about: About, version: Version
    ) -> Document:
        try:
            names = operation_names(self._callable())
            built = await asyncio.to_thread(_built, specs, about, version, names)  # the loop has other things to do
        finally:
            del self._building[key]
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = built
        return built

    def _callable(self) -> list[OperationSpec]:
        specs = (spec for spec in self._registry.list() if self._registry.get_handler(spec.id) is not None)
        return sorted(specs, key=lambda spec: spec.id)


def _built(specs: tuple[OperationSpec, ...], about: About, version: Version, names: dict[str, str]) -> Document:
    body = msgspec.json.encode(build_document(specs, about, version=version, names=names))
    return Document(body, b'"%s"' % sha256(body).hexdigest()[:32].encode(), specs)


def _version(query: bytes) -> Version:
    try:
        given = parse_qs(query.decode("latin-1"), max_num_fields=_MAX_FIELDS).get("version", ["3.1"])[-1]
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"the query string cannot be read: {error}") from error
    for version in ("3.1", "3.2"):
        if given in (version, VERSIONS[version]):
            return version
    raise CallError(ErrorCode.PROTOCOL_ERROR, f"the document is there in versions {' and '.join(VERSIONS)}")


_MAX_FIELDS = 20
