"""The token that proved a caller, for APIs and MCP servers that are called on its behalf.

A surface puts the token into the context of the call, where nested calls inherit it. It stays in this process, is never
part of a log, and counts only for the identity that it proved: a context with another identity has no token.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context
from opwire.model.identity import Identity

_METADATA_KEY = "opwire.caller_token"
_NO_METADATA: dict[str, Any] = {}
_MISSING_MESSAGE = "the operation is called with the token of its caller: send one"
_NOT_CARRIED_MESSAGE = (
    "the operation is called with the token of its caller, and this call has an identity without one: a hub, a broker "
    "and durable calls do not carry tokens; call the server over HTTP or MCP, or give its source a credential by "
    "identity (a function, or an OAuth client with `subject`)"
)


class _CallerToken(Struct, frozen=True):
    text: str
    identity: Identity | None

    def __repr__(self) -> str:
        return "<the token of a caller>"


def caller_metadata(identity: Identity | None, token: str | None) -> Mapping[str, Any]:
    """Return the metadata of a context for a caller with this token; empty without one."""
    return _NO_METADATA if token is None else {_METADATA_KEY: _CallerToken(token, identity)}


def with_caller_token(context: Context, token: str) -> Context:
    """Return the context of a call with the token that proved its identity.

    The surfaces of opwire do this themselves. Your own does it after it has verified the token.
    """
    return replace(context, metadata={**context.metadata, **caller_metadata(context.identity, token)})


def find_caller_token(context: Context) -> str | None:
    """Return the token of the caller, or None."""
    token = context.metadata.get(_METADATA_KEY)
    return token.text if isinstance(token, _CallerToken) and token.identity == context.identity else None


def caller_token(context: Context) -> str:
    """Return the token of the caller: as a credential, it is passed on.

        from_openapi("billing.yaml", credentials={"bearer": caller_token})

    Use it for services that accept the same tokens as this one. Others could use a token that was meant for this
    server: `OAuthClient(exchange=True)` exchanges it for one of theirs.

    Calls over a hub or a broker, and durable calls, have the identity of their caller, but not its token.

    Raises:
        CallError: UNAUTHENTICATED, if the call has no token.
    """
    token = find_caller_token(context)
    if token is None:
        raise CallError(
            ErrorCode.UNAUTHENTICATED, _MISSING_MESSAGE if context.identity is None else _NOT_CARRIED_MESSAGE
        )
    return token
