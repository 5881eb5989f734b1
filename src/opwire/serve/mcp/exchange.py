"""One HTTP exchange of the stateless era of MCP: check the request, run it, and respond."""

import asyncio
from functools import lru_cache

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorObject,
    InvalidMessageError,
    RequestId,
    RPCError,
    RPCFailure,
    RPCNotification,
    RPCRequest,
    decode_message,
    encode_message,
    encode_reply,
)
from opwire.mcp.protocol import (
    METHOD_HEADER,
    NAME_HEADER,
    PARAM_HEADER,
    VERSION_HEADER,
    check_argument_headers,
    check_stateless_version,
    read_envelope,
)
from opwire.operation import check_access
from opwire.serve.guard import (
    BODY,
    EXPIRES,
    HEADERS,
    IDENTITY,
    OAUTH,
    TOKEN,
    Receive,
    Scope,
    Send,
    challenge_of,
)
from opwire.serve.mcp.calls import ServedRequest
from opwire.serve.mcp.server import RegistryServer, stop_request
from opwire.serve.mcp.streams import EventWriter, follow, remaining, send_error, send_json
from opwire.typed.plain import as_dict

_STATUS = dict.fromkeys(
    (
        PARSE_ERROR,
        INVALID_REQUEST,
        INVALID_PARAMS,
        HEADER_MISMATCH,
        MISSING_CAPABILITY,
        UNSUPPORTED_PROTOCOL_VERSION,
    ),
    400,
) | {METHOD_NOT_FOUND: 404}
_ROUTING = frozenset(name.encode() for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER))
_PARAM = PARAM_HEADER.encode()


@lru_cache(maxsize=64)
def accepts(header: bytes, *kinds: str) -> bool:
    """Return whether a client with this `Accept` header accepts each of these media types."""
    given = {each.partition(";")[0].strip().lower() for each in header.decode("latin-1").split(",")}
    return "*/*" in given or all(kind in given or f"{kind.partition('/')[0]}/*" in given for kind in kinds)


async def challenge(server: RegistryServer, scope: Scope, request: RPCRequest, send: Send) -> bool:
    """Reject a call that lacks a token or a scope with a 401 or 403, so the client gets one; return whether it was.

    Only for requests with OAUTH: without it, that is an error of the call, which the model reads.
    """
    spec = server.operation_of(request, scope[IDENTITY])
    try:
        if spec is not None:
            check_access(spec, scope[IDENTITY])
        return False
    except CallError as error:
        lines = challenge_of(error)
        if lines:
            status = 401 if error.code is ErrorCode.UNAUTHENTICATED else 403
            failure = RPCFailure(request.id, ErrorObject(INVALID_REQUEST, error.message))
            await send_json(send, status, encode_message(failure), lines)
        return bool(lines)


async def serve_stateless(server: RegistryServer, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request of the stateless era."""
    if scope["method"] != "POST":
        await send_json(send, 405, headers=[(b"allow", b"POST")])
        return
    if not accepts(scope[HEADERS].get(b"accept", b""), "application/json", "text/event-stream"):
        await send_error(send, 406, INVALID_REQUEST, "the client must accept application/json and text/event-stream")
        return
    id: RequestId | None = None
    try:
        message = _read_message(scope[BODY])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope[HEADERS].items()}
        if isinstance(message, RPCNotification):  # accepted and ignored: a client cancels by disconnecting
            check_stateless_version(headers.get(VERSION_HEADER, ""))
            await send_json(send, 202)
            return
        id = message.id
        routing = [name for name, _ in scope["headers"] if name in _ROUTING or name.startswith(_PARAM)]
        if len(set(routing)) != len(routing):  # two proxies could read different ones
            raise RPCError(HEADER_MISMATCH, "a header of the request is there twice")
        read_envelope(message.method, message.params, headers)
        name = (message.params or {}).get("name") if message.method == "tools/call" else None
        tool = server.catalogue.find(name) if isinstance(name, str) else None
        if tool is not None and tool.headers:
            check_argument_headers(tool.headers, as_dict((message.params or {}).get("arguments")), headers)
    except RPCError as error:
        await send_json(send, _STATUS.get(error.code, 200), encode_message(RPCFailure.of(id, error)))
        return
    if OAUTH in scope and await challenge(server, scope, message, send):
        return
    writer = EventWriter(send)
    request = ServedRequest(message.id, True, scope[IDENTITY], writer.notify, token=scope[TOKEN])
    task = server.start(server.respond(message, request), request)
    within = remaining(scope[EXPIRES]) if message.method == "subscriptions/listen" else None
    try:
        is_done = task.done() or await follow(task, writer, receive, within=within)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not is_done:
        await stop_request(request)
        await writer.end()
        return
    reply = task.result()
    status = _STATUS.get(reply.error.code, 200) if isinstance(reply, RPCFailure) else 200
    await writer.finish(encode_reply(reply), status)


def _read_message(body: bytes) -> RPCRequest | RPCNotification:
    try:
        message = decode_message(body)
    except InvalidMessageError as error:
        code, problem = (INVALID_REQUEST, "not a JSON-RPC request") if error.is_json else (PARSE_ERROR, "not JSON")
        raise RPCError(code, f"the body is {problem}") from None
    if not isinstance(message, RPCRequest | RPCNotification):
        raise RPCError(INVALID_REQUEST, "the body is not a JSON-RPC request")
    return message
