"""What type checkers see of the errors; these files are checked, never run."""

from typing import Any, assert_type

from opwire.errors import ERROR_TABLE, CallError, ErrorCode, ErrorRow, OpwireError

error = CallError("TIMEOUT", "late", {"after": 30}, retryable=True, retry_after=1)
assert_type(error.code, ErrorCode)
assert_type(error.message, str)
assert_type(error.details, Any)
assert_type(error.retryable, bool)
assert_type(error.retry_after, float | None)

assert_type(ERROR_TABLE[error.code], ErrorRow)
assert_type(ERROR_TABLE[ErrorCode.TIMEOUT].http_status, int)
assert_type(ERROR_TABLE[ErrorCode.TIMEOUT].category, str)

root: OpwireError = error
CallError(ErrorCode.ABORTED)
CallError(404)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
CallError("TIMEOUT", "late", None, True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
