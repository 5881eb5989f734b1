"""What an MCP server may ask of whoever uses it, and how it is answered or refused.

Until 2025-11-25 a server asks by requests of its own; from 2026-07-28 on it answers a call with questions, and the call
is made again with the answers. The questions are the same.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND
from mcp_types.methods import validate_client_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from msgspec import Struct

from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.mcp")


MAX_QUESTIONS = 100
"""Questions that stand in one result."""


class Callbacks(Struct, frozen=True, kw_only=True):
    """What the user answers. Each may be a coroutine function; one that is None is refused, and not announced.

    They take and give what the protocol says: `elicit` the params of `elicitation/create`, and returns
    `{"action": "accept", "content": {...}}` (or "decline", "cancel"); `sample` those of `sampling/createMessage`, and
    returns `{"role": "assistant", "content": {...}, "model": "..."}`. `roots` takes nothing, and returns a list of
    URIs or of `{"uri": ..., "name": ...}`. `log` takes the params of `notifications/message`.
    """

    elicit: Callable[[dict[str, Any]], Any] | None = None
    sample: Callable[[dict[str, Any]], Any] | None = None
    roots: Callable[[], Any] | None = None
    log: Callable[[dict[str, Any]], Any] | None = None

    @property
    def capabilities(self) -> dict[str, Any]:
        """What is announced to servers: what there is a callback for."""
        announced: dict[str, tuple[Any, dict[str, Any]]] = {
            "elicitation": (self.elicit, {"form": {}, "url": {}}),
            "sampling": (self.sample, {}),
            "roots": (self.roots, {}),
        }
        return {name: settings for name, (callback, settings) in announced.items() if callback is not None}

    async def answer(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer to what a server asks.

        Raises:
            MCPError: refused, or the callback failed. It is what the server is told.
        """
        given = dict(params or {})
        match method:
            case "ping":
                return {}
            case "elicitation/create" if self.elicit is not None:
                return await _asked(method, self.elicit, given)
            case "sampling/createMessage" if self.sample is not None:
                return await _asked(method, self.sample, given)
            case "roots/list" if self.roots is not None:
                return await _asked(method, self._list_roots)
            case _:
                raise MCPError(METHOD_NOT_FOUND, f"this client does not answer {method}")

    async def answer_all(self, questions: Any, said: str) -> dict[str, Any]:
        """The answers to questions that stand in a result, each under its key; `said` begins the message of an error.

        Raises:
            CallError: PROTOCOL_ERROR if they cannot be read, EXECUTION_ERROR if one of them is refused.
        """
        try:
            asked = msgspec.convert(questions, dict[str, _Question])
        except msgspec.ValidationError as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"{said} that cannot be read: {error}") from error
        if len(asked) > MAX_QUESTIONS:
            raise CallError(
                ErrorCode.PROTOCOL_ERROR, f"{said}: {len(asked):,} at once, and at most {MAX_QUESTIONS} are answered"
            )
        try:
            async with asyncio.TaskGroup() as group:
                answers = {key: group.create_task(self.answer(one.method, one.params)) for key, one in asked.items()}
        except ExceptionGroup as refused:
            reason = cast("MCPError", refused.exceptions[0]).message  # `answer` raises nothing else
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{said}, and {reason}") from refused
        return {key: answer.result() for key, answer in answers.items()}

    async def _list_roots(self) -> dict[str, Any]:
        roots: Any = self.roots() if self.roots is not None else ()
        if inspect.isawaitable(roots):
            roots = await roots
        return {"roots": [{"uri": root} if isinstance(root, str) else root for root in roots]}


class _Question(Struct):
    method: str
    params: dict[str, Any] | None = None


async def _asked(method: str, callback: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    try:
        answer: Any = callback(*arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        validate_client_result(method, LATEST_HANDSHAKE_VERSION, answer)  # the shapes have not changed since
    except CallError as error:
        raise MCPError(INTERNAL_ERROR, error.message) from error
    except Exception as error:
        logger.exception("the callback for %s failed, or gave what the protocol does not allow", method)
        raise MCPError(INTERNAL_ERROR, f"the callback for {method} failed") from error
    return answer
