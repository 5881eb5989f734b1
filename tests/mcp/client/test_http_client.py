"""Failures over HTTP, and the errors that a caller gets."""

import asyncio
import gzip
import json
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.http.sse import SSEParser
from opwire.mcp.client import http
from opwire.mcp.client.servers import HTTPServer, HTTPServerOptions
from tests.mcp.client.connections import PATIENCE, Answer, at, call, connected, http_server
from tests.servers.certificates import self_signed
from tests.turns import counted_turns

JSON = {"content-type": "application/json"}


def result(body: bytes, result: Any, **headers: str) -> Answer:
    return (
        200,
        {**JSON, **headers},
        json.dumps({"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": result}).encode(),
    )


class Old:
    """A server with sessions and configurable responses to calls."""

    def __init__(self, on_call: Callable[[dict[str, str], bytes], Answer]) -> None:
        self._on_call = on_call
        self.sessions = 0

    async def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if method != "POST":
            return 405, {}, b""
        match json.loads(body).get("method"):
            case "initialize":
                self.sessions += 1
                agreed = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}}
                return result(body, agreed, **{"mcp-session-id": str(self.sessions)})
            case "tools/call":
                return self._on_call(headers, body)
            case "server/discover":
                return 400, {}, b"what?"
            case _:
                return 202, {}, b""


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_batch_has_notifications_and_the_response(kind: str) -> None:
    seen: list[str] = []

    def answer(headers: dict[str, str], body: bytes) -> Answer:
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        batch = json.dumps([changed, {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": {"n": 1}}]).encode()
        return 200, {"content-type": kind}, batch if "json" in kind else b"data: " + batch + b"\n\n"

    async with (
        http_server(Old(answer)) as address,
        connected(at(address), on_notification=lambda method, _: seen.append(method)) as session,
    ):
        assert await call(session, "any") == {"n": 1}
    assert seen == ["notifications/tools/list_changed"]


@pytest.mark.parametrize(
    ("answer", "words", "retryable", "retry_after"),
    [
        ((401, {"www-authenticate": "Bearer"}, b""), "rejected the credentials", False, None),
        (
            (401, JSON, b'{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}'),
            "rejected the credentials",
            False,
            None,
        ),
        ((403, {}, b"<html>"), "denied access", False, None),
        ((400, JSON, b'{"error": {"code": "no"}}'), "answered with HTTP 400", False, None),
        ((404, {}, b""), "has nothing at this address", False, None),
        ((429, {"retry-after": "7"}, b""), "answered with HTTP 429", True, 7.0),
        ((503, {"retry-after": "soon"}, b"x" * 200_000), "answered with HTTP 503", True, None),
    ],
)
async def test_a_server_that_does_not_let_us_in_is_unavailable_and_the_reason_is_said(
    answer: Answer, words: str, retryable: bool, retry_after: float | None
) -> None:
    async def refuse(*_: Any) -> Answer:
        return answer

    async with http_server(refuse) as address, connected(at(address)) as session:
        with pytest.raises(CallError, match=words) as failure:
            await session.start()
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert (failure.value.retryable, failure.value.retry_after) == (retryable, retry_after)
        assert failure.value.details == {"status": answer[0]}


async def test_the_reason_of_a_failure_is_that_of_every_address() -> None:
    async with connected(HTTPServer("http://localhost:1/mcp")) as session:
        with pytest.raises(CallError, match=r"cannot be reached \(Connection refused; check the port") as failure:
            await session.start()
        assert failure.value.retryable


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with http_server(Old(lambda *_: (200, {}, b""))) as address:
        pass
    async with connected(HTTPServer(f"{address.replace('http://', 'http://ann:s3cret@')}/mcp?key=s3cret")) as session:
        with pytest.raises(
            CallError, match=rf"server {address}/mcp cannot be reached \(Connection refused; check the port"
        ) as failure:
            await session.start()
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert failure.value.retryable
        assert "s3cret" not in str(failure.value)


async def test_one_call_that_fails_costs_no_other() -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        name = json.loads(body)["params"]["name"]
        if name == "refused":
            return 502, {}, b"bad gateway"
        if name == "broken":
            return 200, JSON, b"{"
        if name == "said":
            return 400, JSON, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "a is required"}}'
        if name == "empty":
            return 202, {}, b""
        if name == "page":
            return 200, {"content-type": "text/html"}, b"<html>"
        return result(body, {"name": name})

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        codes = {}
        for name in ("refused", "broken", "said", "empty", "page"):
            with pytest.raises(CallError) as failure:
                await call(session, name)
            codes[name] = failure.value.code
        assert codes == {
            "refused": ErrorCode.UNAVAILABLE,
            "broken": ErrorCode.PROTOCOL_ERROR,
            "said": ErrorCode.VALIDATION_ERROR,
            "empty": ErrorCode.PROTOCOL_ERROR,
            "page": ErrorCode.PROTOCOL_ERROR,
        }
        assert await call(session, "fine", value=float("nan")) == {"name": "fine"}


async def test_a_session_that_the_server_has_forgotten_is_restarted_and_the_call_made_again() -> None:
    def answer(headers: dict[str, str], body: bytes) -> Answer:
        if headers["mcp-session-id"] == "1":
            return (
                404,
                JSON,
                b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "MCPSession not found"}}',
            )
        return result(body, {"session": headers["mcp-session-id"]})

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        assert await call(session, "any") == {"session": "2"}


async def test_a_watch_and_its_end_survive_a_session_that_the_server_has_forgotten() -> None:
    watched: list[tuple[str, str]] = []

    class Forgetful(Old):
        async def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
            asked = json.loads(body).get("method", "") if body else ""
            if not asked.startswith("resources/"):
                return await super().__call__(method, path, headers, body)
            watched.append((asked, headers["mcp-session-id"]))
            is_known = (asked, headers["mcp-session-id"]) == ("resources/subscribe", "2")
            return result(body, {}) if is_known else (404, {}, b"")

    async with http_server(Forgetful(lambda *_: (404, {}, b""))) as address, connected(at(address)) as session:
        await session.watch_resource("a:b")
        await session.unwatch_resource("a:b")
    assert ("resources/subscribe", "2") in watched
    assert watched[-1] == ("resources/unsubscribe", "2")


async def test_a_server_that_forgets_every_session_is_not_asked_for_ever() -> None:
    server = Old(lambda *_: (404, {}, b""))
    async with http_server(server) as address, connected(at(address)) as session:
        with pytest.raises(CallError, match="drops its sessions at once") as failure:
            await call(session, "any")
        assert failure.value.code is ErrorCode.UNAVAILABLE
    assert server.sessions == 2


async def test_headers_never_follow_a_redirect_to_another_origin() -> None:
    visited: list[dict[str, str]] = []

    async def thief(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        visited.append(headers)
        return 200, {}, b""

    async with http_server(thief) as elsewhere:

        async def redirect(*_: Any) -> Answer:
            return 307, {"location": f"{elsewhere}/mcp"}, b""

        async with http_server(redirect) as address:
            for kind in ("http", "sse"):
                server = at(address, kind=kind, headers={"Authorization": "Bearer s3cret"})
                async with connected(server) as session:
                    with pytest.raises(CallError, match=r"[Rr]edirect|HTTP 307"):
                        await session.start()
    assert visited == []


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_an_answer_above_the_limit_is_an_error_for_its_caller_alone(encoding: str) -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        size = json.loads(body)["params"]["arguments"]["size"]
        status, headers, content = result(body, {"text": "x" * size})
        return (
            status,
            {**headers, "content-encoding": encoding},
            gzip.compress(content) if encoding == "gzip" else content,
        )

    async with http_server(Old(answer)) as address, connected(at(address), max_message=100_000) as session:
        assert len((await call(session, "any", size=90_000))["text"]) == 90_000
        with pytest.raises(CallError, match="more than 100000 bytes") as failure:
            await call(session, "any", size=1_000_000)
        assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert len((await call(session, "any", size=1))["text"]) == 1


@pytest.mark.parametrize("flood", [b":\n" * 1_000_000, b'data: {"jsonrpc":"2.0","method":"x"}\n\n' * 20_000])
async def test_the_event_loop_runs_while_a_small_stream_is_unpacked(flood: bytes) -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        content = flood + b"data: " + result(body, {"n": 1})[2] + b"\n\n"
        return 200, {"content-type": "text/event-stream", "content-encoding": "gzip"}, gzip.compress(content)

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        assert await session.start()
        async with counted_turns() as turns:
            assert await call(session, "any") == {"n": 1}
    assert turns.count >= len(flood) / (32 * 1024)


@pytest.mark.parametrize(("kind", "start"), [("application/json", b""), ("text/event-stream", b"data: ")])
async def test_the_event_loop_runs_while_a_body_is_read_that_consists_of_tiny_chunks(kind: str, start: bytes) -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        rest = result(body, {"n": 1})[2] + b"\n\n"
        chunks = start and b"%x\r\n%b\r\n" % (len(start), start)
        chunks += b"1\r\n \r\n" * 200_000 + b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest)
        return 200, {"content-type": kind, "transfer-encoding": "chunked"}, chunks

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        assert await session.start()
        async with counted_turns() as turns:
            assert await call(session, "any") == {"n": 1}
    assert turns.count >= 20


@pytest.mark.parametrize("codings", ["gzip, gzip", "gzip,,deflate", "gzip, identity, br"])
async def test_an_answer_that_is_compressed_twice_is_not_unpacked(codings: str) -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        return 200, {**JSON, "content-encoding": codings}, gzip.compress(gzip.compress(result(body, {})[2]))

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        with pytest.raises(CallError) as failure:
            await call(session, "any")
        assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("written", "text"),
    [(b"\\ud83d", "\ufffd"), (b"\\ud83d\\ude00", "\U0001f600"), (b"\\\\ud83d", "\\ud83d"), (b"\xff", "\ufffd")],
)
async def test_text_that_was_cut_in_the_middle_of_a_character_arrives(kind: str, written: bytes, text: str) -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        content = result(body, {"text": "?"})[2].replace(b"?", written)
        if kind == "text/event-stream":
            content = b"data: " + content + b"\r\n\r\n"
        return 200, {"content-type": kind, "content-encoding": "gzip"}, gzip.compress(content)

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        assert await call(session, "any") == {"text": text}


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_what_a_url_keeps_secret_reaches_the_server_and_no_log(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    requests: list[tuple[str, str]] = []

    async def refuse(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        requests.append((path, headers["authorization"]))
        return 503, {}, b""

    async with http_server(refuse) as address:
        server = at(address.replace("://", "://ann:s3cret@"), "/mcp?key=s3cret", kind=kind)
        async with connected(server) as session:
            with pytest.raises(CallError, match="HTTP 503") as failure:
                await session.start()
    assert requests[0] == ("/mcp?key=s3cret", "Basic YW5uOnMzY3JldA==")
    assert "s3cret" not in f"{failure.value}{failure.value.details}"
    assert not [record for record in caplog.records if "s3cret" in record.getMessage()]


async def test_a_byte_order_mark_is_accepted() -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        status, headers, content = result(body, {"n": 1})
        return status, headers, b"\xef\xbb\xbf" + content

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        assert await call(session, "any") == {"n": 1}


async def test_a_server_that_is_silent_for_too_long_is_unavailable() -> None:
    released = asyncio.Event()

    async def silent(*_: Any) -> Answer:
        await released.wait()
        return 200, {}, b""

    async with http_server(silent) as address, connected(at(address, options={"read_timeout": 0.1})) as session:
        with pytest.raises(CallError, match="sent nothing for too long") as failure:
            await session.start()
        assert (failure.value.code, failure.value.retryable) == (ErrorCode.UNAVAILABLE, True)
        released.set()


async def test_requests_go_through_the_proxy_of_the_options_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets: list[str] = []

    async def proxy(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        targets.append(path)
        return 503, {}, b""

    async with http_server(proxy) as address:
        monkeypatch.setenv("http_proxy", address)
        every_options: list[HTTPServerOptions] = [{}, {"trust_env": False, "proxy": address}]
        for options in every_options:
            async with connected(HTTPServer("http://tools.example/mcp", options=options)) as session:
                with pytest.raises(CallError, match="HTTP 503"):
                    await session.start()
    assert targets == ["http://tools.example/mcp"] * 2


async def test_a_certificate_is_checked_and_may_be_one_of_our_own(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=certificate)
    async with http_server(Old(lambda _, body: result(body, {})), tls) as address:
        async with connected(at(address)) as session:
            with pytest.raises(CallError, match=r"cannot be reached .its certificate is not trusted: self"):
                await session.start()
        for options in ({"ssl": trusting}, {"ca_file": str(certificate)}, {"ssl": False}):
            async with connected(at(address, options=options)) as session:
                assert await call(session, "any") == {}


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (HTTPServer("http://127.0.0.1:1", options={"read_timeout": -1}), "read_timeout must be a"),
        (HTTPServer("http://127.0.0.1:1", options={"ca_file": "/missing.pem"}), "ca_file /missing.pem: No such file"),
        (HTTPServer("http://127.0.0.1:1", {"X": "s3cret\ud800"}), "cannot be used: UnicodeEncodeError"),
        (HTTPServer("http://127.0.0.1:1", {"X": "s3cret\r\nY: 1"}), "cannot be used: ValueError"),
        (HTTPServer("http://127.0.0.1:1", kind="sse", options={"proxy": "gopher://s3cret"}), "write http://host:port"),
    ],
)
async def test_options_and_headers_that_cannot_be_used_are_refused_without_their_values(
    server: HTTPServer, words: str
) -> None:
    async with connected(server) as session:
        with pytest.raises(CallError, match=words) as failure:
            await session.start()
        assert failure.value.code is ErrorCode.VALIDATION_ERROR
        assert "s3cret" not in str(failure.value)


def test_an_unknown_option_is_refused_at_once() -> None:
    options: Any = {"verify": False}
    with pytest.raises(UsageError, match="HTTPServer has no option 'verify'; its options are connect_timeout, "):
        HTTPServer("http://127.0.0.1:1", options=options)


async def test_an_unexpected_failure_of_a_transport_is_logged_and_unavailable(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(http.MCPHTTPClient, "respond", fail)
    async with connected(HTTPServer("http://127.0.0.1:1/mcp")) as session:
        with pytest.raises(CallError, match=r"cannot be reached \(RuntimeError\)") as failure:
            await session.start()
        assert failure.value.code is ErrorCode.UNAVAILABLE
    assert "RuntimeError: unforeseen" in caplog.text


async def test_a_server_that_does_not_take_leave_does_not_hold_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "DELETE_TIMEOUT", 0.1)
    old = Old(lambda _, body: result(body, {}))
    released = asyncio.Event()

    async def stuck(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if method == "DELETE":
            await released.wait()
        return await old(method, path, headers, body)

    async with http_server(stuck) as address, connected(at(address)) as session:
        await call(session, "any")
        await asyncio.wait_for(session.close(), PATIENCE)
        released.set()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_of_too_many_objects_and_lists_is_an_error_for_its_caller_alone(kind: str) -> None:
    def answer(_: dict[str, str], body: bytes) -> Answer:
        values = ",".join(["[]"] * (100_000 if b"many" in body else 5))
        message = f'{{"jsonrpc":"2.0","id":{json.loads(body)["id"]},"result":{{"a":[{values}]}}}}'
        framed = message if kind == "application/json" else f"event: message\ndata: {message}\n\n"
        return 200, {"content-type": kind}, framed.encode()

    async with http_server(Old(answer)) as address, connected(at(address)) as session:
        with pytest.raises(CallError, match=r"more than [0-9,]+ objects and lists") as caught:
            await call(session, "many")
        assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert (await call(session, "few"))["a"] == [[]] * 5


@pytest.mark.parametrize(("said", "used"), [(b"0", 0.1), (b"1500", 1.5), (b"9" * 90, 60), (b"soon", 1)])
def test_a_server_does_not_say_at_will_when_it_is_connected_again(said: bytes, used: float) -> None:
    parser = SSEParser()
    parser.feed(b"retry: " + said + b"\ndata: a\n\n")
    assert http.resume_pause(parser) == used


class Resumed(Old):
    """A server that cuts its stream once, and continues it where the client says."""

    def __init__(self, *streams: str) -> None:
        super().__init__(lambda _, body: self._begin(body))
        self._streams = list(streams)
        self.resumed: list[str] = []

    def _begin(self, body: bytes) -> Answer:
        self._id = json.loads(body)["id"]
        return self._next()

    def _next(self) -> Answer:
        stream = self._streams.pop(0).replace("%", json.dumps({"jsonrpc": "2.0", "id": self._id, "result": {"n": 1}}))
        return 200, {"content-type": "text/event-stream"}, stream.encode()

    async def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if method != "GET" or "last-event-id" not in headers:
            return await super().__call__(method, path, headers, body)
        self.resumed.append(headers["last-event-id"])
        return self._next() if self._streams else (404, {}, b"")


async def test_a_stream_that_was_cut_is_resumed_after_its_last_event() -> None:
    """A stream that is cut before the answer is resumed where the server supports that, a bounded number of times."""
    server = Resumed("retry: 100\nid: 7\ndata:\n\n", "id: 8\ndata:\n\n", "id: 9\ndata: %\n\n")
    async with http_server(server) as address, connected(at(address)) as session:
        assert await call(session, "any") == {"n": 1}
    assert server.resumed == ["7", "8"]


@pytest.mark.parametrize(("first", "attempts"), [("retry: 100\nid: 7\ndata:\n\n", 2), ("retry: 100\ndata:\n\n", 0)])
async def test_a_stream_that_cannot_be_resumed_is_an_error_at_once(first: str, attempts: int) -> None:
    server = Resumed(first)
    async with http_server(server) as address, connected(at(address)) as session:
        with pytest.raises(CallError, match="ended the stream without a response") as failure:
            await call(session, "any")
        assert failure.value.code is ErrorCode.UNAVAILABLE
    assert len(server.resumed) == attempts


async def test_cookies_of_a_server_are_sent_back_and_bounded() -> None:
    cookies_sent: list[list[str]] = []

    def answer(headers: dict[str, str], body: bytes) -> Answer:
        cookies_sent.append(headers.get("cookie", "").split("; "))
        number = len(cookies_sent)
        more = 10 if number < 10 else 40
        cookies = [f"session={number}", f"large={'x' * 5_000}", *(f"c{number}x{n}=1" for n in range(more))]
        return result(body, {"content": []}, **{"set-cookie": "\r\nset-cookie: ".join(cookies)})

    async with http_server(Old(answer)) as url, connected(at(url)) as session:
        for _ in range(20):
            await call(session, "any")
    assert cookies_sent[0] == [""]
    assert set(cookies_sent[1]) == {"session=1", *(f"c1x{n}=1" for n in range(10))}
    assert "session=9" in cookies_sent[9]
    assert max(map(len, cookies_sent)) == 150


async def test_connections_do_not_share_cookies() -> None:
    cookies_sent: list[str] = []

    def answer(headers: dict[str, str], body: bytes) -> Answer:
        cookies_sent.append(headers.get("cookie", ""))
        return result(body, {"content": []}, **{"set-cookie": "theirs=2"})

    async with http_server(Old(answer)) as url:
        for _ in range(2):
            async with connected(at(url)) as session:
                await call(session, "any")
                await call(session, "any")
    assert cookies_sent == ["", "theirs=2", "", "theirs=2"]
