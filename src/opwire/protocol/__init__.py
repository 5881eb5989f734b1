"""The call protocol: events and their encoding, pending calls, the request handler, and the transport interface."""

from opwire.model.identity import LOCAL_IDENTITY
from opwire.protocol.call_table import Overflow
from opwire.protocol.callback import CallbackHandler, RequestCallback
from opwire.protocol.description import Describing, Description, OperationInfo, ServerInfo, Statistics
from opwire.protocol.discovery import FoundServer, discover
from opwire.protocol.events import (
    CALL_EVENT_SCHEMA,
    CALL_EVENT_SCHEMAS,
    MAX_MESSAGE,
    CallAborted,
    CallAnswer,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallProgress,
    CallQuestion,
    CallRequested,
    CallResponded,
    decode_event,
    encode_event,
)
from opwire.protocol.handler import CallHandler
from opwire.protocol.pending import PendingRequestMap
from opwire.protocol.transport import Address, Receiver, Transport

__all__ = [
    "CALL_EVENT_SCHEMA",
    "CALL_EVENT_SCHEMAS",
    "LOCAL_IDENTITY",
    "MAX_MESSAGE",
    "Address",
    "CallAborted",
    "CallAnswer",
    "CallCompleted",
    "CallCredit",
    "CallEvent",
    "CallFailed",
    "CallHandler",
    "CallProgress",
    "CallQuestion",
    "CallRequested",
    "CallResponded",
    "CallbackHandler",
    "Describing",
    "Description",
    "FoundServer",
    "OperationInfo",
    "Overflow",
    "PendingRequestMap",
    "Receiver",
    "RequestCallback",
    "ServerInfo",
    "Statistics",
    "Transport",
    "decode_event",
    "discover",
    "encode_event",
]
