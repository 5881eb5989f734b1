"""Every exception of opwire, and the one table that maps an error code to each surface.

    OpwireError
    ├── CallError            a call failed: code, message, details; the only error that crosses a wire
    ├── RegistrationError    an operation cannot be registered as given: bad id, duplicate, wrong kind of handler
    │   └── HintError        a type hint that cannot be expressed as JSON Schema; names the parameter
    ├── SchemaError          a JSON Schema that is not valid, or refers to what is not there
    ├── CastError            `Schema.cast` has no answer for this value, where TypeBox's Cast throws too
    ├── NotPlainError        a value that has no JSON form: an open file, a cycle, a generator
    ├── ConversionError      plain data that does not fit the Python type it is asked to become
    ├── UsageError           an invalid argument: a window of 0 items, a negative number of seconds
    ├── MissingExtraError    an optional dependency is not installed; names the extra that installs it
    ├── ConfigError          a configuration file that cannot be used; names the file and the key
    └── ToolEnvelopeError    a text block that is not a readable ToolEnvelope V1 block

Rules: errors carry plain data, so this file imports nothing of ours. Nobody else writes a status number:
every surface asks `ERROR_TABLE`. A `CallError` reaches the peer with its message as it is; anything else that
a handler raises becomes a fixed sentence with an error id, its traceback stays in the log.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple


class ErrorCode(StrEnum):
    """Why a call failed. The value is the code on the wire."""

    OPERATION_NOT_FOUND = "OPERATION_NOT_FOUND"
    ACCESS_DENIED = "ACCESS_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    TIMEOUT = "TIMEOUT"
    ABORTED = "ABORTED"
    UNAVAILABLE = "UNAVAILABLE"
    RATE_LIMITED = "RATE_LIMITED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    PROTOCOL_ERROR = "PROTOCOL_ERROR"
    INTERNAL = "INTERNAL"


class ErrorRow(NamedTuple):
    """What one error code is on each surface."""

    http_status: int
    json_rpc_code: int
    category: str  # of ToolEnvelope V1
    retryable: bool  # the default; an instance may say otherwise
    message: str  # for an error that comes without one


ERROR_TABLE: Mapping[ErrorCode, ErrorRow] = MappingProxyType(
    {
        ErrorCode.OPERATION_NOT_FOUND: ErrorRow(404, -32601, "not_found", False, "No such operation."),
        ErrorCode.ACCESS_DENIED: ErrorRow(403, -32003, "authorization", False, "Access denied."),
        ErrorCode.UNAUTHENTICATED: ErrorRow(401, -32001, "authorization", False, "Authentication required."),
        ErrorCode.VALIDATION_ERROR: ErrorRow(422, -32602, "validation", False, "The input is not valid."),
        ErrorCode.EXECUTION_ERROR: ErrorRow(500, -32000, "execution", False, "The operation failed."),
        ErrorCode.TIMEOUT: ErrorRow(504, -32004, "timeout", True, "The operation took too long."),
        ErrorCode.ABORTED: ErrorRow(499, -32005, "execution", False, "The call was stopped."),
        ErrorCode.UNAVAILABLE: ErrorRow(503, -32006, "network", True, "Nobody can serve this call at the moment."),
        ErrorCode.RATE_LIMITED: ErrorRow(429, -32007, "rate_limit", True, "Too many calls."),
        ErrorCode.PAYLOAD_TOO_LARGE: ErrorRow(413, -32008, "validation", False, "The message is too large."),
        ErrorCode.PROTOCOL_ERROR: ErrorRow(400, -32600, "network", False, "The message is malformed."),
        ErrorCode.INTERNAL: ErrorRow(500, -32603, "internal", False, "An internal error of opwire."),
    }
)


class OpwireError(Exception):
    """The root: `except OpwireError` catches everything that opwire itself raises."""


class CallError(OpwireError):
    """A call failed.

    `details` is plain JSON data for the peer. `retryable` is the table's default unless given; `retry_after`
    is in seconds.

        raise CallError("RATE_LIMITED", "100 calls a minute", retry_after=12.5)
    """

    code: ErrorCode
    message: str
    details: Any
    retryable: bool
    retry_after: float | None

    def __init__(
        self,
        code: ErrorCode | str,
        message: str = "",
        details: Any = None,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.code = ErrorCode(code)
        row = ERROR_TABLE[self.code]
        self.message = message or row.message
        self.details = details
        self.retryable = row.retryable if retryable is None else retryable
        self.retry_after = retry_after
        super().__init__(self.code, self.message, details)

    def __str__(self) -> str:
        return f"{self.code.value}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle through their args, which would lose the two keyword fields.
        state = {"retryable": self.retryable, "retry_after": self.retry_after}
        return (type(self), (self.code.value, self.message, self.details), state)


class RegistrationError(OpwireError, ValueError):
    """An operation cannot be registered as given."""


class HintError(RegistrationError, TypeError):
    """A type hint that cannot be expressed as JSON Schema."""


class SchemaError(OpwireError, ValueError):
    """A JSON Schema that is not valid, or refers to what is not there."""


class CastError(OpwireError, ValueError):
    """`Schema.cast` has no answer for this value, where TypeBox's `Value.Cast` throws too."""


class NotPlainError(OpwireError, TypeError):
    """A value that has no JSON form; the message says which and where."""


class ConversionError(OpwireError, ValueError):
    """Plain data that does not fit the Python type it is asked to become."""


class UsageError(OpwireError, ValueError):
    """An invalid argument; the message names it and says what it has to be."""


class MissingExtraError(OpwireError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it."""


@contextmanager
def needs_extra(extra: str) -> Generator[None]:
    """Raise `MissingExtraError` for an import that fails because an extra of opwire is not installed.

    with needs_extra("openapi"):
        import aiohttp
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "opwire":
            raise
        message = f"the package {missing} is not installed; run: pip install 'opwire[{extra}]'"
        raise MissingExtraError(message, name=error.name) from error


class ConfigError(OpwireError, ValueError):
    """A configuration file that cannot be used; the message names the file and the key."""


class ToolEnvelopeError(OpwireError, ValueError):
    """A text block that is not a readable ToolEnvelope V1 block."""


_MAX_OPTION = 1e15


def check_above_zero(**options: object) -> None:
    """Check options that are numbers above zero; None passes.

    Raises:
        UsageError: the message names the option.
    """
    for option, value in options.items():
        if value is not None and not 0 < _number(value) <= _MAX_OPTION:
            raise _wrong_option(option, "a number above zero", value)


def check_not_below_zero(**options: object) -> None:
    """Check options that are numbers from zero on; None passes.

    Raises:
        UsageError: the message names the option.
    """
    for option, value in options.items():
        if value is not None and not 0 <= _number(value) <= _MAX_OPTION:
            raise _wrong_option(option, "a number from zero on", value)


def check_counts(**options: object) -> None:
    """Check options that are whole numbers from 1 on; None passes.

    Raises:
        UsageError: the message names the option.
    """
    for option, value in options.items():
        if value is not None and not (isinstance(value, int) and 1 <= _number(value) <= _MAX_OPTION):
            raise _wrong_option(option, "a whole number above zero", value)


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else -1


def _wrong_option(option: str, wanted: str, value: object) -> UsageError:
    is_short = not isinstance(value, int) or -_MAX_OPTION < value < _MAX_OPTION  # Python does not write long ones
    shown = f"{value!r:.50}" if is_short else "one of so many digits"
    return UsageError(f"{option} is {wanted}, not {shown}")
