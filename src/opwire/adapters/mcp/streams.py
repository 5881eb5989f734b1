"""Subscriptions of another opwire, which it serves as tools: their items arrive while the call runs.

Items come as progress, each with its number, and all of them again in the result. So one that is lost on the way or
finds no room here costs only time: it, and those after it, are taken from the result.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from opwire.adapters.mcp.failures import MAX_RETRY_AFTER
from opwire.adapters.mcp.foreign import list_of, object_of
from opwire.adapters.mcp.results import as_it_was, decoded
from opwire.adapters.mcp.session import Session
from opwire.envelope import ResponseEnvelope, mcp_envelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context
from opwire.origin import ERROR_META, ITEM_META, read_result_origin
from opwire.tool_envelope.block import block_texts

logger = logging.getLogger("opwire.mcp")

T = TypeVar("T", bound=Struct)


MAX_WAITING = 1000
"""Items that the consumer has not taken yet."""

MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Bytes of these items, as JSON; the first one may be larger."""

_MAX_MESSAGE = 2000
_TURN = 100  # items of a result after which others get a turn


class _Item(Struct):
    n: int
    data: Any = None
    encoding: str | None = None


class _Failure(Struct, rename="camel"):
    code: ErrorCode
    message: str = ""
    details: Any = None
    retryable: bool | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None


async def stream_items(
    session: Session, params: dict[str, Any], context: Context, label: str
) -> AsyncGenerator[ResponseEnvelope[Any]]:
    """Call the tool, and yield each item as it comes.

    Raises:
        CallError: as `Session.request`; what the subscription itself failed of; PROTOCOL_ERROR if the result has no
            items.
    """
    waiting = _Waiting()

    def arrive(progress: Mapping[str, Any]) -> None:
        item = _carried(progress.get("_meta"), ITEM_META, _Item)
        if item is not None:
            waiting.put(item)

    request = asyncio.create_task(
        session.request(
            "tools/call", params, deadline=context.deadline, on_progress_params=arrive, metadata=context.metadata
        )
    )
    request.add_done_callback(lambda _: waiting.end())
    given = 0
    try:
        while (item := await waiting.get()) is not None:
            if item.n == given:
                given += 1
                yield _envelope(item.data, item.encoding, label)
        result = await request
        for n, envelope in enumerate(_items_from(given, result, label), 1):
            yield envelope
            if n % _TURN == 0:
                await asyncio.sleep(0)
        _check_end(result, label)
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


class _Waiting:
    """The items that came as progress: what does not fit is taken from the result."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[tuple[_Item, int] | None] = asyncio.Queue()
        self._bytes = 0

    def put(self, item: _Item) -> None:
        if self._items.qsize() >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
            return
        try:
            size = len(msgspec.json.encode(item.data))
        except (TypeError, ValueError, RecursionError):
            return
        if not self._bytes or self._bytes + size <= MAX_WAITING_BYTES:
            self._bytes += size
            self._items.put_nowait((item, size))

    def end(self) -> None:
        self._items.put_nowait(None)

    async def get(self) -> _Item | None:
        found = await self._items.get()
        if found is None:
            return None
        self._bytes -= found[1]
        return found[0]


def _items_from(given: int, result: Mapping[str, Any], label: str) -> Iterator[ResponseEnvelope[Any]]:
    """Yield the items of a result behind those that were given already."""
    origin = read_result_origin(result.get("_meta"))
    collected = object_of(as_it_was(result.get("structuredContent"), origin, label))
    items = collected.get("items")
    if not isinstance(items, list) and not result.get("isError"):
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"{label}: the result of a subscription has no list of items")
    encodings = object_of(object_of(origin and origin.meta).get("encodings"))
    for n, data in enumerate(list_of(items)[given:], given):
        yield _envelope(data, encodings.get(str(n)), label)


def _envelope(data: Any, encoding: str | None, label: str) -> ResponseEnvelope[Any]:
    return mcp_envelope(decoded(data, encoding, label), is_error=False, content=(), structured_content=data)


def _check_end(result: Mapping[str, Any], label: str) -> None:
    """Say how the subscription ended. An error is raised, as where it ran: a stream has no envelope for it."""
    if result.get("isError"):
        text = next(iter(block_texts(list_of(result.get("content")))), "")[:_MAX_MESSAGE]
        said = _carried(result.get("_meta"), ERROR_META, _Failure) or _Failure(ErrorCode.EXECUTION_ERROR)
        message = said.message[:_MAX_MESSAGE] or text.removeprefix(f"{said.code.value}: ")
        wait = None if said.retry_after is None else min(said.retry_after, MAX_RETRY_AFTER)
        raise CallError(said.code, message, said.details, retryable=said.retryable, retry_after=wait)
    if object_of(result.get("structuredContent")).get("complete") is False:
        logger.warning("%s: the server ended the subscription at a limit of its own", label)


def _carried(meta: Any, key: str, kind: type[T]) -> T | None:
    """What a `_meta` carries under a key; None if there is nothing that can be read."""
    try:
        return msgspec.convert(object_of(meta)[key], kind)
    except (KeyError, msgspec.ValidationError):
        return None
