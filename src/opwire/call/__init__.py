"""The call protocol: events and their encoding, pending calls, the request handler, and the transport interface."""

from opwire.call.call_table import Overflow
from opwire.call.callback import CallbackHandler, RequestCallback
from opwire.call.description import Describing, Description, OperationInfo, ServerInfo, Statistics
from opwire.call.discovery import FoundServer, discover
from opwire.call.events import (
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
from opwire.call.handler import CallHandler
from opwire.call.pending import PendingRequestMap
from opwire.call.transport import Address, Receiver, Transport
from opwire.operation import LOCAL_IDENTITY

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
