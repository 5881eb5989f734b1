"""opwire: call anything, get one envelope.

from opwire import OperationRegistry

registry = OperationRegistry()
"""

from opwire.access import check_access
from opwire.content import MCP_CONTENT_BLOCK_SCHEMA, MCPContentBlock
from opwire.envelope import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
    RESPONSE_ENVELOPE_SCHEMA,
    RESPONSE_META_SCHEMA,
    RESPONSE_SOURCES,
    HTTPResponseMeta,
    LocalResponseMeta,
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
    NotPlainError,
    OpwireError,
    RegistrationError,
    SchemaError,
    ToolEnvelopeError,
)
from opwire.operation import (
    AccessControl,
    Context,
    Handler,
    Identity,
    Operation,
    OperationSpec,
    OperationType,
    Progress,
    ResourceRule,
    Source,
)
from opwire.registry import OperationRegistry, build_env
from opwire.schema import UNKNOWN, Schema

__version__ = "0.1.0"

__all__ = [
    "ERROR_TABLE",
    "HTTP_RESPONSE_META_SCHEMA",
    "LOCAL_RESPONSE_META_SCHEMA",
    "MCP_CONTENT_BLOCK_SCHEMA",
    "MCP_RESPONSE_META_SCHEMA",
    "RESPONSE_ENVELOPE_SCHEMA",
    "RESPONSE_META_SCHEMA",
    "RESPONSE_SOURCES",
    "UNKNOWN",
    "AccessControl",
    "CallError",
    "CastError",
    "ConfigError",
    "Context",
    "ConversionError",
    "ErrorCode",
    "HTTPResponseMeta",
    "Handler",
    "HintError",
    "Identity",
    "LocalResponseMeta",
    "MCPContentBlock",
    "MCPResponseMeta",
    "NotPlainError",
    "Operation",
    "OperationRegistry",
    "OperationSpec",
    "OperationType",
    "OpwireError",
    "Progress",
    "RegistrationError",
    "ResourceRule",
    "ResponseEnvelope",
    "ResponseMeta",
    "ResponseSource",
    "Schema",
    "SchemaError",
    "Source",
    "ToolEnvelopeError",
    "build_env",
    "check_access",
    "decode_envelope",
    "encode_envelope",
    "http_envelope",
    "is_response_envelope",
    "local_envelope",
    "mcp_envelope",
    "read_envelope",
    "unwrap",
]
