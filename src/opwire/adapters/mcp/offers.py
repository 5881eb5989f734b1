"""What a server has to offer at the moment: everything that it lists, as operations."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from msgspec import Struct

from opwire.adapters.mcp.foreign import object_of, text_of
from opwire.adapters.mcp.listing import list_all
from opwire.adapters.mcp.prompts import prompts_operation, read_prompt
from opwire.adapters.mcp.report import Findings, Report
from opwire.adapters.mcp.resources import resource_operations
from opwire.adapters.mcp.session import Session
from opwire.adapters.mcp.tools import Reading, read_tool
from opwire.adapters.mcp.updates import ResourceUpdates
from opwire.errors import CallError, ErrorCode
from opwire.operation import Operation

_TURN = 0.01  # seconds of reading after which others get a turn
_OUT_OF_REACH = (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)


class Offer(Struct, frozen=True):
    """An operation, and what the server said of it: nothing where the operation is the same for every server."""

    operation: Operation
    definition: Mapping[str, Any] = {}


class Offers(Struct, frozen=True):
    """What a server offers, by the ids of the operations, and what of it could not be used."""

    by_id: dict[str, Offer] = {}
    report: Report = Report()

    def changed_since(self, earlier: "Offers") -> tuple[Operation, ...]:
        """Those that are new or different. Handlers are not compared: they do what the definition says."""
        return tuple(
            offer.operation
            for id, offer in self.by_id.items()
            if id not in earlier.by_id or earlier.by_id[id].definition != offer.definition
        )


class OfferReader:
    """Reads the offers of one server."""

    def __init__(
        self, session: Session, reading: Reading, updates: ResourceUpdates, *, resources: bool, prompts: bool
    ) -> None:
        self._session = session
        self._reading = reading
        self._updates = updates
        self._resources = resources
        self._prompts = prompts

    async def read(self, timeout: float) -> Offers:
        """Everything that the server lists now.

        Raises:
            CallError: as `Session.request`.
        """
        info = self._session.info
        capabilities = {} if info is None else info.capabilities
        deadline = time.monotonic() + timeout
        shelf = _Shelf(Findings(self._reading.namespace))
        # Asked for in any case: there are servers that have tools and do not announce them.
        await self._read_tools(shelf, deadline, announced="tools" in capabilities)
        if self._resources and "resources" in capabilities:
            watchable = object_of(capabilities["resources"]).get("subscribe") is True
            for operation in resource_operations(
                self._session, self._reading.namespace, self._updates, watchable=watchable
            ):
                shelf.put(operation)
        if self._prompts and "prompts" in capabilities:
            await self._read_prompts(shelf, deadline)
        return Offers(shelf.offers, shelf.findings.report())

    async def _read_tools(self, shelf: "_Shelf", deadline: float, *, announced: bool) -> None:
        tools = await self._list("tools/list", "tools", shelf.findings, deadline, announced=announced)
        dropped = self._session.remember_tools(tools)
        async for tool in _in_turns(tools):
            if (name := text_of(tool.get("name"))) in dropped:
                shelf.findings.skip(name, dropped[name])
            else:
                shelf.put(read_tool(tool, self._session, self._reading, shelf.findings), tool)

    async def _read_prompts(self, shelf: "_Shelf", deadline: float) -> None:
        shelf.put(prompts_operation(self._session, self._reading.namespace))
        prompts = await self._list("prompts/list", "prompts", shelf.findings, deadline, announced=True)
        async for prompt in _in_turns(prompts):
            shelf.put(read_prompt(prompt, self._session, self._reading.namespace, shelf.findings), prompt)

    async def _list(
        self, method: str, key: str, findings: Findings, deadline: float, *, announced: bool
    ) -> list[Mapping[str, Any]]:
        try:
            return await list_all(self._session, method, key, findings, deadline=deadline)
        except CallError as error:
            if error.code is ErrorCode.OPERATION_NOT_FOUND and announced:
                findings.warn(method, "the server announces it, and does not know it")
            elif announced or error.code in _OUT_OF_REACH:
                raise
            return []


async def _in_turns(entries: Iterable[Mapping[str, Any]]) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield the entries, and let others run in between: to compile the schemas of many tools takes seconds."""
    turn_ends = time.monotonic() + _TURN
    for each in entries:
        yield each
        if time.monotonic() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + _TURN


class _Shelf:
    """Offers in the making: of several with the same id, the first stays."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.offers: dict[str, Offer] = {}

    def put(self, operation: Operation | None, definition: Mapping[str, Any] | None = None) -> None:
        if operation is None:
            return
        spec = operation.spec
        if spec.id in self.offers:
            self.findings.skip(spec.name, f"there already is a {spec.id}")
        else:
            self.offers[spec.id] = Offer(operation, definition or {})
