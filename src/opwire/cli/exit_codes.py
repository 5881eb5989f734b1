"""Exit codes: one for each class of errors, so that scripts can tell them apart."""

from collections.abc import Mapping
from types import MappingProxyType

from opwire.errors import CallError, ErrorCode, OpwireError

OK = 0
ERROR_RESULT = 1  # the tool returned a result with `isError`; `doctor` found a problem
USAGE = 2
INTERRUPTED = 130  # as shells report SIGINT; `main` exits with it, too
BROKEN_PIPE = 141  # and SIGPIPE

NOT_FOUND, INVALID, DENIED, UNAVAILABLE, FAILED, INTERNAL = 3, 4, 5, 6, 7, 8

OF_ERROR_CODE: Mapping[ErrorCode, int] = MappingProxyType(
    {
        ErrorCode.OPERATION_NOT_FOUND: NOT_FOUND,
        ErrorCode.VALIDATION_ERROR: INVALID,
        ErrorCode.PAYLOAD_TOO_LARGE: INVALID,
        ErrorCode.ACCESS_DENIED: DENIED,
        ErrorCode.UNAUTHENTICATED: DENIED,
        ErrorCode.UNAVAILABLE: UNAVAILABLE,
        ErrorCode.TIMEOUT: UNAVAILABLE,
        ErrorCode.RATE_LIMITED: UNAVAILABLE,
        ErrorCode.EXECUTION_ERROR: FAILED,
        ErrorCode.ABORTED: FAILED,
        ErrorCode.PROTOCOL_ERROR: INTERNAL,
        ErrorCode.INTERNAL: INTERNAL,
    }
)

MEANINGS = (
    "0 success, 1 the result is an error, 2 usage or configuration, 3 unknown operation, 4 invalid input, "
    "5 denied or unauthenticated, 6 unavailable or timed out, 7 the operation failed, 8 protocol or internal error, "
    "130 interrupted."
)


def of_error(error: BaseException) -> int:
    """Return the exit code for an error that ended a command."""
    if isinstance(error, CallError):
        return OF_ERROR_CODE[error.code]
    return USAGE if isinstance(error, OpwireError) else INTERNAL
