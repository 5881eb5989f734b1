"""Every page of a list, of a server that may never stop: pages, entries and bytes are bounded."""

import logging
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from opwire.adapters.mcp.foreign import list_of
from opwire.adapters.mcp.report import Findings, Report
from opwire.adapters.mcp.results import structured_envelope
from opwire.adapters.mcp.session import Session
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Operation, OperationSpec
from opwire.schema import Schema

logger = logging.getLogger("opwire.mcp")

MAX_PAGES = 1000
MAX_OPERATIONS = 10_000
"""Tools or prompts of a server: each becomes an operation, which takes a few kB however small its description is."""

MAX_ENTRIES = 100_000
"""Entries of a list that stay entries, as resources do."""

MAX_BYTES = 32 * 1024 * 1024
"""Bytes of all pages of one list: more than GitHub's 1,223 operations take as tools."""

_NO_INPUT = Schema({"type": "object", "properties": {}})


async def list_all(
    session: Session,
    method: str,
    key: str,
    findings: Findings,
    *,
    deadline: float | None,
    max_entries: int = MAX_OPERATIONS,
) -> list[Mapping[str, Any]]:
    """Return every entry of every page, up to the limits. An entry that is not an object is left out, and reported.

    Raises:
        CallError: as `Session.request`; PROTOCOL_ERROR, a page is nested too deeply.
    """
    entries: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    size = 0
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        result = await session.request(method, params, deadline=deadline)
        size += _size(result, method)
        if size > MAX_BYTES:
            findings.warn(method, f"it has more than {MAX_BYTES:,} bytes; the {len(entries):,} entries before are used")
            return entries
        entries += _entries(result.get(key), method, findings)
        if len(entries) > max_entries:
            findings.warn(method, f"it has more than {max_entries:,} entries; those are used")
            return entries[:max_entries]
        cursor = result.get("nextCursor")
        if cursor is None:
            return entries
        if not isinstance(cursor, str) or cursor in seen:
            findings.warn(method, "its cursors lead nowhere new; what came until then is used")
            return entries
        seen.add(cursor)
        params = {"cursor": cursor}
    findings.warn(method, f"it has more than {MAX_PAGES:,} pages; those are used")
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
        entries = await list_all(session, method, key, findings, deadline=context.deadline, max_entries=MAX_ENTRIES)
        for found in findings.report().since(Report()):
            logger.warning("%s", found)
        return structured_envelope({key: entries}, [], spec.id)

    return Operation(spec, list_them)


def _size(result: Mapping[str, Any], method: str) -> int:
    try:
        return len(msgspec.json.encode(result))
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"a page of {method} cannot be used: {error}") from error


def _entries(page: Any, method: str, findings: Findings) -> list[Mapping[str, Any]]:
    if not isinstance(page, list):
        findings.warn(method, f"a page holds a list, not {type(page).__name__}")
        return []
    entries = [cast("Mapping[str, Any]", each) for each in list_of(page) if isinstance(each, Mapping)]
    for each in list_of(page):
        if not isinstance(each, Mapping):
            findings.skip(each, f"an entry of {method} is an object")
    return entries
