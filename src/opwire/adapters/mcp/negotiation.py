"""Which revision of the protocol is spoken, and what each request then carries.

As the SDK's own client does it: `server/discover` (2026-07-28) first, and the `initialize` handshake of 2024-11-05 to
2025-11-25 with every server that does not know it.

How a server of 2026-07-28 tells of changes: a request that stays open, `subscriptions/listen`.

Earlier servers just send notifications. Here the same notifications come out, and a stream that broke is opened again.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import metadata
from typing import Any

from mcp.shared.dispatcher import CallOptions, Outbound
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from msgspec import Struct

from opwire.adapters.mcp.report import http_failure, list_of, object_of, text_of
from opwire.adapters.mcp.servers import Callbacks
from opwire.errors import CallError, ErrorCode

_CLIENT = {"name": "opwire", "version": metadata.version("opwire")}


class ServerInfo(Struct, frozen=True):
    """What a server says of itself."""

    name: str
    version: str
    protocol: str
    capabilities: dict[str, Any]
    instructions: str


class Agreement(Struct, frozen=True):
    """What was agreed on."""

    info: ServerInfo
    meta: dict[str, Any]  # what every request carries from 2026-07-28 on

    @property
    def modern(self) -> bool:
        """Whether there are no sessions: every request says all there is to know."""
        return self.info.protocol in MODERN_PROTOCOL_VERSIONS

    def stamp(
        self, method: str, params: dict[str, Any], headers: Mapping[str, str]
    ) -> tuple[dict[str, Any], CallOptions]:
        """Params and options of one request."""
        stamped = {MCP_PROTOCOL_VERSION_HEADER: self.info.protocol}
        if not self.modern:
            return params, {"headers": stamped}
        stamped[MCP_METHOD_HEADER] = method
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            stamped[MCP_NAME_HEADER] = encode_header_value(name)
        return {**params, "_meta": {**(params.get("_meta") or {}), **self.meta}}, {"headers": stamped | dict(headers)}


async def negotiate(peer: Outbound, callbacks: Callbacks, *, discover: bool, patience: float) -> Agreement:
    """Agree with a server; `patience` is how long it may take to say whether it knows `server/discover`.

    Raises:
        MCPError: the server refused, or is gone.
        CallError: PROTOCOL_ERROR, there is no revision that both speak, or what it says is nonsense.
    """
    if not discover:
        return await _initialize(peer, callbacks)
    try:
        return await _discover(peer, callbacks, LATEST_MODERN_VERSION, patience) or await _initialize(peer, callbacks)
    except MCPError as refusal:
        # That code is known only to modern servers. It comes as an answer to `initialize`, too, if the server took so
        # long to start that we gave up waiting for its answer to the discovery.
        version = _offered(refusal)
        if version is None:
            raise
    agreement = await _discover(peer, callbacks, version, patience)
    if agreement is None:
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the MCP server names a revision, and then does not speak it")
    return agreement


async def _discover(peer: Outbound, callbacks: Callbacks, version: str, patience: float) -> Agreement | None:
    """None: the server is older than that."""
    meta = _meta(callbacks, version)
    options: CallOptions = {
        "timeout": patience,
        "cancel_on_abandon": False,
        "headers": {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: "server/discover"},
    }
    try:
        found = await peer.send_raw_request("server/discover", {"_meta": meta}, options)
    except MCPError as refusal:
        if _says_nothing(refusal) or (refusal.code == UNSUPPORTED_PROTOCOL_VERSION and not _speaks_handshake(refusal)):
            raise
        return None
    supported = list_of(found.get("supportedVersions"))
    mutual = [each for each in MODERN_PROTOCOL_VERSIONS if each in supported]
    if not mutual:
        return None
    server = object_of(found.get("_meta")).get(SERVER_INFO_META_KEY)
    return Agreement(_info(found, server, mutual[-1]), _meta(callbacks, mutual[-1]))


async def _initialize(peer: Outbound, callbacks: Callbacks) -> Agreement:
    params = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": callbacks.capabilities,
        "clientInfo": _CLIENT,
    }
    found = await peer.send_raw_request("initialize", params, {"cancel_on_abandon": False})
    version = found.get("protocolVersion")
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        known = ", ".join((*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS))
        message = f"the MCP server speaks revision {str(version)[:50]!r} of the protocol; known are {known}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)
    agreement = Agreement(_info(found, found.get("serverInfo"), version), {})
    await peer.notify("notifications/initialized", None, {"headers": {MCP_PROTOCOL_VERSION_HEADER: version}})
    return agreement


def _meta(callbacks: Callbacks, version: str) -> dict[str, Any]:
    meta: dict[str, Any] = {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: _CLIENT,
        CLIENT_CAPABILITIES_META_KEY: callbacks.capabilities,
    }
    return meta if callbacks.log is None else {**meta, LOG_LEVEL_META_KEY: "info"}


def _info(found: Mapping[str, Any], server: Any, version: str) -> ServerInfo:
    """Names and instructions are for people: what is missing or of a wrong type is empty."""
    named = object_of(server)
    return ServerInfo(
        name=text_of(named.get("name")),
        version=text_of(named.get("version")),
        protocol=version,
        capabilities=dict(object_of(found.get("capabilities"))),
        instructions=text_of(found.get("instructions")),
    )


def _says_nothing(refusal: MCPError) -> bool:
    """Whether an error says nothing about the server's age: it is out of reach, or does not let us in."""
    http = http_failure(refusal)
    return http is not None and (http.status in (0, 401, 403, 407, 408, 429) or http.status >= 500)


def _versions(refusal: MCPError) -> list[Any]:
    return list_of(object_of(refusal.data).get("supported"))


def _speaks_handshake(refusal: MCPError) -> bool:
    versions = _versions(refusal)
    return not versions or any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in versions)


def _offered(refusal: MCPError) -> str | None:
    """The newest modern revision that a server names in its refusal."""
    if refusal.code != UNSUPPORTED_PROTOCOL_VERSION:
        return None
    versions = _versions(refusal)
    return next((version for version in reversed(MODERN_PROTOCOL_VERSIONS) if version in versions), None)


logger = logging.getLogger("opwire.mcp")

_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds until a stream that ended is opened again; doubled each time
_LISTS = ("tools", "prompts", "resources")
_ids = itertools.count(1)  # of the process: the SDK's transport asks that an id is not used twice


def changes_of(capabilities: Mapping[str, Any]) -> dict[str, bool]:
    """The changes that a server says it tells of."""
    return {
        f"{kind}ListChanged": True for kind in _LISTS if object_of(capabilities.get(kind)).get("listChanged") is True
    }


class Subscriptions:
    """`listen` makes the request, under an id, and returns when the stream has ended."""

    def __init__(
        self,
        listen: Callable[[dict[str, Any], str], Awaitable[object]],
        notify: Callable[[str, dict[str, Any]], object],
    ) -> None:
        self._listen = listen
        self._notify = notify
        self._unacknowledged: dict[str, Callable[[], object]] = {}
        self._streams: dict[str, asyncio.Task[object]] = {}

    async def run(self, wanted: Mapping[str, Any], opened: Callable[[], object]) -> None:
        """Listen until cancelled; `opened` is called when the server has agreed for the first time.

        Raises:
            CallError: the server does not do this, or the connection is gone.
        """
        pause = _PAUSE
        while True:
            name = f"listen-{next(_ids)}"
            self._unacknowledged[name] = opened
            await self._stream(wanted, name)
            if self._unacknowledged.pop(name, None) is None:  # it was open
                pause = _PAUSE
                opened = partial(self._tell_all, wanted)  # what changes until the next one is open is not told
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _stream(self, wanted: Mapping[str, Any], name: str) -> None:
        """One stream. It is a task of its own, so that its end is told from ours."""
        stream = self._streams[name] = asyncio.ensure_future(self._listen({"notifications": dict(wanted)}, name))
        try:
            await asyncio.wait((stream,))
        finally:
            del self._streams[name]
            stream.cancel()
        error = None if stream.cancelled() else stream.exception()
        if isinstance(error, CallError) and error.code is ErrorCode.UNAVAILABLE and error.retryable:
            logger.debug("a subscription broke: %s", error)
        elif error is not None:
            raise error

    def _tell_all(self, wanted: Mapping[str, Any]) -> None:
        for kind in _LISTS:
            if wanted.get(f"{kind}ListChanged"):
                self._notify(f"notifications/{kind}/list_changed", {})
        for uri in wanted.get("resourceSubscriptions", ()):
            self._notify("notifications/resources/updated", {"uri": uri})

    def acknowledge(self, params: Mapping[str, Any]) -> None:
        """The server has agreed to a subscription."""
        opened = self._unacknowledged.pop(text_of(object_of(params.get("_meta")).get(SUBSCRIPTION_ID_META_KEY)), None)
        if opened is not None:
            opened()

    def end(self, params: Mapping[str, Any]) -> None:
        """The server has ended a subscription by cancelling our request."""
        stream = self._streams.get(text_of(params.get("requestId")))
        if stream is not None:
            stream.cancel()
