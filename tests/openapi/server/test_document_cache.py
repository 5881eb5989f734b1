"""Which document a caller gets, and when it is built."""

import asyncio
from typing import Any

import msgspec
import pytest

from opwire import AccessControl, CallError, ErrorCode, Identity, OperationRegistry, OperationSpec
from opwire.openapi.server import document as module
from opwire.openapi.server.document import MAX_DOCUMENTS, DocumentCache, DocumentInfo
from opwire.registry.dispatch import Dispatcher

ADMIN, GUEST = Identity(id="admin", scopes=("*",)), Identity(id="guest")


@pytest.fixture
def registry() -> OperationRegistry:
    found = OperationRegistry()
    for name, access in (
        ("open", AccessControl(public=True)),
        ("known", None),
        ("admin", AccessControl(required_scopes=("admin",))),
    ):
        found.register(OperationSpec(namespace="a", name=name, access=access), lambda input, context: None)
    found.register(OperationSpec(namespace="a", name="unserved", access=AccessControl(public=True)))
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was built, each time."""
    found: list[Any] = []
    build = module.build_document
    monkeypatch.setattr(
        module, "build_document", lambda specs, *rest, **more: found.append(specs) or build(specs, *rest, **more)
    )
    return found


async def paths(documents: DocumentCache, identity: Identity | None, query: bytes = b"", server: str = "") -> list[str]:
    document = await documents.get(identity, query, server)
    return sorted(msgspec.json.decode(document.body)["paths"])


async def test_a_caller_sees_what_it_may_call_and_can_be_called(registry: OperationRegistry) -> None:
    documents = DocumentCache(Dispatcher(registry), DocumentInfo(title="", version=""))
    assert await paths(documents, None) == ["/a/open"]
    assert await paths(documents, GUEST) == ["/a/known", "/a/open"]
    assert await paths(documents, ADMIN) == ["/a/admin", "/a/known", "/a/open"]


async def test_a_document_is_built_once_for_all_callers_that_see_the_same(
    registry: OperationRegistry, built: list[Any]
) -> None:
    documents = DocumentCache(Dispatcher(registry), DocumentInfo(title="", version=""))
    found = await asyncio.gather(*(documents.get(Identity(id=str(n)), b"", "") for n in range(5)))
    again = await documents.get(GUEST, b"version=3.1", "")
    assert len(built) == 1
    assert {document.etag for document in (*found, again)} == {again.etag}
    await documents.get(ADMIN, b"", "")
    assert len(built) == 2


async def test_a_change_of_the_registry_is_seen_at_once(registry: OperationRegistry) -> None:
    documents = DocumentCache(Dispatcher(registry), DocumentInfo(title="", version=""))
    before = await documents.get(GUEST, b"", "")
    registry.unregister("a.known")
    after = await documents.get(GUEST, b"", "")
    assert await paths(documents, GUEST) == ["/a/open"]
    assert before.etag != after.etag


async def test_an_operation_id_does_not_depend_on_the_caller(registry: OperationRegistry) -> None:
    for name in ("x/y", "x.y"):
        access = AccessControl(required_scopes=("admin",)) if name == "x.y" else None
        registry.register(OperationSpec(namespace="a", name=name, access=access), lambda input, context: None)
    documents = DocumentCache(Dispatcher(registry), DocumentInfo(title="", version=""))

    async def name_for(identity: Identity) -> str:
        document = msgspec.json.decode((await documents.get(identity, b"", "")).body)
        return document["paths"]["/a/x~2Fy"]["post"]["operationId"]

    assert await name_for(GUEST) == await name_for(ADMIN)


async def test_not_every_document_is_kept_for_ever(registry: OperationRegistry, built: list[Any]) -> None:
    documents = DocumentCache(Dispatcher(registry), DocumentInfo(title="", version=""))
    for number in range(MAX_DOCUMENTS + 1):
        await documents.get(GUEST, b"", f"/{number}")
    await documents.get(GUEST, b"", f"/{MAX_DOCUMENTS}")
    assert len(built) == MAX_DOCUMENTS + 1
    await documents.get(GUEST, b"", "/0")
    assert len(built) == MAX_DOCUMENTS + 2


async def test_a_version_may_be_asked_for(registry: OperationRegistry) -> None:
    documents = DocumentCache(Dispatcher(registry), DocumentInfo(title="", version=""))
    for query, version in (
        (b"", "3.1.1"),
        (b"version=3.1", "3.1.1"),
        (b"version=3.2", "3.2.0"),
        (b"version=3.2.0", "3.2.0"),
    ):
        assert msgspec.json.decode((await documents.get(GUEST, query, "")).body)["openapi"] == version
    with pytest.raises(CallError) as raised:
        await documents.get(GUEST, b"version=2.0", "")
    assert raised.value.code is ErrorCode.PROTOCOL_ERROR


async def test_a_document_that_cannot_be_built_fails_its_requests_and_is_tried_again(
    registry: OperationRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = DocumentCache(Dispatcher(registry), DocumentInfo(title="", version=""))
    with monkeypatch.context() as broken:
        broken.setattr(module, "build_document", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await documents.get(GUEST, b"", "")
    assert await paths(documents, GUEST) == ["/a/known", "/a/open"]
