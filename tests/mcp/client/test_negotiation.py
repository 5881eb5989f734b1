"""Which revision is spoken with which server."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import opwire
from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.negotiation import Agreement, MCPServerInfo, negotiate
from opwire.mcp.client.questions import Callbacks
from opwire.mcp.client.transport import HTTPExchangeError
from opwire.mcp.messages import RPCError
from tests.mcp.client.connections import at, call, connected, rogue

META = "io.modelcontextprotocol/"


class Peer:
    """A server as a script: what it answers to each method, in order; an exception is raised."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = {method.replace("_", "/"): list(given) for method, given in answers.items()}
        self.sent: list[tuple[str, Any]] = []

    async def request_once(
        self, method: str, params: dict[str, Any], headers: Mapping[str, str], timeout: float | None = None
    ) -> dict[str, Any]:
        self.sent.append((method, params))
        answer = self._answers[method].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def notify(self, method: str, headers: Mapping[str, str]) -> None:
        self.sent.append((method, None))

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.sent]


async def agree(peer: Peer, callbacks: Callbacks | None = None, discover: bool = True) -> Agreement:
    return await negotiate(peer, callbacks or Callbacks(), discover=discover, patience=1)


def old(version: str = "2025-06-18") -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}


def unsupported(*versions: str) -> RPCError:
    return RPCError(-32022, "Unsupported protocol version", {"supported": list(versions), "requested": "x"})


def refused(status: int) -> HTTPExchangeError:
    return HTTPExchangeError(status)


MODERN = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "instructions": "Be nice."}
DISCOVERED = ["server/discover"]
FELL_BACK = ["server/discover", "initialize", "notifications/initialized"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_revision_with_a_handshake_is_spoken(version: str) -> None:
    peer = Peer(initialize=[old(version)])
    agreement = await agree(peer, discover=False)
    assert agreement.info == MCPServerInfo("s", "1", version, {"tools": {}}, "")
    assert not agreement.modern
    greeting = {"name": "opwire", "version": opwire.__version__}
    answers: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
    assert peer.sent == [
        ("initialize", {"protocolVersion": "2025-11-25", "capabilities": answers, "clientInfo": greeting}),
        ("notifications/initialized", None),
    ]
    assert agreement.meta == {}
    assert agreement.headers("ping", {"a": 1}) == {"mcp-protocol-version": version}


async def test_a_stateless_server_gets_everything_with_every_request() -> None:
    named = {**MODERN, "_meta": {META + "serverInfo": {"name": "s", "version": "2"}}}
    callbacks = Callbacks(elicit=lambda _: None, log=lambda _: None)
    peer = Peer(server_discover=[named])
    agreement = await agree(peer, callbacks)
    assert agreement.info == MCPServerInfo("s", "2", "2026-07-28", {}, "Be nice.")
    assert agreement.modern
    assert agreement.meta[META + "protocolVersion"] == "2026-07-28"
    assert agreement.meta[META + "clientCapabilities"] == {"elicitation": {"form": {}, "url": {}}}
    assert agreement.meta[META + "logLevel"] == "info"
    asking = agreement.meta_for(asks=True, logs=True)
    assert asking[META + "clientCapabilities"].keys() == {"elicitation", "sampling", "roots"}
    assert asking[META + "logLevel"] == "debug"
    assert agreement.headers("tools/call", {"name": "é"}) == {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "=?base64?w6k=?=",
    }


@pytest.mark.parametrize(
    ("answers", "methods"),
    [
        ([RPCError(-32601, "Method not found")], FELL_BACK),
        ([RPCError(-32000, "Bad Request: Server not initialized")], FELL_BACK),
        ([RPCError(-32001, "timed out")], FELL_BACK),
        ([refused(404)], FELL_BACK),
        ([refused(400)], FELL_BACK),
        ([{}], FELL_BACK),
        ([{"supportedVersions": ["2025-11-25"], "capabilities": {}}], FELL_BACK),
        ([unsupported("2025-11-25")], FELL_BACK),
        ([unsupported()], FELL_BACK),
        ([MODERN], DISCOVERED),
        ([{**MODERN, "capabilities": 5, "_meta": 7, "instructions": None}], DISCOVERED),
    ],
)
async def test_a_server_is_asked_first_and_greeted_as_before_if_it_does_not_know(
    answers: list[Any], methods: list[str]
) -> None:
    peer = Peer(server_discover=answers, initialize=[old()])
    await agree(peer)
    assert peer.methods == methods


@pytest.mark.parametrize(
    "answers",
    [
        {"server_discover": [unsupported("2026-07-28"), MODERN]},
        {"server_discover": [RPCError(-32001, "too slow"), MODERN], "initialize": [unsupported("2026-07-28")]},
    ],
    ids=["at once", "in answer to the handshake"],
)
async def test_a_server_that_names_a_revision_that_we_know_is_asked_once_more(answers: dict[str, list[Any]]) -> None:
    assert (await agree(Peer(**answers))).modern


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"server_discover": [unsupported("2099-01-01")]}, lambda e: e.code == -32022),
        ({"server_discover": [unsupported("2026-07-28")] * 2}, lambda e: e.code == -32022),
        ({"server_discover": [refused(401)]}, lambda e: isinstance(e, HTTPExchangeError)),
        ({"server_discover": [refused(0)]}, lambda e: isinstance(e, HTTPExchangeError)),
        ({"server_discover": [refused(503)]}, lambda e: isinstance(e, HTTPExchangeError)),
        ({"server_discover": [unsupported("2026-07-28"), {}]}, lambda e: e.code is ErrorCode.PROTOCOL_ERROR),
        ({"server_discover": [{}], "initialize": [old("1999")]}, lambda e: "'1999'" in e.message),
        ({"server_discover": [{}], "initialize": [{}]}, lambda e: "'None'" in e.message),
    ],
)
async def test_where_nothing_can_be_agreed_on_that_is_the_end(
    answers: dict[str, list[Any]], error: Callable[[Any], bool]
) -> None:
    with pytest.raises((RPCError, HTTPExchangeError, CallError)) as failure:
        await agree(Peer(**answers))
    assert error(failure.value)


async def test_real_servers_of_both_kinds_are_understood(sdk_address: str) -> None:
    async with connected(at(sdk_address)) as session:
        info = await session.start()
        assert (info.name, info.version, info.protocol, info.instructions) == ("judge", "7", "2026-07-28", "Call add.")
    async with connected(rogue("ancient")) as session:
        with pytest.raises(
            CallError, match="speaks revision '1999-01-01' of the protocol; known are 2024-11-05"
        ) as failure:
            await session.start()
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR


async def test_a_stateless_server_sees_the_caller() -> None:
    async with connected(rogue("modern")) as session:
        meta = (await call(session, "meta"))["meta"]
    assert meta[META + "clientInfo"] == {"name": "opwire", "version": opwire.__version__}
