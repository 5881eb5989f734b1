"""Every page of a list, of a server that may never stop."""

import logging
from collections.abc import Mapping
from typing import Any, cast

from opwire.adapters.mcp.foreign import list_of
from opwire.adapters.mcp.report import Findings, Report
from opwire.adapters.mcp.results import structured_envelope
from opwire.adapters.mcp.session import Session
from opwire.envelope import ResponseEnvelope
from opwire.operation import Context, Operation, OperationSpec
from opwire.schema import Schema

logger = logging.getLogger("opwire.mcp")

MAX_PAGES = 1000

_NO_INPUT = Schema({"type": "object", "properties": {}})


async def list_all(
    session: Session, method: str, key: str, findings: Findings, *, deadline: float | None
) -> list[Mapping[str, Any]]:
    """Every entry of every page. What is no object is left out, and found.

    Raises:
        CallError: as `Session.request`.
    """
    entries: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    cursor: Any = None
    for _ in range(MAX_PAGES):
        result = await session.request(method, {} if cursor is None else {"cursor": cursor}, deadline=deadline)
        entries += _entries(result.get(key), method, findings)
        cursor = result.get("nextCursor")
        if cursor is None:
            return entries
        if not isinstance(cursor, str) or cursor in seen:
            findings.warn(method, "its cursors lead nowhere new; what came until then is used")
            return entries
        seen.add(cursor)
    findings.warn(method, f"it has more than {MAX_PAGES} pages; those are used")
    return entries


def list_operation(
    session: Session, namespace: str, name: str, *, method: str, key: str, description: str
) -> Operation:
    """A query that gives a list, whole, as the protocol has it: `{key: [...]}`."""
    entries = {"type": "array", "items": {"type": "object"}}
    spec = OperationSpec(
        namespace=namespace,
        name=name,
        description=description,
        input_schema=_NO_INPUT,
        output_schema=Schema({"type": "object", "properties": {key: entries}, "required": [key]}),
    )

    async def list_them(_: Any, context: Context) -> ResponseEnvelope[Any]:
        findings = Findings(namespace)
        entries = await list_all(session, method, key, findings, deadline=context.deadline)
        for found in findings.report().since(Report()):
            logger.warning("%s", found)
        return structured_envelope({key: entries}, [], spec.id)

    return Operation(spec, list_them)


def _entries(page: Any, method: str, findings: Findings) -> list[Mapping[str, Any]]:
    if not isinstance(page, list):
        findings.warn(method, f"a page holds a list, not {type(page).__name__}")
        return []
    entries = [cast("Mapping[str, Any]", each) for each in list_of(page) if isinstance(each, Mapping)]
    for each in list_of(page):
        if not isinstance(each, Mapping):
            findings.skip(each, f"an entry of {method} is an object")
    return entries
