"""How a command ended, as a number for scripts. Errors of calls have the number of their class."""

from collections.abc import Mapping
from types import MappingProxyType

from opwire.errors import CallError, ErrorCode, OpwireError

OK = 0
ANSWERED_WITH_ERROR = 1  # the tool was called, and answered with `isError`; of `doctor`: something is wrong
USAGE = 2
INTERRUPTED = 130  # as shells count SIGINT
BROKEN_PIPE = 141  # and SIGPIPE

NOT_FOUND, INVALID, DENIED, NOT_NOW, FAILED, BROKEN = 3, 4, 5, 6, 7, 8

OF_ERROR_CODE: Mapping[ErrorCode, int] = MappingProxyType(
    {
        ErrorCode.OPERATION_NOT_FOUND: NOT_FOUND,
        ErrorCode.VALIDATION_ERROR: INVALID,
        ErrorCode.PAYLOAD_TOO_LARGE: INVALID,
        ErrorCode.ACCESS_DENIED: DENIED,
        ErrorCode.UNAUTHENTICATED: DENIED,
        ErrorCode.UNAVAILABLE: NOT_NOW,
        ErrorCode.TIMEOUT: NOT_NOW,
        ErrorCode.RATE_LIMITED: NOT_NOW,
        ErrorCode.EXECUTION_ERROR: FAILED,
        ErrorCode.ABORTED: FAILED,
        ErrorCode.PROTOCOL_ERROR: BROKEN,
        ErrorCode.INTERNAL: BROKEN,
    }
)

IN_WORDS = (
    "0 done, 1 the answer is an error, 2 usage or configuration, 3 no such operation, 4 invalid input, 5 denied or not "
    "authenticated, 6 unavailable or too late, 7 the operation failed, 8 a fault of opwire or a peer, 130 interrupted."
)


def of_error(error: BaseException) -> int:
    """The exit code of an error that ended a command."""
    if isinstance(error, CallError):
        return OF_ERROR_CODE[error.code]
    return USAGE if isinstance(error, OpwireError) else BROKEN
