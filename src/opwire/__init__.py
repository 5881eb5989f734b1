"""opwire: call anything, get one envelope.

    from opwire import OperationRegistry, from_openapi, serve_mcp

    registry = OperationRegistry()

`Client`, `Hub`, `from_mcp` and the other names of `_LAZY` need optional dependencies, and are imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opwire.annotations import Annotations, Completion, CompletionRequest, LogMessage
from opwire.env import Env
from opwire.envelope import (
    RESPONSE_SOURCES,
    HTTPResponseMeta,
    Item,
    LocalResponseMeta,
    MCPContentBlock,
    MCPResponseMeta,
    ResponseEnvelope,
    ResponseMeta,
    ResponseSource,
    decode_envelope,
    encode_envelope,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    read_envelope,
    unwrap,
)
from opwire.errors import (
    ERROR_TABLE,
    CallError,
    CastError,
    ConfigError,
    ConversionError,
    ErrorCode,
    HintError,
    MissingExtraError,
    NotPlainError,
    OpwireError,
    RegistrationError,
    SchemaError,
    ToolEnvelopeError,
    UsageError,
    is_resume_error,
    resume_error,
)
from opwire.logs import escape_peer_text
from opwire.operation import (
    AccessControl,
    Change,
    Context,
    Handler,
    Identity,
    Interceptor,
    NormalizeMode,
    Operation,
    OperationSpec,
    OperationType,
    Progress,
    ResourceRule,
    Source,
    SourceChange,
    check_access,
)
from opwire.questions import Elicitation, Question, Root, SampledMessage
from opwire.registry import OperationRegistry, RegistryView, build_env
from opwire.reshape import Reshape
from opwire.schema import UNKNOWN, Problem, Schema
from opwire.signature import Depends
from opwire.version import VERSION

if TYPE_CHECKING:
    from opwire.adapters.mcp import from_mcp
    from opwire.adapters.openapi import from_openapi
    from opwire.client import Client
    from opwire.hub import Hub, Spoke
    from opwire.serve.http import serve_http
    from opwire.serve.mcp import serve_mcp
    from opwire.sync import SyncClient

__version__ = VERSION

__all__ = [
    "ERROR_TABLE",
    "RESPONSE_SOURCES",
    "UNKNOWN",
    "AccessControl",
    "Annotations",
    "CallError",
    "CastError",
    "Change",
    "Client",
    "Completion",
    "CompletionRequest",
    "ConfigError",
    "Context",
    "ConversionError",
    "Depends",
    "Elicitation",
    "Env",
    "ErrorCode",
    "HTTPResponseMeta",
    "Handler",
    "HintError",
    "Hub",
    "Identity",
    "Interceptor",
    "Item",
    "LocalResponseMeta",
    "LogMessage",
    "MCPContentBlock",
    "MCPResponseMeta",
    "MissingExtraError",
    "NormalizeMode",
    "NotPlainError",
    "Operation",
    "OperationRegistry",
    "OperationSpec",
    "OperationType",
    "OpwireError",
    "Problem",
    "Progress",
    "Question",
    "RegistrationError",
    "RegistryView",
    "Reshape",
    "ResourceRule",
    "ResponseEnvelope",
    "ResponseMeta",
    "ResponseSource",
    "Root",
    "SampledMessage",
    "Schema",
    "SchemaError",
    "Source",
    "SourceChange",
    "Spoke",
    "SyncClient",
    "ToolEnvelopeError",
    "UsageError",
    "build_env",
    "check_access",
    "decode_envelope",
    "encode_envelope",
    "from_mcp",
    "from_openapi",
    "http_envelope",
    "is_response_envelope",
    "is_resume_error",
    "local_envelope",
    "mcp_envelope",
    "read_envelope",
    "resume_error",
    "serve_http",
    "serve_mcp",
    "unwrap",
]

_LAZY = {
    "Client": "opwire.client",
    "Hub": "opwire.hub",
    "Spoke": "opwire.hub",
    "SyncClient": "opwire.sync",
    "from_mcp": "opwire.adapters.mcp",
    "from_openapi": "opwire.adapters.openapi",
    "serve_http": "opwire.serve.http",
    "serve_mcp": "opwire.serve.mcp",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__


# asyncio reads into a new buffer of 256 KiB. Until a larger block was freed, glibc maps and unmaps each of them, which
# takes 25 µs of every message over a pipe or socket.
bytes(512 * 1024)

escape_peer_text()
