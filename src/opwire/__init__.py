"""opwire: call anything, get one envelope.

    from opwire import OperationRegistry, from_openapi, serve_mcp

    registry = OperationRegistry()

`Client`, `Hub`, `from_mcp` and the other names of `_LAZY` need optional dependencies, and are imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from opwire.model.access import AccessControl, ResourceRule, check_access
from opwire.model.completion import Completion, CompletionRequest
from opwire.model.context import Context, Progress
from opwire.model.envelope import (
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
from opwire.model.identity import Identity
from opwire.model.log_message import LogMessage
from opwire.model.mcp_presentation import Annotations, MCPPresentation
from opwire.model.operation import Change, Handler, Interceptor, NormalizeMode, Operation, OperationSpec, OperationType
from opwire.model.questions import Elicitation, Question, Root, SampledMessage
from opwire.registry import OperationRegistry, RegistryView, build_env
from opwire.registry.env import Env
from opwire.registry.reshape import Reshape
from opwire.registry.signature import Depends
from opwire.registry.source import Source, SourceChange
from opwire.schema import UNKNOWN, Problem, Schema
from opwire.version import VERSION

if TYPE_CHECKING:
    from opwire.client import Client
    from opwire.config.sync import SyncClient
    from opwire.hub import Hub, Spoke
    from opwire.mcp.client import from_mcp
    from opwire.mcp.server import serve_mcp
    from opwire.openapi.client import from_openapi
    from opwire.openapi.server import serve_http

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
    "MCPPresentation",
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
    "SyncClient": "opwire.config.sync",
    "from_mcp": "opwire.mcp.client",
    "from_openapi": "opwire.openapi.client",
    "serve_http": "opwire.openapi.server",
    "serve_mcp": "opwire.mcp.server",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
