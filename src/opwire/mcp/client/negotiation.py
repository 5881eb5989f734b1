"""The handshake: agree on a protocol revision, and add to each request what that revision requires.

`server/discover` (2026-07-28) is tried first, and the `initialize` handshake of 2024-11-05
to 2025-11-25 is the fallback for servers that do not know it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.questions import Callbacks
from opwire.mcp.client.transport import HTTPExchangeError
from opwire.mcp.messages import RPCCode, RPCError
from opwire.mcp.revisions import (
    CLIENT_CAPABILITIES_META,
    CLIENT_INFO_META,
    HANDSHAKE_VERSIONS,
    LOG_LEVEL_META,
    SERVER_INFO_META,
    STATELESS_VERSIONS,
    VERSION_HEADER,
    VERSION_META,
    request_headers,
)
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict, as_list
from opwire.version import VERSION

logger = get_logger("opwire.mcp.client")

_CLIENT = {"name": "opwire", "version": VERSION}
_ANSWERS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


def as_text(value: Any) -> str:
    """Return a value that is a string, and an empty one for anything else."""
    return value if isinstance(value, str) else ""


class MCPServerInfo(Struct, frozen=True):
    """The self-description of a server. Missing or invalid names and instructions are empty."""

    name: str
    version: str
    protocol: str
    capabilities: dict[str, Any]
    instructions: str

    @classmethod
    def parse(cls, result: Mapping[str, Any], implementation: Any, protocol: str) -> "MCPServerInfo":
        """Parse the result of a handshake."""
        implementation_fields = as_dict(implementation)
        return cls(
            name=as_text(implementation_fields.get("name")),
            version=as_text(implementation_fields.get("version")),
            protocol=protocol,
            capabilities=as_dict(result.get("capabilities")),
            instructions=as_text(result.get("instructions")),
        )


class Agreement(Struct, frozen=True):
    """The outcome of a handshake. `modern`: sessions do not exist, and every request carries `meta`."""

    info: MCPServerInfo
    meta: dict[str, Any] = {}
    modern: bool = False

    def meta_for(self, *, asks: bool, logs: bool) -> dict[str, Any]:
        """Return the `meta` of a request: its caller answers questions, or filters log messages by their level."""
        meta = {**self.meta, CLIENT_CAPABILITIES_META: _ANSWERS} if asks else self.meta
        return {**meta, LOG_LEVEL_META: "debug"} if logs else meta

    def headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        """Return the HTTP headers of one request, without those of arguments."""
        version = self.info.protocol
        return request_headers(version, method, params) if self.modern else {VERSION_HEADER: version}


class Outbound(Protocol):
    """The requests and notifications of a connection before the agreement."""

    async def request_once(
        self, method: str, params: dict[str, Any], headers: Mapping[str, str], timeout: float | None = None
    ) -> dict[str, Any]:
        """Return the result of a request.

        Raises:
            RPCError, HTTPExchangeError, CallError: it failed; REQUEST_TIMEOUT after the timeout.
        """
        ...

    async def notify(self, method: str, headers: Mapping[str, str]) -> None:
        """Send a notification."""
        ...


async def negotiate(
    peer: Outbound, callbacks: Callbacks, *, discover: bool, patience: float, revision: str | None = None
) -> Agreement:
    """Agree on a revision: `revision`, or the latest that both know.

    `patience` is the timeout of `server/discover` in seconds.

    Raises:
        RPCError, HTTPExchangeError: the server rejected the handshake, or is gone.
        CallError: PROTOCOL_ERROR, without a common revision, or for an invalid response.
    """
    if revision in HANDSHAKE_VERSIONS:
        return await _initialize(peer, revision)
    if revision is not None:
        agreement = await _discover(peer, callbacks, revision, patience)
        if agreement is None or agreement.info.protocol != revision:
            message = f"the MCP server does not speak revision {revision}, which is the only one that is allowed"
            raise CallError(ErrorCode.PROTOCOL_ERROR, message)
        return agreement
    if not discover:
        return await _initialize(peer)
    try:
        return await _discover(peer, callbacks, STATELESS_VERSIONS[-1], patience) or await _initialize(peer)
    except RPCError as refusal:
        # Only modern servers use this code. It also answers `initialize`, if the server started so slowly that the
        # discovery timed out.
        supported = as_list(as_dict(refusal.data).get("supported"))
        version = next((newest for newest in reversed(STATELESS_VERSIONS) if newest in supported), None)
        if refusal.code != RPCCode.UNSUPPORTED_PROTOCOL_VERSION or version is None:
            raise
    agreement = await _discover(peer, callbacks, version, patience)
    if agreement is None:
        raise CallError(ErrorCode.PROTOCOL_ERROR, "the MCP server offers a revision and then rejects it")
    return agreement


async def _discover(peer: Outbound, callbacks: Callbacks, version: str, patience: float) -> Agreement | None:
    """Return None if the server is older than `server/discover`."""
    headers = request_headers(version, "server/discover", {})
    params = {"_meta": _request_meta(callbacks, version)}
    try:
        result = await peer.request_once("server/discover", params, headers, patience)
    except HTTPExchangeError as refusal:
        if refusal.status in (0, 401, 403, 407, 408, 429) or refusal.status >= 500:
            raise  # unreachable or not authorized, which is unrelated to the server's age
        return None
    except RPCError as refusal:
        versions = as_list(as_dict(refusal.data).get("supported"))
        is_modern = refusal.code == RPCCode.UNSUPPORTED_PROTOCOL_VERSION and versions
        if is_modern and not any(supported_version in HANDSHAKE_VERSIONS for supported_version in versions):
            raise
        return None
    supported = as_list(result.get("supportedVersions"))
    mutual = [stateless_version for stateless_version in STATELESS_VERSIONS if stateless_version in supported]
    if not mutual:
        return None
    server = as_dict(result.get("_meta")).get(SERVER_INFO_META)
    return Agreement(MCPServerInfo.parse(result, server, mutual[-1]), _request_meta(callbacks, mutual[-1]), modern=True)


async def _initialize(peer: Outbound, revision: str | None = None) -> Agreement:
    params = {
        "protocolVersion": revision or HANDSHAKE_VERSIONS[-1],
        "capabilities": _ANSWERS,  # some callers answer questions, and each call may have another caller
        "clientInfo": _CLIENT,
    }
    result = await peer.request_once("initialize", params, {})
    version: Any = result.get("protocolVersion")
    allowed = HANDSHAKE_VERSIONS if revision is None else (revision,)
    if version not in allowed:
        all_versions = f"known are {', '.join((*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS))}"
        allowed_versions = all_versions if revision is None else f"the source allows {revision} only"
        message = f"the MCP server speaks revision {str(version)[:50]!r} of the protocol; {allowed_versions}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)
    await peer.notify("notifications/initialized", {VERSION_HEADER: version})
    return Agreement(MCPServerInfo.parse(result, result.get("serverInfo"), version))


def _request_meta(callbacks: Callbacks, version: str) -> dict[str, Any]:
    meta: dict[str, Any] = {
        VERSION_META: version,
        CLIENT_INFO_META: _CLIENT,
        CLIENT_CAPABILITIES_META: callbacks.capabilities,
    }
    return meta if callbacks.log is None else {**meta, LOG_LEVEL_META: "info"}
