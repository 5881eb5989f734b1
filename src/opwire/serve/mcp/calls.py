"""Calls of tools: access, input, the registry, the result. Every call that a client may make ends in a result."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import anyio
from msgspec import Struct

from opwire.access import check_access
from opwire.errors import CallError, ErrorCode
from opwire.invoke import CLOSE_GRACE, failure, leave_behind
from opwire.operation import Context, Identity, Inbound, OperationType, trace_of
from opwire.registry import OperationRegistry
from opwire.serve.mcp.progress import Reports, RequestContext, progress_token, send_item
from opwire.serve.mcp.results import Answering, Result, Sendable, collected_result, error_result, result_of, sendable
from opwire.serve.mcp.tools import Tool

logger = logging.getLogger("opwire.serve")


class Limits(Struct, frozen=True, kw_only=True):
    """How long a call may take, and how much is collected of a subscription. Times are in seconds."""

    timeout: float | None = 30.0  # of an operation that has none of its own
    max_items: int = 100
    max_seconds: float = 30.0
    max_bytes: int = 4 * 1024 * 1024  # of the items in JSON; the one that goes beyond it is the last


class Call(Struct, frozen=True, kw_only=True):
    """A call that a client makes."""

    tool: Tool
    arguments: dict[str, Any]
    identity: Identity | None
    ctx: RequestContext
    answering: Answering


async def answer(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    """The result of a call, whatever becomes of it.

    Raises:
        CancelledError: the client gave up, or is gone; the handler was cancelled.
    """
    return await _apart(_answer(call, registry, limits), call.tool.spec.id)


async def _apart(work: Coroutine[Any, Any, Result], label: str) -> Result:
    """Run something in a task of its own.

    The SDK cancels with anyio, which cancels a task again at every await until it is gone: no handler could clean up.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task], timeout=1.2 * CLOSE_GRACE)  # one with a deadline is left behind before
        if not task.done():
            leave_behind(task, label)
        raise


async def _answer(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    spec = call.tool.spec
    try:
        check_access(spec, call.identity)
        if spec.type is OperationType.SUBSCRIPTION:
            return await _collected(call, registry, limits)
        return await _executed(call, registry, limits)
    except CallError as error:
        return error_result(error, call.tool, call.answering)
    except Exception as unforeseen:
        return error_result(failure(unforeseen, spec.id), call.tool, call.answering)


async def _executed(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    spec = call.tool.spec
    reports = Reports(call.ctx)
    context = _context(call, reports).within(limits.timeout if spec.timeout is None else spec.timeout)
    try:
        envelope = await registry.execute(spec.id, _input(call), context)
        result = result_of(envelope, call.tool, call.answering)
        await reports.flush()
        return result
    finally:
        reports.close()


async def _collected(call: Call, registry: OperationRegistry, limits: Limits) -> Result:
    """What comes of a subscription until it ends or a limit is reached; each item is also told at once."""
    items: list[Sendable] = []
    size, complete, failed = 0, False, None
    envelopes = registry.subscribe(call.tool.spec.id, _input(call), _context(call, None))
    token = progress_token(call.ctx)
    try:
        async with asyncio.timeout(limits.max_seconds), aclosing(envelopes):
            async for envelope in envelopes:
                items.append(sendable(envelope.data, call.tool.spec.id))
                if token is not None:
                    await send_item(call.ctx, token, len(items) - 1, items[-1])
                size += len(items[-1].json)
                if len(items) >= limits.max_items or size >= limits.max_bytes:
                    break
            else:
                complete = True
    except TimeoutError:
        pass
    except CallError as error:
        if not items:
            raise
        failed = error
    return collected_result(items, call.tool, call.answering, complete=complete, error=failed)


def _context(call: Call, reports: Reports | None) -> Context:
    meta: Any = call.ctx.meta or {}
    trace = trace_of(meta)
    request_id = uuid4().hex  # our own: the client's is unique only on its own connection
    return Context(
        request_id=request_id,
        identity=call.identity,
        metadata=trace,
        on_progress=reports,
        inbound=Inbound(request_id),
    )


def _input(call: Call) -> Any:
    """The operation's input, out of its wrapper if it has one.

    Raises:
        CallError: VALIDATION_ERROR.
    """
    if not call.tool.wraps_input:
        return call.arguments
    unknown = call.arguments.keys() - {"input"}
    if unknown:
        wrong = f"{call.tool.spec.id}: the only argument is `input`, not {', '.join(sorted(unknown)[:3])}"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
    return call.arguments.get("input")
