"""A server's resources as operations: list, templates, read, and watch where the server tells of updates."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from opwire.adapters.mcp.listing import list_operation
from opwire.adapters.mcp.results import blocks_envelope, read_blocks
from opwire.adapters.mcp.session import Session
from opwire.adapters.mcp.updates import ResourceUpdates, Watcher
from opwire.envelope import ResponseEnvelope, mcp_envelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Operation, OperationSpec, OperationType
from opwire.schema import Schema

logger = logging.getLogger("opwire.mcp")

CHECK_EVERY = 5.0
"""Seconds without an update after which a watch makes sure that there is a connection: silence looks like a loss."""

_URI = {"uri": {"type": "string", "description": "the URI of a resource"}}
_ONE_RESOURCE = Schema({"type": "object", "properties": _URI, "required": ["uri"]})


def resource_operations(
    session: Session, namespace: str, updates: ResourceUpdates, *, watchable: bool
) -> Iterator[Operation]:
    """The operations of a server that has resources. `watchable`: it tells of their updates."""
    yield list_operation(
        session,
        namespace,
        "resources/list",
        method="resources/list",
        key="resources",
        description="The resources that can be read.",
    )
    yield list_operation(
        session,
        namespace,
        "resources/templates",
        method="resources/templates/list",
        key="resourceTemplates",
        description="Templates for the URIs of resources that can be read.",
    )
    yield _read_operation(session, namespace)
    if watchable:
        yield _watch_operation(session, namespace, updates)


def _read_operation(session: Session, namespace: str) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/read",
        description="What a resource holds, as content blocks; bytes are base64 in a `blob`.",
        input_schema=_ONE_RESOURCE,
    )

    async def read(input: Any, context: Context) -> ResponseEnvelope[Any]:
        result = await session.request(
            "resources/read",
            {"uri": input["uri"]},
            deadline=context.deadline,
            on_progress=context.on_progress,
            metadata=context.metadata,
        )
        contents = result.get("contents")
        if not isinstance(contents, list):
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{spec.id}: the result has no list of contents")
        held = [{"type": "resource", "resource": each} for each in cast("list[Any]", contents)]
        return blocks_envelope(result, read_blocks(held, spec.id), spec.id)

    return Operation(spec, read)


def _watch_operation(session: Session, namespace: str, updates: ResourceUpdates) -> Operation:
    spec = OperationSpec(
        namespace=namespace,
        name="resources/watch",
        type=OperationType.SUBSCRIPTION,
        description="An item whenever a resource was updated: the URI of what is worth reading again.",
        input_schema=_ONE_RESOURCE,
        output_schema=_ONE_RESOURCE,
    )

    async def watch(input: Any, _: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        uri = cast("str", input["uri"])
        with updates.of(uri) as watcher:
            await session.watch_resource(uri)
            try:
                while True:
                    update = {"uri": await _next(watcher, session)}
                    yield mcp_envelope(update, is_error=False, content=(), structured_content=update)
            finally:
                await _unwatch(session, uri)

    return Operation(spec, watch)


async def _next(watcher: Watcher, session: Session) -> str:
    while True:
        try:
            async with asyncio.timeout(CHECK_EVERY):
                return await watcher.next()
        except TimeoutError:
            await session.start()


async def _unwatch(session: Session, uri: str) -> None:
    try:
        await session.unwatch_resource(uri)
    except CallError as error:  # the consumer has left, and a server that is gone tells of nothing anyway
        logger.debug("the watch of a resource did not end cleanly: %s", error)
