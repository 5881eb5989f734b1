"""Every exception that opwire raises, and the table that maps error codes to HTTP, JSON-RPC and ToolEnvelope.

    OpwireError
    ├── CallError            a call failed: code, message, details; the only error sent to a peer
    ├── RegistrationError    an invalid registration: bad id, duplicate, wrong kind of handler
    │   └── HintError        a type hint without a JSON Schema; names the parameter
    ├── SchemaError          an invalid JSON Schema, or a reference that cannot be resolved
    ├── CastError            `Schema.cast` failed where TypeBox's Value.Cast throws as well
    ├── NotPlainError        a value that cannot be encoded as JSON: an open file, a cycle
    ├── ConversionError      plain data that cannot be converted to a Python type
    ├── UsageError           an invalid argument: a window of 0 items, a negative number of seconds
    ├── MissingExtraError    an optional dependency is not installed; names the extra that installs it
    ├── ConfigError          an invalid configuration file; names the file and the key
    └── ToolEnvelopeError    a text block that cannot be decoded as ToolEnvelope V1

Rules: errors contain plain data, so this module imports only `names` of opwire. `ERROR_TABLE` is the only place with
status numbers. A `CallError` is sent to the peer with its message; any other exception of a handler becomes a fixed
sentence with an error id, and its traceback is logged.
"""

import errno
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from enum import StrEnum
from os import strerror
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple, get_args

from opwire.names import similar_names, suggestion


class ErrorCode(StrEnum):
    """The reason why a call failed. The value is sent to peers."""

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
    """The representation of one error code on each surface, and its defaults."""

    http_status: int
    json_rpc_code: int
    category: str  # of ToolEnvelope V1
    retryable: bool  # the default; an instance may override it
    message: str  # the default


ERROR_TABLE: Mapping[ErrorCode, ErrorRow] = MappingProxyType(
    {
        ErrorCode.OPERATION_NOT_FOUND: ErrorRow(404, -32601, "not_found", False, "No such operation."),
        ErrorCode.ACCESS_DENIED: ErrorRow(403, -32003, "authorization", False, "Access denied."),
        ErrorCode.UNAUTHENTICATED: ErrorRow(401, -32001, "authorization", False, "Authentication required."),
        ErrorCode.VALIDATION_ERROR: ErrorRow(422, -32602, "validation", False, "The input is invalid."),
        ErrorCode.EXECUTION_ERROR: ErrorRow(500, -32000, "execution", False, "The operation failed."),
        ErrorCode.TIMEOUT: ErrorRow(504, -32004, "timeout", True, "The operation took too long."),
        ErrorCode.ABORTED: ErrorRow(499, -32005, "execution", False, "The call was stopped."),
        ErrorCode.UNAVAILABLE: ErrorRow(
            503, -32006, "network", True, "No server is available for this call at the moment."
        ),
        ErrorCode.RATE_LIMITED: ErrorRow(429, -32007, "rate_limit", True, "Too many calls."),
        ErrorCode.PAYLOAD_TOO_LARGE: ErrorRow(413, -32008, "validation", False, "The message is too large."),
        ErrorCode.PROTOCOL_ERROR: ErrorRow(400, -32600, "network", False, "The message is malformed."),
        ErrorCode.INTERNAL: ErrorRow(500, -32603, "internal", False, "An internal error of opwire."),
    }
)


class OpwireError(Exception):
    """The base class: `except OpwireError` catches every exception that opwire raises."""


class CallError(OpwireError):
    """A call failed.

    `details` is plain JSON data for the peer. `retryable` defaults to the table's value; `retry_after` is in seconds.
    `foreign_code` is the code of a peer that has codes of its own; `code` is then EXECUTION_ERROR.

        raise CallError("RATE_LIMITED", "100 calls a minute", retry_after=12.5)

    Raises:
        UsageError: the code is unknown.
    """

    code: ErrorCode
    message: str
    details: Any
    retryable: bool
    retry_after: float | None
    foreign_code: str | None

    def __init__(
        self,
        code: ErrorCode | str,
        message: str = "",
        details: Any = None,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        foreign_code: str | None = None,
    ) -> None:
        try:
            self.code = ErrorCode(code)
        except ValueError:
            raise UsageError(f"unknown error code {code!r:.50}; use one of {', '.join(ErrorCode)}") from None
        row = ERROR_TABLE[self.code]
        self.message = message or row.message
        self.details = details
        self.retryable = row.retryable if retryable is None else retryable
        self.retry_after = retry_after
        self.foreign_code = foreign_code
        super().__init__(self.code, self.message, details)

    def __str__(self) -> str:
        code = self.code.value if self.foreign_code is None else f"{self.code.value} ({self.foreign_code})"
        return f"{code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle their args only, which would lose the keyword fields.
        names = ("retryable", "retry_after", "foreign_code")
        state = {name: getattr(self, name) for name in names}
        return (type(self), (self.code.value, self.message, self.details), state)


def resume_error(message: str) -> CallError:
    """Return the error of a subscription that cannot be resumed: VALIDATION_ERROR, with RESUME in its details.

    Raise it in a handler for a cursor that is unknown or no longer stored.
    """
    return CallError(ErrorCode.VALIDATION_ERROR, message, {"reason": "RESUME"})


def is_resume_error(error: CallError) -> bool:
    """Return whether a subscription failed because it cannot be resumed."""
    return error.code is ErrorCode.VALIDATION_ERROR and error.details == {"reason": "RESUME"}


class RegistrationError(OpwireError, ValueError):
    """An invalid registration: bad id, duplicate, or wrong kind of handler."""


class HintError(RegistrationError, TypeError):
    """A type hint that has no JSON Schema."""


class SchemaError(OpwireError, ValueError):
    """An invalid JSON Schema, or a reference in it that cannot be resolved."""


class CastError(OpwireError, ValueError):
    """`Schema.cast` failed for a value for which TypeBox's `Value.Cast` throws as well."""


class NotPlainError(OpwireError, TypeError):
    """A value that cannot be encoded as JSON; the message names it and its path."""


class ConversionError(OpwireError, ValueError):
    """Plain data that cannot be converted to the requested Python type."""


class UsageError(OpwireError, ValueError):
    """An invalid argument; the message names it and says what it has to be."""


class MissingExtraError(OpwireError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it."""


@contextmanager
def needs_extra(extra: str) -> Generator[None]:
    """Raise `MissingExtraError` for an import that fails because an extra of opwire is not installed.

    Blocks may be nested; the outermost names the extra.

    with needs_extra("openapi"):
        import aiohttp
    """
    try:
        yield
    except (ModuleNotFoundError, MissingExtraError) as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "opwire":
            raise
        message = f"the package {missing} is not installed; run: pip install 'opwire[{extra}]'"
        raise MissingExtraError(message, name=error.name) from error


class ConfigError(OpwireError, ValueError):
    """An invalid configuration file; the message names the file and the key."""


class ToolEnvelopeError(OpwireError, ValueError):
    """A text block that cannot be decoded as ToolEnvelope V1."""


_MAX_OPTION = 1e15
_REMEDIES = {
    errno.ECONNREFUSED: "; check the port, and that the server is running",
    errno.EADDRINUSE: "; choose another port, or end the program that uses this one",
    errno.EADDRNOTAVAIL: "; choose an address of this machine",
}
# The reasons of OpenSSL, old and new, if the other side sent anything but TLS.
_NOT_TLS = {
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
}


def system_message(error: Exception) -> str:
    """Return why a connection or a file cannot be used, and what to check: "Connection refused; check the port, …".

    The texts of asyncio repeat the address, and several failures are one text. The numbers in other subclasses of
    OSError, `socket.gaierror` and `ssl.SSLError`, are not those of the system, and their texts are of their libraries.
    """
    kind = type(error)
    if isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError):  # of the codec for host names
        return "the host name is invalid; check its spelling"
    if kind.__name__ == "gaierror" or (isinstance(error, OSError) and (error.errno or 0) < 0):  # of a listener
        return "the host name cannot be resolved; check its spelling, and the network"
    if kind.__module__ == "ssl":
        return _tls_message(error)
    if not isinstance(error, OSError) or kind.__module__ != "builtins":
        return str(error)
    numbers = [error.errno] if error.errno else map(int, re.findall(r"\[Errno (\d+)\]", str(error)))
    return ", ".join(dict.fromkeys(strerror(each) + _REMEDIES.get(each, "") for each in numbers)) or str(error)


def _tls_message(error: Exception) -> str:
    """Return what an `ssl.SSLError` means, without the names of OpenSSL; `ssl` itself is not imported for it."""
    untrusted, reason = getattr(error, "verify_message", None), getattr(error, "reason", None) or ""
    if untrusted is not None:
        return f"its certificate is not trusted: {untrusted.rstrip('.')}"
    if reason in _NOT_TLS:
        return "the server does not use TLS there; check the scheme of the URL, and the port"
    return f"TLS failed: {reason.replace('_', ' ').lower() or error}"


def check_above_zero(**options: object) -> None:
    """Validate options that must be numbers above zero; None is allowed.

    Raises:
        UsageError: the message names the option.
    """
    for option, value in options.items():
        if value is not None and not 0 < _number(value) <= _MAX_OPTION:
            raise _wrong_option(option, "a number above zero", value)


def check_not_below_zero(**options: object) -> None:
    """Validate options that must be numbers of at least zero; None is allowed.

    Raises:
        UsageError: the message names the option.
    """
    for option, value in options.items():
        if value is not None and not 0 <= _number(value) <= _MAX_OPTION:
            raise _wrong_option(option, "a number of at least zero", value)


def check_counts(**options: object) -> None:
    """Validate options that must be whole numbers of at least one; None is allowed.

    Raises:
        UsageError: the message names the option.
    """
    for option, value in options.items():
        if value is not None and not (isinstance(value, int) and 1 <= _number(value) <= _MAX_OPTION):
            raise _wrong_option(option, "a whole number above zero", value)


def check_choice(choices: object, **options: object) -> None:
    """Validate options that must be one of the values of a `Literal`; None is allowed.

    Raises:
        UsageError: the message names the option and the values.
    """
    values = get_args(choices)
    for option, value in options.items():
        if value is not None and value not in values:
            raise _wrong_option(option, f"one of {', '.join(values)}", value)


def check_instance(kind: type | UnionType, **options: object) -> None:
    """Validate options that must be instances of a class; None is allowed.

    Raises:
        UsageError: the message names the option and the class.
    """
    for option, value in options.items():
        if value is not None and not isinstance(value, kind):
            kinds: tuple[type, ...] = kind.__args__ if isinstance(kind, UnionType) else (kind,)
            wanted = " | ".join(each.__name__ for each in kinds)
            raise UsageError(f"{option} must be an instance of {wanted}, not {type(value).__name__}")


def check_list(what: str, **options: object) -> None:
    """Validate options that must be several texts: of a single one, each character would be taken for a text.

    Raises:
        UsageError: the message names the option and says what to write.
    """
    for option, value in options.items():
        if isinstance(value, str):
            raise UsageError(f"{option} is a list of {what}: write [{value!r}]")


def check_known(options: Iterable[str], known: Iterable[str], what: str) -> None:
    """Validate the names of options.

    Raises:
        UsageError: the message suggests similar ones, or lists the known ones.
    """
    known = list(known)
    for option in options:
        if option not in known:
            hint = suggestion(similar_names(option, known), f"its options are {', '.join(known)}")
            raise UsageError(f"{what} has no option {option!r}{hint}")


def check_keywords(owner: object, given: Iterable[str], shared: type) -> None:
    """Validate the names of keywords to a constructor: those of its class, or of a TypedDict that classes share.

    Raises:
        UsageError: as `check_known`.
    """
    own = type(owner).__init__.__kwdefaults__ or ()
    check_known(given, dict.fromkeys((*own, *shared.__annotations__)), type(owner).__name__)


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else -1


def _wrong_option(option: str, wanted: str, value: object) -> UsageError:
    is_short = not isinstance(value, int) or -_MAX_OPTION < value < _MAX_OPTION  # Python refuses to format longer ones
    shown = f"{value!r:.50}" if is_short else "a number with too many digits"
    limit = f" and at most {_MAX_OPTION:g}" if _number(value) > _MAX_OPTION else ""
    return UsageError(f"{option} must be {wanted}{limit}, not {shown}")
